"""`tcmon record`: asks a run in progress to record its next steps."""

import time
from pathlib import Path

import click

from tcmon.errors import TcmonError

EXAMPLES = """\b
Examples:
  tcmon record 4711 --steps 20
  tcmon record tcmon-runs/train-20261201-033000-4711     (all processes of the run)"""


@click.command(epilog=EXAMPLES)
@click.argument("run", metavar="PID|RUN")
@click.option(
    "--steps", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="How many training steps."
)
@click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=10.0,
    show_default=True,
    help="How long to wait until the run has begun to do so.",
)
def record(run: str, *, steps: int, wait: float) -> None:
    """Ask a run in progress to record its next steps, whatever its sampler says.

    The run is given by the number of its process or by its directory, on the machine where it runs. It looks at the
    end of each step.
    """
    from tcmon.trace.journal import is_request_open, request_steps
    from tcmon.trace.running import journal_of, running_journals

    journals = {int(run): journal_of(int(run))} if run.isdecimal() else running_journals(Path(run))
    for pid, journal in journals.items():
        try:
            request_steps(journal, steps)
        except (OSError, ValueError) as error:
            raise TcmonError(f"can't ask process {pid}: {error}") from None
    asked = time.monotonic()
    what = "its next step" if steps == 1 else f"its next {steps:,} steps"
    for pid, journal in journals.items():
        while (is_open := is_request_open(journal)) and time.monotonic() - asked < wait:
            time.sleep(0.05)
        if is_open:
            click.echo(f"process {pid} has not ended a step for {wait:g} s; it will record {what} when it has")
        else:
            click.echo(f"process {pid} records {what} in {journal.parent}")
