"""Arguments and results of API calls, and whose calls of `forward` are: described by type, never by the program."""

import enum
import gc
import io
import math
import weakref
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monitored import Monitored, monitored
from rich.console import Console
from torch import nn
from torch.overrides import TorchFunctionMode

from tcmon.capture.owners import ModuleTable
from tcmon.capture.values import Describer
from tcmon.export.perfetto import export
from tcmon.report.as_json import step_as_json
from tcmon.report.onestep import one_step
from tcmon.report.onestep_text import render_step
from tcmon.trace.calltree import Call
from tcmon.trace.described import signature
from tcmon.trace.names import NameTable

PROGRAM = """
import gc, sys, weakref
import torch, torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, *more, scale=1.0, **named):
        if scale < 0:
            raise ValueError
        return F.relu(self.inner(x)) * scale

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        seen.append(weakref.ref(x))
        x = self.layers[0](x, 1, "two", scale=0.5, note=None)
        seen.append(weakref.ref(x))
        x = self.layers[1](x)
        died.append(seen[-1]() is None)
        try:
            self.layers[1](x, scale=-1)
        except ValueError:
            pass
        return self.norm(x)

seen, died = [], []
torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    with torch.no_grad():
        gone = F.relu(torch.ones(3))
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
alive = [ref() is not None for ref in seen]
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Monitored:
    return monitored(PROGRAM, tmp_path_factory.mktemp("args"), interval=1, record=("calls", "args"))


def calls(ran: Monitored, n: int) -> list[Call]:
    return [call for root in ran.recorded("train")[n].calls for call in root.walk()]


def named(ran: Monitored, qualname: str, n: int = 2) -> list[Call]:
    return [call for call in calls(ran, n) if call.function.qualname == qualname]


def tensor(*shape: int, grad: bool, leaf: bool = False) -> dict[str, Any]:
    where = {"dtype": "float32", "device": "cpu", "requires_grad": grad, "leaf": leaf, "contiguous": True}
    return {"tensor": list(shape), **where}


def test_calls_of_forward_say_which_module_of_the_model_they_are(ran: Monitored) -> None:
    forwards = [(call.module.name, call.module.class_name) for call in calls(ran, 2) if call.module is not None]
    assert forwards == [
        ("", "__main__.Model"),
        ("layers.0", "__main__.Block"),
        ("layers.0.inner", "torch.nn.modules.linear.Linear"),
        ("layers.1", "__main__.Block"),
        ("layers.1.inner", "torch.nn.modules.linear.Linear"),
        ("layers.1", "__main__.Block"),
        ("norm", "torch.nn.modules.batchnorm.BatchNorm1d"),
    ]


def test_modules_are_told_without_arguments_too(tmp_path: Path) -> None:
    found = monitored(PROGRAM, tmp_path, interval=1, record=("calls",))
    assert [call.module.name for call in named(found, "Block.forward") if call.module] == ["layers.0"] + [
        "layers.1"
    ] * 2
    assert not any(call.arguments for call in calls(found, 2))


def test_arguments_are_those_of_the_call_by_name(ran: Monitored) -> None:
    first, second, raising = named(ran, "Block.forward")
    assert first.arguments is not None
    assert list(first.arguments) == ["self", "x", "*more", "scale", "**named"]
    assert first.arguments["x"] == tensor(2, 4, grad=False, leaf=True)
    assert first.arguments["*more"] == {"list": 2, "type": "builtins.tuple", "items": [1, "two"]}
    assert first.arguments["scale"] == 0.5
    assert first.arguments["**named"] == {"dict": 1, "items": [["note", None]]}
    assert first.returned == tensor(2, 4, grad=True)
    assert second.arguments is not None
    assert second.arguments["x"] == tensor(2, 4, grad=True)
    assert second.arguments["self"] == raising.arguments["self"] != first.arguments["self"]  # type: ignore[index]
    assert (raising.outcome, raising.returned) == ("raised ValueError", None)


def test_functions_of_torch_and_the_optimizer_are_among_the_calls_with_arguments(ran: Monitored) -> None:
    step, backward, *_ = named(ran, "SGD.step") + named(ran, "Tensor.backward")
    assert step.arguments is not None
    assert step.arguments["self"] == {"optimizer": "torch.optim.sgd.SGD", "id": 1}
    assert backward.arguments is not None
    assert backward.arguments["self"] == tensor(grad=True)
    relus = named(ran, "relu")
    assert [call.returned for call in relus] == [tensor(3, grad=False, leaf=True), *[tensor(2, 4, grad=True)] * 2]


def test_every_step_tells_the_same(ran: Monitored) -> None:
    def facts(n: int) -> list[Any]:
        return [(call.function.qualname, call.arguments, call.returned) for call in calls(ran, n) if call.arguments]

    assert facts(2) == facts(3)


def test_nothing_is_kept_alive_within_a_call_or_beyond_a_step(ran: Monitored) -> None:
    assert not any(ran.names["alive"])
    # What `x` was before it was given a new value dies there and then, but for what autograd keeps.
    plain: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(PROGRAM, "program.py", "exec"), plain)
    assert ran.names["died"] == plain["died"]


# Values


def described(value: object) -> Any:
    describer = Describer(ModuleTable(NameTable(object(), object())))
    with torch._C.DisableTorchFunction():
        return orjson.loads(describer.describe(value))


class Color(enum.IntEnum):
    RED = 3


class Odd:
    """Everything that could be asked of it fails."""

    def fails(self, *_: object) -> Any:
        raise RuntimeError("this was the program's")

    __repr__ = __str__ = __eq__ = __hash__ = __len__ = __iter__ = __getattribute__ = __bool__ = __format__ = fails  # type: ignore[assignment]


class OddMeta(type):
    def __hash__(cls) -> int:
        raise RuntimeError

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError


class OfOddMeta(metaclass=OddMeta):
    pass


class OddList(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise RuntimeError

    __iter__ = __getitem__ = __len__  # type: ignore[assignment]


class OddInt(int):
    def __repr__(self) -> str:
        raise RuntimeError


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("this was the program's")


Pair = namedtuple("Pair", "left right")


VALUES: list[tuple[object, object]] = [
    (Color.RED, {"type": "test_args.Color", "value": 3}),
    (math.inf, {"type": "float", "value": "inf"}),
    (1 << 80, {"type": "int"}),
    ("x" * 1000, "x" * 199 + "…"),
    ("\ud800", "?"),
    (torch.float16, {"type": "torch.dtype", "value": "torch.float16"}),
    (torch.device("cuda:1"), {"type": "torch.device", "value": "cuda:1"}),
    (torch.Size([2, 3]), {"list": 2, "type": "torch.Size", "items": [2, 3]}),
    (list(range(100)), {"list": 100, "items": [0, 1, 2, 3]}),
    (Pair(1, None), {"list": 2, "type": "test_args.Pair", "items": [1, None]}),
    ({"lr": 0.1}, {"dict": 1, "items": [["lr", 0.1]]}),
    (OrderedDict(a=1), {"dict": 1, "type": "collections.OrderedDict", "items": [["a", 1]]}),
    (frozenset([7]), {"list": 1, "type": "builtins.frozenset", "items": [7]}),
    (math.sqrt, {"type": "builtins.builtin_function_or_method", "value": "math.sqrt"}),
    (Odd, {"type": "type", "value": "test_args.Odd"}),
    (Odd(), {"type": "test_args.Odd"}),
    (OfOddMeta(), {"type": "test_args.OfOddMeta"}),
    (OddList([1]), {"list": 1, "type": "test_args.OddList", "items": [1]}),
    (OddInt(5), {"type": "test_args.OddInt", "value": 5}),
    ([[[[[1]]]]], {"list": 1, "items": [{"list": 1, "items": [{"list": 1, "items": [{"list": 1}]}]}]}),
]


@pytest.mark.parametrize("at", range(len(VALUES)))
def test_values_are_told_by_their_types(at: int) -> None:
    value, told = VALUES[at]  # by number: pytest would ask the value for its text
    found = described(value)
    assert found == told


def test_a_list_that_holds_itself_is_told_as_far_as_lists_are_looked_into() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert described(endless)["list"] == 1


ODD_TENSORS = {
    "parameter": lambda: nn.Parameter(torch.ones(2, 3)),
    "of a class that overrides functions": lambda: torch.ones(2, 3).as_subclass(Loud),
    "meta": lambda: torch.ones(2, 3, device="meta"),
    "sparse": lambda: torch.eye(2, 3).to_sparse(),
    "complex": lambda: torch.ones(2, 3, dtype=torch.complex64),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
    "in another order": lambda: torch.ones(3, 2).t(),
    "freed": lambda: _freed(torch.ones(2, 3)),
}


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
@pytest.mark.parametrize("make", ODD_TENSORS.values(), ids=ODD_TENSORS)
def test_every_kind_of_tensor_is_told_by_its_shape(make: Any) -> None:
    told = described(make())
    assert told["tensor"] == [2, 3]
    assert told["dtype"] in ("float32", "complex64", "qint8")
    assert told["device"] in ("cpu", "meta")


def test_fake_tensors_and_modes_of_the_program_are_not_asked() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Refusing(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise RuntimeError("this was the program's")

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2, 3))
        assert described(fake)["tensor"] in ([2, 3], None)
    plain = torch.ones(2, 3)
    with Refusing():
        assert described(plain)["tensor"] == [2, 3]


def test_modules_and_optimizers_are_numbered_and_not_kept_alive() -> None:
    names = NameTable(object(), object())
    find = Describer(ModuleTable(names))
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = [orjson.loads(find.describe(each)) for each in (model, model[0], model, optimizer)]
    assert told[0] == told[2] == {"module": "torch.nn.modules.container.Sequential", "id": 1, "name": ""}
    assert told[1] == {"module": "torch.nn.modules.linear.Linear", "id": 2, "name": "0"}
    assert told[3] == {"optimizer": "torch.optim.sgd.SGD", "id": 1}
    refs = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.sets(st.integers())
    ),
    max_leaves=30,
)


@given(plain_values)
def test_whatever_is_described_is_json_of_bounded_size(value: object) -> None:
    text = Describer(ModuleTable(NameTable(object(), object()))).describe(value)
    told = orjson.loads(text)
    assert len(text) < 100_000
    assert isinstance(signature({"value": told}, told), str)


def test_a_signature_leaves_out_what_is_none_and_shortens_the_rest(ran: Monitored) -> None:
    first, *_ = named(ran, "Block.forward")
    assert first.arguments is not None
    assert signature(first.arguments, first.returned) == (
        "(layers.0, f32[2, 4], [1, 'two'], scale=0.5, {'note': None}) -> f32[2, 4]"
    )


def test_reports_and_perfetto_show_modules_and_arguments(ran: Monitored) -> None:
    text = io.StringIO()
    render_step(one_step(ran.run, "train", 2), Console(width=220, file=text), most=300)
    [line] = [line for line in text.getvalue().splitlines() if "norm: _BatchNorm.forward" in line]
    assert line.rstrip().endswith("(norm, f32[2, 4]) -> f32[2, 4]")
    calls = step_as_json(one_step(ran.run, "train", 2))["calls"]
    assert isinstance(calls, list)
    [block, *_] = [call for call in calls if isinstance(call, dict) and call["qualname"] == "Block.forward"]
    assert block["owner"] == {"name": "layers.0", "class": "__main__.Block"}
    assert block["returned"] == tensor(2, 4, grad=True)
    written: list[bytes] = []
    export(ran.run, written.append)
    events = orjson.loads(b"".join(written))["traceEvents"]
    slices = [event["args"] for event in events if event["name"] == "Block.forward"]
    assert slices[0]["owner"] == "layers.0"
    assert slices[0]["arguments"]["x"] == slices[0]["returned"] == "f32[2, 4]"
