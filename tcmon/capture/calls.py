"""Python function calls of a recorded step: an event log of starts and ends, from PEP 669 events.

The callbacks only append to one flat list; names are resolved and rows are made after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import sub
from threading import get_ident
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon.capture.owntime import OwnTime
from tcmon.capture.recorder import Equipment, Step, identity
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
    """The `calls` of recorded steps; those of all threads, in whatever step is recorded."""

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._log = CallLog(equipment.tool, equipment.failed)
        self._open: dict[int, list[Segment]] = {}

    @property
    def events(self) -> int:
        """Starts and ends of calls that were logged so far."""
        return self._log.events

    def start(self, step: Step) -> None:
        self._open.setdefault(id(step), [])
        self._log.start()

    def pause(self, step: Step) -> None:
        segment = self._log.stop()
        if segment is not None:
            self._open.setdefault(id(step), []).append(segment)

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        stored = dropped = 0
        for segment in self._open.pop(id(step), ()):
            dropped += segment.dropped
            for thread, what, at in rows(segment, self._equipment.names, self._equipment.own):
                stored += sum(1 for number in what if number > 0)
                yield {
                    "kind": "calls",
                    **identity(step),
                    "thread": thread,
                    "begin": max(0, segment.begin - self._equipment.origin),
                    "what": what,
                    "at": at,
                }
        facts["calls"] = {"stored": stored, "dropped": dropped}

    def discard(self, step: Step) -> None:
        self._open.pop(id(step), None)

    def stop(self) -> None:
        """Log nothing until a step starts or goes on: the callback that was about to pause may not get there."""
        self._log.stop()


class CallLog:
    """Logs the calls of all threads while it is on."""

    def __init__(self, tool: Tool, failed: Callable[[BaseException], None], limit: int = DEFAULT_LIMIT) -> None:
        self._tool = tool
        self._log: list[Any] = []
        self._limit = 2 * limit * _WIDTH
        self._begin = 0
        self._dropped = 0
        self.events = 0
        self._on = False
        self._failed = failed
        self._register()

    def start(self) -> None:
        """Log from now on; a later `start` without a `stop` changes nothing."""
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
        if self._dropped:
            self._dropped = 0
            self._register()
        self.events += len(segment.log) // _WIDTH
        return segment

    def _register(self) -> None:
        # One `extend` an event is atomic, so that threads can't mix their entries; it allocates nothing that the
        # garbage collector tracks. Exceptions of a callback (MemoryError) must not reach the program on their own.
        log = self._log
        extend = log.extend
        now = perf_counter_ns
        thread = get_ident
        limit = self._limit
        failed = self._failed

        def started(code: CodeType, _offset: int, _thrown: object = None) -> None:
            try:
                extend((code, now(), thread()))
                if len(log) > limit:
                    self._only_count()
            except BaseException as error:
                failed(error)

        def returned(_code: CodeType, _offset: int, _value: object) -> None:
            try:
                extend((Returned, now(), thread()))
            except BaseException as error:
                failed(error)

        def yielded(_code: CodeType, _offset: int, _value: object) -> None:
            try:
                extend((Yielded, now(), thread()))
            except BaseException as error:
                failed(error)

        def unwound(_code: CodeType, _offset: int, raised: BaseException) -> None:
            try:
                extend((type(raised), now(), thread()))
            except BaseException as error:
                failed(error)

        for event in (events.PY_START, events.PY_RESUME, events.PY_THROW):
            self._tool.on(event, started)
        self._tool.on(events.PY_RETURN, returned)
        self._tool.on(events.PY_YIELD, yielded)
        self._tool.on(events.PY_UNWIND, unwound)

    def _only_count(self) -> None:
        """The step has more calls than are stored: from here on the log stays as it is."""

        def counted(_code: CodeType, _offset: int, _thrown: object = None) -> None:
            self._dropped += 1

        for event in (events.PY_START, events.PY_RESUME, events.PY_THROW):
            self._tool.on(event, counted)
        for event in (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND):
            self._tool.on(event, None)


def rows(segment: Segment, names: NameTable, own: OwnTime) -> Iterable[tuple[int, list[int], list[int]]]:
    """The log of a segment by thread: (thread, what, at) as the trace's `calls` have them, without `own` time."""
    log = segment.log
    whats, times, threads = log[0::_WIDTH], log[1::_WIDTH], log[2::_WIDTH]
    if not whats:
        return
    times = own.without(times, segment.begin)
    numbers = names.numbers(whats)
    if len(set(threads)) == 1:
        yield threads[0], numbers, _differences(times, segment.begin)
        return
    for thread in dict.fromkeys(threads):
        chosen = [i for i, t in enumerate(threads) if t == thread]
        yield thread, [numbers[i] for i in chosen], _differences([times[i] for i in chosen], segment.begin)


def _differences(times: list[int], begin: int) -> list[int]:
    """Each time relative to the one before it, the first to `begin`."""
    found = [times[0] - begin, *map(sub, times[1:], times)]
    return found if min(found) >= 0 else [max(0, each) for each in found]
