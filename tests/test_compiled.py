"""Under torch.compile nothing changes: no graph breaks, no recompilations, no other guards, as Dynamo counts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from tcmon.recordable import RECORDABLE
from tcmon.trace.reader import open_run

pytest.importorskip("torch")

PROGRAM = """
import json, sys
import torch
from torch import nn
import torch._dynamo
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import counters

torch.set_num_threads(1)
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return torch.relu(self.linear(x)) + x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(8)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

def train(backend):
    torch._dynamo.reset()
    counters.clear()
    model = Model()
    compiled = torch.compile(model, backend=backend)
    loss_of = torch.compile(lambda y, target: ((y - target) ** 2).mean(), backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(6):
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        loss = loss_of(compiled(x), x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    guards = {}
    for code in (Model.forward.__code__, Block.forward.__code__):
        found = _debug_get_cache_entry_list(code)
        guards[code.co_qualname] = [str(entry.guard_manager).count("\\n") for entry in found]
    names = ("frames", "graph_break", "stats", "recompiles", "unimplemented")
    return {name: dict(counters[name]) for name in names if name in counters}, guards, losses

print(json.dumps([train(backend) for backend in sys.argv[1:]], sort_keys=True))
"""


def counted(done: Any) -> Any:
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("backends", [("eager", "aot_eager"), ("inductor",)], ids=" ".join)
def test_dynamo_counts_the_same_with_every_recorder_on_every_step(
    backends: tuple[str, ...], tmp_path: Path, run_tcmon: Run, run_python: Run
) -> None:
    if "inductor" in backends and not shutil.which("g++"):
        pytest.skip("inductor needs a compiler")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    options = ["--quiet", "--interval", "1", "--record", ",".join(RECORDABLE), "--lines", "Block.forward"]
    plain = counted(run_python([program, *backends], tmp_path))
    watched = counted(run_tcmon(["run", *options, "--out", "run", program, *backends], tmp_path))
    assert watched == plain
    for counts, guards, _ in plain:
        assert counts["stats"]["unique_graphs"] == 2
        assert "graph_break" not in counts
        assert len(guards["Model.forward"]) == 1
    steps = {each.step.n: each for each in open_run(tmp_path / "run").processes[0].recorded_steps()}
    assert sorted(steps) == list(range(1, 6 * len(backends) + 1))
    for n in (4, 5, 6):
        calls = [call for root in steps[n].calls for call in root.walk()]
        [forward] = [call for call in calls if call.function.qualname == "Model.forward"]
        assert forward.module is not None
        assert forward.module.class_name == "__main__.Model"
        assert not [call for call in forward.walk() if call.function.qualname == "Block.forward"]
