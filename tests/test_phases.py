"""Every training step, recorded or not, is divided into phases that add up to it."""

import json
from pathlib import Path
from statistics import median
from textwrap import dedent

import pytest
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st

import tcmon
from tcmon.steps.phases import BACKWARD, DATA, EVALUATION, FORWARD, NONE, OPTIMIZER, Clock
from tcmon.trace.everystep import every_step
from tcmon.trace.journal import PHASES
from tcmon.trace.reader import open_run

PROGRAM = """
import io, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 4))
PAUSE = 0.02

def pause(): time.sleep(PAUSE)

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad): pause(); return grad

class SlowSGD(torch.optim.SGD):
    def step(self, closure=None): pause(); return super().step(closure)

class SlowClosure(torch.optim.SGD):
    def step(self, closure): closure()

def slow_save():
    class Pickled:
        def __reduce__(self): pause(); return int, ()
    torch.save(Pickled(), io.BytesIO())

class SlowData(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        if i % 8 == 0: pause()
        return torch.ones(4)

def evaluate():
    with torch.no_grad():
        for (batch,) in DataLoader(data, batch_size=32):
            pause()
            torch.nn.functional.mse_loss(model(batch), torch.zeros(32, 1))

def loss_of(batch):
    return model(batch).square().mean()
"""

STEPS = {
    "in the forward pass": ("pause(); loss = loss_of(batch)\nloss.backward(); optimizer.step()", "forward", 1),
    "before zero_grad": ("pause(); optimizer.zero_grad(); loss_of(batch).backward(); optimizer.step()", "forward", 1),
    "in the backward pass": ("Slow.apply(loss_of(batch)).backward(); optimizer.step()", "backward", 1),
    "in autograd.grad": (
        "torch.autograd.grad(Slow.apply(loss_of(batch)), list(model.parameters()))\noptimizer.step()",
        "backward",
        1,
    ),
    "in the optimizer": ("loss_of(batch).backward(); slow.step(); optimizer.zero_grad()", "optimizer", 1),
    "between backward and step": ("loss_of(batch).backward(); pause(); optimizer.step()", "other", 1),
    "after the step": ("loss_of(batch).backward(); optimizer.step(); pause()", "other", 1),
    "in a checkpoint": ("loss_of(batch).backward(); optimizer.step(); slow_save()", "checkpoint", 1),
    "in an evaluation": ("loss_of(batch).backward(); optimizer.step(); evaluate()", "evaluation", 2),
    "in accumulated micro-batches": (
        "for _ in range(3): pause(); loss_of(batch).backward()\noptimizer.step()",
        "forward",
        3,
    ),
    "in two optimizers' steps": (
        "for opt in (slow, slow2): opt.zero_grad(); loss_of(batch).backward(); opt.step()",
        "optimizer",
        2,
    ),
    "in a closure of the optimizer": (
        """
def closure():
    optimizer.zero_grad()
    loss = Slow.apply(loss_of(batch))
    loss.backward()
    return loss
closing.step(closure)
""",
        "backward",
        1,
    ),
    "around a backward pass that raises": (
        """
try: torch.ones(1).backward()
except RuntimeError: pass
pause(); loss_of(batch).backward(); optimizer.step()
""",
        "forward",
        1,
    ),
    "in a data loader within the body": (
        "batch = next(inner)\nloss_of(batch).backward(); optimizer.step()",
        "data",
        1,
    ),
}


def source(body: str) -> str:
    lines = "\n".join("    " + line for line in body.splitlines())
    return (
        PROGRAM
        + dedent("""
        slow, slow2, closing = (kind(model.parameters(), lr=0.01) for kind in (SlowSGD, SlowSGD, SlowClosure))
        inner = iter(DataLoader(SlowData(), batch_size=8))
        for (batch,) in DataLoader(data, batch_size=8):
        """)
        + lines
        + "\n"
    )


def phases_of(run_dir: Path) -> list[dict[str, int]]:
    """The phases of the training steps, `wait` and `other` with them, in nanoseconds."""
    [process] = open_run(run_dir).processes
    found = []
    for step in every_step(process):
        if step.times.role == "train":
            phases = dict(zip(PHASES, step.times.phases, strict=True)) if step.times.phases else {}
            rest = step.times.end - step.times.wait - sum(phases.values())
            assert rest >= 0
            found.append({"wait": step.times.wait, **phases, "other": rest})
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, int]]]:
    """All of these programs, in one process, each under a session of its own."""
    folder = tmp_path_factory.mktemp("phases")
    found = {}
    for number, (name, (body, _, _)) in enumerate(STEPS.items()):
        script = folder / f"program{number}.py"
        script.write_text(source(body))
        with tcmon.attach(record=("calls",), interval=3, warmup=0, out=folder / str(number)):
            exec(compile(script.read_text(), str(script), "exec"), {"__name__": "__main__", "__file__": str(script)})
        found[name] = phases_of(folder / str(number))
    return found


@pytest.mark.parametrize("where", STEPS)
def test_time_is_told_in_the_phase_in_which_it_passes(where: str, runs: dict[str, list[dict[str, int]]]) -> None:
    _, phase, pauses = STEPS[where]
    steps = runs[where]
    assert len(steps) == 8
    usual = {name: median(step[name] for step in steps) for name in steps[0]}
    assert max(usual, key=usual.__getitem__) == phase
    # In the first step, a function is seen from its first start on only.
    assert all(step[phase] >= pauses * 20_000_000 for step in steps[1:])


def test_waiting_for_the_loop_s_own_data_is_no_phase_of_the_body(run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        PROGRAM
        + "for batch in DataLoader(SlowData(), batch_size=8):\n    loss_of(batch).backward(); optimizer.step()\n"
    )
    run_tcmon(["run", "--quiet", "--out", "run", "--record", "loss", "train.py"], tmp_path)
    steps = phases_of(tmp_path / "run")
    assert len(steps) == 8
    assert all(step["wait"] >= 20_000_000 and not step["data"] for step in steps)
    found = json.loads(run_tcmon(["report", "run", "--json"], tmp_path).stdout)["steps"]["train"]["phases"]
    assert {"wait", "forward", "backward", "optimizer", "other"} <= found.keys()
    assert found["wait"]["share"] > 0.5
    assert sum(each["share"] for each in found.values()) == pytest.approx(1)
    assert "Phases" in run_tcmon(["report", "run"], tmp_path).stdout


EVENTS = st.lists(st.tuples(st.sampled_from((DATA, BACKWARD, OPTIMIZER, EVALUATION, -1)), st.integers(0, 1000)))


@given(EVENTS, st.integers(0, 1000))
def test_phases_add_up_to_the_step_whatever_comes(events: list[tuple[int, int]], last: int) -> None:
    clock, now = Clock(), 5
    clock.begin(now)
    for phase, passed in events:
        now += passed
        if phase < 0:
            clock.leave(now)
        else:
            clock.enter(phase, now)
    now += last
    times = clock.take(now)
    assert sum(times) == now - 5
    assert min(times) >= 0
    assert bool(times[FORWARD]) <= any(phase == BACKWARD for phase, _ in events)
    clock.begin(now)
    assert clock.take(now + 7)[NONE] == 7
