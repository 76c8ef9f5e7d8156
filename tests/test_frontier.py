"""The frontier names rank and phase where steps begin to be slow, also where the steps of others are as long."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_runs import WORK, synchronised, write_rank, write_ranks

from tcmon.report.frontier import STEP_PHASES, Frontier, StepPhases, account, frontier_of
from tcmon.trace.reader import open_run

DELAY = 4_000


def frontier(directory: Path) -> Frontier:
    found = frontier_of(open_run(directory))
    assert found is not None
    return found


@pytest.mark.parametrize("late_rank", [0, 1, 2])
@pytest.mark.parametrize("late_phase", ["wait", "forward", "optimizer", "other"])
def test_a_rank_that_is_late_in_each_step_is_named_with_its_phase(
    late_phase: str, late_rank: int, tmp_path: Path
) -> None:
    taken = synchronised(3, 30, lambda rank, _, phase: DELAY * (rank == late_rank and phase == late_phase))
    found = frontier(write_ranks(tmp_path, taken))
    [delay] = found.delays
    assert (delay.phase, delay.rank, delay.steps) == (late_phase, late_rank, 30)
    assert delay.ns == 30 * DELAY


@pytest.mark.parametrize("late_phase", ["wait", "forward", "optimizer"])
def test_a_step_in_which_one_rank_is_late_is_named_with_rank_and_phase(late_phase: str, tmp_path: Path) -> None:
    taken = synchronised(2, 30, lambda rank, n, phase: 20_000 * (rank == 1 and n == 17 and phase == late_phase))
    [slow] = frontier(write_ranks(tmp_path, taken)).slow
    assert (slow.n, slow.phase, slow.rank, slow.excess_ns) == (17, late_phase, 1, 20_000)


def test_a_delay_within_the_phase_that_waits_for_the_others_names_the_phase_and_no_rank(tmp_path: Path) -> None:
    taken = synchronised(2, 30, lambda rank, n, phase: 20_000 * (rank == 1 and n == 17 and phase == "backward"))
    found = frontier(write_ranks(tmp_path, taken))
    [slow] = found.slow
    assert (slow.n, slow.phase, slow.rank) == (17, "backward", None)
    assert found.delays == ()


def test_ranks_of_several_hosts_are_compared_without_their_clocks(tmp_path: Path) -> None:
    taken = synchronised(2, 30, lambda rank, _, phase: DELAY * (rank == 1 and phase == "forward"))
    write_rank(tmp_path, 0, taken[0], host="one")
    write_rank(tmp_path, 1, taken[1], host="two", start=-(10**9))
    found = frontier(tmp_path)
    assert found.uncertain_ns is None
    assert [(delay.phase, delay.rank) for delay in found.delays] == [("forward", 1)]


def test_the_uncertainty_is_that_of_the_two_worst_clocks(tmp_path: Path) -> None:
    assert frontier(write_ranks(tmp_path, synchronised(3, 3, lambda *_: 0))).uncertain_ns == 101 + 102


def test_ranks_that_do_the_same_hold_nobody_up(tmp_path: Path) -> None:
    found = frontier(write_ranks(tmp_path, synchronised(4, 30, lambda *_: 0)))
    assert (found.delays, found.slow) == ((), ())
    assert found.exposed == {phase: 30 * work for phase, work in WORK.items()}


def test_a_restarted_rank_counts_with_its_latest_trace(tmp_path: Path) -> None:
    taken = synchronised(2, 20, lambda rank, _, phase: DELAY * (rank == 1 and phase == "forward"))
    first = synchronised(2, 5, lambda *_: 0)
    for rank in (0, 1):
        write_rank(tmp_path, rank, first[rank], ended=False)
        write_rank(tmp_path, rank, taken[rank], restart=1)
    found = frontier(tmp_path)
    assert (found.first, found.last) == (1, 20)
    assert [(delay.phase, delay.rank) for delay in found.delays] == [("forward", 1)]


def test_one_rank_has_no_frontier(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, synchronised(1, 5, lambda *_: 0)[0])
    assert frontier_of(open_run(tmp_path)) is None


def test_ranks_without_a_common_step_have_none() -> None:
    step = StepPhases(0, (1,) * len(STEP_PHASES))
    assert account({0: {1: step}, 1: {2: step}}, 0) is None


LATE = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(1, 8), st.sampled_from(list(WORK))), st.integers(0, 10**6), max_size=12
)


@settings(max_examples=60, deadline=None)
@given(LATE)
def test_the_frontier_adds_up_to_the_time_that_the_steps_took_for_all(late: dict[tuple[int, int, str], int]) -> None:
    taken = synchronised(3, 8, lambda *where: late.get(where, 0))
    steps = {
        rank: {
            n: StepPhases(begin, tuple(phases.get(phase, 0) for phase in STEP_PHASES))
            for n, (begin, phases) in enumerate(of_rank, 1)
        }
        for rank, of_rank in taken.items()
    }
    found = account(steps, 0)
    assert found is not None
    ends = [begin + sum(phases.values()) for begin, phases in (of_rank[-1] for of_rank in taken.values())]
    assert found.exposed_ns == sum(found.exposed.values()) == max(ends)
    assert all(delay.ns <= found.exposed_ns for delay in found.delays)
