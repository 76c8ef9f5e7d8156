"""Tells a difference between two series of measurements from their noise.

Measurements that follow each other are not independent (the machine is slower for a while), so a series is cut into
consecutive batches, and their means are compared by Yuen's test: trimmed means, winsorised variances, Welch's degrees
of freedom. Trimming takes batches with something unusual in them (a collection of garbage, another program) out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log, log1p, sqrt
from statistics import fmean, median
from typing import Final

LEAST: Final = 6
"""Measurements that a series must have to be compared."""

_TRIMMED: Final = 0.2

# Into how many batches the longer of two series is cut, and the most where the shorter one makes batches small.
_BATCHES: Final = 25
_MOST_BATCHES: Final = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """`b` minus `a`, the levels of two series, with an interval around it that noise alone leaves rarely."""

    a: float
    b: float
    low: float
    high: float

    @property
    def change(self) -> float:
        """How much more `b` is than `a`."""
        return self.b - self.a

    @property
    def ratio(self) -> float | None:
        """`b` as a multiple of `a`; None where `a` is nothing."""
        return self.b / self.a if self.a else None

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Batches:
    """Cuts a series of `count` measurements into batches of `size`, spread evenly over it; some may be in none.

    Series that are compared have batches of one size: the level of few measurements is another than that of many
    where a distribution is skewed.
    """

    count: int
    size: int
    number: int

    def of(self, index: int) -> int | None:
        """The batch that a measurement is in."""
        if not self.number:
            return None
        batch = index * self.number // self.count
        first = -(-batch * self.count // self.number)
        return batch if index - first < self.size else None

    def levels(self, values: Sequence[int], level: Callable[[Sequence[int]], float] = fmean) -> list[float]:
        """The level of each batch of a series."""
        batches: list[list[int]] = [[] for _ in range(self.number)]
        for index, value in enumerate(values):
            if (batch := self.of(index)) is not None:
                batches[batch].append(value)
        return [level(batch) for batch in batches]


def batches_for(count_a: int, count_b: int) -> tuple[Batches, Batches]:
    """How two series are cut to be compared."""
    size = max(1, min(-(-max(count_a, count_b) // _BATCHES), min(count_a, count_b) // LEAST))
    return (
        Batches(count_a, size, min(count_a // size, _MOST_BATCHES)),
        Batches(count_b, size, min(count_b // size, _MOST_BATCHES)),
    )


def compare(a: Sequence[float], b: Sequence[float], error: float) -> Difference:
    """The difference of two series of batches; noise leaves its interval with a probability of `error`.

    Each series needs three batches at least.
    """
    level_a, variance_a, kept_a = _trimmed(a)
    level_b, variance_b, kept_b = _trimmed(b)
    change, variance = level_b - level_a, variance_a + variance_b
    if not variance:
        return Difference(level_a, level_b, change, change)
    freedom = variance**2 / (variance_a**2 / (kept_a - 1) + variance_b**2 / (kept_b - 1))
    margin = _quantile(error, freedom) * sqrt(variance)
    return Difference(level_a, level_b, change - margin, change + margin)


def _trimmed(values: Sequence[float]) -> tuple[float, float, int]:
    """Trimmed mean, its variance, and how many values were kept."""
    ordered = sorted(values)
    count = len(ordered)
    cut = int(_TRIMMED * count)
    kept = ordered[cut : count - cut]
    low, high = kept[0], kept[-1]
    winsorised = [min(max(value, low), high) for value in ordered]
    mean = fmean(winsorised)
    squares = sum((value - mean) ** 2 for value in winsorised)
    return fmean(kept), squares / (len(kept) * (len(kept) - 1)), len(kept)


def _quantile(error: float, freedom: float) -> float:
    """The t that is exceeded on either side with a probability of `error`."""
    low, high = 0.0, 4.0
    while two_sided(high, freedom) > error:
        low, high = high, 2 * high
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        if two_sided(middle, freedom) > error:
            low = middle
        else:
            high = middle
    return high


def two_sided(t: float, freedom: float) -> float:
    """The probability that Student's t lies further from zero than `t`."""
    return _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) if t else 1.0


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz's method)."""
    if not 0 < x < 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 300):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + numerator * d)
            c = _nonzero(1 + numerator / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return front * fraction


def _nonzero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300


def chance_of_absence(present: int, of: int, absent_in: int) -> float:
    """How likely what was there `present` times in `of` steps is in none of `absent_in` others, by chance alone."""
    chance = 1.0
    for taken in range(present):
        chance *= (of - taken) / (of + absent_in - taken)
    return chance


def median_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """The median of some values, and their usual distance from it as a standard deviation."""
    middle = median(values)
    return middle, 1.4826 * median(abs(value - middle) for value in values)
