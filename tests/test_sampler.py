"""The rule by which steps are picked."""

import random
import re
import signal
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tcmon.samplers import (
    AllOf,
    Always,
    AnyOf,
    Budget,
    Every,
    Interval,
    LossSpike,
    Never,
    NonFinite,
    OnCall,
    OnSignal,
    Ratio,
    Sampler,
    Slow,
    Stall,
    Steps,
)
from tcmon.steps.sampler import NEVER


def recorded(sampler: Sampler, last: int) -> list[int]:
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


SPANS = st.lists(st.tuples(st.integers(1, 120), st.integers(0, 20)), min_size=1, max_size=5)
SAMPLERS = st.one_of(
    st.builds(Interval, st.integers(1, 30), st.integers(0, 40)),
    st.just(Always()),
    st.just(Never()),
    st.builds(Ratio, st.floats(0, 1), st.integers(0, 9)),
    SPANS.map(lambda spans: Steps(",".join(f"{low}:{low + more}" for low, more in spans))),
)


def combined(pair: tuple[Sampler, Sampler]) -> st.SearchStrategy[Sampler]:
    return st.sampled_from([AnyOf(*pair), AllOf(*pair)])


@given(st.recursive(SAMPLERS, lambda inner: st.tuples(inner, inner).flatmap(combined), max_leaves=5))
def test_what_is_recorded_is_what_is_asked_for_and_nothing_is_missed(sampler: Sampler) -> None:
    asked, n = [], 0
    while (n := sampler.next_after(n)) <= 200:
        asked.append(n)
    assert [n for n in asked if sampler.reason(n)] == recorded(sampler, 200)


@given(SAMPLERS, SAMPLERS)
def test_combined_samplers_record_the_union_and_the_intersection(a: Sampler, b: Sampler) -> None:
    either, both = set(recorded(a, 150)), set(recorded(b, 150))
    assert set(recorded(AnyOf(a, b), 150)) == either | both
    assert set(recorded(AllOf(a, b), 150)) == either & both


def test_samplers_combine_with_operators_and_say_so() -> None:
    sampler = (Interval(10) | Steps("3")) & Steps("1:20")
    assert recorded(sampler, 40) == [3, 10, 20]
    assert sampler.reason(10) == "interval and window"
    assert repr(sampler) == "(Interval(interval=10, warmup=0) | Steps(windows='3')) & Steps(windows='1:20')"


@given(SPANS)
def test_windows_hold_both_their_ends(spans: list[tuple[int, int]]) -> None:
    steps = Steps(", ".join(f"{low}:{low + more}" if more else str(low) for low, more in spans))
    expected = {n for low, more in spans for n in range(low, low + more + 1)}
    assert recorded(steps, 150) == sorted(expected)
    assert steps.next_after(max(expected)) == NEVER


def test_a_window_may_have_no_end() -> None:
    assert recorded(Steps("2,7:"), 10) == [2, 7, 8, 9, 10]
    assert recorded(Steps(":3"), 10) == [1, 2, 3]


@pytest.mark.parametrize("windows", ["", "0", "3:1", "a", "1,,2", "1:2:3", "-4", "1.5"])
def test_windows_that_are_none_are_refused(windows: str) -> None:
    with pytest.raises(ValueError, match="steps must be numbers from 1 and ranges of them"):
        Steps(windows)


