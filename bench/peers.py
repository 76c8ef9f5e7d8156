"""What a user would pick instead of tcmon, each on the same workload in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RUNNER = "bench/watched.py"

# By name: the command before the runner, the tracer that the runner starts, and what the tool knows of steps.
# `{out}` is a folder for the results.
PEERS: dict[str, tuple[list[str], str, str]] = {
    "tcmon": (["python", "-m", "tcmon", "run", "--quiet", "--out", "{out}/run"], "", "yes, finds them"),
    "tcmon, every step": (
        ["python", "-m", "tcmon", "run", "--quiet", "--interval", "1", "--out", "{out}/run"],
        "",
        "yes, finds them",
    ),
    "cProfile": (["python", "-m", "cProfile", "-o", "{out}/profile"], "", "no"),
    "sys.settrace, empty": (["python"], "settrace", "no"),
    "sys.setprofile, empty": (["python"], "setprofile", "no"),
    "torch.profiler, every 20th step": (["python"], "torch.profiler", "told by profiler.step()"),
    "torch.profiler, every 20th step, with_stack": (["python"], "torch.profiler-stack", "told by profiler.step()"),
    "viztracer": (["python", "-m", "viztracer", "--quiet", "-o", "{out}/trace.json"], "", "no"),
    "scalene": (["python", "-m", "scalene", "run", "-o", "{out}/scalene.json"], "", "no"),
    "py-spy": (["py-spy", "record", "--format", "raw", "-o", "{out}/spy", "--", "python"], "", "no"),
}
NOT_RUN = {
    "traincheck-collect": "needs an environment of its own with a CPU build of torch, or a GPU",
    "traincheck-collect, sampled": "needs an environment of its own with a CPU build of torch, or a GPU",
}
QUICK = ("tcmon", "cProfile")
SLOWEST_S = 100


def measure(workload: str, steps: int, *, quick: bool) -> list[dict[str, Any]]:
    """One row for each peer; plain runs come before and after each of them."""
    rows: list[dict[str, Any]] = []
    plain = _run(["python"], "", workload, steps)
    for name, (before, tracer, knows) in PEERS.items():
        if quick and name not in QUICK:
            continue
        row: dict[str, Any] = {"workload": workload, "tool": name}
        missing = _missing(before)
        if missing:
            rows.append({**row, "not_run": missing})
            continue
        command = " ".join([*before, RUNNER, workload, str(steps), "{out}/loop", tracer]).strip()
        try:
            own = _run(before, tracer, workload, steps)
            after = _run(["python"], "", workload, steps)
        except (subprocess.SubprocessError, FileNotFoundError) as error:
            text = getattr(error, "stderr", None) or str(error)
            rows.append({**row, "not_run": f"failed: {' '.join(str(text).split())[-160:]}".replace("|", "/")})
            continue
        rows.append(
            {
                **row,
                "slowdown": own["seconds"] / statistics.mean((plain["seconds"], after["seconds"])),
                "readable_s": own["after"] - statistics.mean((plain["after"], after["after"])),
                "bytes": own["bytes"],
                "knows_steps": knows,
                "command": command,
            }
        )
        plain = after
    rows += [{"workload": workload, "tool": name, "not_run": why} for name, why in NOT_RUN.items() if not quick]
    return rows


def _missing(before: list[str]) -> str:
    if before[0] == "python":
        module = before[2] if len(before) > 2 else "sys"
        return "" if importlib.util.find_spec(module) else "not installed"
    return "" if _program(before[0]) else "not installed"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def _run(before: list[str], tracer: str, workload: str, steps: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as out:
        loop = Path(out, "loop")
        command = [part.replace("{out}", out) for part in before]
        command = [sys.executable if part == "python" else _program(part) or part for part in command[:1]] + command[1:]
        command = [sys.executable if part == "python" else part for part in command]
        command += [RUNNER, workload, str(steps), str(loop), *([tracer] if tracer else [])]
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
            timeout=SLOWEST_S,
        )
        over = time.time()
        found = json.loads(loop.read_text())
        size = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file() and path != loop)
        return {"seconds": found["seconds"], "after": over - found["end"], "bytes": size}
