"""What a sampler adds to a step that it does not record: `python bench/sampler_prices.py`.

Blocks with the plain interval and with each sampler alternate in one process; printed are medians, in nanoseconds of
the process' own time.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tcmon import attach, samplers

STEPS = 20_000
ROUNDS = 15
RARELY = 10**9


class Optimizer:
    """Stepped, so that its loop is one of training."""

    def step(self) -> None:
        pass


optimizer = Optimizer()


def train(count: int) -> None:
    """Run the training loop."""
    for _ in range(count):
        optimizer.step()


def train_on_losses(count: int) -> None:
    """Run a training loop that computes losses."""
    for _ in range(count):
        weight.sum().backward()
        optimizer.step()


weight = torch.ones(1, requires_grad=True)

SAMPLERS = {
    "Interval": lambda: samplers.Interval(RARELY),
    "Interval (again)": lambda: samplers.Interval(RARELY),
    "Never": samplers.Never,
    "Steps": lambda: samplers.Steps(f"{RARELY}:"),
    "Interval | Steps": lambda: samplers.Interval(RARELY) | samplers.Steps(f"{RARELY}:"),
    "OnSignal": samplers.OnSignal,
    "Ratio": lambda: samplers.Ratio(0.0),
    "Every": lambda: samplers.Every(1e8),
    "Budget": lambda: samplers.Budget(1e-9),
    "Slow": lambda: samplers.Slow(1e8),
    "Stall": lambda: samplers.Stall(1e8),
    "OnCall": lambda: samplers.OnCall("never_called"),
}
"""Each records none of the steps that are measured."""

ON_LOSSES = {
    "Interval": lambda: samplers.Interval(RARELY),
    "NonFinite": samplers.NonFinite,
    "LossSpike": lambda: samplers.LossSpike(1e8),
}


def price(sampler: samplers.Sampler, loop: Callable[[int], None], steps: int, folder: Path) -> float:
    """The nanoseconds of a step under a sampler."""
    with attach(sampler=sampler, record=(), out=folder):
        loop(100)
        begin = time.process_time_ns()
        loop(steps)
        return (time.process_time_ns() - begin) / steps


def compare(kinds: Mapping[str, Callable[[], samplers.Sampler]], loop: Callable[[int], None], steps: int) -> None:
    """Measure and print."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for name, taken in times.items():
                taken.append(price(kinds[name](), loop, steps, Path(folder, f"{number}-{name.replace(' ', '')}")))
    for name, taken in times.items():
        added = statistics.median(own - plain for own, plain in zip(taken, times["Interval"], strict=True))
        print(f"{name:20} {statistics.median(taken):8.0f} a step {added:+8.0f} over the interval")


def main() -> None:
    """Compare all of them."""
    torch.set_num_threads(1)
    compare(SAMPLERS, train, STEPS)
    compare(ON_LOSSES, train_on_losses, STEPS // 4)


if __name__ == "__main__":
    main()
