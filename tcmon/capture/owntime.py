"""The time that recorders spend within a recorded step, so that it can be told apart from the program's."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate, takewhile

_MOST = 20_000
"""How many stretches are remembered."""


class OwnTime:
    """Stretches of time that were spent in callbacks of recorders, in order. Clock values are `perf_counter_ns`."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[int, int]] = deque(maxlen=_MOST)

    def note(self, begin: int, end: int) -> None:
        """A callback ran from `begin` to `end`."""
        if end > begin:  # unless the clock was set back
            self._stretches.append((begin, end))

    def without(self, times: Sequence[int], begin: int) -> list[int]:
        """`times` (sorted) as they would be if nothing had been spent since `begin`."""
        stretches = self.since(begin)
        if not stretches:
            return list(times)
        spent = list(accumulate(end - start for start, end in stretches))
        found: list[int] = []
        at = 0
        shift = 0
        for (start, _), total in zip(stretches, spent, strict=True):
            until = bisect_right(times, start, at)
            found += [time - shift for time in times[at:until]] if shift else times[at:until]
            at, shift = until, total
        found += [time - shift for time in times[at:]]
        return found

    def since(self, begin: int) -> list[tuple[int, int]]:
        """The stretches that began at `begin` or later."""
        while True:
            try:
                recent = list(takewhile(lambda each: each[0] >= begin, reversed(self._stretches)))
            except RuntimeError:  # another thread has noted one meanwhile
                continue
            recent.reverse()
            return recent
