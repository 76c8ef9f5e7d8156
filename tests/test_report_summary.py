"""What a summary says about a run, down to the figures."""

import os
import socket
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_reader import WHOLE, mutations
from trace_builder import (
    PID,
    calls,
    encode,
    end,
    function,
    header,
    loop,
    note,
    overhead,
    step,
    steps,
    write_run,
)

from tcmon.errors import TcmonError
from tcmon.report.as_json import as_json
from tcmon.report.state import Condition
from tcmon.report.steptimes import StepLog, quantile
from tcmon.report.summary import Summary, summarise
from tcmon.trace.journal import StepTimes
from tcmon.trace.reader import open_run
from tcmon.trace.records import Steps


def summary_of(directory: Path, records: Sequence[dict[str, Any]] | bytes | None, **changes: Any) -> Summary:
    return summarise(open_run(write_run(directory, records, **changes)))


def test_steps_are_counted_by_role_and_by_loop(tmp_path: Path) -> None:
    records = [
        header(),
        loop(1),
        loop(2, role="eval"),
        loop(3, role="other"),
        steps([10, 20, 30]),
        steps([40], first=4, begin=60),
        step(2, 10, 20),
        steps([5, 5], role="eval", loop=2, begin=100),
        step(1, 100, 5, role="eval", loop=2),
    ]
    main = summary_of(tmp_path, records).main
    assert {role: (each.count, each.recorded) for role, each in main.steps.items()} == {
        "train": (4, 1),
        "eval": (2, 1),
        "other": (0, 0),
    }
    assert [(each.loop.id, each.steps, each.recorded) for each in main.loops] == [
        (1, 4, 1),
        (2, 2, 1),
        (3, 0, 0),
    ]
    assert [each.loop.id for each in main.shown_loops(all_loops=False)] == [1, 2]


def test_step_times_are_those_of_all_steps(tmp_path: Path) -> None:
    records = [header(), steps([100, 10, 30, 20, 40], waits=[10, 1, 3, 2, 4])]
    train = summary_of(tmp_path, records).main.steps["train"]
    assert (train.p50_ns, train.max_ns) == (30, 100)
    assert train.p95_ns == pytest.approx(88)
    assert train.data_wait_share == pytest.approx(0.1)


def test_figures_that_cannot_be_known_are_none(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, None, ended=None)
    train = summary.main.steps["train"]
    assert (train.count, train.p50_ns, train.p95_ns, train.max_ns, train.data_wait_share) == (
        0,
        None,
        None,
        None,
        None,
    )
    assert train.compared is None
    assert summary.main.overhead.share is None
    assert summary.seen is None


@given(st.lists(st.integers(0, 2**62), min_size=2))
def test_quantiles_are_linear_between_neighbours(values: list[int]) -> None:
    ordered = sorted(values)
    assert quantile(ordered, 0) == ordered[0]
    assert quantile(ordered, 1) == ordered[-1]
    assert quantile(ordered, 0.5) == pytest.approx(statistics.median(ordered))
    assert quantile(ordered, 0.95) == pytest.approx(statistics.quantiles(ordered, n=20, method="inclusive")[-1])


def times(n: int, begin: int, took: int) -> StepTimes:
    return StepTimes(role="train", loop=1, n=n, begin=begin, wait=1, end=took)


def test_the_journal_adds_the_steps_that_the_trace_lacks_and_no_others() -> None:
    log = StepLog([times(2, 10, 999), times(3, 30, 7), times(4, 37, 8)])
    log.add_row(Steps("train", "training", 1, 1, [0, 10], [0, 0], [10, 20]))
    log.finish()
    series = log.series["train", 1]
    assert list(series.numbers) == [1, 2, 3, 4]
    assert list(series.durations) == [10, 20, 7, 8]
    assert series.waited_ns == 2


def test_a_recorded_step_counts_before_its_row_is_there(tmp_path: Path) -> None:
    records = [header(), steps([10, 10]), step(2, 10, 10), step(3, 20, 30)]
    train = summary_of(tmp_path, records).main.steps["train"]
    assert (train.count, train.recorded, train.max_ns) == (3, 2, 30)
    records.append(steps([30, 10], first=3, begin=20))
    train = summary_of(tmp_path, records).main.steps["train"]
    assert (train.count, train.recorded) == (4, 2)


def ratio_of(
    tmp_path: Path, durations: list[int], recorded: list[int], pauses: list[int] | None = None
) -> float | None:
    records = [header(), steps(durations, pauses=pauses)]
    records += [step(n, 0, durations[n - 1]) for n in recorded]
    compared = summary_of(tmp_path, records).main.steps["train"].compared
    return compared.ratio if compared else None


