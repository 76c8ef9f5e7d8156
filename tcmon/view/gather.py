"""What the page shows of one process, gathered while its trace passes by twice.

The first pass takes the times of all steps, the second what was kept of recorded ones. Both hold a bounded number of
buckets, paths and drawn steps, and of each recorded step no more than its times: everything that is summed is summed
over all steps.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from tcmon.trace.details import Lines, Loss, Optimizer, Parameter, State, StepDetail
from tcmon.trace.everystep import every_step
from tcmon.trace.journal import PHASES
from tcmon.trace.reader import PendingRows, Process
from tcmon.trace.records import Calls, Function, Step
from tcmon.view.course import Course
from tcmon.view.flame import Flame, Paths, PathTime, add_times, largest
from tcmon.view.parameters import Norms

ROLES: Final = ("train", "eval")

DRAWN: Final = 5000
"""Recorded steps of a role whose calls are in the page."""

_SLOWEST: Final = 500
_CALLS_DRAWN: Final = 200_000
_PATHS_OF_ALL: Final = 1500
_PATHS_OF_ONE: Final = (30, 300)
_DETAILS: Final = ("lines", "state", "loss", "parameter", "optimizer")

type Advance = Callable[[int], object]


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Marks:
    """Recorded steps, by column: their numbers and times in nanoseconds, and why they were recorded."""

    n: array[int] = field(default_factory=_column)
    took: array[int] = field(default_factory=_column)
    waited: array[int] = field(default_factory=_column)
    evaluated: array[int] = field(default_factory=_column)
    reason: array[int] = field(default_factory=_column)
    stage: array[int] = field(default_factory=_column)


class Times:
    """The times of every step of a process, of one role."""

    PARTS: Final = ("wait", *PHASES)

    def __init__(self) -> None:
        self.own = Course(sums=1 + len(self.PARTS))
        """Durations less the evaluation within; the sums are the whole durations and the parts of them."""
        self.whole = Course()
        """Durations of the steps that an evaluation ran in."""
        self.marks = Marks()
        self.parts: Counter[str] = Counter()
        self.count = 0


class TimesByRole:
    """The times of every step of a process by role; texts that many steps share are held once."""

    def __init__(self, process: Process | None, advance: Advance = lambda _: None) -> None:
        self.roles = {role: Times() for role in ROLES}
        self.texts: dict[str, int] = {}
        inner = _Inner()
        for each in every_step(process, advance) if process else ():
            times = each.times
            of_role = self.roles.get(times.role)
            if of_role is None:
                continue
            phases = each.times.phases or (0,) * len(PHASES)
            evaluated = phases[_EVALUATION]
            if times.role == "eval":
                inner.add(times.begin, times.end)
            elif not evaluated:
                evaluated = min(
                    inner.within(times.begin, times.begin + times.end), times.end - times.wait - sum(phases)
                )
                phases = (*phases[:_EVALUATION], evaluated, *phases[_EVALUATION + 1 :])
            parts = (times.wait, *phases)
            of_role.count += 1
            of_role.own.add(times.n, times.end - evaluated, (times.end, *parts))
            if evaluated:
                of_role.whole.add(times.n, times.end)
            for name, part in zip(Times.PARTS, parts, strict=True):
                if part:
                    of_role.parts[name] += part
            if each.recorded is not None:
                marks, step = of_role.marks, each.recorded
                marks.n.append(times.n)
                marks.took.append(times.end)
                marks.waited.append(times.wait)
                marks.evaluated.append(evaluated)
                marks.reason.append(self._text(step.reason))
                marks.stage.append(self._text(step.stage))

    def drawn(self, role: str) -> dict[int, int]:
        """The recorded steps of a role that are drawn, with their places in its marks: all, or some and the slowest."""
        marks = self.roles[role].marks
        places: Sequence[int] = range(len(marks.n))
        if len(places) > DRAWN:
            slowest = nlargest(_SLOWEST, places, key=lambda at: marks.took[at] - marks.evaluated[at])
            each = -(-len(places) // (DRAWN - _SLOWEST))
            places = sorted({*slowest, *places[::each]})
        return {marks.n[at]: at for at in places}

    def _text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


_EVALUATION: Final = PHASES.index("evaluation")


class _Inner:
    """Evaluation steps that no training step was seen around yet, in the order of time."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque()

    def add(self, begin: int, took: int) -> None:
        self._steps.append((begin, took))

    def within(self, begin: int, end: int) -> int:
        """The time of those that began within a training step; they and earlier ones are then forgotten."""
        held = 0
        while self._steps and self._steps[0][0] < end:
            at, took = self._steps.popleft()
            if at >= begin:
                held += took
        return held


