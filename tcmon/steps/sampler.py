"""Samplers: small objects that decide for a step whether it is recorded, and say why.

The rule of `Interval` is that of TrainCheck's `--sampling-interval` and `--warm-up-steps`; that a sampler is an object
with one decision method, and that samplers combine, is the way of OpenTelemetry's. A sampler that names the next step
which it may record costs nothing on the steps before; those that must look at every step say so.

All here but `Every` are functions of the step's number alone, so that all ranks of a run record the same steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol, TypeGuard, runtime_checkable

from tcmon.monitoring.interruptions import is_interruption

NEVER = 1 << 62
"""As the next step: none."""
_MOST_TRIES = 10
"""How far `next_after` searches before it names a step that may turn out not to be recorded."""


@runtime_checkable
class Sampler(Protocol):
    """Decides which steps are recorded. Steps are numbered from 1, in each process and for each role apart."""

    def reason(self, n: int) -> str | None:
        """Why step `n` is recorded, in a word, or None if it is not."""

    def next_after(self, n: int) -> int:
        """The smallest step greater than `n` for which `reason` may be given; the steps between are not asked for."""


@runtime_checkable
class Observer(Protocol):
    """A sampler that wants to know what watching costs."""

    def observe(self, n: int, took_ns: int, spent_ns: int, counting_ns: int, others_ns: list[int]) -> None:
        """See `Budget.observe`. Called once after each recorded step, before the next one is chosen."""


def parts(sampler: Sampler) -> Iterator[Sampler]:
    """A sampler and those that it is made of."""
    yield sampler
    if isinstance(sampler, AnyOf | AllOf):
        for each in sampler.samplers:
            yield from parts(each)


class Combinable:
    """Lets samplers be combined: `a | b` records what either does, `a & b` what both do."""

    __slots__ = ()

    def __or__(self: Sampler, other: object) -> AnyOf:
        return AnyOf(self, other) if _is_sampler(other) else NotImplemented

    def __ror__(self: Sampler, other: object) -> AnyOf:
        return AnyOf(other, self) if _is_sampler(other) else NotImplemented

    def __and__(self: Sampler, other: object) -> AllOf:
        return AllOf(self, other) if _is_sampler(other) else NotImplemented

    def __rand__(self: Sampler, other: object) -> AllOf:
        return AllOf(other, self) if _is_sampler(other) else NotImplemented


def _is_sampler(value: object) -> TypeGuard[Sampler]:
    return isinstance(value, Sampler) and not isinstance(value, type)


def check_whole(name: str, value: object) -> None:
    """Raise `TypeError` unless an argument is a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, not {value!r}")


