"""Samplers: small objects that decide for a step whether it is recorded, and say why.

The rule of `Interval` is that of TrainCheck's `--sampling-interval` and `--warm-up-steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Sampler(Protocol):
    """Decides which steps are recorded. Steps are numbered from 1."""

    def reason(self, n: int) -> str | None:
        """Why step `n` is recorded, in a word, or None if it is not."""

    def next_after(self, n: int) -> int:
        """The smallest step greater than `n` for which `reason` may be given; the steps between are not asked for."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Record step `n` when `n < warmup` or `(n - warmup) % interval == 0`.

    `Interval(2, 0)` records 2, 4, 6, ...; `Interval(10, 2)` records 1, 2, 12, 22, ...
    Raises `ValueError` unless `interval >= 1` and `warmup >= 0`.
    """

    interval: int
    warmup: int = 0

    def __post_init__(self) -> None:
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
