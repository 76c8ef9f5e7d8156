"""The calls of a step make the tree that the program's own record of them makes, wherever they run."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from monitored import Monitored, monitored

from tcmon.trace.calltree import UNFINISHED, Call

torch = pytest.importorskip("torch")

PROGRAM = '''
import asyncio, threading
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

told = {}  # by thread: what the program itself knows of its calls

class call:
    """Notes the name of the function that it is entered in."""
    def __init__(self, name): self.name = name
    def __enter__(self): told.setdefault(threading.get_ident(), []).append(self.name)
    def __exit__(self, *_): told[threading.get_ident()].append(None)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with call("Double.forward"):
            return inner(x * 2)

    @staticmethod
    def backward(ctx, grad):
        with call("Double.backward"):
            return inner(grad * 2)

def inner(x):
    with call("inner"):
        return x

def tensor_hook(grad):
    with call("tensor_hook"):
        return inner(grad)

def module_hook(module, args, output):
    with call("module_hook"):
        inner(output)

def full_hook(module, grad_input, grad_output):
    with call("full_hook"):
        inner(grad_input)

def recomputed(x):
    with call("recomputed"):
        return inner(x).relu()

def failing(x):
    with call("failing"):
        inner(x)
        return torch.nn.functional.linear(x, torch.ones(3, 17))  # shapes that don't fit

def out_of_memory(x):
    with call("out_of_memory"):
        raise torch.OutOfMemoryError("made up")

def numbers():
    with call("numbers"):
        inner(1)
    try:
        yield 1
    except KeyError:
        with call("numbers"):
            inner(2)
            pass
        yield 2
    with call("numbers"):
        inner(3)

async def waits(n):
    with call("waits"):
        inner(n)
    await asyncio.sleep(0)
    with call("waits"):
        inner(n)

async def gathers():
    return await asyncio.gather(waits(1), waits(2))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        with call("Net.forward"):
            x = self.first(x)
            x = checkpoint(recomputed, x, use_reentrant=False)
            x = Double.apply(x)
            x.register_hook(tensor_hook)
            return self.second(x)

def in_thread(model):
    with call("in_thread"):
        loss = Double.apply(model.first(torch.ones(2, 4)).sum())
        loss.backward()

torch.manual_seed(0)
torch.set_num_threads(1)
model = Net()
model.second.register_forward_hook(module_hook)
model.second.register_full_backward_hook(full_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
by_step = []
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.randn(2, 4)).sum()
    generator = numbers()
    next(generator)
    generator.throw(KeyError)
    list(generator)
    try:
        failing(loss.reshape(1, 1))
    except RuntimeError:
        pass
    try:
        out_of_memory(loss)
    except torch.OutOfMemoryError:
        pass
    asyncio.run(gathers())
    loss.backward()
    beside = threading.Thread(target=in_thread, args=(model,))
    beside.start()
    beside.join()
    optimizer.step()
    by_step.append(dict(told))
    told.clear()
'''

NAMES = (
    "Double.forward", "Double.backward", "inner", "tensor_hook", "module_hook", "full_hook", "recomputed", "failing",
    "out_of_memory", "numbers", "waits", "Net.forward", "in_thread",
)  # fmt: skip


@pytest.fixture(scope="module", params=[("calls",), ("calls", "cfunctions", "lines", "args", "state", "loss")], ids=len)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Monitored:
    return monitored(PROGRAM, tmp_path_factory.mktemp("trees"), interval=1, record=request.param, threads="all")


def told_by_program(log: list[str | None]) -> list[Any]:
    """Names nested as the calls were."""
    top: list[Any] = []
    stack = [top]
    for name in log:
        if name is None:
            stack.pop()
        else:
            below: list[Any] = []
            stack[-1].append((name, below))
            stack.append(below)
    return top


def told_by_trace(calls: Iterable[Call]) -> list[Any]:
    """The same, out of the recorded calls of these functions."""
    found: list[Any] = []
    for call in calls:
        below = told_by_trace(call.children)
        # A generator's last resumption does nothing, and `with` ends before its call.
        here = call.function.qualname in NAMES and not (call.function.qualname in ("numbers", "waits") and not below)
        found += [(call.function.qualname, below)] if here else below
    return found


def test_trees_are_those_of_the_program_in_every_thread(ran: Monitored) -> None:
    steps = ran.recorded("train")
    assert sorted(steps) == [1, 2, 3, 4]
    for n, recorded in steps.items():
        expected = ran.names["by_step"][n - 1]
        assert len(expected) == 2
        for thread, log in expected.items():
            roots = [call for call in recorded.calls if call.thread == thread]
            assert told_by_trace(roots) == told_by_program(log)


def test_times_of_calls_lie_within_those_of_their_callers(ran: Monitored) -> None:
    for recorded in ran.recorded("train").values():
        for root in recorded.calls:
            for call in root.walk():
                assert call.start_ns <= call.end_ns
                assert call.self_ns >= 0
                for each in call.children:
                    assert call.start_ns <= each.start_ns <= each.end_ns <= call.end_ns


def test_calls_that_raise_say_so_and_none_is_left_open(ran: Monitored) -> None:
    for recorded in ran.recorded("train").values():
        outcomes: dict[str, set[str]] = {}
        for root in recorded.calls:
            for call in root.walk():
                outcomes.setdefault(call.function.qualname, set()).add(call.outcome)
        assert outcomes["failing"] == {"raised RuntimeError"}
        assert outcomes["out_of_memory"] == {"raised OutOfMemoryError"}
        assert {"yielded", "returned"} <= outcomes["numbers"] | outcomes["waits"]
        program = {name: found for name, found in outcomes.items() if name in NAMES}
        assert not any(UNFINISHED in found for found in program.values())


C_PROGRAM = """
import torch, types
import torch.nn.functional as F

