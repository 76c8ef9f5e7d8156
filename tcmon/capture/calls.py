"""Python function calls of a recorded step: an event log of starts and ends, from PEP 669 events.

The callbacks only append to one flat list; names are resolved and rows are made after the step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import sub
from threading import RLock, get_ident
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon.capture.cfunctions import CFunctions
from tcmon.capture.devicetime import DeviceClock
from tcmon.capture.listening import Listener, arguments_of, can_be_heard, let_go
from tcmon.capture.owners import OwnerListener
from tcmon.capture.owntime import OwnTime
from tcmon.capture.positions import Placed, Positions
from tcmon.capture.recorder import Equipment, Step, identity
from tcmon.monitoring.tool import DISABLE, Tool, events
from tcmon.trace.names import CFunction, NameTable

_EVENTS = events.PY_START | events.PY_RESUME | events.PY_THROW | events.PY_RETURN | events.PY_YIELD | events.PY_UNWIND
_C_EVENTS = events.CALL | events.C_RETURN | events.C_RAISE
_WIDTH = 3  # entries of the log for one event: what, when, in which thread

DEFAULT_LIMIT = 100_000
"""Calls stored of one recorded step; further ones are only counted."""


class Returned:
    """Marks in the log that the innermost open call returned."""


class Yielded:
    """Marks in the log that the innermost open call yielded."""


class Segment:
    """What was logged from one `start` to the next `stop`."""

    __slots__ = ("begin", "dropped", "heard", "log")

    def __init__(self, begin: int, log: list[Any], dropped: int, heard: list[Any]) -> None:
        self.begin = begin
        self.log = log
        self.dropped = dropped
        self.heard = heard
        """What each listener has heard."""


class CallRecorder:
    """The `calls` of recorded steps: those of the loop's thread, or of all threads.

    The log is one for all threads. Where steps of several threads are recorded at once, it is cut whenever one of them
    begins or ends, and each of them keeps its part of each piece.
    """

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._device = DeviceClock()
        self._reports = equipment.call_reports
        listeners = [OwnerListener(equipment.modules), *(report.listener for report in equipment.call_reports)]
        self._log = CallLog(equipment.tool, equipment.failed, equipment.own, listeners)
        if equipment.leaves_out is not None:
            self._log.leave_out(equipment.leaves_out)
        if equipment.c_functions:
            self._log.hear_c_functions(CFunctions())
        self._open: dict[int, list[Segment]] = {}
        self._active: dict[int, list[Segment]] = {}
        """Those of steps that are being recorded now."""
        self._lock = RLock()

    @property
    def events(self) -> int:
        """Starts and ends of calls that were logged so far."""
        return self._log.events

    def start(self, step: Step) -> None:
        with self._lock:
            if self._active:
                self._keep(self._log.cut())
            self._active[id(step)] = self._open.setdefault(id(step), [])
            self._device.start(step)
            self._log.start()

    def pause(self, step: Step) -> None:
        with self._lock:
            others = len(self._active) > (id(step) in self._active)
            self._keep(self._log.cut() if others else self._log.stop())
            self._active.pop(id(step), None)
        self._device.pause(step)

    def _keep(self, segment: Segment | None) -> None:
        if segment is not None:
            for segments in self._active.values():
                segments.append(segment)

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._device.take(step)
        stored = dropped = 0
        positions = Positions()
        only = None if self._equipment.all_threads else step.thread
        for segment in self._open.pop(id(step), ()):
            dropped += segment.dropped
            owners, *others = segment.heard
            if owners or any(others):
                placed = positions.of(segment.log)
                yield from _of(only, _owners(owners, placed, identity(step)))
                for report, heard in zip(self._reports, others, strict=True):
                    yield from _of(only, report.records(heard, placed, identity(step)))
            else:
                positions.skip(segment.log)
            for thread, what, at in rows(segment, self._equipment.names, self._equipment.own, only):
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
        self._device.forget(step)
        self._open.pop(id(step), None)

    def stop(self) -> None:
        """Log nothing until a step starts or goes on: the callback that was about to pause may not get there."""
        self._active.clear()
        self._log.stop()


class CallLog:
    """Logs the calls of all threads while it is on."""

    def __init__(
        self,
        tool: Tool,
        failed: Callable[[BaseException], None],
        own: OwnTime,
        listeners: Sequence[Listener] = (),
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        self._tool = tool
        self._own = own
        self._listeners = listeners
        self._hearing: dict[int, tuple[Listener, ...]] = {}
        """By the id of a code object, those who hear of its calls."""
        self._leaves_out: Callable[[CodeType], bool] | None = None
        self._c_functions: CFunctions | None = None
        self._open_c: dict[int, list[CFunction]] = {}
        """Calls of C functions that have not ended, by thread."""
        self._codes: list[CodeType] = []
        """Keeps these ids theirs."""
        self._log: list[Any] = []
        self._limit = 2 * limit * _WIDTH
        self._begin = 0
        self._dropped = 0
        self.events = 0
        self._on = False
        self._failed = failed
        self._register()

    def leave_out(self, leaves_out: Callable[[CodeType], bool]) -> None:
        """Log no calls of the code that this says so of."""
        self._leaves_out = leaves_out
        self._register()

    def hear_c_functions(self, functions: CFunctions) -> None:
        """Log the calls of these as well."""
        self._c_functions = functions
        self._register()

    def start(self) -> None:
        """Log from now on; a later `start` without a `stop` changes nothing."""
        if not self._on:
            self._on = True
            self._begin = perf_counter_ns()
            for calls in self._open_c.values():
                calls.clear()
            self._tool.watch_everywhere(_EVENTS if self._c_functions is None else _EVENTS | _C_EVENTS)

    def stop(self) -> Segment | None:
        """What was logged since `start`, or None if the recorder was off."""
        if not self._on:
            return None
        self._tool.watch_everywhere(0)
        self._on = False
        return self._take()

    def cut(self) -> Segment | None:
        """As `stop` gives, but logging goes on, without a gap."""
        return self._take() if self._on else None

    def _take(self) -> Segment:
        # Threads may log meanwhile.
        now = perf_counter_ns()
        log = self._log[:]
        del self._log[: len(log)]
        segment = Segment(self._begin, log, self._dropped, [each.take() for each in self._listeners])
        self._begin = now
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
        hearing = self._hearing.get
        unknown = (None,)
        tells_ends = len(self._listeners) > 1  # not only that of owners
        # Where nothing is to be heard of, the place is silenced; not for good, so it is asked for each event.
        leaves_out = self._leaves_out

        def started(code: CodeType, _offset: int) -> object:
            try:
                if leaves_out is not None and leaves_out(code):
                    return DISABLE
                extend((code, now(), thread()))
                if hearing(id(code), unknown):
                    self._tell_of_start(code)
                if len(log) > limit:
                    self._only_count()
            except BaseException as error:
                failed(error)
            return None

        def resumed(code: CodeType, _offset: int, _thrown: object = None) -> None:
            try:
                if leaves_out is not None and leaves_out(code):
                    return
                extend((code, now(), thread()))
                if len(log) > limit:
                    self._only_count()
            except BaseException as error:
                failed(error)

        def returned(code: CodeType, _offset: int, value: object) -> object:
            try:
                if leaves_out is not None and leaves_out(code):
                    return DISABLE
                extend((Returned, now(), thread()))
                if tells_ends and hearing(id(code)):
                    self._tell_of_end(code, value, raised=False)
            except BaseException as error:
                failed(error)
            return None

        def yielded(code: CodeType, _offset: int, _value: object) -> None:
            try:
                if leaves_out is not None and leaves_out(code):
                    return
                extend((Yielded, now(), thread()))
            except BaseException as error:
                failed(error)

        def unwound(code: CodeType, _offset: int, raised: BaseException) -> None:
            try:
                if leaves_out is not None and leaves_out(code):
                    return
                extend((type(raised), now(), thread()))
                if tells_ends and hearing(id(code)):
                    self._tell_of_end(code, None, raised=True)
            except BaseException as error:
                failed(error)

        if self._c_functions is not None:
            self._register_c_functions(self._c_functions.find)
        self._tool.on(events.PY_START, started)
        for event in (events.PY_RESUME, events.PY_THROW):
            self._tool.on(event, resumed)
        self._tool.on(events.PY_RETURN, returned)
        self._tool.on(events.PY_YIELD, yielded)
        self._tool.on(events.PY_UNWIND, unwound)

    def _register_c_functions(self, find: Callable[[object], CFunction | None]) -> None:
        extend = self._log.extend
        now = perf_counter_ns
        thread = get_ident
        failed = self._failed
        opened = self._open_c

        def called(_code: CodeType, _offset: int, function: object, _first: object) -> None:
            try:
                found = find(function)
                if found is not None:
                    here = thread()
                    extend((found, now(), here))
                    opened.setdefault(here, []).append(found)
            except BaseException as error:
                failed(error)

        def ended(function: object, how: type) -> None:
            try:
                found = find(function)
                if found is not None:
                    at, here = now(), thread()
                    # A start is not told of all: none of bound methods that lead to C functions.
                    calls = opened.get(here, ())
                    if calls and calls[-1] is found:
                        calls.pop()
                        extend((how, at, here))
            except BaseException as error:
                failed(error)

        self._tool.on(events.CALL, called)
        self._tool.on(events.C_RETURN, lambda _code, _offset, function, _first: ended(function, Returned))
        # What was raised isn't told.
        self._tool.on(events.C_RAISE, lambda _code, _offset, function, _first: ended(function, Exception))

    def _tell_of_start(self, code: CodeType) -> None:
        """Called right after the start of a call was logged."""
        log = self._log
        thread = get_ident()
        at = len(log) - _WIDTH
        try:
            while log[at + 2] != thread:  # others have logged something meanwhile
                at -= _WIDTH
            begin = log[at + 1]
        except IndexError:  # another thread has just stopped the log
            return
        listeners = self._hearing.get(id(code))
        if listeners is None:
            if not can_be_heard(code):
                self._hearing[id(code)] = ()
                self._codes.append(code)
                return
            arguments = arguments_of(sys._getframe(2))
            wanted = tuple(each for each in self._listeners if each.wants(code, arguments))
            self._codes.append(code)
            self._hearing[id(code)] = listeners = wanted
            if not listeners:
                let_go(arguments)
                return
        else:
            arguments = arguments_of(sys._getframe(2))
        for listener in listeners:
            listener.started(code, arguments, at // _WIDTH, thread)
        let_go(arguments)
        self._own.note(begin, perf_counter_ns())

    def _tell_of_end(self, code: CodeType, value: object, *, raised: bool) -> None:
        """Called right after the end of a call was logged."""
        begin = perf_counter_ns()
        thread = get_ident()
        for listener in self._hearing[id(code)]:
            listener.ended(code, thread, value, raised)
        self._own.note(begin, perf_counter_ns())

    def _only_count(self) -> None:
        """The step has more calls than are stored: from here on the log stays as it is."""

        leaves_out = self._leaves_out

        def counted(code: CodeType, _offset: int, _thrown: object = None) -> None:
            if leaves_out is None or not leaves_out(code):
                self._dropped += 1

        for event in (events.PY_START, events.PY_RESUME, events.PY_THROW):
            self._tool.on(event, counted)
        for event in (events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND):
            self._tool.on(event, None)
        if self._c_functions is not None:
            find = self._c_functions.find

            def counted_c(_code: CodeType, _offset: int, function: object, _first: object) -> None:
                self._dropped += find(function) is not None

            self._tool.on(events.CALL, counted_c)
            self._tool.on(events.C_RETURN, None)
            self._tool.on(events.C_RAISE, None)


def _owners(
    owners: list[tuple[CodeType, int, int, int]], placed: Placed, step: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """The records that tell whose calls some are."""
    by_thread: dict[int, tuple[list[int], list[int]]] = {}
    for code, event, thread, module in owners:
        position = placed(event, thread, code)
        if position is not None:
            call, modules = by_thread.setdefault(thread, ([], []))
            call.append(position)
            modules.append(module)
    for thread, (call, modules) in by_thread.items():
        yield {"kind": "owners", **step, "thread": thread, "call": call, "module": modules}


def _of(thread: int | None, records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records of a thread; None: all."""
    return (record for record in records if thread is None or record["thread"] == thread)


def rows(
    segment: Segment, names: NameTable, own: OwnTime, only: int | None = None
) -> Iterable[tuple[int, list[int], list[int]]]:
    """The log of a segment by thread: (thread, what, at) as the trace's `calls` have them, without `own` time.

    With `only`, nothing but that thread's.
    """
    log = segment.log
    whats, times, threads = log[0::_WIDTH], log[1::_WIDTH], log[2::_WIDTH]
    if not whats:
        return
    times = own.without(times, segment.begin)
    if only is not None and threads.count(only) < len(threads):
        chosen = [i for i, thread in enumerate(threads) if thread == only]
        if not chosen:
            return
        whats, times, threads = [whats[i] for i in chosen], [times[i] for i in chosen], [only] * len(chosen)
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
