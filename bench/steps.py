"""What an unrecorded step of an empty loop costs, in microseconds: `python -m bench.steps --pairs 20`.

The thread's own processor time, so that other processes don't count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench.figures import against_neighbours

STEPS = 20_000


class Optimizer:
    """Stepped, so that its loop is one of training."""

    def step(self) -> None:
        """Do nothing."""


optimizer = Optimizer()


def train(count: int) -> None:
    """Run the training loop."""
    for _ in range(count):
        optimizer.step()


def block() -> float:
    """Microseconds of a step."""
    train(100)
    begin = time.thread_time_ns()
    train(STEPS)
    return (time.thread_time_ns() - begin) / 1e3 / STEPS


def main() -> None:
    """Measure and print a JSON list of pairs."""
    import tcmon
    from tcmon import samplers

    parser = argparse.ArgumentParser(description="Microseconds of an empty step with and without tcmon.")
    parser.add_argument("--pairs", type=int, default=20)
    args = parser.parse_args()
    plain, watched = [block()], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.pairs):
            with tcmon.attach(sampler=samplers.Never(), record=(), out=Path(folder, str(number))):
                watched.append(block())
            plain.append(block())
    print(json.dumps({"pairs": against_neighbours(plain, watched)}))


if __name__ == "__main__":
    main()
