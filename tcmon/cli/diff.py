"""`tcmon diff`: what differs between two runs."""

import sys
from pathlib import Path

import click

from tcmon.errors import TcmonError

EXAMPLES = """\b
Examples:
  tcmon diff runs/monday runs/today
  tcmon diff runs/monday runs/today --json | jq .steps.train"""


@click.command(epilog=EXAMPLES)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--least",
    metavar="PERCENT",
    type=click.FloatRange(0, 1000),
    default=5,
    show_default=True,
    help="Leave out times that differ by less, noise or not.",
)
@click.option(
    "--top", metavar="N", type=click.IntRange(1), default=10, show_default=True, help="Show N functions in each list."
)
@click.option("--rank", metavar="N", type=click.IntRange(0), help="Of distributed runs, compare the times of rank N.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead, with all functions.")
@click.option("--no-color", is_flag=True, help="Plain text also on a terminal.")
def diff(first: Path, second: Path, *, least: float, top: int, rank: int | None, as_json: bool, no_color: bool) -> None:
    """Show what differs between two runs of a program beyond noise.

    A and B are the runs' directories. Compared are times of steps, self time and calls of functions and time at lines
    per recorded step, options and versions; and of steps that both recorded with state, on every rank, the contents of
    parameters: the first step and the parameters that differ, with the losses around it.
    """
    from tcmon.report.diff import diff as diff_of
    from tcmon.trace.reader import open_run

    try:
        found = diff_of(open_run(first, rank), open_run(second, rank), least_change=least / 100)
    except TcmonError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        import orjson

        from tcmon.report.diff_json import diff_as_json

        sys.stdout.write(orjson.dumps(diff_as_json(found), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        from rich.console import Console

        from tcmon.report.diff_text import render_diff

        render_diff(found, Console(color_system=None) if no_color else Console(), top=top)
