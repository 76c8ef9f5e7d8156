"""Spreads slices over lanes, so that in each of them they are sorted by begin and nest in each other."""

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Lane:
    begin: int
    # When the slices that are open end, as negative numbers: the innermost, which ends first, is last.
    ends: list[int] = field(default_factory=list)


class Lanes:
    """Slices come in any order, but in that of time they need fewest lanes: one, where they nest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lanes: list[_Lane] = []

    def place(self, begin: int, end: int) -> int | None:
        """The first lane, counted from 0, that a slice fits into; None when it would take more than `most`."""
        for number, lane in enumerate(self._lanes):
            if begin < lane.begin:
                continue
            still_open = bisect_left(lane.ends, -begin)
            if still_open and -lane.ends[still_open - 1] < end:
                continue
            lane.begin = begin
            del lane.ends[still_open:]
            lane.ends.append(-end)
            return number
        if len(self._lanes) == self._most:
            return None
        self._lanes.append(_Lane(begin, [-end]))
        return len(self._lanes) - 1
