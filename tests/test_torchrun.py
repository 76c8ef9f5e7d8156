"""The processes of one torchrun give one run directory, in which each rank has its own files."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from tcmon.report.hang import hang_of
from tcmon.trace.ranks import rank_from
from tcmon.trace.reader import open_run
from tcmon.trace.records import Hang, Note

PROGRAM = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os._exit(9)  # before the ranks meet, so that both do
dist.init_process_group("gloo")
rank = dist.get_rank()

def batches():
    for n in range(30):
        if rank == 1:
            time.sleep(0.02)  # what its data takes longer
        yield torch.randn(4, 8)

model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in batches():
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def launched(
    tmp_path_factory: pytest.TempPathFactory, run_python: Run
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run of two ranks that died once and were started again."""
    work = tmp_path_factory.mktemp("torchrun")
    (work / "train.py").write_text(PROGRAM)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = run_python([*launcher, "-m", "tcmon", "run", "train.py"], cwd=work)
    return work, done


@pytest.fixture(scope="module")
def found(launched: tuple[Path, subprocess.CompletedProcess[str]], run_tcmon: Run) -> dict[str, Any]:
    [directory] = (launched[0] / "tcmon-runs").iterdir()
    found: dict[str, Any] = json.loads(run_tcmon(["report", directory, "--json"], cwd=launched[0]).stdout)
    return found


def test_all_ranks_and_restarts_are_in_one_directory(launched: tuple[Path, object]) -> None:
    [directory] = (launched[0] / "tcmon-runs").iterdir()
    assert directory.name.startswith("train-")
    processes = open_run(directory).processes
    assert sorted((each.rank, each.restart) for each in processes) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for process in processes:
        header = process.header()
        assert header is not None
        assert (header.rank, header.local_rank, header.world_size) == (process.rank, process.rank, 2)
        assert header.start_uncertain_ns is not None


def test_the_ranks_that_ended_have_all_their_steps_and_those_that_died_are_missing(found: dict[str, Any]) -> None:
    last = [each for each in found["ranks"] if each["restart"] == 1]
    assert [(each["rank"], each["steps"]["train"]["count"]) for each in last] == [(0, 30), (1, 30)]
    assert found["run"]["state"] == "ended"
    assert {text.partition(" (pid")[0] for text in found["missing"]} == {"rank 0", "rank 1"}


def test_the_rank_whose_data_is_late_is_named(found: dict[str, Any]) -> None:
    assert (found["frontier"]["delays"][0]["phase"], found["frontier"]["delays"][0]["rank"]) == ("wait", 1)


