"""IPython's `%load_ext tcmon`: the magic `%%tcmon [options]` watches one cell."""

from __future__ import annotations

import ast
import shlex
from typing import Any

from tcmon.options import Options


def load(shell: Any) -> None:
    """Give an IPython shell the magic."""

    def tcmon(line: str, cell: str) -> Any:
        """Watch this cell; the options are those of `tcmon run`. Shows the summary of its training."""
        return run_cell(shell, line, cell)

    shell.register_magic_function(tcmon, magic_kind="cell")


def options_of(line: str) -> Options:
    """The options that `tcmon run` would take from `line`; raises `ValueError` saying what is wrong with it."""
    import click

    from tcmon.cli.run import chosen_options, watching_options

    command = click.Command("%%tcmon", params=[*watching_options(), click.Argument(["cell"], nargs=-1)])
    try:
        context = command.make_context("%%tcmon", shlex.split(line))
    except click.exceptions.Exit:
        raise ValueError("see `tcmon run --help` for the options") from None
    except click.ClickException as error:
        raise ValueError(error.format_message()) from None
    if context.params["cell"]:
        raise ValueError(f"{context.params['cell'][0]!r} is no option of %%tcmon")
    return Options(**chosen_options({name: value for name, value in context.params.items() if name != "cell"}))


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