def convolve(x, weight):
    for _ in range(3):
        x = torch.conv2d(x, weight, padding=1)
    return x

def read(x):
    bound = x.sum
    return bound().item(), x.to(torch.float64), len([1]), isinstance(x, int)

def fails(x):
    try:
        torch.conv2d(x)
    except TypeError:
        pass
    try:
        x.view(7)
    except RuntimeError:
        pass

def through(x):
    return types.MethodType(torch.relu, x)(), torch.relu(*(x,))

class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.neg(x)

    @staticmethod
    def backward(ctx, grad):
        return grad

weight = torch.ones(1, 1, 3, 3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-6)
for step in range(3):
    x = convolve(torch.ones(1, 1, 4, 4), weight)
    read(x)
    fails(x)
    through(x)
    Plain.apply(x).sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def c_functions(tmp_path_factory: pytest.TempPathFactory) -> Monitored:
    return monitored(C_PROGRAM, tmp_path_factory.mktemp("c"), interval=1, record=("cfunctions",))


def below(recorded: Any, qualname: str) -> list[tuple[str, str]]:
    [call] = [call for root in recorded.calls for call in root.walk() if call.function.qualname == qualname]
    return [(f"{each.function.module}.{each.function.qualname}", each.outcome) for each in call.children]


def test_c_functions_of_torch_are_among_the_calls_of_their_callers(c_functions: Monitored) -> None:
    for recorded in c_functions.recorded("train").values():
        assert below(recorded, "convolve") == [("torch.conv2d", "returned")] * 3
        read = [name for name, _ in below(recorded, "read")]
        assert read == ["torch.Tensor.sum", "torch.Tensor.item", "torch.Tensor.to"]
        fails = [("torch.conv2d", "raised Exception"), ("torch.Tensor.view", "raised Exception")]
        assert below(recorded, "fails") == fails


def test_a_call_that_begins_unheard_leaves_the_tree_whole(c_functions: Monitored) -> None:
    # Of a method that leads to a C function only the end is told, on some versions of Python.
    for recorded in c_functions.recorded("train").values():
        assert ("torch.relu", "returned") in below(recorded, "through")
        assert [call for call in recorded.calls if call.function.qualname == "through"]
        assert not any(call.outcome == UNFINISHED for root in recorded.calls for call in root.walk())


def test_python_code_that_c_functions_call_is_below_them(c_functions: Monitored) -> None:
    for recorded in c_functions.recorded("train").values():
        assert ("None.Plain.forward", "returned") in below(recorded, "Plain.apply")
        assert below(recorded, "Plain.forward") == [("torch.neg", "returned")]
        assert sum(call.function.qualname == "Plain.apply" for root in recorded.calls for call in root.walk()) == 1


def test_beyond_the_bound_of_a_step_calls_are_counted_and_the_report_says_so(tmp_path: Path) -> None:
    source = """
import torch
def nothing(): pass
w = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(2):
    for _ in range(70_000):
        nothing()
        w.size()
    optimizer.step()
    w.sum().backward()
"""
    done = monitored(source, tmp_path, interval=1, record=("cfunctions",))
    step = done.recorded("train")[1].step
    assert 100_000 <= step.calls_stored <= 100_010
    assert step.calls_stored + step.calls_dropped >= 140_000
