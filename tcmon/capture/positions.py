"""Where calls stand among the starts of their thread in a step: what ties other records to those of calls."""

from __future__ import annotations

from types import CodeType
from typing import Any

from tcmon.trace.names import CFunction

_WIDTH = 3  # entries of a log for one event: what, when, in which thread


class Positions:
    """Counts the starts of each thread over the segments of one step, which are to be given in order."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}

    def of(self, log: list[Any]) -> Placed:
        """The positions of calls in the next segment."""
        placed = Placed(log, dict(self._before))
        self.skip(log)
        return placed

    def skip(self, log: list[Any]) -> None:
        """The next segment is of no interest, but its starts count."""
        threads = log[2::_WIDTH]
        kinds = list(map(type, log[0::_WIDTH]))
        for thread in set(threads):
            only = threads.count(thread) == len(threads)
            starts = _all_starts(kinds) if only else _starts(kinds, threads, thread)
            self._before[thread] = self._before.get(thread, 0) + starts


class Placed:
    """Tells for events of a segment's log which start of their thread in the step they are, from 0."""

    def __init__(self, log: list[Any], before: dict[int, int]) -> None:
        self._log = log
        self._before = before
        self._kinds = list(map(type, log[0::_WIDTH]))
        self._at: dict[int, tuple[int, int]] = {}
        self._threads = log[2::_WIDTH]
        self._single = len(set(self._threads)) == 1

    def __call__(self, event: int, thread: int, code: CodeType) -> int | None:
        """The position of the call whose start is the log's `event`; None if that is another's."""
        here = event * _WIDTH
        log = self._log
        if not 0 <= here < len(log) or log[here] is not code or log[here + 2] != thread:
            return None
        since, count = self._at.get(thread, (0, 0))
        if event < since:
            since, count = 0, 0
        kinds = self._kinds[since:event]
        count += _all_starts(kinds) if self._single else _starts(kinds, self._threads[since:event], thread)
        self._at[thread] = event, count
        return self._before.get(thread, 0) + count


def _all_starts(kinds: list[type]) -> int:
    return kinds.count(CodeType) + kinds.count(CFunction)


def _starts(kinds: list[type], threads: list[int], thread: int) -> int:
    return sum(each == thread and kind in (CodeType, CFunction) for kind, each in zip(kinds, threads, strict=True))
