"""What makes samplers look again: every step's time, and signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol

from tcmon.analysis.roles import Role
from tcmon.steps.sampler import OnSignal, Steered, Watcher, parts


class Counter(Protocol):
    """The steps of a role: how many there were, and from which one on the sampler is asked again."""

    count: int
    next: int


class Triggers:
    """Connects the samplers that need it to every step and to signals, from construction until `close`.

    `watch` is called with a role and what is to be called with number and time of each of its steps.
    """

    def __init__(
        self,
        samplers: Mapping[Role, Steered],
        counters: Mapping[Role, Counter],
        watch: Callable[[str, Callable[[int, int], None]], None],
    ) -> None:
        self._handlers: dict[int, tuple[Any, Any]] = {}
        """By signal: the program's handler, and the one that stands before it."""
        for role, steered in samplers.items():
            for sampler in parts(steered.chosen):
                if isinstance(sampler, Watcher):
                    watch(role, _watching(sampler, counters[role]))
                if isinstance(sampler, OnSignal) and threading.current_thread() is threading.main_thread():
                    self._listen(sampler, counters[role])

    def before_the_end(self, act: Callable[[], None]) -> None:
        """Call `act` when SIGTERM comes, before the process ends of it or the program's own handler runs.

        Only in the main thread, where handlers can be installed.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)

        def handler(number: int, frame: FrameType | None) -> None:
            try:
                act()
            finally:
                if callable(before):
                    before(number, frame)
                elif before is signal.SIG_DFL:
                    signal.signal(number, signal.SIG_DFL)
                    os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, handler)
        self._handlers[signal.SIGTERM] = before, handler

    def close(self) -> None:
        """Put the program's handlers back, where they were not replaced since."""
        for number, (before, own) in self._handlers.items():
            if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is own:
                signal.signal(number, before)
        self._handlers.clear()

    def _listen(self, sampler: OnSignal, counter: Counter) -> None:
        before = signal.getsignal(sampler.number)

        def handler(number: int, frame: FrameType | None) -> None:
            sampler.ask()
            counter.next = counter.count + 1
            if callable(before):
                before(number, frame)

        signal.signal(sampler.number, handler)
        self._handlers[sampler.number] = before, handler


def _watching(sampler: Watcher, counter: Counter) -> Callable[[int, int], None]:
    def watch(n: int, took_ns: int) -> None:
        if sampler.watch(n, took_ns):
            counter.next = n + 1

    return watch
