"""`tcmon.session()` records some steps and detaches by itself; `on_step=` is told of every step."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_attach import in_thread, program

import tcmon
from tcmon.attached import Profile
from tcmon.errors import TcmonError
from tcmon.steps.onstep import StepNumbers
from tcmon.trace.reader import open_run


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = [sys.monitoring.get_tool(i) for i in range(6)]
    threads = threading.active_count()
    yield
    assert [sys.monitoring.get_tool(i) for i in range(6)] == before
    assert threading.active_count() == threads


def recorded(run_dir: Path) -> list[int]:
    return [each.step.n for each in open_run(run_dir).processes[0].recorded_steps()]


def wait_until_done(run: Profile) -> None:
    for _ in range(1000):
        if run.done:
            return
        threading.Event().wait(0.01)


def test_a_session_records_its_steps_and_detaches_while_training_goes_on(run_dir: Path) -> None:
    names, told = program(), []
    run = tcmon.session(steps=3, warmup=2, out=run_dir, on_done=told.append)
    seen = []

    def in_the_midst() -> None:
        wait_until_done(run)
        seen.append((run.done, run.attached, sys.monitoring.get_tool(3)))

    assert not run.done
    in_thread(names["train"], 30, 20, in_the_midst)
    assert seen == [(True, False, None)]
    run.detach()
    assert told == [run]
    assert recorded(run_dir) == [3, 4, 5]
    assert {each.step.reason for each in open_run(run_dir).processes[0].recorded_steps()} == {"window"}
    assert run.summary().data["run"]["state"] == "ended"
    assert run.detach().data["steps"]["train"]["sampled"] == 3
    assert told == [run]


def test_a_session_that_begins_in_a_running_loop_counts_from_there(run_dir: Path) -> None:
    names, runs = program(), []
    in_thread(names["train"], 30, 4, lambda: runs.append(tcmon.session(steps=2, warmup=1, out=run_dir)))
    runs[0].detach()
    assert runs[0].done
    assert recorded(run_dir) == [2, 3]


def test_a_session_whose_block_ends_first_is_finished_but_not_done(run_dir: Path) -> None:
    names, told = program(), []
    with tcmon.session(steps=5, warmup=0, out=run_dir, on_done=lambda run: told.append(run.summary().data)) as run:
        in_thread(names["train"], 3, -1, None)
    assert not run.done
    assert not run.attached
    assert [each["steps"]["train"]["count"] for each in told] == [3]
    assert recorded(run_dir) == [1, 2, 3]


def test_a_session_that_was_paused_in_its_window_ends_after_it(run_dir: Path) -> None:
    names = program()
    run = tcmon.session(steps=2, warmup=0, out=run_dir)
    run.pause()
    in_thread(names["train"], 9, -1, None)
    run.detach()
    assert run.done
    assert recorded(run_dir) == []


def test_another_session_follows_the_first(run_dir: Path, tmp_path: Path) -> None:
    names = program()
    for number in (1, 2):
        run = tcmon.session(steps=1, warmup=0, out=tmp_path / str(number))
        in_thread(names["train"], 5, -1, None)
        run.detach()
        assert recorded(tmp_path / str(number)) == [1]


def test_on_done_that_fails_is_told_in_one_line(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = program()
    with caplog.at_level("WARNING", "tcmon"), tcmon.session(1, 0, lambda _: 1 / 0, out=run_dir):
        in_thread(names["train"], 5, -1, None)
    assert [each.getMessage() for each in caplog.records] == ["on_done failed: ZeroDivisionError: division by zero"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1, not 0"),
        ({"steps": "3"}, TypeError, "steps must be a whole number, not '3'"),
        ({"warmup": -1}, ValueError, "warmup must be at least 0, not -1"),
        ({"warmup": True}, TypeError, "warmup must be a whole number, not True"),
        ({"on_done": 3}, TypeError, "on_done must be a function of one argument, not 3"),
        ({"interval": 3}, TypeError, r"session\(\) has no option 'interval'"),
        ({"sampler": tcmon.samplers.Always()}, TypeError, r"session\(\) has no option 'sampler'"),
        ({"speed": 3}, TypeError, r"session\(\) has no option 'speed'; there are eval_interval, "),
        ({"on_step": 3}, TypeError, "on_step must be a function of one argument, not 3"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_done(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        tcmon.session(**options)
    assert list(tmp_path.iterdir()) == []


def test_a_session_within_a_session_says_where_the_first_was(run_dir: Path, tmp_path: Path) -> None:
    with tcmon.session(out=run_dir), pytest.raises(TcmonError, match=r"watched already, since .*test_profiling"):
        tcmon.session(out=tmp_path / "second")


def test_importing_the_module_leaves_the_function() -> None:
    import tcmon.session
    from tcmon.session import Session

    assert callable(tcmon.session)
    assert Session.__module__ == "tcmon.session"


def test_a_function_is_told_of_every_step(run_dir: Path) -> None:
    names, told = program(), []
    with tcmon.attach(interval=3, warmup=0, out=run_dir, on_step=told.append) as run:
        in_thread(names["train"], 6, -1, None)
    assert [(each.role, each.n, each.recorded) for each in told] == [("train", n, n in (3, 6)) for n in range(1, 7)]
    assert all(isinstance(each, StepNumbers) for each in told)
    assert [each.took_ns for each in told] == run.steps["train"].end.tolist()
    assert [each.wait_ns for each in told] == run.steps["train"].wait.tolist()


def test_a_recorded_step_is_written_when_it_is_told_of(run_dir: Path) -> None:
    names, seen = program(), []
    with tcmon.attach(interval=2, warmup=0, out=run_dir, on_step=lambda step: seen.append(recorded(run_dir))):
        in_thread(names["train"], 4, -1, None)
    assert seen == [[], [2], [2], [2, 4]]


def test_a_function_that_fails_is_called_no_more(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    names, told = program(), []

    def on_step(step: StepNumbers) -> None:
        told.append(step.n)
        if step.n == 3:
            raise LookupError("no such thing")

    with caplog.at_level("WARNING", "tcmon"), tcmon.attach(out=run_dir, on_step=on_step) as run:
        in_thread(names["train"], 6, -1, None)
    assert told == [1, 2, 3]
    assert [each.getMessage() for each in caplog.records] == [
        "on_step failed after train step 3 and is called no more: LookupError: no such thing"
    ]
    assert len(run.steps["train"].n) == 6


def test_a_function_that_detaches_is_told_that_it_can_not(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = program()
    with caplog.at_level("WARNING", "tcmon"):
        run = tcmon.attach(out=run_dir, on_step=lambda _: run.detach())
        in_thread(names["train"], 4, -1, None)
    assert ["on_step can't end the session" in each.getMessage() for each in caplog.records] == [True]
    assert run.attached
    assert run.detach().data["steps"]["train"]["count"] == 4


def test_what_a_function_does_is_no_call_of_the_step(run_dir: Path) -> None:
    names = program()

    def helper() -> None:
        pass

    with tcmon.attach(interval=1, warmup=0, out=run_dir, on_step=lambda _: helper()):
        in_thread(names["train"], 3, -1, None)
    calls = [
        call.function.qualname
        for each in open_run(run_dir).processes[0].recorded_steps()
        for call in each.calls
        if call.function
    ]
    assert calls == ["Loss.backward", "Optimizer.step"] * 3
