"""A sampler that spends a share of the run's time on recording, by what that costs in this very run."""

from __future__ import annotations

from math import ceil
from statistics import median
from time import perf_counter_ns

from tcmon.steps.sampler import Combinable, check_number

_PROBE = 3
"""The step that is recorded first: the first ones are often slower than the rest."""
_LONGEST_WAIT = 50
"""Steps until the clock is looked at again, so that steps of another length are noticed."""
_SAVED = 3
"""For how many recorded steps credit is saved: a long pause is followed by no burst of them."""


class Budget(Combinable):
    """Record as often as a share of the run's time allows: `Budget(0.01)` spends about 1 % of it on watching.

    What that costs is measured in the run: the time of a recorded step beyond that of the steps around it, the time in
    which its records are written, and what counting all steps takes. The share of the time that passes is saved (a
    token bucket), and the next step is recorded when what is saved pays for it. The third step is recorded as a probe,
    so that a short run may spend more. Looks at the clock once in fifty steps, or less often. Raises `ValueError`
    unless `share` lies above 0 and up to 1.
    """

    __slots__ = ("_looked", "_purse", "_step_ns")

    def __init__(self, share: float) -> None:
        check_number("share", share)
        if not 0 < share <= 1:
            raise ValueError(f"share must lie above 0 and up to 1, not {share}")
        self._purse = _Purse(share)
        self._looked: tuple[int, int] | None = None
        self._step_ns: float | None = None

    @property
    def share(self) -> float:
        """The share of the run's time that may be spent."""
        return self._purse.share

    def sharing(self) -> Budget:
        """A budget for the steps of another role, that spends of the same share."""
        other = Budget(self.share)
        other._purse = self._purse
        return other

    def reason(self, n: int) -> str | None:
        if self._purse.cost is None:
            # Not only that step: it may have passed unrecorded, while paused or by the word of another sampler.
            return "budget" if n >= _PROBE else None
        return "budget" if self._purse.lacks(perf_counter_ns()) <= 0 else None

    def next_after(self, n: int) -> int:
        if self._purse.cost is None:
            return max(n + 1, _PROBE)
        now = perf_counter_ns()
        if self._looked is not None and n > self._looked[0]:
            self._step_ns = (now - self._looked[1]) / (n - self._looked[0])
        self._looked = n, now
        wait = self._purse.lacks(now) / max(self._step_ns or 1.0, 1.0)
        return n + max(1, min(ceil(wait), _LONGEST_WAIT))

    def observe(self, n: int, took_ns: int, spent_ns: int, counting_ns: int, others_ns: list[int]) -> None:
        """Step `n` was recorded and took `took_ns`; then `spent_ns` were spent on its records.

        `others_ns` are the times of the steps since the recorded one before, which were not recorded, `counting_ns` is
        what counting all these steps took.
        """
        if others_ns:
            self._step_ns = median(others_ns)
        usual = self._step_ns if self._step_ns is not None else took_ns
        now = perf_counter_ns()
        self._looked = n, now
        self._purse.pay(max(0.0, took_ns - usual) + spent_ns, counting_ns, now)

    @property
    def achieved(self) -> float | None:
        """The share of the time since the first recorded step that watching took; None before there is one."""
        return self._purse.achieved(perf_counter_ns())

    def __repr__(self) -> str:
        return f"Budget(share={self.share})"


class _Purse:
    """What may be spent and what was, in nanoseconds."""

    __slots__ = ("_began", "_credit", "_filled", "_spent", "cost", "share")

    def __init__(self, share: float) -> None:
        self.share = share
        self.cost: float | None = None
        """What the next recorded step will cost, rather too much than too little; None until one was paid for."""
        self._began = self._filled = 0
        self._credit = 0.0
        self._spent = 0.0

    def lacks(self, now: int) -> float:
        """The time that must pass until a recorded step can be paid for."""
        cost = self.cost or 0.0
        self._credit = min(self._credit + self.share * (now - self._filled), _SAVED * max(cost, 1.0))
        self._filled = now
        return (cost - self._credit) / self.share

    def pay(self, cost: float, counting: int, now: int) -> None:
        """A recorded step cost `cost`, all others since the last one `counting`."""
        if self.cost is None:
            self.cost = cost
            self._began = self._filled = now - round(cost)
        else:
            self.cost = max(cost, 0.7 * self.cost + 0.3 * cost)
        self.lacks(now)
        self._credit -= cost + counting
        self._spent += cost + counting

    def achieved(self, now: int) -> float | None:
        return self._spent / max(now - self._began, 1) if self.cost is not None else None
