"""Runs a workload for a number of steps, under a tracer if one is asked for, and says how long its loop took.

    python -m bench.watched cnn 100 FILE [settrace|setprofile|torch.profiler|torch.profiler-stack]

Writes into FILE, as JSON, the seconds of the loop without its first steps and when it ended (Unix time). It is what
peers run: they trace the same file, however they are started.
"""

from __future__ import annotations

import json
import runpy
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

SKIPPED = 10


def main() -> None:
    """Run."""
    root = Path(__file__).parent.parent
    sys.path.insert(0, str(root))
    from bench.blocks import ARGUMENTS, WORKLOADS, Enough

    workload, steps, found, *tracer = sys.argv[1:]
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    torch.set_num_threads(1)
    profiler = _profiler(torch, tracer[0], Path(found)) if tracer and tracer[0].startswith("torch.profiler") else None
    count, begin, end = 0, 0.0, 0.0

    def stepped(*_: object) -> None:
        nonlocal count, begin, end
        count += 1
        if profiler is not None:
            profiler.step()
        if count == SKIPPED:
            begin = time.time()
        elif count == SKIPPED + int(steps):
            end = time.time()
            raise Enough

    register_optimizer_step_post_hook(stepped)
    sys.argv = [workload, *ARGUMENTS[workload]]
    _trace(tracer)
    if profiler is not None:
        profiler.start()
    try:
        runpy.run_path(str(WORKLOADS / f"{workload}.py"), run_name="__main__")
    except Enough:
        pass
    if profiler is not None:
        profiler.stop()
    Path(found).write_text(json.dumps({"seconds": end - begin, "end": end}))


def _profiler(torch: Any, kind: str, found: Path) -> Any:
    profiler = torch.profiler
    return profiler.profile(
        activities=[profiler.ProfilerActivity.CPU],
        schedule=profiler.schedule(wait=18, warmup=1, active=1),
        with_stack=kind.endswith("stack"),
        on_trace_ready=lambda each: each.export_chrome_trace(str(found.with_name(f"trace-{each.step_num}.json"))),
    )


def _trace(tracer: list[str]) -> None:
    if tracer == ["settrace"]:
        # As plain as it can be: every line of every function, and nothing done about it.
        def line(_frame: FrameType, _event: str, _value: object) -> Any:
            return line

        threading.settrace(line)
        sys.settrace(line)
    elif tracer == ["setprofile"]:

        def call(_frame: FrameType, _event: str, _value: object) -> None:
            return None

        threading.setprofile(call)
        sys.setprofile(call)


if __name__ == "__main__":
    main()
