"""The lines of functions that the user named: in any thread, any number of calls within a recorded step."""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any

from tcmon.capture.landmarks import Landmark
from tcmon.capture.listening import can_be_heard
from tcmon.capture.recorder import Equipment, Step, identity
from tcmon.monitoring.tool import events

_MOST = 100_000
"""Starts of lines of one step that are kept; what comes then belongs to the last ones."""

_END = 0
"""Stands for a line where a call returned."""


class FunctionLines:
    """Logs LINE events and returns of some functions; generators and coroutines are none of them."""

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._functions: dict[int, tuple[CodeType, Landmark]] = {}
        self._recording: list[Step] = []
        """The steps that are recorded now; the last one gets what happens."""
        self._logs: dict[int, list[tuple[int, int, CodeType, int, int]]] = {}

    def add(self, code: CodeType) -> None:
        """Watch this function from now on."""
        landmarks = self._equipment.landmarks()
        if landmarks is None or id(code) in self._functions or not can_be_heard(code):
            return
        landmark = landmarks.add(code, None, self._returned)
        self._functions[id(code)] = code, landmark
        if self._recording:
            self._switch(code, landmark, True)

    def start(self, step: Step) -> None:
        """Log for this step from now on."""
        self._recording.append(step)
        if len(self._recording) == 1:
            for code, landmark in self._functions.values():
                self._switch(code, landmark, True)

    def pause(self, step: Step) -> None:
        """Log no longer for this step."""
        self._recording = [each for each in self._recording if each is not step]
        if not self._recording:
            for code, landmark in self._functions.values():
                self._switch(code, landmark, False)

    def line(self, code: CodeType, frame: int, line: int) -> None:
        """A line begins, in the frame with this id."""
        if id(code) in self._functions:
            self._log(frame, code, line)

    def forget(self, step: Step) -> None:
        """Keep nothing of a step."""
        self._logs.pop(id(step), None)

    def records(self, step: Step) -> Iterator[dict[str, Any]]:
        """The lines of a step that is over, by thread and function."""
        log = self._logs.pop(id(step), None)
        if not log:
            return
        moments = self._equipment.own.without([*(each[4] for each in log), step.end], step.begin)
        found: dict[tuple[int, int], tuple[CodeType, dict[int, int], dict[int, int]]] = {}
        open_calls: dict[int, list[_Call]] = {}
        for (thread, frame, code, line, _), at in zip(log, moments, strict=False):
            calls = open_calls.setdefault(thread, [])
            depth = next((i for i in range(len(calls) - 1, -1, -1) if calls[i].frame == frame), None)
            if depth is not None:
                # What was above it is over: it was left by an exception.
                while len(calls) > depth + 1:
                    calls.pop().line_ends(at)
                calls[-1].line_ends(at)
            if line == _END:
                if depth is not None:
                    calls.pop()
                continue
            if depth is None:
                _, ns, hits = found.setdefault((thread, id(code)), (code, {}, {}))
                calls.append(_Call(frame, ns, hits))
            calls[-1].line_begins(line, at)
        for calls in open_calls.values():
            for call in calls:
                call.line_ends(moments[-1])
        for (thread, _), (code, ns, hits) in found.items():
            order = sorted(ns)
            yield {
                "kind": "lines",
                **identity(step),
                "thread": thread,
                "function": self._equipment.names.numbers([code])[0],
                "body": False,
                "line": order,
                "hits": [hits[line] for line in order],
                "ns": [ns[line] for line in order],
            }

    def _returned(self, frame: FrameType) -> None:
        self._log(id(frame), frame.f_code, _END)

    def _log(self, frame: int, code: CodeType, line: int) -> None:
        if self._recording:
            log = self._logs.setdefault(id(self._recording[-1]), [])
            if len(log) < _MOST:
                log.append((get_ident(), frame, code, line, perf_counter_ns()))

    def _switch(self, code: CodeType, landmark: Landmark, on: bool) -> None:
        landmark.switch(on)
        self._equipment.tool.watch(code, events.LINE if on else 0)


class _Call:
    """A call of a function that has not ended: the line that it is in, and since when."""

    __slots__ = ("_hits", "_line", "_ns", "_since", "frame")

    def __init__(self, frame: int, ns: dict[int, int], hits: dict[int, int]) -> None:
        self.frame = frame
        self._ns = ns
        self._hits = hits
        self._line = 0
        self._since = 0

    def line_begins(self, line: int, at: int) -> None:
        self._line, self._since = line, at
        self._hits[line] = self._hits.get(line, 0) + 1
        self._ns.setdefault(line, 0)

    def line_ends(self, at: int) -> None:
        if self._line:
            self._ns[self._line] += max(0, at - self._since)
