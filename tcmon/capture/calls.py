"""Python function calls of a recorded step: an event log of starts and ends, from PEP 669 events.

The callbacks only append to one flat list; names are resolved and rows are made after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import sub
from threading import get_ident
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon.monitoring.tool import Tool, events
from tcmon.trace.names import NameTable

_EVENTS = events.PY_START | events.PY_RESUME | events.PY_THROW | events.PY_RETURN | events.PY_YIELD | events.PY_UNWIND
_WIDTH = 3  # entries of the log for one event: what, when, in which thread

DEFAULT_LIMIT = 100_000
"""Calls stored of one recorded step; further ones are only counted."""


class Returned:
    """Marks in the log that the innermost open call returned."""


class Yielded:
    """Marks in the log that the innermost open call yielded."""


class Segment:
    """What was logged from one `start` to the next `stop`."""

    __slots__ = ("begin", "dropped", "log")

    def __init__(self, begin: int, log: list[Any], dropped: int) -> None:
        self.begin = begin
        self.log = log
        self.dropped = dropped


class CallRecorder:
    """Logs the calls of all threads while it is on."""

    def __init__(self, tool: Tool, failed: Callable[[Exception], None], limit: int = DEFAULT_LIMIT) -> None:
        self._tool = tool
        self._log: list[Any] = []
        self._limit = limit * 2 * _WIDTH
        self._begin = 0
        self._dropped = 0
        self.events = 0
        self._on = False
        self._register(failed)

    def start(self) -> None:
        if not self._on:
            self._on = True
            self._begin = perf_counter_ns()
            self._tool.watch_everywhere(_EVENTS)

    def stop(self) -> Segment | None:
        """What was logged since `start`, or None if the recorder was off."""
        if not self._on:
            return None
        self._tool.watch_everywhere(0)
        self._on = False
        segment = Segment(self._begin, self._log[:], self._dropped)
        self._log.clear()
        self._dropped = 0
        self.events += len(segment.log) // _WIDTH
        return segment

    def _register(self, failed: Callable[[Exception], None]) -> None:
        # One `extend` an event is atomic, so that threads can't mix their entries; it allocates nothing that the
        # garbage collector tracks. Exceptions of a callback (MemoryError) must not reach the program.
        log = self._log
        extend = log.extend
        now = perf_counter_ns
        thread = get_ident
        limit = self._limit

        def started(code: CodeType, _offset: int) -> None:
            try:
                if len(log) < limit:
                    extend((code, now(), thread()))
                else:
                    self._dropped += 1
            except Exception as error:
                failed(error)

        def returned(_code: CodeType, _offset: int, _value: object) -> None:
            try:
                extend((Returned, now(), thread()))
            except Exception as error:
                failed(error)

        def yielded(_code: CodeType, _offset: int, _value: object) -> None:
            try:
                extend((Yielded, now(), thread()))
            except Exception as error:
                failed(error)

        def thrown(code: CodeType, _offset: int, _error: BaseException) -> None:
            started(code, _offset)

        def unwound(_code: CodeType, _offset: int, error: BaseException) -> None:
            try:
                extend((type(error), now(), thread()))
            except Exception as problem:
                failed(problem)

        self._tool.on(events.PY_START, started)
        self._tool.on(events.PY_RESUME, started)
        self._tool.on(events.PY_THROW, thrown)
        self._tool.on(events.PY_RETURN, returned)
        self._tool.on(events.PY_YIELD, yielded)
        self._tool.on(events.PY_UNWIND, unwound)


def rows(segment: Segment, names: NameTable) -> Iterable[tuple[int, list[int], list[int]]]:
    """The log of a segment by thread: (thread, what, at) as the trace's `calls` records have them."""
    log = segment.log
    whats, times, threads = log[0::_WIDTH], log[1::_WIDTH], log[2::_WIDTH]
    if not whats:
        return
    numbers = names.numbers(whats)
    if len(set(threads)) == 1:
        yield threads[0], numbers, _differences(times, segment.begin)
        return
    for thread in dict.fromkeys(threads):
        chosen = [i for i, t in enumerate(threads) if t == thread]
        yield thread, [numbers[i] for i in chosen], _differences([times[i] for i in chosen], segment.begin)


def _differences(times: list[int], begin: int) -> list[int]:
    """Each time relative to the one before it, the first to `begin`."""
    return [times[0] - begin, *map(sub, times[1:], times)]
