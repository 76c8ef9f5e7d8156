"""`tcmon demo`: the main job on a packaged program."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tcmon.session import Session

EXAMPLES = """\b
Examples:
  tcmon demo
  tcmon demo --epochs 2 --workers 2"""


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def demo(args: tuple[str, ...]) -> Callable[[], None]:
    """Train a small language model, watched by tcmon.

    This is tcmon run --interval 20 on a program that comes with tcmon: it trains a character-level
    transformer on the source text of Python's standard library. ARGS are that program's.
    """
    return partial(_demo, args)


def _demo(args: tuple[str, ...]) -> None:
    from tcmon import demo as package
    from tcmon.cli.watch import log_to_stderr, watch
    from tcmon.options import Options
    from tcmon.program import script_program

    log_to_stderr("warning")
    program = script_program(str(Path(package.__path__[0]) / "train.py"), args)
    watch(program, Options(interval=20), command=["tcmon", *sys.argv[1:]], afterwards=_next_commands)


def _next_commands(session: "Session") -> str:
    folder = Path.cwd()
    run = session.run_dir.relative_to(folder) if session.run_dir.is_relative_to(folder) else session.run_dir
    return f"""
Next commands to try:
  tcmon report {run}
      this summary again, from the run's directory
  tcmon report --json {run}
      the same and more, for programs
  tcmon run --interval 20 YOUR_SCRIPT.py
      your own training
"""
