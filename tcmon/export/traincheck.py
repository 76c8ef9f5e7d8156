"""A run as a trace folder that TrainCheck reads (`traincheck-infer -f`, `traincheck-check -f ... -i ...`), version 0.2.

API calls of recorded steps have a record before and one after each, in `trace_API_<process>_<thread>_<role>.log`;
the parameters of optimizers as they were before and after each step of theirs are in `proxy_log.json`. Calls that
never ended, and what TrainCheck itself leaves out of its traces (private functions), are not there.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from math import isfinite, prod
from pathlib import Path, PurePath
from typing import BinaryIO, Final

import orjson

from tcmon.errors import TcmonError
from tcmon.export.selection import ALL_TIME, StepRange, Window, no_such_steps, window_of
from tcmon.export.training import Names, names_of
from tcmon.trace.calltree import RETURNED, UNFINISHED, YIELDED, Call
from tcmon.trace.details import Args, State
from tcmon.trace.index import TraceIndex
from tcmon.trace.reader import Process, RecordedStep, Run, reason_of
from tcmon.trace.records import Function, Step

_VARIABLES: Final = "proxy_log.json"
_OURS: Final = re.compile(r"trace_API_\d+_\d+_[a-z]+\.log|proxy_log\.json")
_OPTIMIZER_STEP: Final = re.compile(r"torch\.optim\..*\.step")
_RAISED: Final = "raised "
_UNKNOWN: Final = 1 << 50
_THREADS: Final = 64
_PARAMETER: Final = "torch.nn.Parameter"

# What TrainCheck doesn't follow either: internals of calling, and what needs arguments that are not known.
_NO_API: Final = re.compile(
    r"\._(?!tensor\.)|<|torch\.(fx|jit|overrides|autograd|utils\.data\._utils|compiler|accelerator)\."
)
_TENSOR_TYPES: Final = {
    "float32": "FloatTensor",
    "float64": "DoubleTensor",
    "float16": "HalfTensor",
    "bfloat16": "BFloat16Tensor",
    "int64": "LongTensor",
    "int32": "IntTensor",
    "int16": "ShortTensor",
    "int8": "CharTensor",
    "uint8": "ByteTensor",
    "bool": "BoolTensor",
}
_SIZES: Final = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}

type Advance = Callable[[int], object]
type Json = dict[str, object]


@dataclass(slots=True)
class Exported:
    """What an export came to. `without_state` steps had no state recorded, so nothing is told of parameters in them."""

    steps: int = 0
    calls: int = 0
    states: int = 0
    without_state: int = 0
    damaged_calls: int = 0


def is_of_export(path: PurePath) -> bool:
    """Whether an export writes a file of this name, which is relative to its folder."""
    return len(path.parts) == 1 and _OURS.fullmatch(path.name) is not None


def total_bytes(run: Run, steps: StepRange | None) -> int:
    """About what `export` tells its `advance` of in the end."""
    return sum((2 if steps is None else 3) * process.trace.stat().st_size for process in run.processes)


def export(run: Run, folder: Path, *, steps: StepRange | None = None, advance: Advance = lambda _: None) -> Exported:
    """Write the trace of `run` into `folder`, which is there and empty.

    With `steps`, only what lies in their time. Raises TcmonError when there are no such steps, or when a file can't be
    read or written.
    """
    windows = [ALL_TIME if steps is None else window_of(process, steps, advance) for process in run.processes]
    if steps is not None and not any(windows):
        raise no_such_steps(run.processes, steps)
    exported = Exported()
    pids = [process.pid for process in run.processes]
    try:
        with ExitStack() as stack:
            variables = stack.enter_context((folder / _VARIABLES).open("wb"))
            for number, (process, window) in enumerate(zip(run.processes, windows, strict=True)):
                if window is not None:
                    # Ranks of several hosts may have one pid.
                    known_as = process.pid if pids.count(process.pid) == 1 else number
                    writer = _ProcessExport(
                        run, process, number, known_as, window, folder, variables, exported, advance
                    )
                    writer.write()
    except OSError as error:
        raise TcmonError(f"can't write the trace: {reason_of(error)}") from None
    return exported


class _ProcessExport:
    """Writes one process."""

    def __init__(
        self,
        run: Run,
        process: Process,
        order: int,
        number: int,
        window: Window,
        folder: Path,
        variables: BinaryIO,
        exported: Exported,
        advance: Advance,
    ) -> None:
        self._process = process
        self._order = order
        self._number = number
        self._window = window
        self._folder = folder
        self._variables = variables
        self._exported = exported
        self._advance = advance
        self._names: Names = names_of(process)
        self._index = TraceIndex(process.trace, advance)
        start = self._index.start_unix_ns
        self._zero = run.meta.start_unix_ns if start is None else start
        self._apis: dict[int, str | None] = {}
        self._trained = self._evaluated = 0
        self._methods: dict[int, bool] = {}
        self._threads: dict[int, int] = {}

    def write(self) -> None:
        files: dict[tuple[int, str], BinaryIO] = {}
        with ExitStack() as stack, self._process.trace.open("rb") as trace:
            for place in self._index.in_time(self._window.begin, self._window.end):
                recorded = self._index.load(trace, place)
                self._advance(self._index.size(place))
                step = recorded.step
                self._exported.steps += step.role != "other"
                if step.role == "train":
                    self._trained = step.n
                elif step.role == "eval":
                    self._evaluated = step.n
                meta: Json = {"step": self._trained, "stage": step.stage}
                if self._evaluated:
                    meta["eval_step"] = self._evaluated
                self._write_states(recorded, meta)
                for thread, records in self._calls_of(recorded, meta).items():
                    key = thread, step.role
                    if key not in files:
                        path = self._folder / f"trace_API_{self._number}_{thread}_{step.role}.log"
                        files[key] = stack.enter_context(path.open("ab"))
                    files[key].writelines(records)
        self._exported.damaged_calls += self._index.damaged_calls

    def _calls_of(self, recorded: RecordedStep, meta: Json) -> Mapping[int, Iterator[bytes]]:
        """The records of a step's calls, thread by thread; only of threads with any."""
        arguments = {
            (row.thread, call): (values, returned)
            for row in recorded.details
            if isinstance(row, Args)
            for call, values, returned in zip(row.call, row.arguments, row.returned, strict=True)
        }
        states = [row for row in recorded.details if isinstance(row, State) and row.optimizer]
        threads: dict[int, list[Call]] = {}
        for root in recorded.calls:
            threads.setdefault(root.thread, []).append(root)
        return {
            thread: self._records(roots, arguments, states, meta)
            for thread, roots in threads.items()
            if any(self._api(call.function) for root in roots for call in root.walk())
        }

    def _records(
        self,
        roots: Sequence[Call],
        arguments: Mapping[tuple[int, int], tuple[Mapping[str, object], object]],
        states: Sequence[State],
        meta: Json,
    ) -> Iterator[bytes]:
        """The records of a thread's calls in the order of time."""
        entered: list[tuple[int, Json]] = []
        for position, call in enumerate(chain.from_iterable(root.walk() for root in roots)):
            while entered and entered[-1][0] >= call.depth:
                yield _line(entered.pop()[1])
            name = self._api(call.function)
            if name is None or call.outcome in (UNFINISHED, YIELDED):
                continue
            known = arguments.get((call.thread, position))
            self._exported.calls += 1
            common = {
                "func_call_id": f"{self._number}_{self._exported.calls}",
                "thread_id": call.thread,
                "process_id": self._number,
                "meta_vars": meta,
                "function": name,
                **self._bound(call, known, states if _OPTIMIZER_STEP.fullmatch(name) else ()),
            }
            given, named = _arguments(known[0]) if known else ({}, {})
            yield _line(
                common
                | {
                    "type": "function_call (pre)",
                    "time": self._zero + call.start_ns,
                    "proxy_obj_names": [],
                    "args": given,
                    "kwargs": named,
                }
            )
            after: Json = {"time": self._zero + call.end_ns}
            if call.outcome == RETURNED:
                after |= {"type": "function_call (post)", "return_values": _returned(known[1]) if known else []}
            else:
                raised = call.outcome.removeprefix(_RAISED)
                after |= {"type": "function_call (post) (exception)", "exception": raised, "exception_msg": ""}
            entered.append((call.depth, common | after))
        while entered:
            yield _line(entered.pop()[1])

    def _api(self, function: Function) -> str | None:
        """The name of a function as TrainCheck knows it; None for one that it doesn't follow."""
        if function.id not in self._apis:
            name = f"{function.module}.{function.qualname}"
            follows = name.startswith("torch.") and not _NO_API.search(name)
            self._apis[function.id] = name if follows else None
        return self._apis[function.id]

    def _bound(self, call: Call, known: tuple[Mapping[str, object], object] | None, states: Sequence[State]) -> Json:
        """Whether a call is one of a method, and a number for the object, which is its own where it is not known.

        TrainCheck takes for granted that no object is used in two threads or processes, so it is another one in each.
        """
        function = call.function
        if function.id not in self._methods:
            first = next(iter(known[0]), "") if known else "self"
            self._methods[function.id] = "." in function.qualname and first == "self"
        if not self._methods[function.id]:
            return {"is_bound_method": False, "obj_id": None}
        itself = known[0].get("self") if known else None
        number: object = None
        if isinstance(itself, Mapping):
            number = itself.get("id")
        optimizer = isinstance(itself, Mapping) and "optimizer" in itself
        if not isinstance(number, int) and len(states) == 1:
            number, optimizer = states[0].optimizer, True
        if not isinstance(number, int):
            return {"is_bound_method": True, "obj_id": _UNKNOWN + self._exported.calls}
        where = self._order * _THREADS + self._threads.setdefault(call.thread, len(self._threads)) % _THREADS
        return {"is_bound_method": True, "obj_id": (where << 24) + 2 * number + optimizer}

    def _write_states(self, recorded: RecordedStep, meta: Json) -> None:
        step = recorded.step
        states = [row for row in recorded.details if isinstance(row, State) and row.optimizer]
        if not states:
            self._exported.without_state += step.role == "train"
            return
        calls = [call for root in recorded.calls for call in root.walk() if call.outcome == RETURNED]
        apis = [(name, call) for call in calls if (name := self._api(call.function))]
        for state in states:
            own = f"{self._names.optimizer(state.optimizer)}.step"
            steps = [call for name, call in apis if name == own] or [
                call for name, call in apis if _OPTIMIZER_STEP.fullmatch(name)
            ]
            begin, end = (steps[0].start_ns, steps[-1].end_ns) if steps else (step.begin, step.begin + step.end)
            cleared = [call for name, call in apis if name.endswith(".zero_grad") and call.end_ns < begin]
            if cleared:
                self._write_state(state, step, cleared[-1].end_ns - 1, meta, state.before, state.grad_before)
            self._write_state(state, step, begin - 1, meta, state.before, state.grad_norm)
            self._write_state(state, step, end - 1, meta, state.after, state.grad_norm)

    def _write_state(
        self,
        state: State,
        step: Step,
        at: int,
        meta: Json,
        hashes: Sequence[str | None],
        gradients: Sequence[float | None],
    ) -> None:
        for place, id_ in enumerate(state.parameter):
            if hashes[place] is None:
                continue
            self._exported.states += 1
            self._variables.write(
                _line(
                    {
                        "var_name": self._names.parameter(id_),
                        "var_type": _PARAMETER,
                        "process_id": self._number,
                        "thread_id": step.thread,
                        "meta_vars": meta,
                        "type": "state_change",
                        "attributes": self._attributes(state, place, hashes[place], gradients[place]),
                        "time": self._zero + at,
                    }
                )
            )

    def _attributes(self, state: State, place: int, hashed: str | None, gradient: float | None) -> Json:
        """A parameter as TrainCheck describes one; a gradient is told by its norm instead of its hash."""
        known = self._names.parameters.get(state.parameter[place])
        attributes: Json = {
            "data": _number(hashed or ""),
            "grad": gradient if gradient is None or isfinite(gradient) else str(gradient),
            "requires_grad": state.requires_grad[place],
            "is_leaf": True,
        }
        if known is not None:
            kind = known.dtype.removeprefix("torch.")
            size = _SIZES.get(kind, 1)
            attributes |= {
                "dtype": f"torch.{kind}",
                "shape": list(known.shape),
                "ndim": len(known.shape),
                "itemsize": size,
                "nbytes": size * prod(known.shape),
                "is_cuda": known.device.startswith("cuda"),
                "is_cpu": known.device == "cpu",
            }
        return attributes


