"""`tcmon report`: the summary of a run, or one step of it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcmon.errors import TcmonError

if TYPE_CHECKING:
    from tcmon.checks.run import Checked
    from tcmon.report.state import State
    from tcmon.report.summary import Summary
    from tcmon.trace.reader import Run

EXAMPLES = """\b
Examples:
  tcmon report tcmon-runs/train-20261201-033000-4711
  tcmon report --top 30 runs/today
  tcmon report --step 22 runs/today
  tcmon report --follow runs/today
  tcmon report --loop train.py:31 runs/today
  tcmon report --json runs/today | jq .steps.train.p50_ms"""

FUNCTIONS = 10
LINES = 60


@click.command(epilog=EXAMPLES)
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--step", metavar="N", type=click.IntRange(1), help="Show step N, which must have been recorded.")
@click.option(
    "--role",
    type=click.Choice(("train", "eval")),
    help="What kind of step --step means.  [default: train]",
)
@click.option(
    "--top",
    metavar="N",
    type=click.IntRange(1),
    help=f"Show N functions, or with --step N lines of calls.  [default: {FUNCTIONS}, or {LINES}]",
)
@click.option("--loop", metavar="PLACE", help="Only the steps of the loop at FILE:LINE, or in a function.")
@click.option("--follow", is_flag=True, help="Redraw the summary until the run has ended.")
@click.option("--rank", metavar="N", type=click.IntRange(0), help="Of a distributed run, show rank N.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option("--no-color", is_flag=True, help="Plain text also on a terminal.")
def report(
    directory: Path,
    *,
    step: int | None,
    role: str | None,
    top: int | None,
    loop: str | None,
    follow: bool,
    rank: int | None,
    as_json: bool,
    no_color: bool,
) -> None:
    """Show the summary of a run, or with --step one recorded step as a tree of calls.

    RUN is the run's directory. It may be one whose program still runs or was killed.
    """
    if role is not None and step is None:
        raise click.UsageError("--role goes with --step")
    if step is not None and (loop is not None or follow):
        raise click.UsageError(f"--{'loop' if loop is not None else 'follow'} does not go with --step")
    from tcmon.trace.reader import open_run

    try:
        if step is None:
            show = _Summary(directory, rank, top or FUNCTIONS, loop)
            if follow:
                show.follow(as_json=as_json, no_color=no_color)
            elif as_json:
                show.print_json()
            else:
                show.draw(_console(no_color=no_color))
        else:
            _step(open_run(directory, rank), role or "train", step, top or LINES, as_json=as_json, no_color=no_color)
    except TcmonError as error:
        raise click.ClickException(str(error)) from None


class _Summary:
    """The summary of the run in a directory, read anew each time that it is shown."""

    def __init__(self, directory: Path, rank: int | None, top: int, loop: str | None) -> None:
        self._directory = directory
        self._rank = rank
        self._top = top
        self._loop = loop

    def draw(self, console: Any) -> "State":
        from tcmon.checks.text import brief
        from tcmon.report.text import render

        summary, checked = self._read()
        render(summary, console)
        brief(checked, str(self._directory), console)
        return summary.state

    def print_json(self) -> None:
        from tcmon.report.as_json import as_json

        summary, checked = self._read()
        _print_json(as_json(summary, findings=checked.findings))

    def follow(self, *, as_json: bool, no_color: bool) -> None:
        from tcmon.report.follow import follow, until_over

        if as_json:
            until_over(lambda: self._read()[0].state)
            self.print_json()
        else:
            follow(self.draw, _console(no_color=no_color))

    def _read(self) -> "tuple[Summary, Checked]":
        from tcmon.checks.run import check
        from tcmon.report.loopchoice import LoopChoice
        from tcmon.report.summary import summarise
        from tcmon.trace.reader import open_run

        run = open_run(self._directory, self._rank)
        loop = None if self._loop is None else LoopChoice.parse(self._loop)
        return summarise(run, top=self._top, loop=loop), check(run)


def _step(run: "Run", role: str, n: int, most: int, *, as_json: bool, no_color: bool) -> None:
    from tcmon.report.onestep import one_step

    one = one_step(run, role, n)
    if as_json:
        from tcmon.report.as_json import step_as_json

        _print_json(step_as_json(one))
    else:
        from tcmon.report.onestep_text import render_step

        render_step(one, _console(no_color=no_color), most=most)


def _console(*, no_color: bool) -> Any:
    from rich.console import Console

    return Console(color_system=None) if no_color else Console()


def _print_json(value: object) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")
