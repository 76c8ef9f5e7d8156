"""One recorded step: found by its number, and shown as a tree that stays readable."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_runs import tcmon_run
from rich.console import Console
from test_reader import WHOLE
from trace_builder import calls, encode, exception, function, header, loop, step, steps, write_run

from tcmon.errors import TcmonError
from tcmon.report.as_json import step_as_json
from tcmon.report.onestep import one_step, trees
from tcmon.report.onestep_text import render_step
from tcmon.trace.calltree import Call
from tcmon.trace.reader import open_run
from tcmon.trace.records import Function

US = 1000


def text_of(directory: Path, n: int, *, role: str = "train", most: int = 60, width: int = 80) -> str:
    written = io.StringIO()
    render_step(one_step(open_run(directory), role, n), Console(file=written, width=width), most=most)
    return written.getvalue()


def tree_of(shown: str) -> list[list[str]]:
    """The cells of the tree's lines."""
    lines = shown.splitlines()
    head = next(at for at, line in enumerate(lines) if line.lstrip().startswith("start"))
    return [[cell for cell in line.split("  ") if cell] for line in lines[head + 1 :]]


NAMES = [header(), loop(1), *[function(id, f"f{id}", line=id) for id in range(1, 6)], exception(1, "KeyError")]


def test_a_step_is_a_tree_of_its_calls_with_their_times_and_outcomes(tmp_path: Path) -> None:
    events = [(1, 1), (2, 3), (0, 10), (3, 1), (-2, 4), (-1, 5), (4, 2), (5, 1)]
    records = [*NAMES, calls(3, 100 * US, [(what, at * US) for what, at in events]), step(3, 90 * US, 60 * US)]
    shown = text_of(write_run(tmp_path, records), 3)
    assert shown.startswith("train step 3  took 60.0 us, from 90.0 us of the run on\n")
    assert "train.py:31 in main, stage training, recorded because of interval" in shown
    assert "Thread 1 of the step: 5 calls, 47.0 us" in shown
    assert [[cell.strip() for cell in row] for row in tree_of(shown)] == [
        ["11.0 us", "23.0 us", "9.00 us", "f1", "yielded", "somebody/project/model.py:1"],
        ["14.0 us", "10.0 us", "10.0 us", "f2", "somebody/project/model.py:2"],
        ["25.0 us", "4.00 us", "4.00 us", "f3", "raised KeyError", "somebody/project/model.py:3"],
        ["36.0 us", "24.0 us", "1.00 us", "f4", "unfinished", "somebody/project/model.py:4"],
        ["37.0 us", "23.0 us", "23.0 us", "f5", "unfinished", "somebody/project/model.py:5"],
    ]


def test_repeats_are_one_line(tmp_path: Path) -> None:
    once = [(2, 1), (3, 1), (0, 1), (0, 1)]
    pair = [(4, 1), (0, 2), (5, 3), (-1, 4)]
    events = [*once * 3, *pair * 4, (1, 1), (0, 1)]
    shown = text_of(write_run(tmp_path, [*NAMES, calls(1, 0, events), step(1, 0, 100)]), 1)
    names = [row[3].strip() for row in tree_of(shown)]
    assert names == ["3x f2", "3x f3", "4x f4", "4x f5", "f1"]
    assert tree_of(shown)[3][1:3] == ["16.0 ns", "16.0 ns"]


def test_only_so_many_lines_are_shown_and_the_rest_is_counted(tmp_path: Path) -> None:
    records = [header(), *[function(id, f"f{id}") for id in range(1, 200)]]
    events = [(1, 1), *[event for id in range(2, 200) for event in ((id, 1), (0, id))], (0, 1)]
    shown = text_of(write_run(tmp_path, [*records, calls(1, 0, events), step(1, 0, 30000)]), 1, most=5)
    assert len(shown.splitlines()) == 11
    assert "f1 (+194)" in shown
    assert [row[3].strip() for row in tree_of(shown)] == ["f1 (+194)", "f196", "f197", "f198", "f199"]