def test_recorded_steps_are_set_against_the_unrecorded_ones_around_them(tmp_path: Path) -> None:
    assert ratio_of(tmp_path, [900, 100, 120, 140, 100], [3]) == pytest.approx(1.0)
    assert ratio_of(tmp_path, [900, 100, 240, 480, 140, 100], [3, 4]) == pytest.approx((2 + 4) / 2)
    assert ratio_of(tmp_path, [900, 110, 100], [2]) == pytest.approx(1.1)
    assert ratio_of(tmp_path, [900, 100, 110], [3]) == pytest.approx(1.1)


def test_step_1_and_first_steps_of_an_activation_are_on_neither_side(tmp_path: Path) -> None:
    assert ratio_of(tmp_path, [900, 100, 100], [1]) is None
    # Steps 1 to 3, then a pause, and the loop is entered anew for steps 4 to 6.
    pauses = [0, 0, 0, 50, 0, 0]
    assert ratio_of(tmp_path, [900, 110, 100, 900, 110, 100], [2, 5], pauses) == pytest.approx(1.1)
    assert ratio_of(tmp_path, [900, 100, 100, 900, 100, 100], [4], pauses) is None


def test_the_time_to_write_a_recorded_step_is_no_end_of_the_loop(tmp_path: Path) -> None:
    assert ratio_of(tmp_path, [900, 100, 110, 100], [3], [0, 0, 0, 100]) == pytest.approx(1.1)
    assert ratio_of(tmp_path, [900, 100, 110, 500], [3], [0, 0, 0, 120]) == pytest.approx(1.1)
    assert ratio_of(tmp_path, [900, 500, 110, 100], [3], [0, 50, 0, 100]) == pytest.approx(1.1)


def test_no_ratio_where_every_step_or_none_was_recorded(tmp_path: Path) -> None:
    assert ratio_of(tmp_path, [10, 10, 10], [1, 2, 3]) is None
    assert ratio_of(tmp_path, [10, 10, 10], []) is None


def test_the_course_of_step_times_keeps_the_longest_and_the_recorded(tmp_path: Path) -> None:
    durations = [10] * 1000
    durations[500] = 99
    records = [header(), steps(durations), step(501, 0, 99), step(1000, 0, 10)]
    profile = summary_of(tmp_path, records).main.steps["train"].profile
    assert len(profile) == 60
    assert [profile[0].first, profile[-1].last] == [1, 1000]
    assert all(before.last + 1 == after.first for before, after in pairwise(profile))
    assert [each.longest_ns for each in profile if each.longest_ns > 10] == [99]
    assert sum(each.recorded for each in profile) == 2
    halves = [header(), steps([1, 1], first=3), steps([2, 2], first=1, loop=2)]
    numbers = [each.first for each in summary_of(tmp_path / "halves", halves).main.steps["train"].profile]
    assert numbers == [1, 2, 3, 4]
    few = summary_of(tmp_path / "few", [header(), steps([1, 2, 3])]).main.steps["train"].profile
    assert [(each.first, each.last, each.longest_ns) for each in few] == [(1, 1, 1), (2, 2, 2), (3, 3, 3)]


def test_functions_are_ordered_by_self_time_over_recorded_steps(tmp_path: Path) -> None:
    records = [header(), function(1, "outer"), function(2, "inner")]
    for n in (1, 2):
        records += [calls(n, 100 * n, [(1, 0), (2, 10), (-2, 30), (0, 5)]), step(n, 100 * n, 100)]
    records += [calls(3, 300, [(1, 0), (0, 90)])]  # a step that was cut off, and doesn't count
    main = summary_of(tmp_path, records).main
    inner, outer = main.functions
    assert (inner.function.qualname, inner.self_ns, inner.total_ns, inner.calls, inner.raised) == (
        "inner",
        60,
        60,
        2,
        2,
    )
    assert (outer.function.qualname, outer.self_ns, outer.total_ns, outer.calls, outer.raised) == (
        "outer",
        30,
        90,
        2,
        0,
    )
    assert (inner.steps, inner.steps_ns) == (2, 200)
    assert (main.calls, main.raised) == (4, 2)


def test_only_so_many_functions_are_kept(tmp_path: Path) -> None:
    events = [event for id in range(1, 31) for event in ((id, 0), (0, id))]
    run = open_run(write_run(tmp_path, [header(), calls(1, 0, events), step(1, 0, 1000)]))
    assert [each.function.id for each in summarise(run).main.functions] == list(range(30, 20, -1))
    assert len(summarise(run, top=3).main.functions) == 3


