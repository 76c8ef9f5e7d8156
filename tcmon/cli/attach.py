"""`tcmon attach` and `tcmon detach`: watches a process that runs already."""

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

import click

from tcmon.cli.run import chosen_options, watching_options

EXAMPLES = """\b
Examples:
  tcmon attach 4711
  tcmon attach --interval 50 --out runs/today 4711
  tcmon attach --all-ranks 4711     (a rank of torchrun, or torchrun itself)
  tcmon detach 4711"""


@click.command(epilog=EXAMPLES, params=watching_options())
@click.option("--all-ranks", is_flag=True, help="Attach to all ranks of the launch that PID belongs to.")
@click.argument("pid", type=click.IntRange(1))
def attach(pid: int, all_ranks: bool, **options: Any) -> None:
    """Watch the running process PID, which was started without tcmon, until tcmon detach PID or its end.

    Takes Python 3.14 or newer, the same here and there. Its training loop is found in the frames that are running.
    """
    from tcmon.options import Options
    from tcmon.reaching import attach_to, processes

    chosen = Options(**chosen_options(options))
    pids = processes(pid, all_ranks)
    out = chosen.out or Path("tcmon-runs") / f"attached-{time.strftime('%Y%m%d-%H%M%S')}-{pid}"
    chosen = dataclasses.replace(chosen, out=out.absolute())
    for each in pids:
        run_dir = attach_to(each, chosen)
        print(f"process {each} is being watched in {run_dir}; end it by tcmon detach {each}", file=sys.stderr)


@click.command()
@click.option("--all-ranks", is_flag=True, help="Detach from all ranks of the launch that PID belongs to.")
@click.option("--quiet", is_flag=True, help="Show no summary.")
@click.argument("pid", type=click.IntRange(1))
def detach(pid: int, all_ranks: bool, quiet: bool) -> None:
    """Stop watching process PID, which tcmon attach began to watch, and show the summary; the process goes on."""
    from tcmon.reaching import detach_from, processes

    run_dirs = dict.fromkeys(detach_from(each) for each in processes(pid, all_ranks))
    if quiet:
        return
    from tcmon.follow.command import summarise_run

    for run_dir in run_dirs:
        summarise_run(run_dir)
