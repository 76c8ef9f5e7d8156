"""`tcmon report`: the summary of a run, or one step of it."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tcmon.errors import TcmonError

if TYPE_CHECKING:
    from tcmon.trace.reader import Run

EXAMPLES = """\b
Examples:
  tcmon report tcmon-runs/train-20261201-033000-4711
  tcmon report --top 30 runs/today
  tcmon report --step 22 runs/today
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
@click.option("--rank", metavar="N", type=click.IntRange(0), help="Of a distributed run, show rank N.  [default: 0]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
@click.option("--no-color", is_flag=True, help="Plain text also on a terminal.")
def report(
    directory: Path,
    *,
    step: int | None,
    role: str | None,
    top: int | None,
    rank: int | None,
    as_json: bool,
    no_color: bool,
) -> None:
    """Show the summary of a run, or with --step one recorded step as a tree of calls.

    RUN is the run's directory. It may be one whose program still runs or was killed.
    """
    if role is not None and step is None:
        raise click.UsageError("--role goes with --step")
    from tcmon.trace.reader import open_run

    try:
        run = open_run(directory, rank)
        if step is None:
            _summary(run, top or FUNCTIONS, as_json=as_json, no_color=no_color)
        else:
            _step(run, role or "train", step, top or LINES, as_json=as_json, no_color=no_color)
    except TcmonError as error:
        raise click.ClickException(str(error)) from None


def _summary(run: "Run", top: int, *, as_json: bool, no_color: bool) -> None:
    from tcmon.checks.run import check
    from tcmon.report.summary import summarise

    summary = summarise(run, top=top)
    checked = check(run)
    if as_json:
        from tcmon.report.as_json import as_json as json_of

        _print_json(json_of(summary, findings=checked.findings))
    else:
        from tcmon.checks.text import brief
        from tcmon.report.text import render

        console = _console(no_color=no_color)
        render(summary, console)
        brief(checked, str(run.path), console)


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
