"""A claimed `sys.monitoring` tool id with its callbacks and local events.

Switching is immediate, in frames that already run, too. A callback that returns `DISABLE` silences its location only
until somebody calls `restart_events()`, so nothing here depends on its lasting.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon.errors import TcmonError

_monitoring = sys.monitoring

events = _monitoring.events
DISABLE = _monitoring.DISABLE

_PREFERRED = (3, 4, 5, 2, 0, 1)
"""Ids without a conventional owner first; then those of optimizers, profilers, debuggers, coverage."""


class Tool:
    """One of the six tool ids of the interpreter, from construction until `release`.

    Raises `TcmonError` if other tools hold them all.
    """

    def __init__(self, name: str) -> None:
        for candidate in _PREFERRED:
            if _monitoring.get_tool(candidate) is None:
                _monitoring.use_tool_id(candidate, name)
                self.id = candidate
                break
        else:
            owners = ", ".join(str(_monitoring.get_tool(i)) for i in range(6))
            raise TcmonError(f"all sys.monitoring tool ids are taken (by {owners}): stop one of these tools")
        self._callbacks: set[int] = set()
        self._local: dict[int, tuple[CodeType, int]] = {}
        self._released = False

    def on(self, event: int, callback: Callable[..., Any] | None) -> None:
        """Call `callback` for `event` wherever the event is switched on; None: nothing is called."""
        _monitoring.register_callback(self.id, event, callback)
        self._callbacks.add(event)

    def watch_everywhere(self, event_set: int) -> None:
        """Switch exactly the events of `event_set` on in all code."""
        if not self._released:
            _monitoring.set_events(self.id, event_set)

    def watch(self, code: CodeType, event_set: int) -> None:
        """Switch exactly the events of `event_set` on in `code`; code objects that are equal are told apart."""
        if not self._released:
            _monitoring.set_local_events(self.id, code, event_set)
            # Keyed by identity: code objects compare by value. Keeping it alive keeps its id its own.
            self._local[id(code)] = code, event_set

    def watch_instructions(self, code: CodeType, event_set: int, other: Tool) -> None:
        """As `watch`, for an `event_set` with INSTRUCTION in it, such that other tools' events don't end it.

        When a second tool's event first meets code that has INSTRUCTION events, CPython (3.12 to 3.14, at least)
        allocates its table of tools by instruction and forgets to fill in the first tool. So the table is made here,
        by a moment in which `other` has the event as well, before the events that count are switched on.
        """
        _, others = other._local.get(id(code), (code, 0))
        other.watch(code, events.INSTRUCTION)
        self.watch(code, events.INSTRUCTION)
        other.watch(code, others)
        self.watch(code, 0)
        self.watch(code, event_set)

    def release(self) -> None:
        """Switch all events off, forget the callbacks, and give the id back. May be called twice."""
        if self._released:
            return
        self._released = True
        _monitoring.set_events(self.id, 0)
        # free_tool_id of early 3.12 releases leaves local events set (cpython issue 111963).
        for code, _ in self._local.values():
            _monitoring.set_local_events(self.id, code, 0)
        self._local.clear()
        for event in self._callbacks:
            _monitoring.register_callback(self.id, event, None)
        _monitoring.free_tool_id(self.id)
        # What a callback silenced stays silent for the id's next owner in code that doesn't run in between.
        _monitoring.restart_events()


def empty_callback_ns(tool: Tool, rounds: int = 500) -> float:
    """What one event costs by itself, without the work of its callback: measured with an empty callback."""

    def loop() -> None:
        for _ in range(rounds):
            pass

    def nothing(_code: CodeType, _source: int, _target: int) -> None:
        return None

    def fastest() -> int:
        times = []
        for _ in range(5):
            begin = perf_counter_ns()
            loop()
            times.append(perf_counter_ns() - begin)
        return min(times)

    code = loop.__code__
    plain = fastest()
    tool.on(events.JUMP, nothing)
    tool.watch(code, events.JUMP)
    monitored = fastest()
    tool.watch(code, 0)
    return max(0.0, (monitored - plain) / rounds)
