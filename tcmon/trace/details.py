"""What recorders keep of a recorded step, beyond its calls: typed records, strictly read.

Each belongs to the step of its `role`, `n` and `loop`, and stands before that step's record. Real numbers may be nan or
infinite; None says that there is none. Columns of one record have one length.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tcmon.trace import fields
from tcmon.trace.fields import Damaged, Object

ROLES: Final = ("train", "eval", "other")
"""What a loop is for."""

SEVERITIES: Final = ("error", "warning", "hint")
"""Of findings: certainly wrong, probably wrong, worth a look."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Time spent at the lines of one function in one thread, calls from them included.

    `ns[i]` is the time from the starts of line `line[i]`, `hits[i]` of them, until another line of the same call of the
    function begins or the call ends. With `body`, the function is the one with the step's loop, and only lines of the
    loop are counted; their times and `own`, what recorders spent meanwhile, add up to the step's.
    """

    role: str
    n: int
    loop: int
    thread: int
    function: int
    body: bool
    line: Sequence[int]
    hits: Sequence[int]
    ns: Sequence[int]
    own: int = 0


@dataclass(frozen=True, slots=True)
class Args:
    """Arguments and results of some calls of one thread.

    `call[i]` is the position of a call among all starts and resumptions of this thread in this step's `calls`, from 0;
    `arguments[i]` its arguments by name ("*rest" and "**more" gather others), `returned[i]` what it returned, None also
    for a call that did not return; values are described in docs/trace-format.md. Those of `dropped` calls are left out.
    """

    role: str
    n: int
    loop: int
    thread: int
    call: Sequence[int]
    arguments: Sequence[Mapping[str, object]]
    returned: Sequence[object]
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the program's model: its name in the outermost one that holds it, "" for that one, and its class."""

    id: int
    name: str
    class_name: str


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose `forward` some calls of one thread are: positions as in `Args`, and ids of modules."""

    role: str
    n: int
    loop: int
    thread: int
    call: Sequence[int]
    module: Sequence[int]


@dataclass(frozen=True, slots=True)
class Loss:
    """The scalars on which `backward()` was called in the step, in order; None for one that was no scalar."""

    role: str
    n: int
    loop: int
    value: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An optimizer that stepped in a recorded step: its class with the module."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an optimizer or a module; a later record with the same id takes its place.

    `name` is its name in the outermost module that is known to hold it, else "group 0 [3]"; `optimizer` is None for one
    that no optimizer holds, and then `group` and `index` (in the group) are None as well.
    """

    id: int
    name: str
    shape: Sequence[int]
    dtype: str
    device: str
    optimizer: int | None
    group: int | None
    index: int | None


@dataclass(frozen=True, slots=True)
class State:
    """An optimizer and its parameters at the end of a recorded step in which it stepped; columns by parameter.

    `groups` holds the hyper-parameters of each group by name, `scale` a gradient scaler's scale. `norm` and `grad_norm`
    are 2-norms, the gradient's as the optimizer got it; `update` is the size of the step's change relative to `norm`,
    estimated from a sample of elements; `nonfinite` counts NaN and infinite elements; `before` and `after` are content
    hashes around the optimizer's step, "~" in front if they cover a sample only. `grad_before` is the norm of a
    gradient that was there already as the step's first backward pass began. `ran` says whether the module that holds
    the parameter was called, `grad_after` is the gradient's norm at the end of the step, for the first few parameters.
    `state` holds norms of the optimizer's own tensors by name. Optimizer 0 stands for none:
    trainable parameters of modules that were called, in no optimizer.
    """

    role: str
    n: int
    loop: int
    optimizer: int
    groups: Sequence[Mapping[str, object]]
    scale: float | None
    parameter: Sequence[int]
    requires_grad: Sequence[bool]
    ran: Sequence[bool]
    has_grad: Sequence[bool]
    norm: Sequence[float | None]
    grad_norm: Sequence[float | None]
    grad_before: Sequence[float | None]
    grad_after: Sequence[float | None]
    update: Sequence[float | None]
    nonfinite: Sequence[int | None]
    grad_nonfinite: Sequence[int | None]
    before: Sequence[str | None]
    after: Sequence[str | None]
    state: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Modes:
    """Whether the modules that ran in a step were in training mode, one row for each outermost module.

    `mixed` names the submodules that are in the other mode, "…" last if they are too many to name. `sensitive` counts
    the submodules that do something else in another mode (dropout, batch normalisation), `stepped` says whether an
    optimizer stepped any of the module's parameters in the step.
    """

    role: str
    n: int
    loop: int
    module: Sequence[str]
    training: Sequence[bool]
    mixed: Sequence[Sequence[str]]
    sensitive: Sequence[int]
    stepped: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Buffers:
    """Buffers of modules (BatchNorm's statistics) at the end of a recorded step."""

    role: str
    n: int
    loop: int
    name: Sequence[str]
    norm: Sequence[float | None]
    nonfinite: Sequence[int | None]
    hash: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tensors that outermost modules were called with first in a step: a content hash of each call's.

    `reused` says that they are the very tensors of the recorded step before. `logits` is the number of calls of
    cross_entropy, and `probabilities` how many of them were given rows that are not negative and sum to one.
    """

    role: str
    n: int
    loop: int
    module: Sequence[str]
    hash: Sequence[str | None]
    reused: Sequence[bool]
    logits: int
    probabilities: int


@dataclass(frozen=True, slots=True)
class Signs:
    """What else was seen in a step that tells of silent errors.

    `graphs_kept` counts graphs of the losses of earlier recorded steps, ten steps before or more, that are still alive;
    `states_kept` state dicts taken in training that are alive, share memory with the parameters, and were neither saved
    nor loaded; `broadcast` those of the `losses` elementwise losses whose arguments' shapes give one that is larger
    than either; `with_grad` those of the `roots` outermost modules that can learn which ran with gradients switched on.
    """

    role: str
    n: int
    loop: int
    graphs_kept: int
    states_kept: int
    broadcast: int
    losses: int
    roots: int
    with_grad: int


@dataclass(frozen=True, slots=True)
class Ops:
    """Operators and kernels as torch.profiler tells them. `begin` holds clock values, `device` "cpu", "cuda:0", ..."""

    role: str
    n: int
    loop: int
    name: Sequence[str]
    begin: Sequence[int]
    ns: Sequence[int]
    device: Sequence[str]
    thread: Sequence[int]
    bytes: Sequence[int]


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """How long a device was busy with a step, from its own clock."""

    role: str
    n: int
    loop: int
    device: str
    ns: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in the run that is certainly (error) or probably (warning) wrong, or worth a look (hint).

    `observed` tells the numbers, `why` what it does to training, `look` where to look; `file` and `line` are
    those of the loop whose step it is.
    """

    rule: str
    severity: str
    role: str
    n: int
    observed: str
    why: str
    look: str
    parameters: Sequence[str]
    file: str | None
    line: int | None


