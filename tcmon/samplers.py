"""Samplers for `tcmon.attach(sampler=...)`: which steps are recorded, and why.

An object of your own does as well: see `Sampler` for its two methods.
"""

from tcmon.steps.budget import Budget
from tcmon.steps.sampler import AllOf, Always, AnyOf, Every, Interval, Never, Ratio, Sampler, Steps
from tcmon.steps.triggers import LossSpike, NonFinite, OnCall, OnSignal, Slow, Stall

__all__ = [
    "AllOf",
    "Always",
    "AnyOf",
    "Budget",
    "Every",
    "Interval",
    "LossSpike",
    "Never",
    "NonFinite",
    "OnCall",
    "OnSignal",
    "Ratio",
    "Sampler",
    "Slow",
    "Stall",
    "Steps",
]