def check_number(name: str, value: object) -> None:
    """Raise `TypeError` unless an argument is a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {value!r}")


@dataclass(frozen=True, slots=True)
class Interval(Combinable):
    """Record step `n` when `n < warmup` or `(n - warmup) % interval == 0`.

    `Interval(2, 0)` records 2, 4, 6, ...; `Interval(10, 2)` records 1, 2, 12, 22, ...
    Raises `ValueError` unless `interval >= 1` and `warmup >= 0`.
    """

    interval: int
    warmup: int = 0

    def __post_init__(self) -> None:
        check_whole("interval", self.interval)
        check_whole("warmup", self.warmup)
        if self.interval < 1:
            raise ValueError(f"interval must be at least 1, not {self.interval}")
        if self.warmup < 0:
            raise ValueError(f"warmup must be 0 or more, not {self.warmup}")

    def reason(self, n: int) -> str | None:
        if n < self.warmup:
            return "warm-up"
        return "interval" if (n - self.warmup) % self.interval == 0 else None

    def next_after(self, n: int) -> int:
        following = n + 1
        if following < self.warmup:
            return following
        return following + (self.warmup - following) % self.interval


@dataclass(frozen=True, slots=True)
class Always(Combinable):
    """Record every step."""

    def reason(self, n: int) -> str | None:
        return "always"

    def next_after(self, n: int) -> int:
        return n + 1


@dataclass(frozen=True, slots=True)
class Never(Combinable):
    """Record no step; their times are kept all the same."""

    def reason(self, n: int) -> str | None:
        return None

    def next_after(self, n: int) -> int:
        return NEVER


@dataclass(frozen=True, slots=True)
class Steps(Combinable):
    """Record the steps of a list: "1,5,100:120" is 1, 5 and 100 to 120, both ends included; "100:" goes on for ever.

    Raises `ValueError` if the list is none.
    """

    windows: str
    _low: tuple[int, ...] = field(init=False, repr=False)
    _high: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.windows) is not str:
            raise TypeError(f"windows must be a text as 1,5,100:120, not {self.windows!r}")
        spans = sorted(_span(part.strip(), self.windows) for part in self.windows.split(","))
        joined: list[tuple[int, int]] = []
        for low, high in spans:
            if joined and low <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
            else:
                joined.append((low, high))
        object.__setattr__(self, "_low", tuple(low for low, _ in joined))
        object.__setattr__(self, "_high", tuple(high for _, high in joined))

    def reason(self, n: int) -> str | None:
        at = bisect_left(self._high, n)
        return "window" if at < len(self._low) and self._low[at] <= n else None

    def next_after(self, n: int) -> int:
        at = bisect_left(self._high, n + 1)
        return max(n + 1, self._low[at]) if at < len(self._low) else NEVER


def _span(part: str, whole: str) -> tuple[int, int]:
    low, colon, high = part.partition(":")
    try:
        first = int(low) if low else 1
        last = (int(high) if high else NEVER) if colon else first
    except ValueError:
        first, last = 0, 0
    if not (part and 1 <= first <= last):
        raise ValueError(f"steps must be numbers from 1 and ranges of them, as in 1,5,100:120, not {whole!r}")
    return first, last


@dataclass(slots=True)
class Every(Combinable):
    """Record a step every so many seconds, for runs whose steps take nobody knows how long.

    The first step is recorded, and then the first to begin when that time has passed. Looks at every step. Ranks of one
    run record different steps. Raises `ValueError` unless `seconds` is positive.
    """

    seconds: float
    _next: int = field(default=0, init=False, repr=False)
    _chosen: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check_number("seconds", self.seconds)
        if not 0 < self.seconds < 1e9:
            raise ValueError(f"seconds must be more than 0, not {self.seconds}")

    def reason(self, n: int) -> str | None:
        if n != self._chosen:
            now = perf_counter_ns()
            if now < self._next:
                return None
            self._chosen, self._next = n, now + round(self.seconds * 1e9)
        return "every"

    def next_after(self, n: int) -> int:
        return n + 1


@dataclass(frozen=True, slots=True)
class Ratio(Combinable):
    """Record a random share of the steps: the same ones in each run and on each rank with the same `seed`.

    No random number is drawn: the choice is a hash of the step's number (splitmix64; Steele, Lea, Flood, 2014).
    Raises `ValueError` unless `share` lies within 0 and 1.
    """

    share: float
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("share", self.share)
        check_whole("seed", self.seed)
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must lie within 0 and 1, not {self.share}")

    def reason(self, n: int) -> str | None:
        return "ratio" if self._hash(n) < self.share * 2.0**64 else None

    def next_after(self, n: int) -> int:
        for following in range(n + 1, n + 1 + _MOST_TRIES):
            if self.reason(following) is not None:
                return following
        return n + 1 + _MOST_TRIES

    def _hash(self, n: int) -> int:
        mask = (1 << 64) - 1
        mixed = (n + self.seed * 0xD1342543DE82EF95) * 0x9E3779B97F4A7C15 & mask
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
        return mixed ^ mixed >> 31


class AnyOf(Combinable):
    """Record what any of some samplers records, for the reason of the first that does."""

    __slots__ = ("samplers",)

    def __init__(self, *samplers: Sampler) -> None:
        _check_samplers(samplers)
        self.samplers = samplers

    def reason(self, n: int) -> str | None:
        # All are asked: some take note of what they have chosen.
        reasons = [sampler.reason(n) for sampler in self.samplers]
        return next((reason for reason in reasons if reason is not None), None)

    def next_after(self, n: int) -> int:
        return min(sampler.next_after(n) for sampler in self.samplers)

    def observe(self, n: int, took_ns: int, spent_ns: int, counting_ns: int, others_ns: list[int]) -> None:
        _tell(self.samplers, n, took_ns, spent_ns, counting_ns, others_ns)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.samplers))


class AllOf(Combinable):
    """Record what all of some samplers record, for the reasons of all."""

    __slots__ = ("samplers",)

    def __init__(self, *samplers: Sampler) -> None:
        _check_samplers(samplers)
        self.samplers = samplers

    def reason(self, n: int) -> str | None:
        reasons = [sampler.reason(n) for sampler in self.samplers]
        return None if None in reasons else " and ".join(dict.fromkeys(filter(None, reasons)))

    def next_after(self, n: int) -> int:
        for _ in range(_MOST_TRIES):
            following = max(sampler.next_after(n) for sampler in self.samplers)
            if following >= NEVER or all(sampler.next_after(following - 1) == following for sampler in self.samplers):
                return following
            n = following - 1
        return n + 1

    def observe(self, n: int, took_ns: int, spent_ns: int, counting_ns: int, others_ns: list[int]) -> None:
        _tell(self.samplers, n, took_ns, spent_ns, counting_ns, others_ns)

    def __repr__(self) -> str:
        return " & ".join(f"({each!r})" if isinstance(each, AnyOf) else repr(each) for each in self.samplers)


def _check_samplers(samplers: tuple[object, ...]) -> None:
    if not samplers:
        raise ValueError("samplers must be at least one")
    for sampler in samplers:
        if not _is_sampler(sampler):
            raise TypeError(f"samplers must be objects with reason(n) and next_after(n), not {type(sampler).__name__}")


def _tell(
    samplers: tuple[Sampler, ...], n: int, took_ns: int, spent_ns: int, counting_ns: int, others_ns: list[int]
) -> None:
    for sampler in samplers:
        if isinstance(sampler, Observer):
            sampler.observe(n, took_ns, spent_ns, counting_ns, others_ns)


class Steered:
    """A session's sampler of one role: another one's decisions, which the user may change while the run goes on."""

    __slots__ = ("_sampler", "_until", "paused")

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._until = 0
        self.paused = False
        """Whether no step is recorded at all."""

    @property
    def chosen(self) -> Sampler:
        """The sampler that decides unless the user does."""
        return self._sampler.sampler if isinstance(self._sampler, Guarded) else self._sampler

    @property
    def given_up(self) -> bool:
        """Whether the user's sampler has failed, and another one decides."""
        return isinstance(self._sampler, Guarded) and self._sampler.given_up

    def give_up(self, what: str, error: Exception) -> None:
        """The sampler has failed: the one that was to take its place then decides from here on."""
        if isinstance(self._sampler, Guarded):
            self._sampler.give_up(what, error)

    @property
    def observer(self) -> Observer | None:
        """That sampler, if it wants to know what recording costs."""
        return self.chosen if isinstance(self.chosen, Observer) else None

    def record_until(self, n: int) -> None:
        """Record all steps up to `n`, whatever the sampler says."""
        self._until = max(n, self._until)

    def reason(self, n: int) -> str | None:
        reason = self._sampler.reason(n)
        if self.paused:
            return None
        return "request" if n <= self._until else reason

    def next_after(self, n: int) -> int:
        if self.paused:
            return NEVER
        return n + 1 if n < self._until else self._sampler.next_after(n)