type StepDetail = Lines | Args | Owners | Loss | State | Modes | Buffers | Inputs | Signs | Ops | DeviceTime
"""What belongs to one recorded step."""

type Detail = StepDetail | Optimizer | Parameter | Module | Finding


def _step(obj: Object) -> tuple[str, int, int]:
    return fields.choice(obj, "role", ROLES), fields.number(obj, "n", low=1), fields.number(obj, "loop")


def _thread(obj: Object) -> int:
    return fields.number(obj, "thread", limit=1 << 64)


def _same_length(*columns: Sequence[object]) -> None:
    if len(set(map(len, columns))) > 1:
        raise Damaged("columns differ in length")


def _lines(obj: Object) -> Lines:
    line, hits, ns = (fields.numbers(obj, name, low=0) for name in ("line", "hits", "ns"))
    _same_length(line, hits, ns)
    body = fields.flag(obj, "body")
    own = fields.time(obj, "own") if "own" in obj else 0
    return Lines(*_step(obj), _thread(obj), fields.number(obj, "function", low=1), body, line, hits, ns, own)


def _args(obj: Object) -> Args:
    call = fields.numbers(obj, "call", low=0, limit=fields.COUNT_LIMIT)
    values = fields.anything(obj, "values")
    names = [fields.texts({"names": each}, "names") for each in fields.anything(obj, "names")]
    rows = fields.anything(obj, "arguments")
    returned = fields.numbers(obj, "returned", low=-1, limit=len(values))
    _same_length(call, rows, returned)
    arguments: list[Mapping[str, object]] = []
    for each in rows:
        which, *chosen = fields.numbers({"arguments": each}, "arguments", low=0, limit=fields.COUNT_LIMIT) or [0]
        if which >= len(names) or len(chosen) != len(names[which]) or max(chosen, default=-1) >= len(values):
            raise Damaged("arguments don't fit their names and values")
        arguments.append({name: values[at] for name, at in zip(names[which], chosen, strict=True)})
    results = [None if at < 0 else values[at] for at in returned]
    dropped = fields.number(obj, "dropped") if "dropped" in obj else 0
    return Args(*_step(obj), _thread(obj), call, arguments, results, dropped)


def _module(obj: Object) -> Module:
    return Module(fields.number(obj, "id", low=1), fields.text(obj, "name"), fields.text(obj, "class"))


def _owners(obj: Object) -> Owners:
    call, module = (fields.numbers(obj, name, low=0, limit=fields.COUNT_LIMIT) for name in ("call", "module"))
    _same_length(call, module)
    return Owners(*_step(obj), _thread(obj), call, module)


def _loss(obj: Object) -> Loss:
    return Loss(*_step(obj), fields.reals(obj, "value"))


def _optimizer(obj: Object) -> Optimizer:
    return Optimizer(fields.number(obj, "id", low=1), fields.text(obj, "name"))


def _parameter(obj: Object) -> Parameter:
    return Parameter(
        id=fields.number(obj, "id", low=1),
        name=fields.text(obj, "name"),
        shape=fields.numbers(obj, "shape", low=0, limit=fields.COUNT_LIMIT),
        dtype=fields.text(obj, "dtype"),
        device=fields.text(obj, "device"),
        optimizer=fields.number_or_none(obj, "optimizer"),
        group=fields.number_or_none(obj, "group"),
        index=fields.number_or_none(obj, "index"),
    )


