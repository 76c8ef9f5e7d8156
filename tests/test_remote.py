"""`tcmon attach PID` and `tcmon detach PID`: a job that was started without tcmon."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Run
from program_runs import environment

from tcmon.errors import TcmonError
from tcmon.options import Options
from tcmon.reaching import attach_to, ranks_of
from tcmon.trace.reader import open_run

reaching = pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="other processes are reached from 3.14 on")

TRAIN = """
import sys, time
import torch

torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train():
    n = 0
    while True:
        n += 1
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(0.002)
        if n == 5:
            print("training", flush=True)
        if n % 50 == 0:
            print(n, [sys.monitoring.get_tool(i) for i in range(6)], "tcmon" in dir(), flush=True)

train()
"""
RANKS = """
import os, subprocess, sys
env = [os.environ | {"RANK": r, "LOCAL_RANK": r, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job"} for r in "01"]
children = [subprocess.Popen([sys.executable, "train.py"], env=each) for each in env]
print(*(each.pid for each in children), flush=True)
for each in children:
    each.wait()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A training job that runs and has begun to train."""
    (tmp_path / "train.py").write_text(TRAIN)
    variables = environment(OMP_NUM_THREADS="1", PYTHONPATH="")
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@reaching
def test_a_running_job_is_watched_and_left_as_it_was(
    job: subprocess.Popen[str], tmp_path: Path, run_tcmon: Run
) -> None:
    assert job.stdout is not None
    out = tmp_path / "run"
    done = run_tcmon(["attach", "--interval", "5", "--warmup", "0", "--out", out, str(job.pid)], tmp_path)
    assert f"process {job.pid} is being watched in {out}" in done.stderr
    again = run_tcmon(["attach", str(job.pid)], tmp_path, exit_code=2)
    assert "watched already, since tcmon attach" in again.stderr
    while "'tcmon'" not in job.stdout.readline():
        pass
    time.sleep(0.5)
    ended = run_tcmon(["detach", str(job.pid)], tmp_path)
    assert re.search(r"train train\.py:11 in train  \d+ steps", ended.stderr), ended.stderr
    while "'tcmon'" in job.stdout.readline():
        pass
    assert job.poll() is None
    assert "[None, None, None, None, None, None] False" in job.stdout.readline()

    run = open_run(out)
    assert (run.meta.pid, run.meta.ended is not None) == (job.pid, True)
    recorded = list(run.processes[0].recorded_steps())
    assert [each.step.n for each in recorded][:2] == [5, 10]
    assert any(call.function and call.function.qualname == "Tensor.backward" for call in recorded[0].calls)
    twice = run_tcmon(["detach", str(job.pid)], tmp_path, exit_code=2)
    assert "it is not watched by tcmon attach" in twice.stderr
    run_tcmon(["attach", "--out", tmp_path / "second", str(job.pid)], tmp_path)


@reaching
def test_all_ranks_of_a_launch_are_watched_in_one_directory(tmp_path: Path, run_tcmon: Run) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.py").write_text(RANKS)
    variables = environment(OMP_NUM_THREADS="1", PYTHONPATH="")
    launcher = subprocess.Popen(
        [sys.executable, "launch.py"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True
    )
    pids: list[int] = []
    try:
        assert launcher.stdout is not None
        pids = [int(each) for each in launcher.stdout.readline().split()]
        assert [launcher.stdout.readline() for _ in pids] == ["training\n"] * 2
        run_tcmon(["attach", "--all-ranks", "--out", "run", str(launcher.pid)], tmp_path)
        time.sleep(0.5)
        done = run_tcmon(["detach", "--all-ranks", str(pids[1])], tmp_path)
        assert done.stderr.count("Overhead  ") == 1
    finally:
        for pid in pids:
            os.kill(pid, 9)
        launcher.communicate()
    processes = open_run(tmp_path / "run").processes
    assert [each.rank for each in processes] == [0, 1]
    found = json.loads(run_tcmon(["report", "run", "--json"], tmp_path).stdout)
    assert all(each["steps"]["train"]["count"] > 0 for each in found["ranks"])


@reaching
def test_what_can_not_be_reached_is_told_in_one_line(tmp_path: Path, run_tcmon: Run) -> None:
    other = subprocess.Popen(["sleep", "60"])
    refuses = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"],
        env=environment(PYTHON_DISABLE_REMOTE_DEBUG="1"),
        stdout=subprocess.PIPE,
    )
    try:
        assert refuses.stdout is not None
        refuses.stdout.readline()
        for process in (other, refuses):
            done = run_tcmon(["attach", str(process.pid)], tmp_path, exit_code=2)
            assert re.fullmatch(
                rf"tcmon: error: can't attach to process {process.pid}: .*is it Python 3\.\d+, .*\n", done.stderr
            )
    finally:
        for process in (other, refuses):
            process.kill()
            process.communicate()
    done = run_tcmon(["attach", str(other.pid)], tmp_path, exit_code=2)
    assert done.stderr == f"tcmon: error: can't attach to process {other.pid}: there is no such process\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (PermissionError(1, "Operation not permitted"), "permission denied; run tcmon as its owner"),
        (RuntimeError("the versions differ"), "the versions differ; is it Python 3"),
    ],
)
def test_why_a_process_can_not_be_reached_is_told_and_nothing_is_left(
    raised: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _script: str) -> None:
        raise raised

    monkeypatch.setattr(sys, "remote_exec", refuse, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(TcmonError, match=said):
        attach_to(os.getpid(), Options())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(hasattr(sys, "remote_exec"), reason="here they can be reached")
@pytest.mark.parametrize("command", ["attach", "detach"])
def test_an_older_python_says_what_it_takes(command: str, tmp_path: Path, run_tcmon: Run) -> None:
    done = run_tcmon([command, str(os.getpid())], tmp_path, exit_code=2)
    assert re.fullmatch(
        rf"tcmon: error: can't {command} (to|from) process \d+: that takes Python 3\.14 or newer, .*\n", done.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["attach"], "Missing argument 'PID'"),
        (["attach", "x"], "'x' is not a valid integer"),
        (["attach", "0"], "0 is not in the range"),
        (["attach", "--interval", "0", "1"], "0 is not a whole number of at least 1"),
        (["attach", "--all-ranks", "1"], "process 1 is no rank and has started none"),
    ],
)
def test_mistakes_are_one_line(args: list[str], said: str, tmp_path: Path, run_tcmon: Run) -> None:
    done = run_tcmon(args, tmp_path, exit_code=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_ranks_of_a_launch_are_found_from_any_of_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    (tmp_path / "launch.py").write_text(RANKS)
    launcher = subprocess.Popen([sys.executable, "launch.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    pids: list[int] = []
    try:
        assert launcher.stdout is not None
        pids = [int(each) for each in launcher.stdout.readline().split()]
        for each in (launcher.pid, *pids):
            assert ranks_of(each) == pids
    finally:
        for pid in pids:
            os.kill(pid, 9)
        launcher.communicate()
