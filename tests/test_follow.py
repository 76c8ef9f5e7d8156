"""`tcmon run -- COMMAND` and `--follow`: each Python that is started has its own files in one run directory."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import Run
from monitored import STAND_INS
from program_runs import CHECKOUT, environment

from tcmon.report.summary import summarise
from tcmon.trace.reader import Process, open_run

TRAIN = (
    "import torch\n"
    + STAND_INS
    + """
def train(count):
    for batch in range(count):
        loss.backward()
        optimizer.step()
"""
)
CHILDREN = (
    TRAIN
    + """
import multiprocessing, os, subprocess, sys

if __name__ == "__main__":
    for method, count in (("spawn", 3), ("forkserver", 4), ("fork", 5)):
        child = multiprocessing.get_context(method).Process(target=train, args=(count,))
        child.start()
        child.join()
    subprocess.run([sys.executable, "-c", "import training; training.train(6)"], check=True)
    subprocess.run([sys.executable, "-c", "import torch; print('nothing to watch')"], check=True)
    if not (pid := os.fork()):
        train(7)
        os._exit(0)
    os.waitpid(pid, 0)
    if sys.argv[1:] == ["trains"]:
        train(2)
"""
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A folder of programs, in which torch is a name and nothing more: importing the real one takes long."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.0'\n")
    (tmp_path / "training.py").write_text(TRAIN)
    (tmp_path / "train.py").write_text(TRAIN + "train(8)\n")
    (tmp_path / "children.py").write_text(CHILDREN)
    return tmp_path


def counted(process: Process) -> int:
    return sum(len(record.end) for record in process.read() if type(record).__name__ == "Steps")


def steps(run_dir: Path) -> list[int]:
    """The number of steps of each process."""
    return sorted(counted(process) for process in open_run(run_dir).processes)


def test_children_have_their_own_files_and_forks_are_silent(work: Path, run_tcmon: Run) -> None:
    done = run_tcmon(["run", "--follow", "--quiet", "--out", "run", "children.py", "trains"], work)
    assert (done.stdout, done.stderr) == ("nothing to watch\n", "")
    assert steps(work / "run") == [2, 3, 4, 6]
    run = open_run(work / "run")
    assert counted(run.processes[0]) == 2
    assert run.meta.pid == run.processes[0].pid
    for process in run.processes:
        reading = process.read()
        assert list(reading)
        assert reading.complete, process


def test_a_program_that_trains_in_its_children_only_leads_with_one_of_them(work: Path, run_tcmon: Run) -> None:
    run_tcmon(["run", "--follow", "--quiet", "--out", "run", "children.py"], work)
    assert steps(work / "run") == [3, 4, 6]
    found = json.loads(run_tcmon(["report", "run", "--json"], work).stdout)
    assert found["steps"]["train"]["count"] > 0
    assert found["run"]["state"] == "ended"
    shown = run_tcmon(["report", "run"], work).stdout
    for process in open_run(work / "run").processes[1:]:
        assert f"process {process.pid}: {counted(process)} train steps" in shown


def test_without_follow_children_are_not_watched(work: Path, run_tcmon: Run) -> None:
    run_tcmon(["run", "--quiet", "--out", "run", "children.py", "trains"], work)
    assert steps(work / "run") == [2]


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "train.py"],
        [sys.executable, "-m", "train"],
        ["sh", "train.sh"],
        [sys.executable, "-c", "import training; training.train(8)"],
    ],
)
def test_a_command_that_starts_python_is_watched(command: list[str], work: Path, run_tcmon: Run) -> None:
    (work / "train.sh").write_text(f"echo starting\n{sys.executable} train.py\n")
    done = run_tcmon(["run", "--out", "run", "--interval", "4", "--warmup", "0", "--", *command], work)
    assert "8 steps, 2 recorded" in done.stderr
    assert steps(work / "run") == [8]
    run = open_run(work / "run")
    assert run.meta.command[-len(command) :] == tuple(command)
    assert run.meta.torch == "2.0"
    assert run.meta.ended is not None
    assert run.meta.ended.exit_code == 0


def test_the_processes_of_ranks_are_ranks_and_their_children_are_not(work: Path, run_tcmon: Run) -> None:
    (work / "launch.py").write_text(
        "import os, subprocess, sys\n"
        "for rank in '01':\n"
        "    env = os.environ | {'RANK': rank, 'WORLD_SIZE': '2'}\n"
        "    subprocess.run([sys.executable, 'rank.py'], env=env, check=True)\n"
    )
    child = "subprocess.run([sys.executable, '-c', 'import training; training.train(3)'], check=True)"
    (work / "rank.py").write_text(f"{TRAIN}\nimport subprocess, sys\ntrain(8)\n{child}\n")
    run_tcmon(["run", "--quiet", "--out", "run", "--", sys.executable, "launch.py"], work)
    run = open_run(work / "run")
    found = [(each.rank, counted(each)) for each in run.processes]
    assert sorted(found, key=str) == [(0, 8), (1, 8), (None, 3), (None, 3)]
    assert (run.meta.rank, run.meta.world_size) == (0, 2)
    assert summarise(run).missing == ()


def test_a_followed_process_sees_nothing_of_it_but_two_variables(work: Path, run_tcmon: Run, run_python: Run) -> None:
    (work / "shows.py").write_text(
        "import os, sys\nimport json\n"
        "print(json.dumps([sys.path, sys.argv, sys.orig_argv[1:], sorted(sys.modules), __name__, __file__, "
        "[type(each).__name__ for each in sys.meta_path], "
        "{k: v for k, v in os.environ.items() if not k.startswith('TCMON_FOLLOW')}]))\n"
    )
    (work / "other").mkdir()
    (work / "other" / "sitecustomize.py").write_text("import sys\nsys.path.append('/from/sitecustomize')\n")
    path = f"{work / 'other'}:{CHECKOUT}"
    plain = json.loads(run_python(["shows.py", "x"], work, PYTHONPATH=path).stdout)
    command = ["run", "--quiet", "--", sys.executable, "shows.py", "x"]
    watched = json.loads(run_tcmon(command, work, PYTHONPATH=path).stdout)
    assert "/from/sitecustomize" in watched[0]
    site, _, rest = watched[7].pop("PYTHONPATH").partition(":")
    assert site.endswith("follow/site")
    assert rest == plain[7].pop("PYTHONPATH")
    assert watched[6].pop(0) == "_AwaitTorch"
    assert watched == plain


@pytest.mark.parametrize("own", ["orjson.py", "platform.py", "tcmon_plugin.py"])
def test_modules_of_the_program_go_before_those_of_tcmon(own: str, work: Path, run_tcmon: Run) -> None:
    (work / own).write_text("MINE = True\n")
    module = own.removesuffix(".py")
    (work / "uses.py").write_text(f"{TRAIN}\ntrain(4)\nimport {module}\nprint({module}.MINE)\n")
    done = run_tcmon(["run", "--quiet", "--out", "run", "--", sys.executable, "uses.py"], work)
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert steps(work / "run") == [4]


def test_the_exit_code_is_the_command_s(work: Path, run_tcmon: Run) -> None:
    (work / "fails.py").write_text(TRAIN + "train(3)\nraise SystemExit(7)\n")
    run_tcmon(["run", "--quiet", "--out", "run", "--", sys.executable, "fails.py"], work, exit_code=7)
    ended = open_run(work / "run").meta.ended
    assert ended is not None
    assert ended.exit_code == 7
    (work / "killed.sh").write_text("kill -KILL $$\n")
    run_tcmon(["run", "--quiet", "--out", "killed", "--", "sh", "killed.sh"], work, exit_code=128 + signal.SIGKILL)


def test_a_signal_reaches_the_command(work: Path) -> None:
    (work / "waits.py").write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "open('ready', 'w').close()\ntime.sleep(60)\n"
    )
    command = [sys.executable, "-m", "tcmon", "run", "--quiet", "--out", "run", "--", sys.executable, "waits.py"]
    process = subprocess.Popen(command, cwd=work, env=environment())
    while not (work / "ready").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert process.wait(60) == 5


def test_mistakes_are_one_line(work: Path, run_tcmon: Run) -> None:
    done = run_tcmon(["run", "--", "no-such-command"], work, exit_code=2)
    assert done.stderr.startswith("tcmon: error: can't read 'no-such-command'")
    done = run_tcmon(["run", "--no-follow", "--", "sh"], work, exit_code=2)
    assert "a command after -- can't be watched with --no-follow" in done.stderr
    assert not os.path.lexists(work / "tcmon-runs")


DDP = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_torchrun_in_a_shell_script_gives_the_ranks_and_nothing_of_the_launcher(tmp_path: Path, run_tcmon: Run) -> None:
    (tmp_path / "train.py").write_text(DDP)
    (tmp_path / "job.sh").write_text(f"exec {sys.executable} -m torch.distributed.run --nproc-per-node 2 train.py\n")
    run_tcmon(["run", "--quiet", "--out", "run", "--", "sh", "job.sh"], tmp_path)
    run = open_run(tmp_path / "run")
    assert [(each.rank, counted(each)) for each in run.processes] == [(0, 12), (1, 12)]
    assert (run.meta.world_size, run.meta.torch is not None) == (2, True)
    assert summarise(run).missing == ()