def test_only_the_first_rank_prints_a_summary(launched: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert launched[1].stderr.count("Overhead  ") == 1


DELAYED = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
PHASES = ("wait", "forward", "backward", "optimizer")
EACH = 12

def late(n, phase):
    if dist.get_rank() == 1 and PHASES[n // EACH] == phase:
        time.sleep(0.015)

class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        late(ctx.n, "backward")
        return grad, None

class LateSGD(torch.optim.SGD):
    def step(self, n):
        late(n, "optimizer")
        super().step()

def batches():
    for n in range(EACH * len(PHASES)):
        late(n, "wait")
        yield n, torch.randn(4, 8)

optimizer = LateSGD(model.parameters(), lr=0.1)
for n, batch in batches():
    optimizer.zero_grad()
    late(n, "forward")
    loss = Late.apply(model(batch), n).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step(n)
dist.destroy_process_group()
"""


def test_the_rank_that_is_late_is_named_with_the_phase(tmp_path: Path, run_python: Run, run_tcmon: Run) -> None:
    (tmp_path / "train.py").write_text(DELAYED)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run_python([*launcher, "-m", "tcmon", "run", "--quiet", "--out", "run", "train.py"], cwd=tmp_path)
    found = json.loads(run_tcmon(["report", "run", "--json"], cwd=tmp_path).stdout)["frontier"]
    named = {(each["phase"], each["rank"]) for each in found["delays"] if each["share"] > 0.08}
    assert named == {(phase, 1) for phase in ("wait", "forward", "backward", "optimizer")}
    # Its lateness is a wait in a collective for the other rank, of about a quarter of a second for each phase.
    waits = {each["rank"]: each["phases_p50_ms"]["collective"] for each in found["ranks"]}
    assert waits[0] > 10 > waits[1]


HANGS = """
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def load(n):
    if n == 20 and dist.get_rank() == 1:
        time.sleep(4)

for n in range(30):
    load(n)
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
dist.destroy_process_group()
"""


def test_a_hang_says_which_rank_stands_where_and_which_one_the_others_wait_for(
    tmp_path: Path, run_python: Run, run_tcmon: Run
) -> None:
    (tmp_path / "train.py").write_text(HANGS)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run_python([*launcher, "-m", "tcmon", "run", "--quiet", "--hang-after", "1.5", "train.py"], cwd=tmp_path)
    assert "no step for 1.5 s of rank 0" in done.stderr
    assert "no step for 1.5 s of rank 1" in done.stderr
    [directory] = (tmp_path / "tcmon-runs").iterdir()
    found = json.loads(run_tcmon(["report", directory, "--json"], cwd=tmp_path).stdout)["hang"]
    assert found["blamed"] == [1]
    waits, sleeps = sorted(found["standing"], key=lambda each: each["rank"])
    script = tmp_path / "train.py"
    assert (waits["rank"], waits["hang"]["n"], waits["hang"]["collective"]) == (0, 21, "all_reduce")
    assert waits["hang"]["program"] == f"<module> ({script}:18)"
    assert (sleeps["rank"], sleeps["hang"]["n"], sleeps["hang"]["collective"]) == (1, 21, None)
    assert sleeps["hang"]["program"] == f"load ({script}:12)"
    shown = " ".join(run_tcmon(["report", directory], cwd=tmp_path).stdout.split())
    assert "rank 0 train step 21 waits in all_reduce(), called at <module>" in shown
    assert "the others wait for rank 1" in shown


@pytest.mark.parametrize(
    ("ranks", "blamed"),
    [
        ({0: (5, "all_reduce"), 1: (5, None), 2: (5, "broadcast")}, (1,)),
        ({0: (5, None), 1: (4, None), 2: (5, None)}, (1,)),
        ({0: (5, None), 1: (5, None)}, ()),
        ({0: (5, "all_reduce"), 1: (5, "all_reduce")}, ()),
        ({0: (None, None), 1: (5, None)}, ()),
        ({None: (5, None)}, ()),
    ],
)
def test_a_rank_is_blamed_only_where_the_others_wait(
    ranks: dict[int | None, tuple[int | None, str | None]], blamed: tuple[int, ...]
) -> None:
    notes = {rank: Hang(1, "train", n, None, None, collective) for rank, (n, collective) in ranks.items()}
    found = hang_of([(rank, [Note("warning", "", hang)]) for rank, hang in notes.items()])
    assert found is not None
    assert found.blamed == blamed
    assert hang_of([(0, [Note("warning", "other")])]) is None


TORCHRUN = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "2",
    "GROUP_WORLD_SIZE": "1",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/none_abc/attempt_0/1/error.json",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29500",
}


@pytest.mark.parametrize(
    ("changes", "launch"),
    [
        ({}, "abc"),
        ({"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_x/none_abc/attempt_3/0/error.json", "RANK": "0"}, "abc"),
        ({"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job 7/a"}, "job-7-a"),
        ({"GROUP_WORLD_SIZE": "2"}, "head-29500"),
        ({"TORCHELASTIC_RUN_ID": "../..", "GROUP_WORLD_SIZE": "2"}, None),
    ],
)
def test_a_launch_is_named_by_its_environment_alone(changes: dict[str, str], launch: str | None) -> None:
    rank = rank_from(TORCHRUN | changes)
    assert rank is not None
    assert rank.launch == launch


@pytest.mark.parametrize(
    "changes", [{"RANK": ""}, {"RANK": "2"}, {"RANK": "x"}, {"WORLD_SIZE": "-1"}, {"RANK": "9" * 99}]
)
def test_variables_that_make_no_sense_are_no_rank(changes: dict[str, str]) -> None:
    assert rank_from(TORCHRUN | changes) is None


NOTHING = "import sys; print('ran', sys.argv[1])"


def test_ranks_share_a_named_directory_that_no_other_launch_may_use(tmp_path: Path, run_tcmon: Run) -> None:
    (tmp_path / "train.py").write_text(NOTHING)
    args = ["run", "--quiet", "--out", "runs/one", "train.py", "x"]
    for rank in ("1", "0"):
        run_tcmon(args, cwd=tmp_path, **TORCHRUN | {"RANK": rank})
    assert [each.rank for each in open_run(tmp_path / "runs/one").processes] == [0, 1]
    another = TORCHRUN | {"TORCHELASTIC_ERROR_FILE": "/tmp/torchelastic_y/none_def/attempt_0/1/error.json"}
    refused = run_tcmon(args, cwd=tmp_path, exit_code=2, **another)
    assert "already holds a run" in refused.stderr
    assert "ran" not in refused.stdout
    assert len(open_run(tmp_path / "runs/one").processes) == 2


def test_a_rank_attached_to_twice_has_two_traces(tmp_path: Path, run_python: Run) -> None:
    (tmp_path / "twice.py").write_text("import tcmon\nfor _ in range(2): tcmon.attach().detach()\n")
    run_python(["twice.py"], cwd=tmp_path, **TORCHRUN)
    [directory] = (tmp_path / "tcmon-runs").iterdir()
    assert [each.session for each in open_run(directory).processes] == [2, 1]
    assert os.path.lexists(directory / "launch-abc")
