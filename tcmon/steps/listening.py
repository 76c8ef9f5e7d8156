"""Brings triggers what they look at: every step's times, losses, signals and calls."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol

from tcmon.analysis.roles import Role
from tcmon.log import warn
from tcmon.monitoring.interruptions import is_interruption
from tcmon.steps.sampler import Sampler, Steered, parts
from tcmon.steps.triggers import Hearer, OnCall, OnSignal, Trigger, Watcher, signal_name


class Counter(Protocol):
    """The steps of a role: how many there were, and from which one on the sampler is asked again."""

    count: int
    next: int


class Sources(Protocol):
    """Where a session has what triggers look at. All callables are called in the thread of what they tell of."""

    def watch_every_step(self, role: str, watch: Callable[[int, int, int, bool], None]) -> None:
        """Call `watch` with each step of a role: its number, its time, that of its wait, and whether it is recorded."""

    def watch_losses(self, loss: Callable[[float], None], nonfinite: Callable[[int], None]) -> None:
        """Call `loss` with each loss on which `backward()` is called, and `nonfinite` as `Hearer` says."""

    def watch_calls(self, function: CodeType | str, called: Callable[[], None]) -> None:
        """Call `called` when a function is called, given by its code or its qualified name."""

    def happened(self, what: str) -> None:
        """Something made a sampler look again."""


class Listening:
    """Connects the triggers among `samplers` to their sources, from construction until `close`."""

    def __init__(self, samplers: Mapping[Role, Steered], counters: Mapping[Role, Counter], sources: Sources) -> None:
        self._sources = sources
        self._handlers: dict[int, tuple[Any, Any]] = {}
        """By signal: the program's handler, and the one that stands before it."""
        for role, steered in samplers.items():
            for sampler in parts(steered.chosen):
                self._connect(sampler, role, steered, counters[role])

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

    def _connect(self, sampler: Sampler, role: Role, steered: Steered, counter: Counter) -> None:
        def asks(method: str, *values: Any) -> bool:
            """Whether a sampler, maybe the user's, chooses steps by what it is told."""
            if steered.given_up:
                return False
            try:
                return bool(getattr(sampler, method)(*values))
            except Exception as error:
                if is_interruption(error):
                    raise
                counter.next = counter.count + 1
                steered.give_up(f"{method}({values[0]}) raised {type(error).__name__}", error)
                return False

        def look_again(what: str) -> None:
            counter.next = counter.count + 1
            self._sources.happened(what)

        name = type(sampler).__name__
        if isinstance(sampler, Watcher):

            def watch(n: int, took_ns: int, wait_ns: int, recorded: bool) -> None:
                if asks("watch", n, took_ns, wait_ns, recorded):
                    look_again(f"{name} at step {n}")

            self._sources.watch_every_step(role, watch)
        if isinstance(sampler, Hearer):

            def loss(value: float) -> None:
                if asks("hear_loss", value):
                    look_again(f"{name} at step {counter.count}, a loss of {value:g}")

            def nonfinite(count: int) -> None:
                if asks("hear_nonfinite", count):
                    look_again(f"{name} at step {counter.count}, {count} elements")

            self._sources.watch_losses(loss, nonfinite)
        if isinstance(sampler, OnCall):
            function = sampler.function
            code = function.__code__ if isinstance(function, FunctionType) else str(function)
            self._sources.watch_calls(code, self._asking(sampler, look_again, f"a call of {sampler.name}()"))
        if isinstance(sampler, OnSignal):
            self._listen(sampler, self._asking(sampler, look_again, f"the signal {signal_name(sampler.number)}"))

    def _asking(self, sampler: Trigger, look_again: Callable[[str], None], what: str) -> Callable[[], None]:
        def asking() -> None:
            sampler.ask()
            look_again(what)

        return asking

    def _listen(self, sampler: OnSignal, asking: Callable[[], None]) -> None:
        before = signal.getsignal(sampler.number)
        if before is None or threading.current_thread() is not threading.main_thread():
            why = "it has a handler that is not Python's" if before is None else "this is not the main thread"
            warn(f"can't record on {signal_name(sampler.number)}: {why}")
            return

        def handler(number: int, frame: FrameType | None) -> None:
            asking()
            if callable(before):
                before(number, frame)

        signal.signal(sampler.number, handler)
        self._handlers[sampler.number] = before, handler