def test_calls_of_other_threads_are_apart(tmp_path: Path) -> None:
    records = [*NAMES, calls(1, 0, [(1, 1), (0, 1)]), calls(1, 0, [(2, 1), (0, 1)], thread=7), step(1, 0, 10)]
    shown = text_of(write_run(tmp_path, records), 1)
    assert shown.index("Thread 1 of the step") < shown.index("f1") < shown.index("Thread 7 beside it")
    assert shown.index("Thread 7 beside it") < shown.index("f2")


def test_a_step_without_calls_and_one_with_dropped_calls_say_so(tmp_path: Path) -> None:
    directory = write_run(tmp_path, [header(), step(1, 0, 10), step(2, 10, 10, dropped=1234)])
    assert "No call was recorded in it." in text_of(directory, 1)
    assert "1,234 calls beyond the bound of a step were dropped" in text_of(directory, 2)


def test_calls_deeper_than_the_stack_are_shown(tmp_path: Path) -> None:
    events = [*[(1, 10)] * 5000, *[(0, 1)] * 5000]
    directory = write_run(tmp_path, [header(), function(1, "recursive"), calls(1, 0, events), step(1, 0, 60_000)])
    lines = text_of(directory, 1, most=200).splitlines()
    assert "[199] recursive (+1)" in lines[-1]
    assert all(len(line) <= 80 for line in lines)
    assert len(step_as_json(one_step(open_run(directory), "train", 1))["calls"]) == 5000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "n, expected",
    [
        (1, "train step 1 was not recorded; the nearest recorded is 2"),
        (5, "train step 5 was not recorded; the nearest recorded are 2 and 42"),
        (41, "train step 41 was not recorded; the nearest recorded are 2 and 42"),
        (9999, "train step 9999 was not recorded; the nearest recorded is 42"),
    ],
)
def test_a_step_that_was_not_recorded_names_its_neighbours(tmp_path: Path, n: int, expected: str) -> None:
    run = open_run(write_run(tmp_path, [header(), steps([10] * 42), step(42, 410, 10), step(2, 10, 10)]))
    with pytest.raises(TcmonError, match=expected):
        one_step(run, "train", n)


def test_where_nothing_was_recorded_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(TcmonError, match="no eval step was recorded"):
        one_step(open_run(write_run(tmp_path / "a", [header(), step(1, 0, 1)])), "eval", 1)
    with pytest.raises(TcmonError, match="holds no trace"):
        one_step(open_run(write_run(tmp_path / "b", None)), "train", 1)


def test_a_step_is_the_same_however_its_rows_lie_in_the_trace(tmp_path: Path) -> None:
    directory = write_run(tmp_path, WHOLE)
    (process,) = open_run(directory).processes
    for expected in process.recorded_steps():
        found = one_step(open_run(directory), expected.step.role, expected.step.n).recorded
        assert found.step == expected.step
        assert [shape(call) for call in found.calls] == [shape(call) for call in expected.calls]
    mixed = [
        *NAMES,
        calls(1, 0, [(1, 1)]),
        calls(1, 2, [(2, 0), (0, 1)], role="eval", loop=2),
        calls(1, 4, [(0, 1)]),
        step(1, 2, 2, role="eval", loop=2),
        dict(reversed(calls(1, 6, [(3, 1), (0, 1)]).items())),
        step(1, 0, 10),
    ]
    directory = write_run(tmp_path / "mixed", mixed)
    found = one_step(open_run(directory), "train", 1).recorded
    assert [call.function.qualname for call in found.calls] == ["f1", "f3"]


