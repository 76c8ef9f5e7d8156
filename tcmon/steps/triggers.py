"""Samplers that record the steps after something has happened, in this process: ranks record different steps.

What each looks at says its class; `Listening` brings it there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from math import isfinite
from statistics import median
from types import FunctionType, MethodType
from typing import ClassVar, Protocol, runtime_checkable

from tcmon.steps.sampler import NEVER, Combinable, check_number, check_whole

_SETTLING = 10
_PACE = 0.02
_SETTLING_LOSSES = 20
_LOSS_PACE = 0.05


@runtime_checkable
class Watcher(Protocol):
    """A sampler that looks at the times of every step."""

    def watch(self, n: int, took_ns: int, wait_ns: int, recorded: bool) -> bool:
        """Step `n` is over: its time, and that of its wait for data. Whether steps are chosen by that.

        If so, the sampler is asked again for the next step.
        """


@runtime_checkable
class Hearer(Protocol):
    """A sampler that looks at the losses of every step, and at what recorded steps tell of NaN and infinity."""

    def hear_loss(self, value: float) -> bool:
        """`backward()` was called on a loss of that value. Whether steps are chosen by that."""

    def hear_nonfinite(self, count: int) -> bool:
        """A recorded step had so many NaN and infinite elements in parameters and gradients. Likewise."""


class Trigger(Combinable):
    """Records the next `steps` steps once it was asked to. Raises `ValueError` unless `steps` is at least 1."""

    word: ClassVar[str]
    """The reason that its steps are recorded for."""

    def __init__(self, steps: int) -> None:
        check_whole("steps", steps)
        if steps < 1:
            raise ValueError(f"steps must be at least 1, not {steps}")
        self.steps = steps
        self._asked = False
        self._until = 0

    def ask(self) -> None:
        """It has happened: the next steps are recorded."""
        self._asked = True

    def reason(self, n: int) -> str | None:
        if self._asked:
            self._asked = False
            self._until = n + self.steps - 1
        return self.word if n <= self._until else None

    def next_after(self, n: int) -> int:
        return n + 1 if self._asked or n < self._until else NEVER

    def _asks_if(self, happened: bool) -> bool:
        if happened:
            self.ask()
        return happened


class _Usual:
    """A running median of the times of steps, that moves by a little with each (Robbins and Monro, 1951)."""

    __slots__ = ("_first", "_median", "_seen")

    def __init__(self) -> None:
        self._first: list[int] = []
        self._median = 0.0
        self._seen = 0

    def take(self, took_ns: int) -> float | None:
        """What was usual until now, None while that is not known; one more step is taken into account."""
        self._seen += 1
        if self._seen <= _SETTLING:
            self._first.append(took_ns)
            self._median = median(self._first)
            return None
        usual = self._median
        step = max(usual * _PACE, 1.0)
        self._median += step if took_ns > usual else -step
        return usual


def _check_factor(factor: object) -> None:
    check_number("factor", factor)
    if not isinstance(factor, int | float) or not 1 < factor < 1e9:
        raise ValueError(f"factor must be above 1, not {factor}")


class Slow(Trigger):
    """Record the next `steps` steps after one that took more than `factor` times the usual.

    The usual time is a running median; the first ten steps only set it. Recorded steps have one of their own, so that
    what recording costs is not taken for slowness. Looks at every step. Raises `ValueError` unless `factor` is above 1
    and `steps` at least 1.
    """

    word = "slow"

    def __init__(self, factor: float = 3.0, steps: int = 1) -> None:
        _check_factor(factor)
        super().__init__(steps)
        self.factor = factor
        self._usual = _Usual(), _Usual()

    def watch(self, n: int, took_ns: int, wait_ns: int, recorded: bool) -> bool:
        """See `Watcher`."""
        usual = self._usual[recorded].take(took_ns)
        return self._asks_if(usual is not None and took_ns > self.factor * usual)

    def __repr__(self) -> str:
        return f"Slow(factor={self.factor}, steps={self.steps})"


class Stall(Trigger):
    """Record the next `steps` steps after one that waited for its data `factor` times as long as a usual step takes.

    The usual time is a running median of whole steps, their waits included, so that a run which always waits is not
    told of at each step; the first ten steps only set it. Looks at every step. Raises `ValueError` unless `factor` is
    above 1 and `steps` at least 1.
    """

    word = "stall"

    def __init__(self, factor: float = 2.0, steps: int = 1) -> None:
        _check_factor(factor)
        super().__init__(steps)
        self.factor = factor
        self._usual = _Usual()

    def watch(self, n: int, took_ns: int, wait_ns: int, recorded: bool) -> bool:
        """See `Watcher`."""
        usual = self._usual.take(took_ns)
        return self._asks_if(usual is not None and wait_ns > self.factor * usual)

    def __repr__(self) -> str:
        return f"Stall(factor={self.factor}, steps={self.steps})"


class NonFinite(Trigger):
    """Record the next `steps` steps when the loss becomes NaN or infinite, or parameters or gradients do.

    The loss is that on which `backward()` is called: of every step if it lies in the host's memory, of recorded steps
    (with `loss`) if it lies on a device. Parameters and gradients are those of recorded steps, with `state`. Asks once,
    and again only after all was finite in between. Raises `ValueError` unless `steps` is at least 1.
    """

    word = "nonfinite"

    def __init__(self, steps: int = 1) -> None:
        super().__init__(steps)
        self._bad = [False, False]

    def hear_loss(self, value: float) -> bool:
        """See `Hearer`."""
        return self._becomes(0, not isfinite(value))

    def hear_nonfinite(self, count: int) -> bool:
        """See `Hearer`."""
        return self._becomes(1, count > 0)

    def _becomes(self, which: int, bad: bool) -> bool:
        before = any(self._bad)
        self._bad[which] = bad
        return self._asks_if(bad and not before)

    def __repr__(self) -> str:
        return f"NonFinite(steps={self.steps})"


class LossSpike(Trigger):
    """Record the next `steps` steps when the loss rises by more than `factor` times what it usually differs by.

    Compared are the loss on which `backward()` is called, as `NonFinite` knows it, with its running mean, and the
    difference with the running mean of such differences (exponentially weighted, the last twenty or so); the first
    twenty losses only set these. Raises `ValueError` unless `factor` is above 1 and `steps` at least 1.
    """

    word = "loss-spike"

    def __init__(self, factor: float = 6.0, steps: int = 1) -> None:
        _check_factor(factor)
        super().__init__(steps)
        self.factor = factor
        self._seen = 0
        self._mean = 0.0
        self._differs = 0.0

    def hear_loss(self, value: float) -> bool:
        """See `Hearer`."""
        if not isfinite(value):
            return False
        self._seen += 1
        difference = value - self._mean
        usual = self.factor * self._differs
        spike = self._seen > _SETTLING_LOSSES and difference > usual > 0
        # A plain mean of the first ones; of a spike, only as much as is not out of the ordinary.
        pace = max(_LOSS_PACE, 1 / self._seen)
        if spike:
            difference = usual
        if self._seen > 1:
            self._differs += max(_LOSS_PACE, 1 / (self._seen - 1)) * (abs(difference) - self._differs)
        self._mean += pace * difference
        return self._asks_if(spike)

    def hear_nonfinite(self, count: int) -> bool:
        """See `Hearer`."""
        return False

    def __repr__(self) -> str:
        return f"LossSpike(factor={self.factor}, steps={self.steps})"


class OnSignal(Trigger):
    """Record the next `steps` training steps when the process gets a signal, as by `kill -USR1 PID`.

    The handler is installed when a session begins in the main thread, hands on to the one that was there, and is taken
    back at its end if the program has not put another in its place. Raises `ValueError` if `number` is no signal that
    can be handled or `steps` is less than 1.
    """

    word = "signal"

    def __init__(self, number: int = signal.SIGUSR1, steps: int = 1) -> None:
        check_whole("number", number)
        if number not in signal.valid_signals() or number in (signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(f"number must be a signal that can be handled, not {number}")
        super().__init__(steps)
        self.number = number

    def __repr__(self) -> str:
        return f"OnSignal({signal_name(self.number)}, steps={self.steps})"


def signal_name(number: int) -> str:
    """A signal's name; those of real time have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class OnCall(Trigger):
    """Record the next `steps` steps when a Python function is called: the function, or its qualified name.

    A name as "Trainer.save" stands for all functions so named, in whatever module. The call itself lies in a step that
    has begun already. Costs nothing where the function isn't called. Raises `TypeError` if `function` is neither, and
    `ValueError` if `steps` is less than 1.
    """

    word = "call"

    def __init__(self, function: Callable[..., object] | str, steps: int = 1) -> None:
        if isinstance(function, MethodType):
            function = function.__func__
        if type(function) is not str and not isinstance(function, FunctionType):
            raise TypeError(f"function must be a Python function or a name, not {type(function).__name__}")
        if function == "":
            raise ValueError("function must be a Python function or a name, not an empty text")
        super().__init__(steps)
        self.function = function

    @property
    def name(self) -> str:
        """The function's qualified name."""
        return self.function if isinstance(self.function, str) else self.function.__qualname__

    def __repr__(self) -> str:
        return f"OnCall({self.name}, steps={self.steps})"


WORDS = frozenset(("request", *(kind.word for kind in (Slow, Stall, NonFinite, LossSpike, OnSignal, OnCall))))
"""The reasons of steps that are recorded since something happened."""
