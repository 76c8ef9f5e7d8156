"""How costs grow: `python -m bench.growth codes|calls|parameters|steps|threads [--quick]`, prints a table as JSON."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 7


def functions(count: int) -> list[Callable[[], None]]:
    """Functions that do nothing, each with a code object of its own."""
    names: dict[str, Any] = {}
    exec("".join(f"def f{i}(): pass\n" for i in range(count)), names)
    return [names[f"f{i}"] for i in range(count)]


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of processor time that `work` takes."""
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) / 1e6


def codes(*, quick: bool) -> dict[str, Any]:
    """The switch on and off of call events, with what the next calls of each code object pay for it."""
    monitoring = sys.monitoring
    tool, wanted = 4, monitoring.events.PY_START | monitoring.events.PY_RETURN
    monitoring.use_tool_id(tool, "bench")
    for event in (monitoring.events.PY_START, monitoring.events.PY_RETURN):
        monitoring.register_callback(tool, event, lambda *_: None)
    rows = []
    for count in (100, 500, 1000) if quick else (100, 500, 1000, 3000, 10_000):
        called = functions(count)

        def run(called: list[Callable[[], None]] = called) -> None:
            for each in called:
                each()

        costs = []
        for _ in range(3 * ROUNDS):

            def switched(run: Callable[[], None] = run) -> None:
                monitoring.set_events(tool, wanted)
                run()
                monitoring.set_events(tool, 0)
                run()

            run()
            both = timed(switched)
            off = timed(run)
            monitoring.set_events(tool, wanted)
            run()
            on = timed(run)
            monitoring.set_events(tool, 0)
            costs.append(both - on - off)
        rows.append([count, statistics.median(costs)])
    monitoring.free_tool_id(tool)
    return {"columns": ["code objects", "switch on + off, ms"], "rows": rows}


def recorded(train: Callable[[int], None], steps: int, **options: Any) -> tuple[float, float]:
    """Milliseconds of a step without tcmon, and what recording each step adds: medians."""
    import tcmon

    plain, added = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            before = timed(lambda: train(steps))
            with tcmon.attach(interval=1, warmup=0, out=Path(folder, "run"), **options):
                train(2)
                own = timed(lambda: train(steps))
        plain.append(before / steps)
        added.append((own - before) / steps)
    return statistics.median(plain), statistics.median(added)


def calls(*, quick: bool) -> dict[str, Any]:
    """Calls recorded in each step, against how many there are."""
    from bench.steps import optimizer

    rows = []
    [called] = functions(1)
    for count in (10, 1000) if quick else (10, 100, 1000, 10_000):

        def train(steps: int, count: int = count) -> None:
            for _ in range(steps):
                for _ in range(count):
                    called()
                optimizer.step()

        plain, added = recorded(train, 10, record=("calls",))
        rows.append([count, plain, added, 1e6 * added / count])
    return {"columns": ["calls a step", "plain, ms", "added, ms", "added, ns a call"], "rows": rows}


def parameters(*, quick: bool) -> dict[str, Any]:
    """State recorded in each step, against the number of parameters (of 64 elements)."""
    import torch

    torch.set_num_threads(1)
    rows = []
    for count in (10, 100) if quick else (10, 100, 1000, 10_000):
        held = [torch.nn.Parameter(torch.randn(64)) for _ in range(count)]
        for each in held:
            each.grad = torch.randn(64)
        optimizer = torch.optim.SGD(held, lr=1e-3)

        def train(steps: int, optimizer: torch.optim.Optimizer = optimizer) -> None:
            for _ in range(steps):
                optimizer.step()

        plain, added = recorded(train, 3, record=("state",))
        rows.append([count, plain, added, 1e3 * added / count])
    return {"columns": ["parameters", "plain, ms", "added, ms", "added, us a parameter"], "rows": rows}


def steps(*, quick: bool) -> dict[str, Any]:
    """Memory of the process over a run, every 20th step recorded."""
    import tcmon
    from bench.steps import train

    total = 10_000 if quick else 100_000
    train(1000)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        start, own = resident(), Path(folder, "run")
        with tcmon.attach(interval=20, out=own):
            for tenth in range(1, 11):
                train(total // 10)
                rows.append([tenth * total // 10, resident() - start, on_disk(own) / (tenth * total / 10)])
    return {"columns": ["steps", "memory added, MB", "bytes on disk a step"], "rows": rows}


def threads(*, quick: bool) -> dict[str, Any]:
    """Calls recorded in each step of one thread while others call as well."""
    from bench.steps import optimizer

    rows = []
    [called] = functions(1)
    for count in (1, 2) if quick else (1, 2, 4, 8):

        def train(steps: int, count: int = count) -> None:
            def work() -> None:
                for _ in range(1000):
                    called()

            for _ in range(steps):
                others = [threading.Thread(target=work) for _ in range(count - 1)]
                for other in others:
                    other.start()
                work()
                for other in others:
                    other.join()
                optimizer.step()

        plain, added = recorded(train, 10, record=("calls",))
        rows.append([count, plain, added, 1e3 * added / count])
    return {"columns": ["threads", "plain, ms", "added, ms", "added, ns a call"], "rows": rows}


def resident() -> float:
    """Megabytes of this process in memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


def on_disk(folder: Path) -> float:
    """Bytes of all files below a folder."""
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))


TABLES = {"codes": codes, "calls": calls, "parameters": parameters, "steps": steps, "threads": threads}


def main() -> None:
    """Measure one table."""
    parser = argparse.ArgumentParser(description="How tcmon's costs grow.")
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    print(json.dumps(TABLES[args.table](quick=args.quick)))


if __name__ == "__main__":
    main()
