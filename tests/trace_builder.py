"""Writes run directories by hand, for tests of what reads them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

PID = 4242


def meta(**changes: Any) -> dict[str, Any]:
    """The object of a run.json."""
    facts: dict[str, Any] = {
        "format": 1,
        "tcmon": "0.1.0",
        "command": ["python", "train.py", "--epochs", "3"],
        "script": "train.py",
        "cwd": "/home/somebody/project",
        "python": "3.12.1",
        "implementation": "cpython",
        "torch": "2.15.0",
        "platform": "Linux",
        "host": "elsewhere",
        "pid": PID,
        "started": "2026-12-01T03:30:00+00:00",
        "start_unix_ns": 1_796_000_000_000_000_000,
        "options": {"interval": 20, "warmup": 2, "eval_interval": 20, "eval_warmup": 2, "record": ["calls"]},
        "loops": [],
        "ended": {"reason": "exit", "exit_code": 0, "clock_ns": 3_000_000_000},
    }
    return facts | changes


def header(pid: int = PID, format: int = 1) -> dict[str, Any]:
    return {"kind": "process", "format": format, "pid": pid, "start_unix_ns": 1_796_000_000_000_000_000}


def loop(id: int, role: str = "train", **changes: Any) -> dict[str, Any]:
    record = {
        "kind": "loop",
        "id": id,
        "file": "/home/somebody/project/train.py",
        "qualname": "main",
        "line": 31,
        "role": role,
        "found": "static",
        "evidence": ["optimizer.step() (train.py:38)"],
    }
    return record | changes


def function(id: int, qualname: str, file: str = "/home/somebody/project/model.py", line: int = 7) -> dict[str, Any]:
    return {"kind": "function", "id": id, "module": "model", "qualname": qualname, "file": file, "line": line}


def exception(id: int, name: str) -> dict[str, Any]:
    return {"kind": "exception", "id": id, "name": name}


def steps(
    durations: Sequence[int],
    *,
    first: int = 1,
    role: str = "train",
    loop: int = 1,
    begin: int = 0,
    waits: Sequence[int] | None = None,
    pauses: Sequence[int] | None = None,
) -> dict[str, Any]:
    """A row of steps, one right after the other save for the pauses before them."""
    pauses = pauses or [0] * len(durations)
    begins = [begin, *(pause + took for pause, took in zip(pauses[1:], durations, strict=False))]
    return {
        "kind": "steps",
        "role": role,
        "stage": "training" if role == "train" else "evaluation",
        "loop": loop,
        "first": first,
        "begin": begins,
        "wait": list(waits or [0] * len(durations)),
        "end": list(durations),
    }


def step(n: int, begin: int, end: int, *, role: str = "train", loop: int = 1, dropped: int = 0) -> dict[str, Any]:
    return {
        "kind": "step",
        "role": role,
        "n": n,
        "loop": loop,
        "reason": "interval",
        "stage": "training",
        "begin": begin,
        "wait": 0,
        "end": end,
        "thread": 1,
        "calls": {"stored": 0, "dropped": dropped},
    }


def calls(
    n: int, begin: int, events: Sequence[tuple[int, int]], *, role: str = "train", thread: int = 1, loop: int = 1
) -> dict[str, Any]:
    """A row of (what, at) events."""
    return {
        "kind": "calls",
        "role": role,
        "n": n,
        "loop": loop,
        "thread": thread,
        "begin": begin,
        "what": [what for what, _ in events],
        "at": [at for _, at in events],
    }


def of_step(kind: str, n: int, *, role: str = "train", loop: int = 1, **columns: Any) -> dict[str, Any]:
    """A row that belongs to a recorded step: of kind "loss", "lines", "state", ..."""
    return {"kind": kind, "role": role, "n": n, "loop": loop, **columns}


def parameter(id: int, name: str, **changes: Any) -> dict[str, Any]:
    record = {
        "kind": "parameter",
        "id": id,
        "name": name,
        "shape": [2, 3],
        "dtype": "float32",
        "device": "cpu",
        "optimizer": 1,
        "group": 0,
        "index": id - 1,
    }
    return record | changes


def state(n: int, parameters: Sequence[int], **columns: Any) -> dict[str, Any]:
    """The state of optimizer 1 after step n; columns that are not given hold plausible values."""
    count = len(parameters)
    record: dict[str, Any] = {
        "optimizer": 1,
        "groups": [{"lr": 0.1}],
        "scale": None,
        "parameter": list(parameters),
        "requires_grad": [True] * count,
        "ran": [True] * count,
        "has_grad": [True] * count,
        "norm": [1.0] * count,
        "grad_norm": [0.5] * count,
        "grad_before": [None] * count,
        "grad_after": [None] * count,
        "update": [0.001] * count,
        "nonfinite": [0] * count,
        "grad_nonfinite": [0] * count,
        "before": [f"{n:016x}"] * count,
        "after": [f"{n + 1:016x}"] * count,
        "state": {},
    }
    return of_step("state", n, **(record | columns))


def finding(rule: str, n: int, severity: str = "warning", **changes: Any) -> dict[str, Any]:
    record = {
        "kind": "finding",
        "rule": rule,
        "severity": severity,
        "role": "train",
        "n": n,
        "observed": "gradients of 2 parameters are None",
        "why": "they never change",
        "look": "at what the loss depends on",
        "parameters": ["head.weight"],
        "file": None,
        "line": None,
    }
    return record | changes


def overhead(callback_ns: int = 0, dispatch_ns: int = 0, write_ns: int = 0) -> dict[str, Any]:
    return {
        "kind": "overhead",
        "callbacks": 100,
        "callback_ns": callback_ns,
        "dispatch_ns": dispatch_ns,
        "write_ns": write_ns,
        "events": 50,
        "bytes": 1000,
    }


def note(text: str) -> dict[str, Any]:
    return {"kind": "note", "level": "warning", "text": text}


def end(*, hint: str | None = None, clock_ns: int = 3_000_000_000) -> dict[str, Any]:
    seen = {"code_objects": 7700, "analysed": 61, "loops": 14}
    return {"kind": "end", "reason": "exit", "exit_code": 0, "clock_ns": clock_ns, "seen": seen, "hint": hint}


def encode(records: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(record) + b"\n" for record in records)


def write_run(
    directory: Path, records: Sequence[dict[str, Any]] | bytes | None, *, trace_of: int = PID, **changes: Any
) -> Path:
    """A run directory with one trace (none with None), and run.json with `changes`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").write_bytes(orjson.dumps(meta(**changes)))
    if records is not None:
        data = records if isinstance(records, bytes) else encode(records)
        (directory / f"trace-{trace_of}.jsonl").write_bytes(data)
    return directory


@dataclass
class Node:
    """A call of a made-up program: time passes before each callee and before it ends."""

    function: int
    outcome: int
    pauses: list[int]
    callees: list["Node"] = field(default_factory=list)

    def events(self, waited: int) -> Iterator[tuple[int, int]]:
        yield self.function, waited
        for pause, callee in zip(self.pauses, self.callees, strict=False):
            yield from callee.events(pause)
        yield self.outcome, self.pauses[len(self.callees)]

    def total(self) -> int:
        return sum(self.pauses[: len(self.callees) + 1]) + sum(callee.total() for callee in self.callees)

    def shape(self) -> tuple[Any, ...]:
        """What a decoded call of it must look like."""
        own = sum(self.pauses[: len(self.callees) + 1])
        return self.function, self.outcome, own, tuple(callee.shape() for callee in self.callees)
