"""`tcmon loops`: the training and evaluation loops of source files, and why they are taken for that."""

from __future__ import annotations

import ast
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.text import Text

    from tcmon.analysis.modules import ModuleLoop

EXAMPLES = """\b
Examples:
  tcmon loops train.py
  tcmon loops --all train.py engine.py
  tcmon loops --json *.py | jq '.[] | select(.role == "train")'"""

OTHER = "other"
FAILED = 1


@dataclass(frozen=True, slots=True)
class _Source:
    """A file that was read and analysed."""

    name: str
    lines: list[str]
    loops: list[ModuleLoop]


@click.command(epilog=EXAMPLES)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects instead.")
@click.option("--all", "with_others", is_flag=True, help="Show the other loops too, and why they play no role.")
@click.option("--no-color", is_flag=True, help="Print without colours, as with NO_COLOR=1.")
def loops(files: tuple[str, ...], *, as_json: bool, with_others: bool, no_color: bool) -> int:
    """Show the training and evaluation loops of Python files, and the evidence.

    Nothing of the files is run. The exit code is 1 if one of them can't be analysed.
    """
    sources: list[_Source] = []
    failed = False
    for name in files:
        try:
            sources.append(_analyse(name, with_others))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            failed = True
            print(f"tcmon: error: {_fault(name, error)}", file=sys.stderr)
    if as_json:
        _print_json(sources)
    else:
        _print_table(sources, with_others=with_others, no_color=no_color)
    return FAILED if failed else 0


def _analyse(name: str, with_others: bool) -> _Source:
    from tcmon.analysis.modules import module_loops, too_long

    path = Path(name)
    if path.exists() and not path.is_file():
        raise IsADirectoryError("it is a directory" if path.is_dir() else "it is no regular file")
    text = _decoded(path.read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler has to say about the program is not asked here
        tree = ast.parse(text, name)
        code = compile(text, name, "exec", dont_inherit=True)
    found = module_loops(code, tree)
    for each in too_long(code):
        where = f"{each.co_qualname} (line {each.co_firstlineno})"
        print(f"tcmon: warning: {_shown(name)}: {_shown(where)} is too long, its loops are not shown", file=sys.stderr)
    return _Source(name, text.splitlines(), [loop for loop in found if loop.role is not None or with_others])


def _decoded(content: bytes) -> str:
    from importlib.util import decode_source

    try:
        return decode_source(content)
    except SyntaxError:
        content.decode()  # raises UnicodeDecodeError where that is the fault, and not a coding that isn't known
        raise


def _fault(name: str, error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        why = f"{error.msg} (line {error.lineno})"
    elif isinstance(error, OSError):
        why = error.strerror or str(error)
    elif isinstance(error, UnicodeDecodeError):
        why = "it is not UTF-8 and names no other coding"
    elif isinstance(error, RecursionError | MemoryError):
        why = "it is nested too deeply to be compiled"
    else:
        why = str(error)
    return _shown(f"can't analyse {name!r}: {why[:1].lower() + why[1:]}")


def _shown(text: str) -> str:
    from tcmon.report.wording import printable

    return printable(text, sys.stderr.encoding)


def _print_json(sources: list[_Source]) -> None:
    import orjson

    found = [
        {
            # A name that is no text is written as the interpreter itself shows it.
            "file": source.name.encode("utf-8", "backslashreplace").decode(),
            "qualname": loop.qualname,
            "line": loop.line,
            "role": loop.role or OTHER,
            "evidence": list(loop.evidence),
        }
        for source in sources
        for loop in source.loops
    ]
    sys.stdout.write(orjson.dumps(found, option=orjson.OPT_INDENT_2).decode() + "\n")


def _print_table(sources: list[_Source], *, with_others: bool, no_color: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=no_color or None, highlight=False)
    if not console.is_terminal:
        console.width = 1 << 16  # the reader of a pipe wants whole lines
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("Role", "Place", "Loop and evidence"):
        table.add_column(title, no_wrap=title == "Role", overflow="fold")
    for source in sources:
        for loop in source.loops:
            table.add_row(*_row(source, loop, console.encoding))
    if table.row_count:
        with console.capture() as captured:
            console.print(table)
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
    elif sources:
        what = "loops" if with_others else "training or evaluation loops"
        hint = "" if with_others else "; --all shows the others and why"
        console.print(Text(f"No {what} found{hint}."))


def _row(source: _Source, loop: ModuleLoop, encoding: str) -> tuple[Text, Text, Text]:
    from rich.text import Text

    from tcmon.report.wording import printable

    style = {"train": "bold green", "eval": "bold cyan"}.get(loop.role or OTHER, "dim")
    line = source.lines[loop.line - 1].strip() if 0 < loop.line <= len(source.lines) else ""
    function = "" if loop.qualname == "<module>" else f"in {loop.qualname}"
    why = Text(printable(line, encoding))
    for reason in loop.evidence:
        why.append(f"\n  {printable(reason, encoding)}", "dim")
    place = Text.assemble(printable(f"{source.name}:{loop.line}", encoding), ("\n" if function else ""))
    return Text(loop.role or OTHER, style), place.append(printable(function, encoding), "dim"), why
