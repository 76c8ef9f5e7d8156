"""A report of a distributed run shows its ranks side by side, and says what is not there of them."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rank_runs import synchronised, write_rank, write_ranks

from tcmon.cli import command_line
from tcmon.trace.reader import open_run

TAKEN = synchronised(2, 30, lambda rank, n, phase: 4_000 * (rank == 1 and phase == "forward"))


def report(*args: object, exit_code: int = 0) -> str:
    done = CliRunner().invoke(command_line, ["report", *map(str, args)])
    assert done.exit_code == exit_code, done.output
    return done.output


def test_ranks_are_shown_side_by_side_with_who_holds_the_others_up(tmp_path: Path) -> None:
    text = report(write_ranks(tmp_path, TAKEN))
    rows = [line.split() for line in text.splitlines()]
    assert ["Rank", "steps", "p50", "data", "wait", "forward", "backward", "optimizer", "other"] in rows
    assert [row[:2] for row in rows if row[:1] in (["0"], ["1"])] == [["0", "30"], ["1", "30"]]
    assert "rank 1 holds the others up in phase forward: 4.00 us in each of 30 steps" in " ".join(text.split())
    assert "clocks of the ranks agree to 201 ns" in text


def test_json_holds_ranks_and_frontier(tmp_path: Path) -> None:
    found = json.loads(report(write_ranks(tmp_path, TAKEN), "--json"))
    assert [each["rank"] for each in found["ranks"]] == [0, 1]
    assert found["missing"] == []
    [delay] = found["frontier"]["delays"]
    assert (delay["phase"], delay["rank"], delay["steps"]) == ("forward", 1, 30)
    assert found["frontier"]["ranks"][1]["phases_p50_ms"]["forward"] == 0.009


def test_the_figures_of_one_rank_are_asked_for_by_its_number(tmp_path: Path) -> None:
    write_ranks(tmp_path, TAKEN)
    assert json.loads(report(tmp_path, "--rank", 1, "--json"))["run"]["pid"] == 4243
    assert json.loads(report(tmp_path, "--json"))["run"]["pid"] == 4242
    assert "holds nothing of rank 7" in report(tmp_path, "--rank", 7, exit_code=1)


def test_a_run_of_one_process_has_only_rank_0(tmp_path: Path) -> None:
    from trace_builder import end, write_run

    write_run(tmp_path, [end()])
    assert "holds nothing of rank 1" in report(tmp_path, "--rank", 1, exit_code=1)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_without_a_trace_is_missing_and_the_others_are_shown(lost: int, tmp_path: Path) -> None:
    left = 1 - lost
    write_rank(tmp_path, left, TAKEN[left])
    found = json.loads(report(tmp_path, "--json"))
    assert [each["rank"] for each in found["ranks"]] == [left]
    assert found["missing"] == [f"no trace of rank {lost} of 2"]
    assert f"no trace of rank {lost} of 2" in report(tmp_path)


def test_a_rank_that_died_is_named_with_the_steps_it_lacks(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, TAKEN[0])
    write_rank(tmp_path, 1, TAKEN[1][:12], ended=False)
    assert json.loads(report(tmp_path, "--json"))["missing"] == [
        "rank 1 has 12 training steps, others 30",
        "rank 1 (pid 4243) has not written its end: it was killed, or still runs",
    ]


def test_the_traces_of_ranks_whose_neighbour_is_cut_stay_whole(tmp_path: Path) -> None:
    write_rank(tmp_path, 0, TAKEN[0])
    trace = write_rank(tmp_path, 1, TAKEN[1])
    trace.write_bytes(trace.read_bytes()[:-400])
    found = json.loads(report(tmp_path, "--json"))
    assert [each["steps"]["train"]["count"] for each in found["ranks"]] == [30, 0]
    assert found["frontier"] is None


def test_processes_of_a_restart_are_told_apart(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_rank(tmp_path, rank, TAKEN[rank][:5], ended=False)
        write_rank(tmp_path, rank, TAKEN[rank], restart=1)
    run = open_run(tmp_path)
    assert [(each.rank, each.restart) for each in run.processes] == [(0, 1), (0, 0), (1, 1), (1, 0)]
    assert "1 (restart 1)" in report(tmp_path)