@dataclass(slots=True)
class LinesOfStep:
    """Where in the loop's own code the time of a step went: the place of a line among all lines, and its time."""

    at: array[int] = field(default_factory=_column)
    ns: array[int] = field(default_factory=_column)


@dataclass(slots=True)
class DrawnStep:
    """A recorded step whose calls are in the page."""

    flame: Flame
    lines: LinesOfStep


class Recorded:
    """What was kept of the recorded steps of a process."""

    def __init__(self, process: Process | None, times: TimesByRole, advance: Advance = lambda _: None) -> None:
        self.functions: dict[int, Function] = {}
        self.parameters: dict[int, Parameter] = {}
        self.optimizers: dict[int, Optimizer] = {}
        self.paths = Paths()
        self.sums: dict[int, PathTime] = {}
        self.steps: Counter[str] = Counter()
        """Recorded steps by role, and how long they took together."""
        self.took: Counter[str] = Counter()
        self.drawn: dict[tuple[str, int], DrawnStep] = {}
        self.line_at: dict[tuple[str, int, int], int] = {}
        """The place of a line by role, function and number."""
        self.line_ns, self.line_hits = _column(), _column()
        self.lines_steps: Counter[str] = Counter()
        self.losses = {role: Course() for role in ROLES}
        self.norms = Norms()
        self._drawn = {role: times.drawn(role) for role in ROLES}
        most = _CALLS_DRAWN // max(1, sum(map(len, self._drawn.values())))
        self._most = max(_PATHS_OF_ONE[0], min(_PATHS_OF_ONE[1], most))
        if process is not None:
            self._read(process, advance)

    def of_all(self, role: str) -> Flame:
        """The calls of all recorded steps of a role together."""
        roles = {root: role for (role, _), root in self.paths.roots.items()}
        for path, parent in enumerate(self.paths.parent):
            if parent >= 0:
                roles[path] = roles[parent]
        return largest({path: time for path, time in self.sums.items() if roles[path] == role}, _PATHS_OF_ALL)

    def _read(self, process: Process, advance: Advance) -> None:
        pending = PendingRows[Calls | StepDetail]()
        reading = process.read(details=_DETAILS)
        told = 0
        for record in reading:
            match record:
                case Calls() | Lines() | Loss() | State():
                    pending.add(record)
                case Step():
                    self._add(record, pending.take(record))
                case Function():
                    self.functions[record.id] = record
                case Parameter():
                    self.parameters[record.id] = record
                case Optimizer():
                    self.optimizers[record.id] = record
                case _:
                    pass
            advance(reading.size - told)
            told = reading.size
        advance(reading.size - told)

    def _add(self, step: Step, rows: Sequence[Calls | StepDetail]) -> None:
        if step.role not in ROLES:
            return
        self.steps[step.role] += 1
        self.took[step.role] += step.end
        times = self.paths.times(step, [row for row in rows if isinstance(row, Calls)])
        add_times(self.sums, times)
        lines = LinesOfStep()
        for row in rows:
            if isinstance(row, Lines) and row.body:
                self._add_lines(row, lines)
            elif isinstance(row, Loss):
                values = [value for value in row.value if value is not None]
                if values:
                    self.losses[step.role].add(step.n, sum(values) / len(values))
        if step.role == "train":
            self.norms.add([row for row in rows if isinstance(row, State) and row.optimizer])
        if step.n in self._drawn[step.role]:
            self.drawn[step.role, step.n] = DrawnStep(largest(times, self._most), lines)

    def _add_lines(self, row: Lines, lines: LinesOfStep) -> None:
        self.lines_steps[row.role] += 1
        for line, hits, ns in zip(row.line, row.hits, row.ns, strict=True):
            at = self.line_at.setdefault((row.role, row.function, line), len(self.line_at))
            if at == len(self.line_ns):
                self.line_ns.append(0)
                self.line_hits.append(0)
            self.line_ns[at] += ns
            self.line_hits[at] += hits
            lines.at.append(at)
            lines.ns.append(ns)
