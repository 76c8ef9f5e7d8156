"""What makes samplers look again: every step's time, and signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Protocol

from tcmon.analysis.roles import Role
from tcmon.log import warn
from tcmon.monitoring.interruptions import is_interruption
from tcmon.steps.sampler import OnSignal, Steered, Watcher, parts, signal_name


class Counter(Protocol):
    """The steps of a role: how many there were, and from which one on the sampler is asked again."""

    count: int
    next: int


class Triggers:
    """Connects the samplers that need it to every step and to signals, from construction until `close`.

    `watch` is called with a role and what is to be called with each of its steps: its number, its time, and whether it
    is recorded. `happened` is called with the name of what made a sampler look again.
    """

    def __init__(
        self,
        samplers: Mapping[Role, Steered],
        counters: Mapping[Role, Counter],
        watch: Callable[[str, Callable[[int, int, bool], None]], None],
        happened: Callable[[str], None],
    ) -> None:
        self._happened = happened
        self._handlers: dict[int, tuple[Any, Any]] = {}
        """By signal: the program's handler, and the one that stands before it."""
        for role, steered in samplers.items():
            for sampler in parts(steered.chosen):
                if isinstance(sampler, Watcher):
                    watch(role, self._watching(sampler, steered, counters[role]))
                if isinstance(sampler, OnSignal):
                    self._listen(sampler, counters[role])

    def before_the_end(self, act: Callable[[], None]) -> None:
        """Call `act` when SIGTERM comes, before the process ends of it or the program's own handler runs.

        Only in the main thread, where handlers can be installed.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)
        if before is None:
            return  # a handler that is not Python's: it could be neither called nor put back

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
        if before is None or threading.current_thread() is not threading.main_thread():
            why = "it has a handler that is not Python's" if before is None else "this is not the main thread"
            warn(f"can't record on {signal_name(sampler.number)}: {why}")
            return

        def handler(number: int, frame: FrameType | None) -> None:
            sampler.ask()
            counter.next = counter.count + 1
            self._happened(f"the signal {signal_name(sampler.number)}")
            if callable(before):
                before(number, frame)

        signal.signal(sampler.number, handler)
        self._handlers[sampler.number] = before, handler

    def _watching(self, sampler: Watcher, steered: Steered, counter: Counter) -> Callable[[int, int, bool], None]:
        def watch(n: int, took_ns: int, recorded: bool) -> None:
            if steered.given_up:
                return
            try:
                chosen = sampler.watch(n, took_ns, recorded)
            except Exception as error:
                if is_interruption(error):
                    raise
                steered.give_up(f"watch({n}) raised {type(error).__name__}", error)
                counter.next = n + 1
                return
            if chosen:
                counter.next = n + 1
                self._happened(f"{type(sampler).__name__} at step {n}")

        return watch