def _line(record: Json) -> bytes:
    return orjson.dumps(record) + b"\n"


def _number(hashed: str) -> int:
    """A content hash as a number that no reader rounds to nothing."""
    return int.from_bytes(hashed.encode("utf-8", "replace")[-32:], "big") % ((1 << 52) - 1)


def _arguments(values: Mapping[str, object]) -> tuple[Json, Json]:
    """Arguments by place and by name; those that a signature names are all told by their places."""
    given: list[object] = []
    named: Json = {}
    for name, value in values.items():
        if name.startswith("**"):
            items = value.get("items") if isinstance(value, Mapping) else None
            for pair in items if isinstance(items, Sequence) else ():
                if isinstance(pair, Sequence) and len(pair) == 2:
                    named[str(pair[0])] = _described(pair[1])
        elif name.startswith("*"):
            items = value.get("items") if isinstance(value, Mapping) else None
            given += items if isinstance(items, Sequence) else ()
        else:
            given.append(value)
    return {str(place): _described(value) for place, value in enumerate(given)}, named


def _returned(value: object) -> object:
    if isinstance(value, Mapping) and value.get("type") == "tuple" and isinstance(value.get("items"), Sequence):
        return [_described(each) for each in value["items"]]
    return _described(value)


def _described(value: object) -> Json:
    """A value as TrainCheck describes it: its type, and the value or what is known of its attributes."""
    if not isinstance(value, Mapping):
        return {type(value).__name__: value}
    if "tensor" in value:
        return _tensor(value)
    for kind in ("module", "optimizer"):
        if kind in value:
            return {str(value[kind]): {}}
    for kind in ("list", "dict"):
        if kind in value:
            return {str(value.get("type", kind)): {"length": value[kind]}}
    return {str(value.get("type", "object")): value.get("value", {})}


def _tensor(value: Mapping[str, object]) -> Json:
    shape = value["tensor"] if isinstance(value["tensor"], list) else []
    kind, device = str(value.get("dtype")).removeprefix("torch."), str(value.get("device"))
    folder = "torch.cuda." if device.startswith("cuda") else "torch."
    parameter = str(value.get("class", "")).endswith("Parameter")
    size = _SIZES.get(kind, 1)
    return {
        _PARAMETER if parameter else folder + _TENSOR_TYPES.get(kind, "Tensor"): {
            "dtype": f"torch.{kind}",
            "shape": shape,
            "ndim": len(shape),
            "itemsize": size,
            "nbytes": size * prod(each for each in shape if isinstance(each, int)),
            "requires_grad": value.get("requires_grad"),
            "is_leaf": value.get("leaf"),
            "is_cuda": device.startswith("cuda"),
            "is_cpu": device == "cpu",
        }
    }
