"""The times of every step of a run, and the figures that come from them."""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import accumulate, islice, pairwise
from operator import le
from statistics import median

from tcmon.trace.journal import PHASES, StepTimes
from tcmon.trace.records import Step, Steps


def _column() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Series:
    """The steps of one loop in one role, in the order of their numbers: 24 bytes a step.

    `begins` are clock values and `durations` times, in nanoseconds; `waited_ns` is the time that all of
    them together waited for data.
    """

    numbers: "array[int]" = field(default_factory=_column)
    begins: "array[int]" = field(default_factory=_column)
    durations: "array[int]" = field(default_factory=_column)
    waited_ns: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    """The time of all of them in each phase."""

    def starts_activation(self, index: int, recorded: Collection[int]) -> bool:
        """Whether the loop was entered for this step: it doesn't begin where the one before it ended.

        After a recorded step there is always a gap, in which its record is written; one that is longer
        than the step itself is taken for an end of the loop.
        """
        if index == 0 or self.numbers[index] != self.numbers[index - 1] + 1:
            return True
        took = self.durations[index - 1]
        gap = self.begins[index] - self.begins[index - 1] - took
        return gap > (took if self.numbers[index - 1] in recorded else 0)


type Loop = tuple[Series, Collection[int]]
"""The steps of one loop, and the numbers of those that were recorded in detail."""


class StepLog:
    """Gathers the times of every step of a process by role and loop, each of them once.

    A step's times are in a row of the trace, or still in the journal (steps since the last row, when the
    process was killed or runs on), and those of a recorded step also in its own record. The trace's row
    wins.
    """

    def __init__(self, journal: Iterable[StepTimes]) -> None:
        self.series: dict[tuple[str, int], Series] = {}
        self.recorded: dict[tuple[str, int], set[int]] = {}
        self._unwritten = {(each.role, each.n): each for each in journal}
        self._written: dict[str, int] = {}

    def add_row(self, row: Steps) -> None:
        """Count in a row of consecutive steps."""
        size = len(row.begin)
        if not size:
            return
        last = row.first + size - 1
        series = self.series.setdefault((row.role, row.loop), Series())
        series.numbers.extend(range(row.first, last + 1))
        series.begins.extend(row.begin)
        series.durations.extend(row.end)
        series.waited_ns += sum(row.wait)
        for name, column in row.phases.items():
            series.phases[name] += sum(column)
        self._written[row.role] = max(last, self._written.get(row.role, 0))
        for key in [key for key in self._unwritten if key[0] == row.role and row.first <= key[1] <= last]:
            del self._unwritten[key]

    def add_recorded(self, step: Step) -> None:
        """Note that a step was recorded in detail."""
        self.recorded.setdefault((step.role, step.loop), set()).add(step.n)
        if step.n > self._written.get(step.role, 0):
            times = StepTimes(step.role, step.loop, step.n, step.begin, step.wait, step.end)
            self._unwritten.setdefault((step.role, step.n), times)

    def finish(self) -> None:
        """Count in the steps that no row of the trace had."""
        for _, each in sorted(self._unwritten.items()):
            series = self.series.setdefault((each.role, each.loop), Series())
            series.numbers.append(each.n)
            series.begins.append(each.begin)
            series.durations.append(each.end)
            series.waited_ns += each.wait
            for name, spent in zip(PHASES, each.phases, strict=False):
                series.phases[name] += spent
        self._unwritten.clear()

    def of_role(self, role: str) -> list[Loop]:
        """The loops that had steps in a role."""
        return [
            (series, self.recorded.get((each, loop), set()))
            for (each, loop), series in self.series.items()
            if each == role
        ]

    def last_ns(self) -> int:
        """The clock value at which the last step ended; 0 when there was none."""
        return max((each.begins[-1] + each.durations[-1] for each in self.series.values()), default=0)

    def wall_ns(self) -> int:
        """The time that was spent in steps of any role; a step within another's counts once."""
        intervals = merge(*(zip(each.begins, each.durations, strict=True) for each in self.series.values()))
        covered = until = 0
        for begin, duration in intervals:
            end = begin + duration
            if end > until:
                covered += end - max(begin, until)
                until = end
        return covered


def evaluated_within(training: Iterable[Series], evaluation: Iterable[Series]) -> list[tuple[int, int]]:
    """Of each training step, in no particular order, how long it took and how much of that was evaluation steps.

    An evaluation step belongs to the training step that holds it in time.
    """
    inner = sorted(pair for each in evaluation for pair in zip(each.begins, each.durations, strict=True))
    begins = [begin for begin, _ in inner]
    sums = [0, *accumulate(duration for _, duration in inner)]
    found = []
    for each in training:
        for begin, duration in zip(each.begins, each.durations, strict=True):
            held = sums[bisect_left(begins, begin + duration)] - sums[bisect_left(begins, begin)]
            found.append((duration, min(held, duration)))
    return found


def quantile(ordered: Sequence[int], share: float) -> float:
    """The value below which `share` of the sorted, non-empty `ordered` lie, linear between neighbours."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@dataclass(frozen=True, slots=True)
class Comparison:
    """How much longer recorded steps took than others: `ratio` is 1.0 for "no longer", over `steps` recorded steps."""

    ratio: float
    steps: int


def compare_recorded(loops: Iterable[Loop]) -> Comparison | None:
    """Set recorded steps against the steps around them that were not recorded.

    Each recorded step is set against the mean of the nearest step before and the nearest after it, in the
    same loop, that were not recorded; the median over all recorded steps passes over those where
    something else happened. The first step of an activation and step 1 take part on neither side, since
    they are slow for reasons of their own. None when no recorded step has such a neighbour.
    """
    ratios = [took / usual for loop in loops for took, usual in _against_neighbours(loop) if usual]
    return Comparison(median(ratios), len(ratios)) if ratios else None


def _against_neighbours(loop: Loop) -> Iterator[tuple[int, float]]:
    series, recorded = loop
    before: int | None = None
    waiting: list[tuple[int, int | None]] = []  # recorded steps that no unrecorded one has followed yet
    for index, (number, duration) in enumerate(zip(series.numbers, series.durations, strict=True)):
        if number == 1 or series.starts_activation(index, recorded):
            continue
        if number in recorded:
            waiting.append((duration, before))
            continue
        for took, earlier in waiting:
            yield took, duration if earlier is None else (earlier + duration) / 2
        waiting.clear()
        before = duration
    for took, earlier in waiting:
        if earlier is not None:
            yield took, earlier


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive steps `first` to `last`: the longest time among them, and how many were recorded."""

    first: int
    last: int
    longest_ns: int
    recorded: int


def profile(loops: Iterable[Loop], slices: int) -> tuple[Slice, ...]:
    """The course of step times over a run, in at most `slices` slices of nearly the same number of steps."""
    numbers, durations, recorded = _column(), _column(), set[int]()
    for series, of_loop in loops:
        numbers.extend(series.numbers)
        durations.extend(series.durations)
        recorded.update(of_loop)
    order: Sequence[int] = range(len(numbers))
    if not all(map(le, numbers, islice(numbers, 1, None))):
        order = sorted(order, key=numbers.__getitem__)
    count = min(slices, len(order))
    bounds = [part * len(order) // count for part in range(count + 1)] if count else []
    return tuple(
        Slice(
            first=numbers[order[low]],
            last=numbers[order[high - 1]],
            longest_ns=max(durations[each] for each in order[low:high]),
            recorded=sum(numbers[each] in recorded for each in order[low:high]),
        )
        for low, high in pairwise(bounds)
    )
