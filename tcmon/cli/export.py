"""`tcmon export`: a run in the format of another tool."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tcmon.errors import TcmonError

if TYPE_CHECKING:
    from tcmon.export.selection import StepRange
    from tcmon.trace.reader import Run

EXAMPLES = """\b
Examples:
  tcmon export runs/today --to perfetto
  tcmon export runs/today --to perfetto -o today.json.gz --steps 100:120"""


@click.command(epilog=EXAMPLES)
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(("perfetto",)),
    required=True,
    help="The tool: ui.perfetto.dev, chrome://tracing.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The file to write, compressed if it ends in .gz; - is standard output.  [default: RUN.perfetto.json.gz here]",
)
@click.option(
    "--steps",
    metavar="A:B",
    help="Only what happened from the begin of step A to the end of step B; A or B may be left out.",
)
@click.option(
    "--role", type=click.Choice(("train", "eval")), help="What kind of steps --steps means.  [default: train]"
)
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
def export(
    directory: Path, *, target: str, output: Path | None, steps: str | None, role: str | None, force: bool
) -> None:
    """Write a run in the format of another tool.

    RUN is the run's directory. It may be one whose program still runs or was killed.
    """
    if role is not None and steps is None:
        raise click.UsageError("--role goes with --steps")
    from tcmon.export.selection import StepRange
    from tcmon.trace.reader import open_run

    try:
        chosen = None if steps is None else StepRange.parse(steps, role or "train")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--steps'") from None
    try:
        run = open_run(directory)
        if output is None:
            output = Path(f"{directory.absolute().resolve().name}.perfetto.json.gz")
        _to_perfetto(run, output, chosen, force=force)
    except TcmonError as error:
        raise click.ClickException(str(error)) from None
    except BrokenPipeError:
        # Whoever reads standard output has seen enough; what is left must not be flushed into it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(1) from None


def _to_perfetto(run: "Run", output: Path, steps: "StepRange | None", *, force: bool) -> None:
    from tcmon.export.output import STDOUT, written
    from tcmon.export.perfetto import export as export_run
    from tcmon.export.perfetto import total_bytes

    with written(output, force=force) as write, _progress(total_bytes(run, steps)) as advance:
        exported = export_run(run, write, steps=steps, advance=advance)
    for number, what in (
        (exported.damaged_calls, "damaged rows of calls were passed over"),
        (exported.left_out, "slices were left out since they overlap too many others"),
    ):
        if number:
            click.echo(f"tcmon: warning: {number:,} {what}", err=True)
    if output != STDOUT:
        from tcmon.report import wording

        size = f", {wording.size(output.stat().st_size)}" if output.is_file() else ""
        steps_in_it = f"{wording.counted(exported.steps, 'step')}, {exported.recorded:,} recorded"
        click.echo(f"{output}: {steps_in_it}, {wording.counted(exported.calls, 'call')}{size}")
        click.echo("Open it at https://ui.perfetto.dev or chrome://tracing")


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    """Shows how far an export is, where somebody looks at it."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        untold = 0

        def advance(size: int) -> None:
            nonlocal untold
            untold += size
            if untold >= 1 << 20:
                progress.advance(task, untold)
                untold = 0

        yield advance
