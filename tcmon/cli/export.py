"""`tcmon export`: a run in the format of another tool."""

import os
import shlex
import sys
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
  tcmon export runs/today --to perfetto -o today.json.gz --steps 100:120
  tcmon export runs/today --to parquet -o today
  tcmon export runs/today --to tensorboard -o logs/today"""


@click.command(epilog=EXAMPLES)
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(("perfetto", "parquet", "tensorboard", "traincheck")),
    required=True,
    help="One file for ui.perfetto.dev and chrome://tracing; a folder of tables for pandas, DuckDB and others; a "
    "folder of event files; a trace folder that traincheck-infer and traincheck-check read.",
)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="What to write. A file is compressed if it ends in .gz, and - is standard output."
    "  [default: RUN.perfetto.json.gz, RUN.parquet, ... here]",
)
@click.option(
    "--steps",
    metavar="A:B",
    help="Only what happened from the begin of step A to the end of step B; A or B may be left out.",
)
@click.option(
    "--role", type=click.Choice(("train", "eval")), help="What kind of steps --steps means.  [default: train]"
)
@click.option("--force", is_flag=True, help="Replace an export that is at PATH.")
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
        name = directory.absolute().resolve().name
        if target == "perfetto":
            _to_perfetto(run, output or Path(f"{name}.perfetto.json.gz"), chosen, force=force)
        elif target == "parquet":
            _to_parquet(run, output or Path(f"{name}.parquet"), chosen, force=force)
        elif target == "tensorboard":
            _to_tensorboard(run, output or Path(f"{name}.tensorboard"), chosen, force=force)
        else:
            _to_traincheck(run, output or Path(f"{name}.traincheck"), chosen, force=force)
    except TcmonError as error:
        raise click.ClickException(str(error)) from None
    except BrokenPipeError:
        # Whoever reads standard output has seen enough; what is left must not be flushed into it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(1) from None
    except OSError as error:
        raise click.ClickException(f"can't write: {error.strerror or error}") from None


def _to_perfetto(run: "Run", output: Path, steps: "StepRange | None", *, force: bool) -> None:
    from tcmon.cli.progress import progress
    from tcmon.export.output import STDOUT, written
    from tcmon.export.perfetto import export as export_run
    from tcmon.export.perfetto import total_bytes

    with written(output, force=force) as write, progress(total_bytes(run, steps)) as advance:
        exported = export_run(run, write, steps=steps, advance=advance)
    _warn(exported.damaged_calls, "damaged rows of calls were passed over")
    _warn(exported.left_out, "slices were left out since they overlap too many others")
    if output != STDOUT:
        from tcmon.report import wording

        size = f", {wording.size(output.stat().st_size)}" if output.is_file() else ""
        steps_in_it = f"{wording.counted(exported.steps, 'step')}, {exported.recorded:,} recorded"
        click.echo(f"{output}: {steps_in_it}, {wording.counted(exported.calls, 'call')}{size}")
        click.echo("Open it at https://ui.perfetto.dev or chrome://tracing")


def _to_parquet(run: "Run", output: Path, steps: "StepRange | None", *, force: bool) -> None:
    from tcmon.cli.progress import progress
    from tcmon.export.output import written_folder
    from tcmon.export.parquet import TABLES, is_of_export, require_pyarrow
    from tcmon.export.parquet import export as export_run
    from tcmon.export.perfetto import total_bytes
    from tcmon.report import wording

    require_pyarrow()
    with (
        written_folder(output, force=force, is_ours=is_of_export) as folder,
        progress(total_bytes(run, steps)) as advance,
    ):
        exported = export_run(run, folder, steps=steps, advance=advance)
    _warn(exported.damaged_calls, "damaged rows of calls were passed over")
    size = wording.size(sum(each.stat().st_size for each in output.rglob("*.parquet")))
    steps_in_it = f"{wording.counted(exported.steps, 'step')}, {exported.recorded:,} recorded"
    click.echo(f"{output}: {steps_in_it}, {wording.counted(exported.calls, 'call')}, {size}")
    click.echo(f"Tables: {', '.join(TABLES)}")


def _to_tensorboard(run: "Run", output: Path, steps: "StepRange | None", *, force: bool) -> None:
    from tcmon.cli.progress import progress
    from tcmon.export.output import written_folder
    from tcmon.export.tensorboard import PARAMETERS, is_of_export, total_bytes
    from tcmon.export.tensorboard import export as export_run
    from tcmon.report import wording

    with (
        written_folder(output, force=force, is_ours=is_of_export) as folder,
        progress(total_bytes(run, steps)) as advance,
    ):
        exported = export_run(run, folder, steps=steps, advance=advance)
    _warn(exported.left_out, f"parameters beyond {PARAMETERS} have no curves of their own; --to parquet has all")
    steps_in_it = f"{wording.counted(exported.steps, 'step')}, {exported.recorded:,} recorded"
    click.echo(f"{output}: {steps_in_it}, {wording.counted(exported.scalars, 'value')}")
    click.echo(f"Look at it with: tensorboard --logdir {shlex.quote(str(output))}")


def _to_traincheck(run: "Run", output: Path, steps: "StepRange | None", *, force: bool) -> None:
    from tcmon.cli.progress import progress
    from tcmon.export.output import written_folder
    from tcmon.export.traincheck import export as export_run
    from tcmon.export.traincheck import is_of_export, total_bytes
    from tcmon.report import wording

    with (
        written_folder(output, force=force, is_ours=is_of_export) as folder,
        progress(total_bytes(run, steps)) as advance,
    ):
        exported = export_run(run, folder, steps=steps, advance=advance)
    _warn(exported.damaged_calls, "damaged rows of calls were passed over")
    _warn(exported.without_state, "recorded training steps tell nothing of parameters (--record calls,args,state)")
    counts = f"{wording.counted(exported.calls, 'call')}, {exported.states:,} states of parameters"
    click.echo(f"{output}: {wording.counted(exported.steps, 'recorded step')}, {counts}")
    click.echo(f"Infer invariants with: traincheck-infer -f {shlex.quote(str(output))}")


def _warn(number: int, what: str) -> None:
    if number:
        click.echo(f"tcmon: warning: {number:,} {what}", err=True)
