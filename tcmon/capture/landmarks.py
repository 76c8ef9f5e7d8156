"""Functions of torch whose start and return tell recorders something, watched only while a step is recorded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from types import CodeType, FrameType, FunctionType
from typing import Protocol

from tcmon.capture.owntime import OwnTime
from tcmon.monitoring.tool import events

type Called = Callable[[FrameType], None]


class Landmark:
    """One recorder's interest in one function. `started` and `returned` are called with the function's frame."""

    __slots__ = ("_landmarks", "code", "returned", "started", "users")

    def __init__(self, landmarks: Landmarks, code: CodeType, started: Called | None, returned: Called | None) -> None:
        self._landmarks = landmarks
        self.code = code
        self.started = started
        self.returned = returned
        self.users = 0

    def switch(self, on: bool) -> None:
        """One more step needs it, or one less: it is on as long as any does."""
        self.users += 1 if on else -1
        if self.users == (1 if on else 0):
            self._landmarks.update(self.code)


class Watcher(Protocol):
    """What tells of starts and returns of functions."""

    def on(self, event: int, callback: Callable[[CodeType, FrameType], None]) -> None:
        """Call `callback` for `event` where it is switched on, with the frame of the function."""

    def watch(self, code: CodeType, event_set: int) -> None:
        """Switch exactly these events on in `code`."""


class Landmarks:
    """The landmarks of all recorders.

    `own` is told of the time spent in them; `failed` is called with what a callback caught.
    """

    def __init__(self, tool: Watcher, own: OwnTime, failed: Callable[[BaseException], None]) -> None:
        self._tool = tool
        self._own = own
        self._failed = failed
        self._of: dict[int, list[Landmark]] = {}
        tool.on(events.PY_START, self._on_start)
        tool.on(events.PY_RETURN, self._on_return)

    def add(self, code: CodeType, started: Called | None = None, returned: Called | None = None) -> Landmark:
        """A landmark, off until it is switched on."""
        landmark = Landmark(self, code, started, returned)
        self._of.setdefault(id(code), []).append(landmark)
        return landmark

    def update(self, code: CodeType) -> None:
        """Switch the events of `code` on that its landmarks need now."""
        used = [landmark for landmark in self._of[id(code)] if landmark.users]
        starts = any(landmark.started for landmark in used)
        returns = any(landmark.returned for landmark in used)
        self._tool.watch(code, (events.PY_START if starts else 0) | (events.PY_RETURN if returns else 0))

    def _on_start(self, code: CodeType, frame: FrameType) -> None:
        begin = perf_counter_ns()
        try:
            for landmark in self._of[id(code)]:
                if landmark.users and landmark.started is not None:
                    landmark.started(frame)
            self._own.note(begin, perf_counter_ns())
        except BaseException as error:
            self._failed(error)

    def _on_return(self, code: CodeType, frame: FrameType) -> None:
        begin = perf_counter_ns()
        try:
            for landmark in self._of[id(code)]:
                if landmark.users and landmark.returned is not None:
                    landmark.returned(frame)
            self._own.note(begin, perf_counter_ns())
        except BaseException as error:
            self._failed(error)


def function_code(module: str, *path: str) -> CodeType | None:
    """The code of a function of an imported module, by the names that lead to it; None where there is none.

    A name that a function's code holds leads to a function within it. No code of the program runs.
    """
    holder = sys.modules.get(module)
    if holder is None:
        return None
    found: object = vars(holder).get(path[0])
    for name in path[1:]:
        if isinstance(found, FunctionType | staticmethod | classmethod):
            found = _code_of(found)
        if isinstance(found, CodeType):
            found = next((c for c in found.co_consts if isinstance(c, CodeType) and c.co_name == name), None)
        elif isinstance(found, type):
            found = vars(found).get(name)
        else:
            return None
    return found if isinstance(found, CodeType) else _code_of(found)


def _code_of(function: object) -> CodeType | None:
    while isinstance(function, staticmethod | classmethod):
        function = function.__func__
    while isinstance(function, FunctionType):
        wrapped = vars(function).get("__wrapped__")
        if wrapped is None:
            return function.__code__
        function = wrapped
    return None
