"""Reports of runs that `tcmon run` made: ended, going on, and killed."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from program_runs import TCMON, environment

from tcmon.trace.reader import open_run

# Nothing of torch: that a loop steps an optimizer can be told from its code.
PROGRAM = """
import sys


class Optimizer:
    def step(self):
        pass


def model(depth):
    return model(depth - 1) if depth else 0


def batches(count):
    for number in range(count):
        yield number


def fail():
    raise LookupError


def evaluate(data):
    for batch in data:
        model(1)


def main(steps):
    optimizer = Optimizer()
    for batch in batches(steps):
        model(2)
        try:
            fail()
        except LookupError:
            pass
        optimizer.step()
        if batch == 21:
            evaluate([1, 2, 3])
    print("trained", flush=True)


main(30)
"""

# In its 25th step, the last three of which no record of the trace holds, it waits to be killed.
ENDLESS = PROGRAM.replace(
    "        if batch == 21:", "        if batch == 24:\n            wait()\n        if batch == 21:"
).replace("def fail():", "def wait():\n    print('waiting', flush=True)\n    sys.stdin.read()\n\n\ndef fail():")


def report(run: Callable[..., subprocess.CompletedProcess[str]], directory: Path) -> Any:
    return json.loads(run(["report", directory, "--json"], directory.parent).stdout)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, run_tcmon: Any) -> Path:
    place = tmp_path_factory.mktemp("ended")
    (place / "train.py").write_text(PROGRAM)
    done = run_tcmon(["run", "--out", "out", "train.py"], place)
    assert done.stdout == "trained\n"
    (place / "stderr").write_text(done.stderr)
    return place / "out"


def test_a_run_is_reported_with_the_steps_that_the_program_made(ended: Path, run_tcmon: Any) -> None:
    found = report(run_tcmon, ended)
    assert {role: (each["count"], each["sampled"]) for role, each in found["steps"].items()} == {
        "train": (30, 3),
        "eval": (3, 2),
    }
    assert [(each["role"], each["qualname"], each["steps"]) for each in found["loops"]] == [
        ("train", "main", 30),
        ("eval", "evaluate", 3),
    ]
    assert (found["run"]["state"], found["run"]["exit_code"]) == ("ended", 0)
    assert found["dropped"] == {"calls": 0, "damaged_lines": 0, "unknown_records": 0, "cut_bytes": 0}
    assert found["overhead"]["share"] > 0


def test_recorded_steps_hold_the_calls_that_the_program_made(ended: Path) -> None:
    (process,) = open_run(ended).processes
    calls = {}
    for recorded in process.recorded_steps():
        calls[recorded.step.role, recorded.step.n] = [
            (call.function.qualname, call.depth, call.outcome) for root in recorded.calls for call in root.walk()
        ]
    usual = [
        ("batches", 0, "yielded"),
        ("model", 0, "returned"),
        ("model", 1, "returned"),
        ("model", 2, "returned"),
        ("fail", 0, "raised LookupError"),
        ("Optimizer.step", 0, "returned"),
    ]
    assert calls == {
        ("train", 1): usual,
        ("train", 2): usual,
        ("eval", 1): [("model", 0, "returned"), ("model", 1, "returned")],
        ("eval", 2): [("model", 0, "returned"), ("model", 1, "returned")],
        ("train", 22): [*usual, ("evaluate", 0, "returned")],
    }


def test_the_text_is_the_same_at_the_end_and_later(ended: Path, run_tcmon: Any) -> None:
    shown = run_tcmon(["report", "out"], ended.parent).stdout
    line = PROGRAM[: PROGRAM.index("for batch in batches")].count("\n") + 1
    assert f"train train.py:{line} in main  30 steps, 3 recorded" in shown
    assert "Optimizer.step" in shown
    assert shown.endswith("Next      tcmon report out --json\n")
    assert (ended.parent / "stderr").read_text() == shown


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "train.py").write_text(ENDLESS)
    with subprocess.Popen(
        [sys.executable, *TCMON, "run", "--out", "out", "train.py"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        yield process
        process.kill()


def test_a_run_is_reported_while_it_goes_on_and_when_it_was_killed(
    waiting: subprocess.Popen[str], tmp_path: Path, run_tcmon: Any
) -> None:
    running = report(run_tcmon, tmp_path / "out")
    waiting.kill()
    waiting.wait()
    killed = report(run_tcmon, tmp_path / "out")
    assert (running["run"]["state"], killed["run"]["state"]) == ("running", "killed")
    for found in (running, killed):
        assert found["run"]["exit_code"] is None
        assert (found["steps"]["train"]["count"], found["steps"]["train"]["sampled"]) == (24, 3)


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.7, 0.999])
def test_a_run_whose_trace_was_cut_is_reported(ended: Path, tmp_path: Path, run_tcmon: Any, kept: float) -> None:
    for file in ended.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[: int(kept * len(data))] if file.suffix == ".jsonl" else data)
    found = report(run_tcmon, tmp_path)
    assert 0 <= found["steps"]["train"]["sampled"] <= 3
    assert found["dropped"]["damaged_lines"] == 0


def test_a_directory_that_holds_no_run_is_refused_in_one_line(tmp_path: Path, run_tcmon: Any) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        done = run_tcmon(["report", directory], tmp_path, exit_code=1)
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
