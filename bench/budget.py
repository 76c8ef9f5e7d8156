"""What a budget really costs: `python bench/budget.py [--share 0.01] WORKLOAD [ARGS]...`.

The workload runs as it is, in this process. Blocks of its steps with a session under `Budget` alternate with blocks
without tcmon, counted by a hook of torch behind each optimizer step. Of each block the first tenth is not timed: there
a session finds the loops. The clock is the process' own (one thread computes): what else runs on the machine doesn't
count. Printed is the median ratio of each block with a session to the blocks beside it, less one,
against the target and what the sessions say of themselves.
"""

import argparse
import contextlib
import io
import random
import runpy
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

import tcmon


class Blocks:
    """Attaches and detaches tcmon every so many optimizer steps, and times what lies between."""

    def __init__(self, share: float, steps: int, pairs: int, folder: Path) -> None:
        self._share = share
        self._steps = steps
        self._last = 2 * pairs + 1
        self._folder = folder
        self._count = 0
        self._run: tcmon.Attached | None = None
        self._begin = time.process_time_ns()
        self.times: list[int] = []
        self.said: list[float] = []
        self.recorded: list[int] = []

    def step(self, *_: object) -> None:
        """A step of the optimizer is over."""
        self._count += 1
        if self._count >= 0 and self._count % self._steps == self._steps // 10:
            self._begin = time.process_time_ns()
        elif self._count > 0 and self._count % self._steps == 0:
            self._turn()

    def _turn(self) -> None:
        self.times.append(time.process_time_ns() - self._begin)
        if self._run is not None:
            overhead = self._run.detach().data["overhead"]
            self.said.append(overhead["budget"]["achieved"] or 0.0)
            self.recorded.append(self._run.summary().data["steps"]["train"]["sampled"])
            self._run = None
        elif len(self.times) < self._last:
            sampler = tcmon.samplers.Budget(self._share)
            self._run = tcmon.attach(sampler=sampler, out=self._folder / str(len(self.times)))
        if len(self.times) == self._last:
            raise SystemExit

    def ratios(self) -> list[float]:
        """Each block with tcmon to those before and after it."""
        return [self.times[i] * 2 / (self.times[i - 1] + self.times[i + 1]) for i in range(1, len(self.times) - 1, 2)]


def interval(values: list[float]) -> tuple[float, float]:
    """Where the median lies, by 2,000 bootstrap samples, with 90 % confidence."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2_000))
    return medians[100], medians[1_900]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.01, help="the budget (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1_000, help="in a block (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=15, help="of blocks (default: %(default)s)")
    parser.add_argument("workload", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        blocks = Blocks(given.share, given.steps, given.pairs, Path(folder))
        hook = register_optimizer_step_post_hook(blocks.step)
        sys.argv = [str(given.workload), *given.args]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            runpy.run_path(str(given.workload), run_name="__main__")
        hook.remove()
    ratios = blocks.ratios()
    if not ratios:
        sys.exit(f"the workload ended after {len(blocks.times)} blocks; let it run longer, or give fewer --steps")
    low, high = interval(ratios)
    print(
        f"{given.workload.stem}: target {given.share:.2%}, measured {statistics.median(ratios) - 1:.2%} "
        f"({low - 1:.2%} to {high - 1:.2%}, {len(ratios)} pairs of {given.steps} steps of "
        f"{statistics.median(blocks.times) / given.steps / 0.9e6:.2f} ms), the sessions say "
        f"{statistics.median(blocks.said):.2%}; {statistics.median(blocks.recorded):g} steps recorded a block"
    )


if __name__ == "__main__":
    main()
