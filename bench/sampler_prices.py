"""What a sampler adds to a step that it does not record: `python bench/sampler_prices.py`.

Blocks with the plain interval and with each sampler alternate in one process; printed are medians, in nanoseconds.
"""

import statistics
import tempfile
import time
from pathlib import Path

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


SAMPLERS = {
    "Interval": lambda: samplers.Interval(RARELY),
    "Interval (again)": lambda: samplers.Interval(RARELY),
    "Never": samplers.Never,
    "Steps": lambda: samplers.Steps(f"{RARELY}:"),
    "Interval | Steps": lambda: samplers.Interval(RARELY) | samplers.Steps(f"{RARELY}:"),
    "OnSignal": samplers.OnSignal,
    "Ratio": lambda: samplers.Ratio(0.0),
    "Every": lambda: samplers.Every(1e8),
    "Slow": lambda: samplers.Slow(1e8),
}
"""Each records none of the steps that are measured."""


def price(name: str, folder: Path) -> float:
    """The nanoseconds of a step under a sampler."""
    with attach(sampler=SAMPLERS[name](), record=(), out=folder):
        train(100)
        begin = time.perf_counter_ns()
        train(STEPS)
        return (time.perf_counter_ns() - begin) / STEPS


def main() -> None:
    """Measure and print."""
    times: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            for name, taken in times.items():
                taken.append(price(name, Path(folder, f"{number}-{name.replace(' ', '')}")))
    for name, taken in times.items():
        added = statistics.median(own - plain for own, plain in zip(taken, times["Interval"], strict=True))
        print(f"{name:20} {statistics.median(taken):8.0f} a step {added:+8.0f} over the interval")


if __name__ == "__main__":
    main()
