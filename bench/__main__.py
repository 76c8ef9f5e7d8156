"""`python -m bench [--quick] [--out DIR]`: all figures, as a Markdown table and a JSON file.

Sections that are not begun when the time is up are left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench import peers
from bench.figures import Figure, figure, write

ROOT = Path(__file__).parent.parent

# Name, workload, arguments, target of the ratio, whether it is among the quick ones.
RATIOS: list[tuple[str, str, str, float | None, bool]] = [
    ("attached, nothing recorded, CNN", "cnn", "--record none", 1.002, False),
    ("attached, nothing recorded, MLP", "mlp", "--record none --steps 300", 1.01, True),
    ("default, interval 20, CNN", "cnn", "--interval 20", 1.005, False),
    ("default, interval 20, transformer", "transformer", "--interval 20 --steps 20", 1.005, False),
    ("default, interval 20, MLP", "mlp", "--interval 20 --steps 300", 1.03, True),
    ("every step, calls, CNN", "cnn", "--interval 1 --record calls", 1.10, True),
    ("every step, default, CNN", "cnn", "--interval 1", 1.25, True),
    ("every step, with args, CNN", "cnn", "--interval 1 --record calls,lines,args,state,loss", 1.6, False),
    ("default, interval 20, VAE", "vae", "--interval 20", None, False),
    ("default, interval 20, GCN", "gcn", "--interval 20", None, False),
    ("default, interval 20, waiting for a DataLoader", "loader", "--interval 20", None, False),
    ("default, interval 20, Trainer with GPT-2", "trainer", "--interval 20", None, False),
    ("default, interval 20, 2,000 modules", "deepnet", "--interval 20 --steps 20", None, False),
    ("after detach, CNN", "cnn", "--detached", None, False),
]
PAIRS = {"deepnet": 2, "transformer": 6}
USUAL = 12
PAIRS_QUICK = 4


def run(command: str, seconds: float) -> Any:
    """What a command of `python -m` prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", *command.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds,
    )
    return json.loads(done.stdout.splitlines()[-1])


def ratios(limit: float, *, quick: bool, cpu: bool) -> list[Figure]:
    """Figures of neighbouring blocks in one process."""
    found = []
    for name, workload, options, target, among_quick in RATIOS:
        if quick and not among_quick:
            continue
        if time.monotonic() > limit:
            say(f"left out, the time is up: {name}")
            continue
        pairs = PAIRS_QUICK if quick else PAIRS.get(workload, USUAL)
        command = f"bench.blocks {workload} {options} --pairs {pairs}{' --cpu' if cpu else ''}"
        say(command)
        try:
            measured = run(command, 120)
        except subprocess.SubprocessError as error:
            say(f"left out: {error}")
            continue
        values = [own / plain for own, plain in measured["pairs"]]
        found.append(figure(name, values, "x", f"python -m {command}", target))
        if name == "every step, default, CNN":
            size = [each / 1e3 for each in measured["bytes"]]
            found.append(figure("a recorded step on disk, default, CNN", size, "KB", f"python -m {command}", 60))
    return found


def empty_step(*, quick: bool) -> list[Figure]:
    """What is added to a step of an empty loop."""
    command = f"bench.steps --pairs {PAIRS_QUICK if quick else 20}"
    say(command)
    values = [own - plain for own, plain in run(command, 120)["pairs"]]
    return [figure("attached, nothing recorded, empty loop", values, "us a step", f"python -m {command}", 2)]


def start_up(*, quick: bool) -> list[Figure]:
    """A script that imports torch, under `tcmon run` and plain."""
    added = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text("import torch\n")
        for number in range(2 if quick else 8):
            times = []
            for before in ([], ["-m", "tcmon", "run", "--quiet", "--out", f"{folder}/{number}"]):
                begin = time.perf_counter()
                environment = {**os.environ, "PYTHONPATH": str(ROOT)}
                subprocess.run([sys.executable, *before, str(script)], check=True, cwd=folder, env=environment)
                times.append((time.perf_counter() - begin) * 1e3)
            added.append(times[1] - times[0])
    return [figure("start-up of `import torch`", added, "ms", "python -m tcmon run script.py", 150)]


def say(text: str) -> None:
    """Tell what is being measured."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description="What tcmon costs, and what else costs.")
    parser.add_argument("--quick", action="store_true", help="a few of the figures, in under two minutes")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results", help="folder of bench.md and bench.json"
    )
    parser.add_argument("--cpu", action="store_true", help="ratios of processor time: on a machine that is shared")
    parser.add_argument("--only", choices=("steps", "start", "ratios", "growth", "peers"), help="one section")
    args = parser.parse_args()
    begin = time.monotonic()
    limit = begin + (90 if args.quick else 640)
    wanted = (args.only,) if args.only else ("steps", "start", "growth", "ratios", "peers")
    figures: list[Figure] = []
    rows: list[dict[str, Any]] = []
    tables: dict[str, Any] = {}
    if "steps" in wanted:
        figures += empty_step(quick=args.quick)
    if "growth" in wanted:
        for name in ("codes", "steps") if args.quick else ("codes", "calls", "parameters", "steps", "threads"):
            command = f"bench.growth {name}{' --quick' if args.quick else ''}"
            say(command)
            tables[f"Growth with {name} (`python -m {command}`)"] = run(command, 180)
    if "ratios" in wanted:
        figures += ratios(begin + (80 if args.quick else 420), quick=args.quick, cpu=args.cpu)
    if "start" in wanted:
        figures += start_up(quick=args.quick)
    for workload, steps in (("cnn", 60), ("transformer", 20)):
        if "peers" not in wanted or (args.quick and workload != "cnn"):
            continue
        if time.monotonic() > limit:
            say(f"left out, the time is up: peers on {workload}")
        else:
            say(f"peers on {workload}")
            rows += peers.measure(workload, steps, quick=args.quick)
    print(write(args.out, figures, rows, tables))


if __name__ == "__main__":
    main()
