"""IPython's `%load_ext tcmon`: the magic `%%tcmon [options]` watches one cell."""

from __future__ import annotations

import ast
import shlex
from typing import Any

from tcmon.options import Options

_NONE_HERE = ("program", "as_module", "after_dashes", "follow", "quiet", "log_level")
_SAMPLERS = ("steps", "budget", "every", "ratio")


def load(shell: Any) -> None:
    """Give an IPython shell the magic."""

    def tcmon(line: str, cell: str) -> Any:
        """Watch this cell; the options are those of `tcmon run`. Shows the summary of its training."""
        return run_cell(shell, line, cell)

    shell.register_magic_function(tcmon, magic_kind="cell")


def options_of(line: str) -> Options:
    """The options that `tcmon run` would take from `line`; raises `ValueError` saying what is wrong with it."""
    import click

    from tcmon.cli.run import run

    try:
        words = shlex.split(line)
        context = run.make_context("%%tcmon", [*words, "cell"])
    except click.exceptions.Exit:
        raise ValueError("see `tcmon run --help` for the options") from None
    except click.ClickException as error:
        raise ValueError(error.format_message()) from None
    chosen = dict(context.params)
    if chosen["program"] != ("cell",):
        raise ValueError(f"{chosen['program'][0]!r} is no option of %%tcmon")
    for name in _NONE_HERE:
        chosen.pop(name, None)
    for name in _SAMPLERS:
        sampler = chosen.pop(name, None)
        if sampler is not None:
            chosen["sampler"] = chosen["sampler"] | sampler if "sampler" in chosen else sampler
    return Options(**chosen)


def run_cell(shell: Any, line: str, cell: str) -> Any:
    """Run the text of a cell as the shell itself would, watched; the summary, to be shown, if there is a run."""
    from tcmon.attached import watch

    options = options_of(line)
    text = shell.transform_cell(cell)
    name = shell.compile.cache(text)
    nodes = shell.transform_ast(ast.parse(text, name)).body
    # As a cell's last value is shown, so is the watched cell's; the summary comes after it.
    last = nodes.pop() if nodes and isinstance(nodes[-1], ast.Expr) else None
    if text.rstrip().endswith(";") and last is not None:
        nodes, last = [*nodes, last], None
    with watch(options, "%%tcmon") as run:
        exec(compile(ast.Module(nodes, []), name, "exec", dont_inherit=True), shell.user_ns)
        if last is not None:
            exec(compile(ast.Interactive([last]), name, "single", dont_inherit=True), shell.user_ns)
    return run.summary()