def test_overhead_is_the_measured_time_over_the_wall_time_of_steps(tmp_path: Path) -> None:
    records = [
        header(),
        overhead(1, 1, 1),
        steps([400, 400]),
        # Within the first step, so its time is there already; then one that reaches past the second.
        steps([100], role="eval", loop=2, begin=50),
        steps([100], role="eval", loop=2, first=2, begin=750),
        steps([50], role="eval", loop=2, first=3, begin=900),
        overhead(callback_ns=4, dispatch_ns=5, write_ns=8),
    ]
    cost = summary_of(tmp_path, records).main.overhead
    assert cost.wall_ns == 900
    assert cost.share == pytest.approx(17 / 900)


def test_what_the_trace_lacks_is_counted(tmp_path: Path) -> None:
    records = [header(), step(1, 0, 10, dropped=5), step(2, 10, 10, dropped=2), note("the disk is full")]
    later = {"kind": "phases"}
    data = encode(records) + b"garbage\n" + encode([later]) + b'{"kind":"no'
    main = summary_of(tmp_path, data).main
    dropped = main.dropped
    assert (dropped.calls, dropped.damaged_lines, dropped.unknown_records, dropped.cut_bytes) == (7, 1, 1, 11)
    assert [each.text for each in main.notes] == ["the disk is full"]
    assert main.end is None


def test_a_later_record_of_a_loop_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    summary = summary_of(tmp_path, [header(), loop(1, role="other"), loop(1, role="train")], loops=[loop(1), loop(2)])
    assert [(each.loop.id, each.loop.role) for each in summary.main.loops] == [(1, "train"), (2, "train")]
    assert summary.training_loop_found


def test_each_process_has_figures_of_its_own(tmp_path: Path) -> None:
    write_run(tmp_path, [header(7), steps([1, 1, 1])], trace_of=7)
    summary = summary_of(tmp_path, [header(), steps([1, 1])])
    assert [(each.pid, each.steps["train"].count) for each in summary.processes] == [(PID, 2), (7, 3)]


def test_a_run_that_ended_says_how(tmp_path: Path) -> None:
    by_meta = summary_of(tmp_path / "a", None, ended={"reason": "exception", "exit_code": 1, "clock_ns": 5}).state
    assert (by_meta.condition, by_meta.reason, by_meta.exit_code, by_meta.clock_ns) == (
        "ended",
        "exception",
        1,
        5,
    )
    # run.json is rewritten after the trace's end; a kill in between loses nothing.
    by_trace = summary_of(tmp_path / "b", [header(), end()], ended=None).state
    assert (by_trace.condition, by_trace.reason, by_trace.exit_code) == ("ended", "exit", 0)


def test_a_run_of_a_living_process_is_still_running(tmp_path: Path) -> None:
    here = {"host": socket.gethostname(), "pid": os.getpid(), "start_unix_ns": time.time_ns()}
    assert summary_of(tmp_path, None, ended=None, **here).state.condition == Condition.RUNNING


def test_a_run_of_a_dead_process_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        here = {"host": socket.gethostname(), "pid": process.pid, "start_unix_ns": time.time_ns()}
    assert summary_of(tmp_path, None, ended=None, **here).state.condition == Condition.KILLED


def test_a_process_that_has_only_the_same_id_is_another_one(tmp_path: Path) -> None:
    long_ago = time.time_ns() - 10**9 * 3600 * 24 * 365 * 5
    here = {"host": socket.gethostname(), "pid": os.getpid(), "start_unix_ns": long_ago}
    assert summary_of(tmp_path, None, ended=None, **here).state.condition == Condition.KILLED


def test_of_another_host_nothing_is_claimed(tmp_path: Path) -> None:
    assert summary_of(tmp_path, None, ended=None, host="elsewhere").state.condition == Condition.UNKNOWN


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    events = [event for id in range(1, 101) for event in ((id, 1000), (0, 2000))] * 20

    def peak(count: int) -> int:
        directory = write_run(tmp_path / str(count), None)
        with (directory / f"trace-{PID}.jsonl").open("wb") as trace:
            for n in range(1, count + 1):
                trace.write(encode([calls(n, n * 10**8, events), step(n, n * 10**8, 10**8)]))
        run = open_run(directory)
        tracemalloc.start()
        try:
            summarise(run)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # what is made once and kept
    # A trace is searched in blocks: the smaller one is several of them already.
    assert peak(80) < 1.2 * peak(20)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations(encode(WHOLE)))
def test_a_trace_with_changed_bytes_never_breaks_the_summary(tmp_path: Path, data: bytes) -> None:
    try:
        as_json(summary_of(tmp_path, data), all_loops=True)
        complaint = ""
    except TcmonError as error:
        complaint = str(error)
    assert complaint.isprintable()
