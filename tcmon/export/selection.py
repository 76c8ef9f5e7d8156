"""Which steps are exported: a range of numbers, and the stretch of time that they take."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tcmon.errors import TcmonError
from tcmon.trace.everystep import every_step
from tcmon.trace.fields import COUNT_LIMIT, TIME_LIMIT
from tcmon.trace.reader import Process

_RANGE: Final = re.compile(r"(\d{1,15})?(:)?(\d{1,15})?")


@dataclass(frozen=True, slots=True)
class StepRange:
    """Steps `first` to `last`, both included, of a role."""

    role: str
    first: int
    last: int

    @classmethod
    def parse(cls, text: str, role: str) -> "StepRange":
        """From "100:120", "100:" (and all after it), ":120" (and all before it) or "100". Raises ValueError."""
        match = _RANGE.fullmatch(text.strip())
        if match is None or not (match[1] or match[3]):
            raise ValueError(f"{text!r} is no range of steps like 100:120")
        first = int(match[1] or 1)
        last = int(match[3] or (COUNT_LIMIT if match[2] else first))
        if first < 1:
            raise ValueError(f"{text!r} is no range of steps: they are numbered from 1")
        if last < first:
            raise ValueError(f"{text!r} is no range of steps: it ends before it begins")
        return cls(role, first, last)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time between two clock values, in nanoseconds."""

    begin: int
    end: int

    def holds(self, begin: int, end: int) -> bool:
        """Whether something lies in it from begin to end."""
        return self.begin <= begin and end <= self.end


ALL_TIME: Final = Window(0, 2 * TIME_LIMIT)


def window_of(process: Process, steps: StepRange, advance: Callable[[int], object]) -> Window | None:
    """The time from the begin of the first to the end of the last step of a range; None without such steps."""
    begin, end = 2 * TIME_LIMIT, -1
    for each in every_step(process, advance):
        times = each.times
        if times.role == steps.role and steps.first <= times.n <= steps.last:
            begin = min(begin, times.begin)
            end = max(end, times.begin + times.end)
    return Window(begin, end) if end >= 0 else None


def no_such_steps(processes: tuple[Process, ...], steps: StepRange) -> TcmonError:
    """Says which steps there are instead."""
    first, last = COUNT_LIMIT, 0
    for process in processes:
        for each in every_step(process):
            if each.times.role == steps.role:
                first, last = min(first, each.times.n), max(last, each.times.n)
    known = f"{steps.role} steps {first} to {last}" if last else f"no {steps.role} step"
    return TcmonError(f"no such steps: the run has {known}")