def _state(obj: Object) -> State:
    own = fields.nested(obj, "state")
    state = State(
        *_step(obj),
        optimizer=fields.number(obj, "optimizer"),
        groups=fields.nested_list(obj, "groups"),
        scale=fields.real(obj, "scale"),
        parameter=fields.numbers(obj, "parameter", low=1, limit=fields.COUNT_LIMIT),
        requires_grad=fields.flags(obj, "requires_grad"),
        ran=fields.flags(obj, "ran"),
        has_grad=fields.flags(obj, "has_grad"),
        norm=fields.reals(obj, "norm"),
        grad_norm=fields.reals(obj, "grad_norm"),
        grad_before=fields.reals(obj, "grad_before"),
        grad_after=fields.reals(obj, "grad_after"),
        update=fields.reals(obj, "update"),
        nonfinite=fields.counts(obj, "nonfinite"),
        grad_nonfinite=fields.counts(obj, "grad_nonfinite"),
        before=fields.texts_or_none(obj, "before"),
        after=fields.texts_or_none(obj, "after"),
        state={name: fields.reals(own, name) for name in own},
    )
    _same_length(
        state.parameter,
        state.requires_grad,
        state.ran,
        state.has_grad,
        state.norm,
        state.grad_norm,
        state.grad_before,
        state.grad_after,
        state.update,
        state.nonfinite,
        state.grad_nonfinite,
        state.before,
        state.after,
        *state.state.values(),
    )
    return state


def _modes(obj: Object) -> Modes:
    mixed = fields.anything(obj, "mixed")
    names = [fields.texts({"mixed": each}, "mixed") for each in mixed]
    modes = Modes(
        *_step(obj),
        fields.texts(obj, "module"),
        fields.flags(obj, "training"),
        names,
        fields.numbers(obj, "sensitive", low=0, limit=fields.COUNT_LIMIT),
        fields.flags(obj, "stepped"),
    )
    _same_length(modes.module, modes.training, modes.mixed, modes.sensitive, modes.stepped)
    return modes


def _buffers(obj: Object) -> Buffers:
    buffers = Buffers(
        *_step(obj),
        fields.texts(obj, "name"),
        fields.reals(obj, "norm"),
        fields.counts(obj, "nonfinite"),
        fields.texts_or_none(obj, "hash"),
    )
    _same_length(buffers.name, buffers.norm, buffers.nonfinite, buffers.hash)
    return buffers


def _inputs(obj: Object) -> Inputs:
    inputs = Inputs(
        *_step(obj),
        fields.texts(obj, "module"),
        fields.texts_or_none(obj, "hash"),
        fields.flags(obj, "reused"),
        fields.number(obj, "logits"),
        fields.number(obj, "probabilities"),
    )
    _same_length(inputs.module, inputs.hash, inputs.reused)
    return inputs


def _signs(obj: Object) -> Signs:
    counts = ("graphs_kept", "states_kept", "broadcast", "losses", "roots", "with_grad")
    return Signs(*_step(obj), *(fields.number(obj, name) for name in counts))


def _ops(obj: Object) -> Ops:
    begin, ns, sizes = (
        fields.numbers(obj, name, low=low) for name, low in (("begin", 0), ("ns", 0), ("bytes", -1 << 62))
    )
    thread = fields.numbers(obj, "thread", low=0, limit=1 << 64)
    ops = Ops(*_step(obj), fields.texts(obj, "name"), begin, ns, fields.texts(obj, "device"), thread, sizes)
    _same_length(ops.name, ops.begin, ops.ns, ops.device, ops.thread, ops.bytes)
    return ops


def _device(obj: Object) -> DeviceTime:
    return DeviceTime(*_step(obj), fields.text(obj, "device"), fields.time(obj, "ns"))


def _finding(obj: Object) -> Finding:
    return Finding(
        rule=fields.text(obj, "rule"),
        severity=fields.choice(obj, "severity", SEVERITIES),
        role=fields.choice(obj, "role", ROLES),
        n=fields.number(obj, "n"),
        observed=fields.text(obj, "observed"),
        why=fields.text(obj, "why"),
        look=fields.text(obj, "look"),
        parameters=fields.texts(obj, "parameters"),
        file=fields.text_or_none(obj, "file"),
        line=fields.number_or_none(obj, "line"),
    )


READERS: Final[Mapping[str, Callable[[Object], Detail]]] = {
    "lines": _lines,
    "args": _args,
    "module": _module,
    "owners": _owners,
    "loss": _loss,
    "optimizer": _optimizer,
    "parameter": _parameter,
    "state": _state,
    "modes": _modes,
    "buffers": _buffers,
    "inputs": _inputs,
    "signs": _signs,
    "ops": _ops,
    "device": _device,
    "finding": _finding,
}
"""Makes the detail of a kind from an object; raises `Damaged`."""
