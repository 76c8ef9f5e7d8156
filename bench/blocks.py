"""Runs a workload in this process and switches tcmon on and off between blocks of its steps.

    python -m bench.blocks cnn --record default --interval 20 --pairs 20

A hook that torch itself offers tells of each optimizer step, in blocks with and without tcmon alike. The steps right
after a switch are not measured: they hold the switch and what each code object costs once. Prints a JSON list of pairs:
seconds of a block with tcmon, and the mean of the two blocks without around it. With `--detached` the session is
closed again before the block begins: what is left after `detach()`.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.figures import against_neighbours

WORKLOADS = Path(__file__).parent / "workloads"
SETTLING = 10
"""Steps after a switch that are not measured."""
ENDLESS = str(10**4)
ARGUMENTS = {
    "cnn": ["--epochs", "1", "--steps", ENDLESS],
    "mlp": ["--epochs", "1", "--steps", ENDLESS],
    "transformer": ["--steps", ENDLESS, "--validate-every", ENDLESS],
    "deepnet": ["--steps", ENDLESS],
    "loader": ["--epochs", "1", "--steps", ENDLESS],
    "trainer": ["--steps", ENDLESS],
    "vae": [],
    "dcgan": [],
    "gcn": ["--epochs", ENDLESS],
}


class Enough(BaseException):
    """All blocks are measured."""


class Blocks:
    """Counts optimizer steps and switches at the ends of blocks."""

    def __init__(
        self, steps: int, pairs: int, options: dict[str, Any], folder: Path, *, detached: bool, cpu: bool
    ) -> None:
        self._steps = steps
        self._pairs = pairs
        self._options = options
        self._folder = folder
        self._detached = detached
        self._clock = time.process_time_ns if cpu else time.perf_counter_ns
        self._session: Any = None
        self._count = 0
        self._begin = 0
        self.times: tuple[list[float], list[float]] = ([], [])
        """Of blocks without and with tcmon."""
        self.bytes: list[float] = []
        """Of the trace for each step of a block with tcmon."""

    def stepped(self, *_: object) -> None:
        """An optimizer has stepped."""
        self._count += 1
        if self._count == SETTLING:
            if self._session is not None and self._detached:
                self._session.detach()
            self._begin = self._clock()
        elif self._count == SETTLING + self._steps:
            self._switch((self._clock() - self._begin) / 1e9)
            self._count = 0

    def _switch(self, seconds: float) -> None:
        import tcmon

        plain, watched = self.times
        if self._session is not None:
            watched.append(seconds)
            self._session.detach()
            size = sum(path.stat().st_size for path in self._session.run_dir.rglob("*") if path.is_file())
            self.bytes.append(size / (SETTLING + self._steps))
            self._session = None
            return
        plain.append(seconds)
        if len(watched) == self._pairs:
            raise Enough
        self._session = tcmon.attach(out=self._folder / str(len(watched)), **self._options)


def measure(
    workload: str, steps: int, pairs: int, options: dict[str, Any], *, detached: bool = False, cpu: bool = False
) -> Blocks:
    """Run a workload until so many pairs are measured."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    sys.argv = [workload, *ARGUMENTS[workload]]
    with tempfile.TemporaryDirectory() as folder:
        blocks = Blocks(steps, pairs, options, Path(folder), detached=detached, cpu=cpu)
        register_optimizer_step_post_hook(blocks.stepped)
        try:
            runpy.run_path(str(WORKLOADS / f"{workload}.py"), run_name="__main__")
        except Enough:
            pass
    return blocks


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description="Ratios of neighbouring blocks of steps with and without tcmon.")
    parser.add_argument("workload", choices=ARGUMENTS)
    parser.add_argument("--record", default="default", help="as of tcmon run; 'none' for nothing (default: default)")
    parser.add_argument("--interval", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40, help="steps of a block (default: 40)")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--detached", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="the process's processor time: on a machine that is shared")
    args = parser.parse_args()
    options: dict[str, Any] = {"interval": args.interval, "warmup": 0}
    if args.record != "default":
        options["record"] = () if args.record == "none" else tuple(args.record.split(","))
    if args.record == "none":
        from tcmon import samplers

        options["sampler"] = samplers.Never()
    found = measure(args.workload, args.steps, args.pairs, options, detached=args.detached, cpu=args.cpu)
    pairs = against_neighbours(*found.times)
    print(json.dumps({"pairs": pairs, "steps": args.steps, "bytes": found.bytes}), file=sys.__stdout__)


if __name__ == "__main__":
    main()
