"""`tcmon view`: a run as one HTML file."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tcmon.errors import TcmonError

if TYPE_CHECKING:
    from tcmon.trace.reader import Run

EXAMPLES = """\b
Examples:
  tcmon view runs/today --open
  tcmon view runs/today -o today.html"""


@click.command(epilog=EXAMPLES)
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="What to write; - is standard output.  [default: RUN.html here]",
)
@click.option("--open", "show", is_flag=True, help="Open it in the browser.")
@click.option("--rank", metavar="N", type=click.IntRange(0), help="Of a distributed run, show rank N.  [default: 0]")
@click.option("--force", is_flag=True, help="Replace FILE also if it is something else than an earlier view.")
def view(directory: Path, *, output: Path | None, show: bool, rank: int | None, force: bool) -> None:
    """Write a run as one HTML file with charts, which needs no network.

    RUN is the run's directory. It may be one whose program still runs or was killed. The charts are drawn by plotly,
    which comes with pip install 'tcmon[view]'.
    """
    from tcmon.export.output import STDOUT
    from tcmon.trace.reader import open_run

    if show and output == STDOUT:
        raise click.UsageError("--open needs a file")
    try:
        run = open_run(directory, rank)
        target = output or Path(f"{directory.absolute().resolve().name}.html")
        _write(run, target, force=force)
    except TcmonError as error:
        raise click.ClickException(str(error)) from None
    except BrokenPipeError:
        # Whoever reads standard output has seen enough; what is left must not be flushed into it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(1) from None
    except OSError as error:
        raise click.ClickException(f"can't write: {error.strerror or error}") from None
    if target != STDOUT:
        from tcmon.report import wording

        click.echo(f"{target} ({wording.size(target.stat().st_size)})")
    if show:
        import webbrowser

        if not webbrowser.open(target.resolve().as_uri()):
            click.echo("tcmon: warning: no browser could be opened", err=True)


def _write(run: "Run", target: Path, *, force: bool) -> None:
    from tcmon.cli.progress import progress
    from tcmon.export.output import STDOUT, require_free, written
    from tcmon.view.page import charts_library, is_view, page, total_bytes

    library = charts_library()
    # A view made earlier, of a run that has gone on since, is replaced unasked.
    force = force or (target != STDOUT and is_view(target))
    if target != STDOUT:
        require_free(target, force=force)
    with progress(total_bytes(run)) as advance:
        content = page(run, library, advance)
    with written(target, force=force) as write:
        write(content)
