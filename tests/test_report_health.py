"""How training went, in the summary: losses, norms, NaN; and the figures of one loop alone."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from program_runs import tcmon_run
from rich.console import Console
from trace_builder import calls, end, function, header, loop, of_step, parameter, state, step, steps, write_run

from tcmon.errors import TcmonError
from tcmon.report.as_json import as_json
from tcmon.report.loopchoice import LoopChoice
from tcmon.report.summary import Summary, summarise
from tcmon.report.text import render
from tcmon.trace.reader import open_run

MS = 1_000_000


def text_of(summary: Summary) -> str:
    console = Console(file=io.StringIO(), width=100)
    render(summary, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def trained(directory: Path, losses: list[Any], **columns: Any) -> Summary:
    """A run whose steps are all recorded."""
    records = [header(), loop(1), parameter(1, "a"), parameter(2, "b"), steps([MS] * len(losses))]
    for n, value in enumerate(losses, 1):
        of_this = {name: column[n - 1] for name, column in columns.items()}
        records += [of_step("loss", n, value=value), state(n, [1, 2], **of_this), step(n, MS * (n - 1), MS)]
    return summarise(open_run(write_run(directory, [*records, end()])))


def test_losses_norms_and_updates_are_told_with_their_extremes(tmp_path: Path) -> None:
    summary = trained(
        tmp_path,
        [[3.0], [8.0, 10.0], [1.5]],  # two backward passes in the second step: their mean
        grad_norm=[[3.0, 4.0], [6.0, 8.0], [0.3, 0.4]],
        norm=[[1.0, 0.0], [2.0, 0.0], [4.0, 3.0]],
        update=[[0.1, 0.2], [0.5, 0.3], [None, 0.01]],
    )
    health = summary.main.health
    assert health is not None
    told = {each.name: (each.first, each.last, each.least, each.most, each.most_step) for each in health.figures}
    assert told == {
        "loss": (3.0, 1.5, 1.5, 9.0, 2),
        "gradient norm": (5.0, pytest.approx(0.5), pytest.approx(0.5), 10.0, 2),
        "parameter norm": (1.0, 5.0, 1.0, 5.0, 3),
        "update / parameter norm": (0.2, 0.01, 0.01, 0.5, 2),
    }
    assert (health.steps, health.spoilt, health.first_spoilt) == (3, 0, None)
    rows = [line.split() for line in text_of(summary).splitlines()]
    assert ["loss", "3", "1.5", "1.5", "9", "most", "in", "step", "2"] in rows
    found = as_json(summary)["health"]
    assert isinstance(found, dict)
    assert found["figures"]["loss"]["most_step"] == 2  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    "spoilt", [{"losses": [[1.0], ["nan"], [2.0]]}, {"nonfinite": [[0, 0], [1, 0], [0, 0]]}, {"grad": True}]
)
def test_what_is_not_finite_is_told_with_the_first_step_and_is_in_no_figure(
    tmp_path: Path, spoilt: dict[str, Any]
) -> None:
    losses = spoilt.get("losses", [[1.0]] * 3)
    columns = {"nonfinite": spoilt["nonfinite"]} if "nonfinite" in spoilt else {}
    if "grad" in spoilt:
        columns = {
            "grad_nonfinite": [[0, 0], [0, 7], [0, 0]],
            "grad_norm": [[3.0, 4.0], [3.0, "inf"], [3.0, 4.0]],
        }
    summary = trained(tmp_path, losses, **columns)
    health = summary.main.health
    assert health is not None
    assert (health.spoilt, health.first_spoilt) == (1, 2)
    assert all(abs(each.most) < 100 for each in health.figures)
    assert "NaN or infinite values in 1 recorded step, in step 2 first" in text_of(summary)


def test_parameters_without_a_gradient_are_counted_in_the_last_step(tmp_path: Path) -> None:
    summary = trained(tmp_path, [[1.0], [1.0]], has_grad=[[True, True], [True, False]], grad_norm=[[1, 1], [0.0, None]])
    assert "of 2 parameters 1 had no gradient and 1 a gradient of zero" in text_of(summary)


def test_a_run_without_losses_and_states_has_no_such_rows(tmp_path: Path) -> None:
    summary = summarise(open_run(write_run(tmp_path, [header(), loop(1), steps([MS]), step(1, 0, MS), end()])))
    assert summary.main.health is None
    assert "gradient" not in text_of(summary)
    assert as_json(summary)["health"] is None


@pytest.fixture
def two_loops(tmp_path: Path) -> Path:
    records = [
        header(),
        loop(1),
        loop(2, file="/home/somebody/project/other/train.py", qualname="tune", line=31),
        loop(3, "eval", qualname="test", line=50),
        function(1, "pretrain"),
        function(2, "finetune"),
        function(3, "predict"),
        steps([4 * MS] * 10),
        calls(3, 8 * MS, [(1, 0), (0, MS)]),
        step(3, 8 * MS, 4 * MS),
        steps([8 * MS] * 5, loop=2, first=11, begin=40 * MS),
        calls(12, 48 * MS, [(2, 0), (0, MS)], loop=2),
        step(12, 48 * MS, 8 * MS, loop=2),
        steps([2 * MS] * 10, role="eval", loop=3, begin=80 * MS),
        calls(1, 80 * MS, [(3, 0), (0, MS)], role="eval", loop=3),
        step(1, 80 * MS, 2 * MS, role="eval", loop=3),
        end(),
    ]
    return write_run(tmp_path / "run", records)


@pytest.mark.parametrize(
    "place, count, p50, function",
    [
        ("project/train.py:31", 10, 4 * MS, "pretrain"),
        ("main", 10, 4 * MS, "pretrain"),
        ("other/train.py:31", 5, 8 * MS, "finetune"),
        ("tune", 5, 8 * MS, "finetune"),
    ],
)
def test_one_loop_can_be_looked_at_alone(two_loops: Path, place: str, count: int, p50: int, function: str) -> None:
    main = summarise(open_run(two_loops), loop=LoopChoice.parse(place)).main
    assert (main.steps["train"].count, main.steps["train"].p50_ns, main.steps["eval"].count) == (count, p50, 0)
    assert [each.function.qualname for each in main.functions] == [function]
    assert len(main.loops) == 1


def test_a_loop_of_evaluation_alone_is_no_missing_training_loop(two_loops: Path) -> None:
    summary = summarise(open_run(two_loops), loop=LoopChoice.parse("test"))
    assert (summary.main.steps["eval"].count, summary.main.steps["train"].count) == (10, 0)
    assert "No training loop" not in text_of(summary)


def test_a_loop_that_is_not_there_is_refused_with_those_that_are(two_loops: Path) -> None:
    with pytest.raises(TcmonError, match=r"no loop 'train.py:99'; the run has .*train.py:31 in main; .* in tune"):
        summarise(open_run(two_loops), loop=LoopChoice.parse("train.py:99"))
    ended = tcmon_run("report", "--loop", "tune", "--json", "run", cwd=two_loops.parent)
    assert json.loads(ended.stdout)["steps"]["train"]["count"] == 5


def test_evaluation_has_its_share_of_the_time(two_loops: Path) -> None:
    summary = summarise(open_run(two_loops))
    assert summary.evaluation_share == pytest.approx(20 / 100)
    text = text_of(summary)
    assert "evaluation steps took 20.0 % of the time in steps" in text
    assert as_json(summary)["evaluation_share"] == pytest.approx(0.2)


def test_functions_that_only_call_others_are_shown_by_their_total_time(tmp_path: Path) -> None:
    inner = [event for id in range(2, 17) for event in ((id, 1), (0, 1000 * id))]
    events = [(1, 0), *inner, (0, 1)]
    records = [header(), loop(1), *(function(id, f"f{id}") for id in range(1, 17)), steps([10**6])]
    summary = summarise(open_run(write_run(tmp_path, [*records, calls(1, 0, events), step(1, 0, 10**6), end()])))
    main = summary.main
    assert [each.function.qualname for each in main.functions] == [f"f{id}" for id in range(16, 6, -1)]
    assert [each.function.qualname for each in main.by_total] == ["f1", *(f"f{id}" for id in range(16, 7, -1))]
    shown = text_of(summary)
    assert "Functions by self, then by total time" in shown
    assert [line.split()[-2] for line in shown.splitlines() if "model.py:7" in line] == [
        *(f"f{id}" for id in range(16, 9, -1)),
        *("f1", "f9", "f8"),
    ]
