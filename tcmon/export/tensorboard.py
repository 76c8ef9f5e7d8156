"""A run as event files for TensorBoard.

Scalars by step: times of every step, and of recorded steps the loss, norms, update ratios and learning rates. A run of
several processes has a folder for each.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from tcmon.errors import TcmonError
from tcmon.export.events import EventFile
from tcmon.export.selection import ALL_TIME, StepRange, Window, no_such_steps, window_of
from tcmon.export.training import Names, figures_of, names_of
from tcmon.trace.details import Loss, State
from tcmon.trace.everystep import OUTSIDE, TimedStep, every_step
from tcmon.trace.journal import PHASES
from tcmon.trace.reader import PendingRows, Process, Run, reason_of
from tcmon.trace.records import Step

PARAMETERS: Final = 300
"""Those that have curves of their own; further ones are in the totals only."""

_PREFIX: Final = "events.out.tfevents."

type Advance = Callable[[int], object]


@dataclass(slots=True)
class Exported:
    """What an export came to; `left_out` parameters have no curves of their own."""

    steps: int = 0
    recorded: int = 0
    scalars: int = 0
    left_out: int = 0


def is_of_export(path: PurePath) -> bool:
    """Whether an export writes a file of this name, which is relative to its folder."""
    return path.name.startswith(_PREFIX) and len(path.parts) <= 2


def total_bytes(run: Run, steps: StepRange | None) -> int:
    """About what `export` tells its `advance` of in the end."""
    return sum((1 if steps is None else 2) * process.trace.stat().st_size for process in run.processes)


def export(run: Run, folder: Path, *, steps: StepRange | None = None, advance: Advance = lambda _: None) -> Exported:
    """Write event files of `run` into `folder`, which is there and empty.

    With `steps`, only what lies in their time. Raises TcmonError when there are no such steps, or when a
    file can't be read or written.
    """
    windows = [ALL_TIME if steps is None else window_of(process, steps, advance) for process in run.processes]
    if steps is not None and not any(windows):
        raise no_such_steps(run.processes, steps)
    exported = Exported()
    try:
        for process, window in zip(run.processes, windows, strict=True):
            if window is None:
                continue
            header = process.header()
            zero = run.meta.start_unix_ns if header is None else header.start_unix_ns
            target = folder / _name(process) if len(run.processes) > 1 else folder
            target.mkdir(exist_ok=True)
            with (target / f"{_PREFIX}{zero // 10**9}.{_host(run.meta.host)}").open("wb") as file:
                scalars = _Scalars(EventFile(file.write, zero / 1e9), zero)
                _write_times(process, window, scalars, exported, advance)
                _write_training(process, window, scalars, exported)
            exported.scalars += scalars.file.scalars
    except OSError as error:
        raise TcmonError(f"can't write event files: {reason_of(error)}") from None
    return exported


def _name(process: Process) -> str:
    if process.rank is None:
        return f"pid{process.pid}" + (f".{process.session}" if process.session > 1 else "")
    restart = f".restart{process.restart}" if process.restart else ""
    return f"rank{process.rank}{restart}" + (f".{process.session}" if process.session > 1 else "")


def _host(name: str) -> str:
    """A host's name as part of a file's."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)[:100] or "unknown"


@dataclass(frozen=True, slots=True)
class _Scalars:
    """An event file, and the unix time in ns of the process' clock at zero."""

    file: EventFile
    zero: int

    def add(self, at: int, n: int, tag: str, value: float | None) -> None:
        """A value of step `n`, which ended at a clock value; None is none."""
        if value is not None:
            self.file.scalar((self.zero + at) / 1e9, n, tag, value)


def _write_times(process: Process, window: Window, scalars: _Scalars, exported: Exported, advance: Advance) -> None:
    for each in every_step(process, advance):
        times = each.times
        end = times.begin + times.end
        if times.role == OUTSIDE or not window.holds(times.begin, end):
            continue
        exported.steps += 1
        exported.recorded += each.recorded is not None
        scalars.add(end, times.n, f"{times.role}/step_ms", times.end / 1e6)
        if times.end:
            for part, took in _parts(each):
                scalars.add(end, times.n, f"{times.role}/{part}_share", took / times.end)


def _parts(each: TimedStep) -> list[tuple[str, int]]:
    parts = zip(PHASES, each.times.phases, strict=False)
    return [("wait", each.times.wait), *((name, took) for name, took in parts if took)]


@dataclass(slots=True)
class _Chosen:
    """Which parameters have curves, by their ids: the first that have been seen."""

    names: Names
    tags: dict[int, str] = field(default_factory=dict)
    others: set[int] = field(default_factory=set)

    def tag(self, id: int) -> str | None:
        if id not in self.tags:
            if len(self.tags) == PARAMETERS:
                self.others.add(id)
                return None
            name = self.names.parameter(id)
            # Two models may hold parameters of one name.
            self.tags[id] = name if name not in self.tags.values() else f"{name} ({id})"
        return self.tags[id]


def _write_training(process: Process, window: Window, scalars: _Scalars, exported: Exported) -> None:
    chosen = _Chosen(names_of(process))
    pending = PendingRows[Loss | State]()
    for record in process.read(calls=False, details=("loss", "state")):
        if isinstance(record, Loss | State):
            pending.add(record)
        elif isinstance(record, Step):
            rows = pending.take(record)
            end = record.begin + record.end
            if record.role != OUTSIDE and window.holds(record.begin, end):
                _write_step(record.role, record.n, end, rows, chosen, scalars)
    exported.left_out += len(chosen.others)


def _write_step(role: str, n: int, at: int, rows: list[Loss | State], chosen: _Chosen, scalars: _Scalars) -> None:
    figures = figures_of(rows)
    scalars.add(at, n, f"{role}/loss", figures.loss)
    scalars.add(at, n, f"{role}/norm", figures.norm)
    scalars.add(at, n, f"{role}/grad_norm", figures.grad_norm)
    scalars.add(at, n, f"{role}/update_ratio", figures.update)
    scalars.add(at, n, f"{role}/loss_scale", figures.scale)
    for group, rate in figures.rates.items():
        scalars.add(at, n, f"{role}/lr/{group}", rate)
    for row in rows:
        if isinstance(row, State) and row.optimizer:
            columns = ("norm", row.norm), ("grad_norm", row.grad_norm), ("update_ratio", row.update)
            for place, id_ in enumerate(row.parameter):
                if tag := chosen.tag(id_):
                    for name, column in columns:
                        scalars.add(at, n, f"{name}/{tag}", column[place])