@given(st.floats(0.02, 0.98), st.integers(0, 1000))
def test_a_share_is_kept_and_the_same_for_the_same_seed(share: float, seed: int) -> None:
    steps = recorded(Ratio(share, seed), 4000)
    assert steps == recorded(Ratio(share, seed), 4000)
    # Five standard deviations of a binomial distribution.
    assert abs(len(steps) - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5 + 1


def test_shares_with_other_seeds_choose_other_steps() -> None:
    assert recorded(Ratio(0.5, 1), 200) != recorded(Ratio(0.5, 2), 200)
    assert recorded(Ratio(0), 100) == []
    assert recorded(Ratio(1), 100) == list(range(1, 101))


def test_time_picks_the_first_step_and_then_one_in_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0
    monkeypatch.setattr("tcmon.steps.sampler.perf_counter_ns", lambda: clock)
    sampler, chosen = Every(2.0), []
    for n in range(1, 30):
        clock += 700_000_000
        # Asked before the wait for data, and again as the step begins: the answer stays the same.
        if sampler.reason(n):
            clock += 1
            assert sampler.reason(n) == "every"
            chosen.append(n)
    assert chosen[:5] == [1, 4, 7, 10, 13]


@pytest.mark.parametrize(("kind", "value"), [(Every, 0.0), (Every, float("nan")), (Ratio, 1.1), (Ratio, -1.0)], ids=str)
def test_senseless_samplers_are_refused(kind: type[Every | Ratio], value: float) -> None:
    with pytest.raises(ValueError, match="must"):
        kind(value)


class Clock:
    """The time that a budget sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        monkeypatch.setattr("tcmon.steps.budget.perf_counter_ns", lambda: self.now)


def spend(
    clock: Clock, sampler: Budget, usual: Sequence[int], costs: Sequence[int], counting: int = 0
) -> tuple[list[int], float]:
    """Simulate a run: which steps a budget records, and the share of the time that this takes."""
    recorded, spent = [], 0
    others: list[int] = []
    following = sampler.next_after(0)
    begin = clock.now
    for n, (step, cost) in enumerate(zip(usual, costs, strict=True), 1):
        clock.now += counting
        spent += counting
        if n >= following and sampler.reason(n):
            recorded.append(n)
            clock.now += step + cost
            sampler.observe(n, step + cost // 2, cost - cost // 2, counting * (len(others) + 1), others)
            others = []
            spent += cost
            following = sampler.next_after(n)
        else:
            others.append(step)
            clock.now += step
            if n >= following:
                following = sampler.next_after(n)
    return recorded, spent / (clock.now - begin)


@settings(derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0.002, 0.2), st.integers(10_000, 10**8), st.floats(0.1, 10), st.lists(st.floats(0.7, 1.4), min_size=9))
def test_a_budget_is_kept_and_used(
    monkeypatch: pytest.MonkeyPatch, share: float, step: int, cost: float, noise: list[float]
) -> None:
    # Long enough for the probe's cost to be a small part of the budget.
    count = min(60_000, int(40 * (1 + cost) / share))
    usual = [round(step * noise[n % len(noise)]) for n in range(count)]
    budget = Budget(share)
    recorded, spent = spend(Clock(monkeypatch), budget, usual, [round(step * cost)] * count)
    assert recorded[0] == 3
    assert spent <= 1.5 * share + (1 + cost) / count
    # A cost that is small beside the steps' own differences is taken for more than it is.
    assert cost < 2 or spent >= 0.4 * share or len(recorded) >= count / 2
    assert cost < 2 or budget.achieved == pytest.approx(spent, rel=0.3)


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_budget_follows_within_fifty_steps_when_steps_take_another_time(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = [1_000_000] * 20_000 + [round(1_000_000 * factor)] * 20_000
    recorded, spent = spend(Clock(monkeypatch), Budget(0.01), usual, [500_000] * len(usual))
    assert 0.005 < spent < 0.015
    before = [b - a for a, b in pairwise(recorded) if 1_000 < a < b <= 20_000]
    after = [b - a for a, b in pairwise(recorded) if a > 20_000 + 50]
    assert 0.5 < max(before) / 50 < 2
    assert 0.5 < max(after) / (50 / factor) < 2


def test_a_budget_pays_for_counting_first(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, costs = [1_000_000] * 20_000, [500_000] * 20_000
    recorded, spent = spend(Clock(monkeypatch), Budget(0.01), usual, costs, counting=5_000)
    assert 0.007 < spent < 0.013
    assert len(recorded) < 0.7 * 20_000 * 0.01 * 2
    # Where counting takes more than what is allowed, what is known of it comes with the next recorded step.
    recorded, spent = spend(Clock(monkeypatch), Budget(0.01), usual, costs, counting=20_000)
    assert len(recorded) < 60


def test_after_a_long_pause_no_burst_of_steps_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [1_000_000] * 1_000 + [10**12] + [1_000_000] * 1_000
    recorded, _ = spend(Clock(monkeypatch), Budget(0.01), usual, [500_000] * len(usual))
    assert len([n for n in recorded if 1_000 < n < 1_040]) <= 5


def test_a_budget_is_shared_with_the_steps_of_another_role(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    budget = Budget(0.01)
    other = budget.sharing()
    budget.observe(3, 2_000_000, 0, 0, [1_000_000] * 2)
    clock.now += 50_000_000
    assert budget.reason(53) is None
    assert other.reason(1) is None
    clock.now += 150_000_000
    assert budget.reason(203) == other.reason(1) == "budget"
    other.observe(1, 2_000_000, 0, 0, [1_000_000] * 2)
    assert budget.reason(203) is None


def test_a_budget_can_be_combined(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    both = Budget(0.5) | Steps("7")
    assert [n for n in range(1, 4) if both.reason(n)] == [3]
    both.observe(3, 2_000, 5_000, 0, [1_000] * 2)
    assert [n for n in range(4, 10) if both.reason(n)] == [7]
    assert both.next_after(3) == 7


@given(st.integers(1, 40), st.floats(0.01, 1))
def test_a_budget_records_where_another_sampler_does_too(interval: int, share: float) -> None:
    both = Budget(share) & Interval(interval)
    first = next(n for n in range(3, 50) if n % interval == 0)
    assert both.next_after(0) <= first
    assert recorded(both, first) == [first]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(3, 500), st.floats(0.01, 1))
def test_a_budget_goes_on_after_a_step_of_its_choice_that_was_not_recorded(
    monkeypatch: pytest.MonkeyPatch, passed: int, share: float
) -> None:
    clock, budget = Clock(monkeypatch), Budget(share)
    assert budget.next_after(passed) == passed + 1
    assert budget.reason(passed + 1) == "budget"
    clock.now += 11_000
    budget.observe(passed + 1, 1_000, 10_000, 0, [1_000] * passed)
    clock.now += 10**9
    for n in range(passed + 2, passed + 60):
        assert budget.next_after(n - 1) == n
        assert budget.reason(n) == "budget"


@given(st.floats(3.1, 100), st.integers(1, 3))
def test_what_recording_costs_is_not_taken_for_a_slow_step(cost: float, steps: int) -> None:
    sampler, chosen = Slow(3, steps), []
    for n in range(1, 300):
        record = sampler.reason(n) is not None or n % 20 == 0
        if sampler.watch(n, round(10_000 * (cost if record else 3.5 if n == 50 else 1)), 0, record):
            chosen.append(n)
    assert chosen == [50]


@given(st.floats(3.1, 100))
def test_slow_steps_are_found_where_all_are_recorded(slowness: float) -> None:
    sampler = Slow(3)
    chosen = [n for n in range(1, 100) if sampler.watch(n, round(10_000 * (slowness if n == 40 else 1)), 0, True)]
    assert chosen == [40]


class OfTheUser:
    def reason(self, n: int) -> str | None:
        return "mine" if n % 7 == 0 else None

    def next_after(self, n: int) -> int:
        return n + 7 - n % 7


def recorded_after(sampler: Slow | Stall | NonFinite | LossSpike, steps: Sequence[tuple[int, int, float]]) -> list[int]:
    """Which steps are recorded in a run of steps with these times, waits and losses."""
    chosen = []
    for n, (took, wait, loss) in enumerate(steps, 1):
        if sampler.reason(n):
            chosen.append(n)
        if isinstance(sampler, Slow | Stall):
            sampler.watch(n, took, wait, n in chosen)
        else:
            sampler.hear_loss(loss)
    return chosen


def test_a_wait_for_data_is_a_stall_where_it_is_longer_than_usual_steps_take() -> None:
    usual = [(1_000, 800, 1.0)] * 30
    assert recorded_after(Stall(2, 3), [*usual, (2_500, 2_100, 1.0), *usual]) == [32, 33, 34]
    assert recorded_after(Stall(2, 3), [*usual, (2_500, 800, 1.0), *usual]) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_becomes_nonfinite_asks_once_until_it_is_finite_again(bad: float) -> None:
    fine, lost = [(1, 0, 0.5)] * 5, [(1, 0, bad)] * 5
    assert recorded_after(NonFinite(2), [*fine, *lost, *fine, *lost]) == [7, 8, 17, 18]
    assert NonFinite().hear_nonfinite(3)
    assert not NonFinite().hear_nonfinite(0)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3), st.floats(-0.01, 0), st.integers(0, 2**32))
def test_a_loss_spikes_where_it_leaves_its_usual_range_upwards(
    level: float, noise: float, trend: float, seed: int
) -> None:
    draw = random.Random(seed)
    losses = [level + noise * (draw.uniform(-1, 1) + trend * n) for n in range(400)]
    assert recorded_after(LossSpike(8), [(1, 0, loss) for loss in losses]) == []
    losses[300] += 20 * noise
    losses[350] -= 20 * noise
    # Step 301 has the loss that is too high; the one that is too low is none.
    assert recorded_after(LossSpike(8, 2), [(1, 0, loss) for loss in losses]) == [302, 303]


def test_a_constant_loss_never_spikes() -> None:
    assert recorded_after(LossSpike(), [(1, 0, 3.0)] * 100) == []


def test_a_function_is_given_by_itself_or_its_name() -> None:
    assert OnCall(recorded_after).name == "recorded_after"
    assert OnCall("Trainer.save").name == "Trainer.save"
    for wrong in (len, 3, None, OfTheUser):
        with pytest.raises(TypeError, match="function must be a Python function or a name"):
            OnCall(wrong)  # type: ignore[arg-type]


def test_samplers_of_the_user_combine_from_both_sides() -> None:
    assert recorded(OfTheUser() | Steps("3"), 8) == recorded(Steps("3") | OfTheUser(), 8) == [3, 7]
    assert recorded(OfTheUser() & Steps("6:8"), 8) == recorded(Steps("6:8") & OfTheUser(), 8) == [7]


@pytest.mark.parametrize("other", [3, None, OfTheUser, "1,2"], ids=repr)
def test_only_samplers_combine(other: object) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        Interval(2) | other
    with pytest.raises(TypeError, match="unsupported operand"):
        other & Interval(2)  # type: ignore[operator]
    with pytest.raises(TypeError, match="samplers must be objects with"):
        AnyOf(Interval(2), other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="samplers must be at least one"):
        AllOf()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Interval, "interval"),
        (Steps, "windows"),
        (Every, "seconds"),
        (Ratio, "share"),
        (Budget, "share"),
        (Slow, "factor"),
        (Stall, "factor"),
        (LossSpike, "factor"),
        (NonFinite, "steps"),
        (OnSignal, "number"),
    ],
)
@pytest.mark.parametrize("value", [None, True, [], b"1"], ids=repr)
def test_values_of_a_wrong_kind_are_named(kind: Callable[[object], object], name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be .*not {re.escape(repr(value))}$"):
        kind(value)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, 0, -1, 9999])
def test_a_signal_that_no_handler_gets_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="number must be a signal that can be handled"):
        OnSignal(number)
