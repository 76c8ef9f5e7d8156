"""What `state` and `loss` say of a recorded step is what the program itself can see."""

import math
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from monitored import Monitored, monitored

from tcmon.trace.details import Buffers, Loss, Modes, Optimizer, Parameter, State

PRELUDE = """
import gc, math, weakref
import torch
import torch.nn.functional as F
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
data = [(torch.randn(6, 4), torch.tensor([0, 1, 0, 1, 1, 0])) for _ in range(6)]
seen = []
"""


def run(program: str, folder: Path, **options: Any) -> Monitored:
    folder.mkdir(exist_ok=True)
    return monitored(PRELUDE + textwrap.dedent(program), folder, **{"interval": 1, "warmup": 0, **options})


def details[Kind](done: Monitored, kind: type[Kind]) -> dict[int, list[Kind]]:
    """What was kept of each training step, of one kind."""
    return {n: [each for each in step.details if isinstance(each, kind)] for n, step in done.recorded("train").items()}


def tables(done: Monitored) -> tuple[dict[int, Parameter], dict[int, str]]:
    records = list(done.run.processes[0].read(details=True))
    parameters = {record.id: record for record in records if isinstance(record, Parameter)}
    return parameters, {record.id: record.name for record in records if isinstance(record, Optimizer)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Monitored:
    return run(
        """
        def norms(tensors): return [float(each.detach().norm()) for each in tensors]
        for x, y in data:
            sgd.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            old = [p.detach().clone() for p in net.parameters()]
            grads = norms(p.grad for p in net.parameters())
            sgd.step()
            moved = [float((p.detach() - o).norm() / p.detach().norm()) for p, o in zip(net.parameters(), old)]
            momentum = norms(sgd.state[p]["momentum_buffer"] for p in net.parameters())
            mean = float(net[1].running_mean.norm())
            seen.append((loss.item(), norms(net.parameters()), grads, moved, momentum, mean))
            sgd.param_groups[0]["lr"] *= 0.5
        """,
        tmp_path_factory.mktemp("trained"),
    )


def test_norms_are_those_of_parameters_gradients_and_momentum(trained: Monitored) -> None:
    states = details(trained, State)
    assert sorted(states) == list(range(1, 7))
    for n, [state] in states.items():
        _, norms, grads, moved, momentum, _ = trained.names["seen"][n - 1]
        assert state.norm == pytest.approx(norms, rel=1e-4)
        assert state.grad_norm == pytest.approx(grads, rel=1e-4)
        assert state.update == pytest.approx(moved, rel=1e-3), "tensors this small are looked at whole"
        assert state.state["momentum_buffer"] == pytest.approx(momentum, rel=1e-4)
        assert state.has_grad == [True] * 6
        assert state.nonfinite == state.grad_nonfinite == [0] * 6
        assert state.grad_before == [None] * 6


def test_hyperparameters_are_those_of_the_step(trained: Monitored) -> None:
    # The program halves the rate after the optimizer's step, before the step's end.
    rates = [state.groups[0]["lr"] for [state] in details(trained, State).values()]
    assert rates == pytest.approx([0.1 * 0.5**n for n in range(6)])
    assert {state.groups[0]["momentum"] for [state] in details(trained, State).values()} == {0.9}


def test_parameters_have_the_names_of_the_model(trained: Monitored) -> None:
    parameters, optimizers = tables(trained)
    assert [each.name for each in parameters.values()] == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "3.weight",
        "3.bias",
    ]
    assert [list(each.shape) for each in parameters.values()] == [[8, 4], [8], [8], [8], [2, 8], [2]]
    assert {each.dtype for each in parameters.values()} == {"float32"}
    assert optimizers == {1: "torch.optim.sgd.SGD"}


def test_hashes_tell_what_a_step_changed(trained: Monitored) -> None:
    states = [state for [state] in details(trained, State).values()]
    for state, following in pairwise(states):
        changed = [before != after for before, after in zip(state.before, state.after, strict=True)]
        del changed[1]  # a bias before a normalisation gets no gradient to speak of
        assert all(changed)
        assert following.before == state.after, "nothing changes parameters between steps"


