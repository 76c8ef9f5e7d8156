"""The course of a figure over the steps of a run, in bounded memory.

Neighbouring steps share a bucket once there are more of them than buckets. A bucket keeps the least, the greatest
and the mean of its steps, so that no spike is lost from what is drawn, and sums stay sums over all steps.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite
from typing import Final

BUCKETS: Final = 2000
"""Drawn at most; more than a screen has columns."""

_MARKS: Final = 300


class Course:
    """A figure of consecutive steps, and sums of further ones.

    Columns by bucket: `first` and `last` step, `low` and `high` of the figure, `highest` (the step of `high`), `count`
    of the steps and `total` of their figures, and `sums`, one column for each further figure. `nonfinite` holds the
    first steps whose figure was NaN or infinite; they are in no bucket.
    """

    def __init__(self, sums: int = 0, buckets: int = BUCKETS) -> None:
        self.first, self.last, self.highest, self.count = (array("q") for _ in range(4))
        self.low, self.high, self.total = (array("d") for _ in range(3))
        self.sums = [array("d") for _ in range(sums)]
        self.nonfinite: list[int] = []
        self.per_bucket = 1
        self._buckets = buckets

    def __len__(self) -> int:
        return len(self.first)

    def add(self, n: int, value: float, sums: Sequence[float] = ()) -> None:
        """Count in step `n`."""
        if not isfinite(value):
            if len(self.nonfinite) < _MARKS:
                self.nonfinite.append(n)
            return
        if self.first and self.count[-1] < self.per_bucket:
            self.last[-1] = n
            self.count[-1] += 1
            self.total[-1] += value
            self.low[-1] = min(self.low[-1], value)
            if value > self.high[-1]:
                self.high[-1], self.highest[-1] = value, n
            for column, each in zip(self.sums, sums, strict=True):
                column[-1] += each
            return
        if len(self.first) == self._buckets:
            self._halve()
        self.first.append(n)
        self.last.append(n)
        self.highest.append(n)
        self.count.append(1)
        self.low.append(value)
        self.high.append(value)
        self.total.append(value)
        for column, each in zip(self.sums, sums, strict=True):
            column.append(each)

    def mean(self) -> list[float]:
        """The mean of each bucket."""
        return [total / count for total, count in zip(self.total, self.count, strict=True)]

    def _halve(self) -> None:
        """Put each two neighbours into one bucket."""
        pairs = range(0, len(self.first) - 1, 2)
        odd = len(self.first) % 2
        self.highest = array(
            "q", [self.highest[i] if self.high[i] >= self.high[i + 1] else self.highest[i + 1] for i in pairs]
        ) + (self.highest[-1:] if odd else array("q"))
        self.first = self.first[::2]
        self.last = self.last[1::2] + (self.last[-1:] if odd else array("q"))
        self.count = _paired(self.count)
        self.low = array("d", map(min, self.low[::2], [*self.low[1::2], *self.low[-1:]]))
        self.high = array("d", map(max, self.high[::2], [*self.high[1::2], *self.high[-1:]]))
        self.total = _paired(self.total)
        self.sums = [_paired(column) for column in self.sums]
        self.per_bucket *= 2


def _paired[Column: (array[int], array[float])](column: Column) -> Column:
    halves = array(column.typecode, map(sum, zip(column[::2], column[1::2], strict=False)))
    return halves + column[len(column) - len(column) % 2 :]
