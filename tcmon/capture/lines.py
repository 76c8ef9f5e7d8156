"""The `lines` of recorded steps: where in the loop's own code the time goes, from LINE events on that code alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon.capture.functionlines import FunctionLines
from tcmon.capture.recorder import Equipment, Step, identity
from tcmon.monitoring.tool import events

_MOST = 2 * 100_000
"""Twice the starts of lines of one step that are kept; what comes then belongs to the last one."""


class LineRecorder:
    """Records the `lines` of a step: its time from begin to end, by the line of the loop's frame that it was spent in.

    What other recorders spend meanwhile is counted apart.
    Time in functions that a line calls is the line's, and so is that of other loops' steps within the step. Other
    frames that run the same code (recursion, other threads) are told apart by their identity.
    """

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._held: dict[int, list[int]] = {}
        """By the id of a step: lines and times of starts, in turn."""
        self._logs: dict[int, list[int]] = {}
        """The log of the step that is recorded now in a frame, by the frame's id."""
        self._on: dict[int, tuple[CodeType, int]] = {}
        """By the id of a code object: the steps that need its events."""
        self._functions = FunctionLines(equipment)
        equipment.tool.on(events.LINE, self._callback())

    def add_function(self, code: CodeType) -> None:
        """Record the lines of this function as well."""
        self._functions.add(code)

    def start(self, step: Step) -> None:
        self._functions.start(step)
        if step.code is not None:
            self._logs[step.frame] = self._held.setdefault(id(step), [])
            self._switch(step.code, 1)

    def pause(self, step: Step) -> None:
        self._functions.pause(step)
        if step.code is not None and self._logs.get(step.frame) is self._held.get(id(step), ()):
            del self._logs[step.frame]
            self._switch(step.code, -1)

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        log = self._held.pop(id(step), None)
        yield from self._functions.records(step)
        if log is None or step.code is None:
            return
        moments = self._equipment.own.without([*log[1::2], step.end], step.begin)
        times: dict[int, int] = {step.line: 0}
        hits: dict[int, int] = {}
        line, since, last = step.line, step.begin, moments[-1]
        for number, at in zip(log[0::2], moments, strict=False):
            at = min(max(at, since), last)
            times[line] = times.get(line, 0) + at - since
            hits[number] = hits.get(number, 0) + 1
            line, since = number, at
        times[line] = times.get(line, 0) + max(0, last - since)
        hits.setdefault(step.line, 1)  # the wait for data, if the first event is that of the body
        order = sorted(line for line in times if line > 0)
        yield {
            "kind": "lines",
            **identity(step),
            "thread": step.thread,
            "function": self._equipment.names.numbers([step.code])[0],
            "body": True,
            "line": order,
            "hits": [hits.get(line, 0) for line in order],
            "ns": [times[line] for line in order],
            "own": step.end - step.begin - sum(times[line] for line in order),
        }

    def discard(self, step: Step) -> None:
        self.pause(step)
        self._functions.forget(step)
        self._held.pop(id(step), None)

    def _switch(self, code: CodeType, more: int) -> None:
        users = self._on.get(id(code), (code, 0))[1] + more
        self._on[id(code)] = code, max(0, users)
        if users == (1 if more > 0 else 0):
            self._equipment.tool.watch(code, events.LINE if users else 0)

    def _callback(self) -> Any:
        logs = self._logs
        now = perf_counter_ns
        frame = sys._getframe
        failed = self._equipment.failed
        functions = self._functions

        def on_line(code: CodeType, line: int) -> None:
            try:
                here = id(frame(1))
                log = logs.get(here)
                if log is None:
                    functions.line(code, here, line)
                elif len(log) < _MOST:
                    log += (line, now())
            except BaseException as error:
                failed(error)

        return on_line