class Guarded:
    """A sampler of the user's: if it fails, or answers what is no answer, another one takes its place.

    `failed` is then called with what went wrong, in words.
    """

    __slots__ = ("_failed", "_instead", "sampler")

    def __init__(self, sampler: Sampler, instead: Sampler, failed: Callable[[str, Exception | None], None]) -> None:
        self.sampler = sampler
        self._instead = instead
        self._failed = failed

    def reason(self, n: int) -> str | None:
        try:
            reason = self.sampler.reason(n)
            if reason is None or type(reason) is str:
                return reason
            self.give_up(f"reason({n}) gave neither a text nor None", None)
        except Exception as error:
            if is_interruption(error):
                raise
            self.give_up(f"reason({n}) raised {type(error).__name__}", error)
        return self.sampler.reason(n)

    def next_after(self, n: int) -> int:
        try:
            following = self.sampler.next_after(n)
            if type(following) is int and following > n:
                return following
            self.give_up(f"next_after({n}) gave no step after {n}", None)
        except Exception as error:
            if is_interruption(error):
                raise
            self.give_up(f"next_after({n}) raised {type(error).__name__}", error)
        return self.sampler.next_after(n)

    @property
    def given_up(self) -> bool:
        """Whether the other sampler decides."""
        return self.sampler is self._instead

    def give_up(self, what: str, error: Exception | None) -> None:
        """Let the other sampler decide from here on; said once."""
        if not self.given_up:
            self.sampler = self._instead
            self._failed(what, error)
