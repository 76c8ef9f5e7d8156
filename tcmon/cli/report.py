"""`tcmon report`: the summary of a run."""

import sys
from pathlib import Path

import click

from tcmon.errors import TcmonError

EXAMPLES = """\b
Examples:
  tcmon report tcmon-runs/train-20261201-033000-4711
  tcmon report --json runs/today | jq .steps.train.p50_ms"""


@click.command(epilog=EXAMPLES)
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")
def report(directory: Path, *, as_json: bool) -> None:
    """Show the summary of a run.

    RUN is the run's directory. It may be one whose program still runs or was killed.
    """
    from tcmon.report.summary import summarise
    from tcmon.trace.reader import open_run

    try:
        summary = summarise(open_run(directory))
    except TcmonError as error:
        raise click.ClickException(str(error)) from None
    if as_json:
        import orjson

        from tcmon.report.as_json import as_json as json_of

        sys.stdout.write(orjson.dumps(json_of(summary), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        from rich.console import Console

        from tcmon.report.text import render

        render(summary, Console())