def test_loss_modes_and_buffers(trained: Monitored) -> None:
    for n, [loss] in details(trained, Loss).items():
        assert loss.value == pytest.approx([trained.names["seen"][n - 1][0]], rel=1e-4)
    for [modes] in details(trained, Modes).values():
        assert (modes.module, modes.training) == (("torch.nn.modules.container.Sequential",), [True])
        assert modes.mixed == [()]
    for n, [buffers] in details(trained, Buffers).items():
        assert buffers.name[:2] == ("1.running_mean", "1.running_var")
        assert buffers.norm[0] == pytest.approx(trained.names["seen"][n - 1][5], rel=1e-4)


SHAPES = {
    "gradients that are never cleared": (
        """
        for x, y in data:
            F.cross_entropy(net(x), y).backward()
            sgd.step()
        """,
        lambda states: all(all(norm is not None for norm in state.grad_before) for state in states[1:]),
    ),
    "gradients cleared before the step": (
        """
        for x, y in data:
            F.cross_entropy(net(x), y).backward()
            sgd.zero_grad()
            sgd.step()
        """,
        lambda states: (
            not any(any(state.has_grad) for state in states) and all(state.before == state.after for state in states)
        ),
    ),
    "a gradient that is not finite": (
        """
        for x, y in data:
            sgd.zero_grad()
            (F.cross_entropy(net(x), y) * math.inf).backward()
            sgd.step()
        """,
        lambda states: sum(states[0].grad_nonfinite) > 0 and sum(states[0].nonfinite) > 0,
    ),
    "a parameter that is frozen": (
        """
        net[0].requires_grad_(False)
        for x, y in data:
            sgd.zero_grad()
            F.cross_entropy(net(x), y).backward()
            sgd.step()
        """,
        lambda states: all(state.requires_grad == state.has_grad == [False] * 2 + [True] * 4 for state in states),
    ),
    "a closure": (
        """
        lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=3)
        for x, y in data:
            def closure():
                lbfgs.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                return loss
            lbfgs.step(closure)
        """,
        lambda states: len(states) == 6 and all(max(state.update) > 0 for state in states),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_state_is_right_for(name: str, tmp_path: Path) -> None:
    program, holds = SHAPES[name]
    states = [state for each in details(run(program, tmp_path), State).values() for state in each if state.optimizer]
    assert len(states) == 6
    assert holds(states)


def test_trainable_parameters_in_no_optimizer_are_listed_apart(tmp_path: Path) -> None:
    done = run(
        """
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = [torch.nn.Linear(4, 4)]  # not registered
                self.head, self.unused = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
            def forward(self, x): return self.head(self.blocks[0](x))
        net = Net()
        sgd = torch.optim.SGD(net.head.parameters(), lr=0.1)
        for x, y in data:
            sgd.zero_grad()
            F.cross_entropy(net(x), y).backward()
            sgd.step()
        """,
        tmp_path,
    )
    parameters, _ = tables(done)
    for states in details(done, State).values():
        [loose] = [state for state in states if state.optimizer == 0]
        names = {parameters[id].name: has_grad for id, has_grad in zip(loose.parameter, loose.has_grad, strict=True)}
        assert names == {"unused.weight": False, "unused.bias": False, "weight": True, "bias": True}
        assert all(parameters[id].optimizer is None for id in loose.parameter)


def test_the_scale_of_a_gradient_scaler_is_kept(tmp_path: Path) -> None:
    done = run(
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for x, y in data:
            sgd.zero_grad()
            scaler.scale(F.cross_entropy(net(x), y)).backward()
            scaler.step(sgd)
            scaler.update()
        """,
        tmp_path,
    )
    assert {state.scale for [state] in details(done, State).values()} == {256.0}


def test_modules_in_the_other_mode_are_named(tmp_path: Path) -> None:
    done = run(
        """
        net[1].eval()
        for x, y in data:
            sgd.zero_grad()
            F.cross_entropy(net(x), y).backward()
            sgd.step()
        """,
        tmp_path,
    )
    assert {modes.mixed[0] for [modes] in details(done, Modes).values()} == {("1",)}


ODD = """
class Odd(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        touched.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})

class Hostile(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
    def __getattr__(self, name):
        touched.append(name)
        return super().__getattr__(name)
    def __eq__(self, other): raise RuntimeError
    __hash__ = None
    def forward(self, x): return (x * self._parameters["weight"]).sum()

touched = []
things = {
    "complex": torch.nn.Parameter(torch.randn(3, dtype=torch.complex64)),
    "half": torch.nn.Parameter(torch.randn(3).half()),
    "bfloat": torch.nn.Parameter(torch.randn(3).bfloat16()),
    "double": torch.nn.Parameter(torch.randn(3).double()),
    "empty": torch.nn.Parameter(torch.zeros(0)),
    "scalar": torch.nn.Parameter(torch.tensor(2.0)),
    "transposed": torch.nn.Parameter(torch.randn(3, 5).t()),
    "large": torch.nn.Parameter(torch.randn(600, 600)),
    "odd": Odd(torch.randn(3)),
}
hostile = Hostile()
adam = torch.optim.Adam([*things.values(), hostile.weight], lr=0.1)
before = None
for x, y in data[:3]:
    adam.zero_grad()
    loss = sum(thing.abs().float().sum() for thing in things.values()) + hostile(x)
    loss.backward()
    before = len(touched)
    adam.step()
    seen.append(len(touched) - before)
plain = None
"""


def test_tensors_of_all_kinds_are_measured_or_passed_over_and_never_asked(tmp_path: Path) -> None:
    with_state = run(ODD, tmp_path / "with")
    without = run(ODD, tmp_path / "without", record=("calls",))
    assert with_state.names["seen"] == without.names["seen"], "no code of the program's classes ran for tcmon"
    states = [state for [state] in details(with_state, State).values()]
    assert len(states) == 3
    kinds = list(with_state.names["things"])
    for state in states:
        norm = dict(zip(kinds, state.norm, strict=False))
        assert norm.pop("odd") is None
        assert all(value is not None and math.isfinite(value) for value in norm.values())
        assert str(state.after[kinds.index("large")]).startswith("~")


def test_no_tensor_outlives_its_step(tmp_path: Path) -> None:
    done = run(
        """
        alive = []
        last = None
        for x, y in data:
            if last is not None:
                gc.collect()
                alive.append([reference() is not None for reference in last])
            model = torch.nn.Linear(4, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            last = [weakref.ref(each) for each in (loss, model, optimizer, model.weight, model.weight.grad)]
            del model, optimizer, loss
        """,
        tmp_path,
    )
    assert done.names["alive"] == [[False] * 5] * 5
    assert len(details(done, State)) == 6


def test_modes_of_dispatch_and_functions_do_not_see_what_is_measured(tmp_path: Path) -> None:
    program = """
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    calls = []
    class Function(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append("function")
            return func(*args, **(kwargs or {}))
    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append("dispatch")
            return func(*args, **(kwargs or {}))
    with Function(), Dispatch():
        for x, y in data:
            sgd.zero_grad()
            F.cross_entropy(net(x), y).backward()
            sgd.step()
    final = [p.detach().clone() for p in net.parameters()]
    state = torch.get_rng_state()
    """
    with_state = run(program, tmp_path / "with")
    without = run(program, tmp_path / "without", record=("calls",))
    assert with_state.names["calls"] == without.names["calls"]
    assert all(a.equal(b) for a, b in zip(with_state.names["final"], without.names["final"], strict=True))
    assert with_state.names["state"].equal(without.names["state"])
    assert len(details(with_state, State)) == 6


def test_a_step_of_an_optimizer_that_raises_leaves_the_rest_of_the_step_whole(tmp_path: Path) -> None:
    done = run(
        """
        class Failing(torch.optim.SGD):
            def step(self, closure=None):
                if len(seen) % 2:
                    raise MemoryError
                super().step()
        failing = Failing(net.parameters(), lr=0.1)
        for x, y in data:
            failing.zero_grad()
            F.cross_entropy(net(x), y).backward()
            try:
                failing.step()
            except MemoryError:
                pass
            seen.append(1)
        """,
        tmp_path,
    )
    states = details(done, State)
    assert [len([s for s in states[n] if s.optimizer]) for n in range(1, 7)] == [1, 0, 1, 0, 1, 0]
    assert [len(each) for each in details(done, Loss).values()] == [1] * 6


RARE = """
import os, tempfile, warnings
warnings.simplefilter("ignore")
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))

class Sharded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
    def forward(self, x):
        return (DTensor.from_local(x, mesh, [Replicate()]) @ self.weight).full_tensor()

class WithBuffers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
        self.register_buffer("sparse", torch.eye(4).to_sparse())
        self.register_buffer("csr", torch.eye(4).to_sparse_csr())
        self.register_buffer("meta", torch.ones(4, device="meta"))
        self.register_buffer("nested", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("complex", torch.ones(2, dtype=torch.complex64))
        self.register_buffer("conjugate", torch.ones(2, dtype=torch.complex64).conj())
        self.register_buffer("eight_bits", torch.ones(4).to(torch.float8_e4m3fn))
        self.register_buffer("expanded", torch.ones(1).expand(1000))
    def forward(self, x):
        return x * self.weight

class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 4, sparse=True)
        self.sharded, self.buffers_ = Sharded(), WithBuffers()
        self.fsdp = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
    def forward(self, ids):
        return self.fsdp(self.buffers_(self.sharded(self.embedding(ids))))

model = Whole()
meta = torch.nn.Linear(4, 4, device="meta")
sparse = torch.optim.SparseAdam(model.embedding.parameters())
others = torch.optim.AdamW([p for name, p in model.named_parameters() if "embedding" not in name], foreach=False)
on_meta = torch.optim.SGD(meta.parameters(), lr=0.1)
for step in range(3):
    for each in (sparse, others, on_meta):
        each.zero_grad()
    loss = model(torch.tensor([1, 2])).sum()
    loss.backward()
    meta(torch.ones(2, 4, device="meta")).sum().backward()
    for each in (sparse, others, on_meta):
        each.step()
final = [loss.item()]
dist.destroy_process_group()
"""


def test_sharded_sparse_quantized_and_meta_tensors_get_what_can_be_had(tmp_path: Path) -> None:
    done = run(RARE, tmp_path / "with", record=("calls", "state", "args"))
    without = run(RARE, tmp_path / "without", record=("calls",))
    assert done.names["final"] == without.names["final"]
    parameters = {each.id: each for each in done.run.processes[0].read(details=True) if isinstance(each, Parameter)}
    steps = details(done, State)
    assert sorted(steps) == [1, 2, 3]
    for states in steps.values():
        told = {
            parameters[id].name: (norm, grad, has)
            for state in states
            for id, norm, grad, has in zip(state.parameter, state.norm, state.grad_norm, state.has_grad, strict=True)
        }
        assert all(has for _, _, has in told.values())
        # What is here of a sharded one is measured; a sparse gradient and what has no data are not.
        for name in ("sharded.weight", "fsdp.weight", "fsdp.bias", "buffers_.weight"):
            assert told[name][0] is not None, name
            assert told[name][1] is not None, name
        assert told["embedding.weight"][0] is not None
        assert told["embedding.weight"][1] is None
        assert told["weight"][:2] == (None, None)
    for [buffers] in details(done, Buffers).values():
        norms = dict(zip(buffers.name, buffers.norm, strict=True))
        assert norms["buffers_.complex"] == pytest.approx(2**0.5, rel=1e-4)
        assert norms["buffers_.quantized"] is norms["buffers_.meta"] is norms["buffers_.sparse"] is None
        assert norms["buffers_.expanded"] == pytest.approx(1000**0.5, rel=1e-4)
