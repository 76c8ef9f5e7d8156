"""Samplers for `tcmon.attach(sampler=...)`: which steps are recorded, and why.

An object of your own does as well: see `Sampler` for its two methods.
"""

from tcmon.steps.sampler import (
    AllOf,
    Always,
    AnyOf,
    Budget,
    Every,
    Interval,
    Never,
    OnSignal,
    Ratio,
    Sampler,
    Slow,
    Steps,
)

__all__ = [
    "AllOf",
    "Always",
    "AnyOf",
    "Budget",
    "Every",
    "Interval",
    "Never",
    "OnSignal",
    "Ratio",
    "Sampler",
    "Slow",
    "Steps",
]
