"""The rule by which steps are picked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tcmon.steps.sampler import Interval


def recorded(sampler: Interval, last: int) -> list[int]:
    return [n for n in range(1, last + 1) if sampler.reason(n)]


@pytest.mark.parametrize(
    ("interval", "warmup", "steps"),
    [
        (2, 0, [2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22]),
        (10, 2, [1, 2, 12, 22]),
        (20, 5, [1, 2, 3, 4, 5]),
        (1, 0, list(range(1, 23))),
        (7, 1, [1, 8, 15, 22]),
    ],
)
def test_the_rule_of_the_design(interval: int, warmup: int, steps: list[int]) -> None:
    assert recorded(Interval(interval, warmup), 22) == steps


@given(st.integers(1, 50), st.integers(0, 60))
def test_the_next_step_named_in_advance_is_the_next_that_is_recorded(interval: int, warmup: int) -> None:
    sampler = Interval(interval, warmup)
    named, n = [], 0
    while (n := sampler.next_after(n)) <= 200:
        named.append(n)
    assert named == recorded(sampler, 200)


@given(st.integers(1, 50), st.integers(0, 60), st.integers(1, 500))
def test_the_reason_tells_warm_up_from_interval(interval: int, warmup: int, n: int) -> None:
    expected = "warm-up" if n < warmup else "interval" if (n - warmup) % interval == 0 else None
    assert Interval(interval, warmup).reason(n) == expected


@pytest.mark.parametrize(("interval", "warmup"), [(0, 0), (-3, 0), (5, -1)])
def test_senseless_values_are_refused(interval: int, warmup: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Interval(interval, warmup)