def test_a_damaged_trace_shows_the_calls_that_are_left(tmp_path: Path) -> None:
    good = encode([*NAMES, calls(1, 0, [(1, 1), (0, 1)])])
    data = good + b'{"kind":"calls","role":"train","n":1,"loop":1,"thre\xff\n' + encode([step(1, 0, 10)])
    assert "f1" in text_of(write_run(tmp_path, data), 1)
    cut = good + encode([step(1, 0, 10)])[:-20]
    with pytest.raises(TcmonError, match="no train step was recorded"):
        one_step(open_run(write_run(tmp_path, cut)), "train", 1)


def shape(call: Call) -> Any:
    return (
        call.function,
        call.start_ns,
        call.end_ns,
        call.outcome,
        call.self_ns,
        [shape(each) for each in call.children],
    )


@st.composite
def forests(draw: st.DrawFn, depth: int = 3) -> tuple[Call, ...]:
    """Calls whose times don't matter but for their nesting."""

    def call(start: int, level: int) -> Call:
        now, children = start + draw(st.integers(0, 3)), []
        for _ in range(draw(st.integers(0, 4 if level else 0))):
            children.append(call(now, level - 1))
            now = children[-1].end_ns + draw(st.integers(0, 3))
        id = draw(st.integers(1, 3))
        own = now - start - sum(each.total_ns for each in children)
        return Call(Function(id, None, f"f{id}", "", 0), start, now, 3 - level, 1, "returned", own, tuple(children))

    roots: list[Call] = []
    for _ in range(draw(st.integers(0, 8))):
        roots.append(call(roots[-1].end_ns if roots else 0, depth))
    return tuple(roots)


@given(forests(), st.integers(1, 30))
def test_no_call_and_no_time_is_lost_in_the_tree(calls: tuple[Call, ...], most: int) -> None:
    everything = [call for root in calls for call in root.walk()]
    (whole,) = trees(calls, 10_000) or [None]
    if whole is None:
        assert not calls
        return
    assert sum(line.calls for line in whole.walk()) == whole.calls == len(everything)
    assert sum(line.self_ns for line in whole.walk()) == sum(call.self_ns for call in everything)
    (pruned,) = trees(calls, most)
    lines = list(pruned.walk())
    assert len(lines) == min(most, len(list(whole.walk())))
    assert sum(line.total_ns for line in pruned.lines) + pruned.hidden_ns == whole.total_ns


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "script.py").write_text(
        "class A:\n    def step(self): pass\n    def backward(self): pass\n"
        "optimizer = loss = A()\n"
        "for _ in range(30):\n    loss.backward(); optimizer.step()\n"
    )
    assert tcmon_run("run", "--quiet", "--out", "run", "script.py", cwd=folder).returncode == 0
    return folder


def test_the_command_shows_a_step(run: Path) -> None:
    ended = tcmon_run("report", "--step", "22", "--no-color", "run", cwd=run, FORCE_COLOR="1")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "A.backward" in ended.stdout
    assert "A.step" in ended.stdout
    assert "\x1b" not in ended.stdout
    found = json.loads(tcmon_run("report", "--step", "22", "--json", "run", cwd=run).stdout)
    assert [each["qualname"] for each in found["calls"]] == ["A.backward", "A.step"]


def test_top_bounds_the_functions_of_the_summary(run: Path) -> None:
    assert "A.step" in tcmon_run("report", "run", cwd=run).stdout
    found = json.loads(tcmon_run("report", "--json", "--top", "1", "run", cwd=run).stdout)
    assert len(found["functions"]) == 1


@pytest.mark.parametrize(
    "options, code",
    [
        (("--step", "7"), 1),
        (("--step", "1", "--role", "eval"), 1),
        (("--step", "0"), 2),
        (("--top", "0"), 2),
        (("--role", "eval"), 2),
    ],
)
def test_what_cannot_be_shown_is_one_line(run: Path, options: tuple[str, ...], code: int) -> None:
    ended = tcmon_run("report", *options, "run", cwd=run)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.startswith("tcmon: error: ")
    assert ended.stderr.count("\n") == 1
