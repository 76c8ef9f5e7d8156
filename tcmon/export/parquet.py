"""A run as Parquet tables, for pandas, polars, DuckDB and Spark. Needs pyarrow, which is an extra.

Each table is a folder, partitioned by rank as Hive does it: `steps/rank=0/0.parquet`, one file for each process. Times
are nanoseconds. Rows are written in batches, so memory does not grow with the trace.
"""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from math import isfinite
from pathlib import Path, PurePath
from typing import Any, Final

import orjson

from tcmon.errors import TcmonError
from tcmon.export.selection import ALL_TIME, StepRange, Window, no_such_steps, window_of
from tcmon.export.training import Names, names_of
from tcmon.trace.details import Buffers, DeviceTime, Lines, Loss, Ops, State
from tcmon.trace.everystep import OUTSIDE, TimedStep, every_step
from tcmon.trace.index import TraceIndex
from tcmon.trace.journal import PHASES
from tcmon.trace.reader import Process, RecordedStep, Run, reason_of

_ROWS: Final = 1 << 16  # of a batch, which becomes a row group
_FILE: Final = re.compile(r"rank=\d{1,9}/\d{1,9}\.parquet")

_RAISED: Final = "raised "

type Advance = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type as pyarrow names it, and what it means. Only an optional one has nulls."""

    name: str
    type: str
    meaning: str
    optional: bool = False


_PROCESS: Final = Column("process", "int64", "number of the process in its run, from 0")
_ROLE: Final = Column("role", "string", "train or eval; other: outside of steps, after the program entered a stage")
_N: Final = Column("n", "int64", "number of the step, from 1, in its process and role")

_IN_PHASE: Final = {
    "data": "waiting for a data loader within the body",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "evaluation": "evaluation",
    "checkpoint": "saving",
    "collective": "waiting for other ranks",
}

TABLES: Final = {
    "runs": (
        _PROCESS,
        Column("pid", "int64", "of the process"),
        Column("distributed", "bool", "whether it was a rank of several; the rank is 0 otherwise"),
        Column("restart", "int64", "how often a launcher had started the ranks anew"),
        Column("script", "string", "the program's name"),
        Column("command", "list", "the command line"),
        Column("cwd", "string", "where it was started", optional=True),
        Column("host", "string", "name of the machine"),
        Column("platform", "string", "its operating system"),
        Column("python", "string", "version of Python"),
        Column("torch", "string", "version of torch", optional=True),
        Column("tcmon", "string", "version of tcmon"),
        Column("start_unix_ns", "int64", "unix time (ns) at which the clock of this process' times was zero"),
        Column("options", "string", "options of the run, as a JSON object"),
        Column("end_reason", "string", "exit, exception or interrupt; null: still running or killed", optional=True),
        Column("exit_code", "int64", "of the run", optional=True),
        Column("end_ns", "int64", "when the run ended, ns since its start", optional=True),
    ),
    "loops": (
        _PROCESS,
        Column("loop", "int64", "id in its process"),
        Column("role", "string", "train, eval or other"),
        Column("file", "string", "of the loop"),
        Column("qualname", "string", "the function that it is in"),
        Column("line", "int64", "of its for or while"),
        Column("found", "string", "static, dynamic or manual"),
        Column("evidence", "list", "why it has its role"),
    ),
    "functions": (
        _PROCESS,
        Column("function", "int64", "id in its process"),
        Column("module", "string", "null where it couldn't be told", optional=True),
        Column("qualname", "string", "qualified name"),
        Column("file", "string", "of its source"),
        Column("line", "int64", "first of its source"),
    ),
    "steps": (
        _PROCESS,
        _ROLE,
        _N,
        Column("stage", "string", "training, evaluation, ..."),
        Column("loop", "int64", "id of its loop"),
        Column("begin_ns", "int64", "ns since the process' clock was zero"),
        Column("wait_ns", "int64", "ns that it waited for data, from its begin on"),
        Column("duration_ns", "int64", "ns that it took, the wait included"),
        *(
            Column(f"{phase}_ns", "int64", f"ns of it in {what}; null where that was not measured", optional=True)
            for phase, what in _IN_PHASE.items()
        ),
        Column("recorded", "string", "why it was recorded in detail; null if it was not", optional=True),
        Column("calls_stored", "int64", "calls of it in the table calls", optional=True),
        Column("calls_dropped", "int64", "calls of it beyond the bound of a step", optional=True),
    ),
    "calls": (
        _PROCESS,
        _ROLE,
        _N,
        Column("thread", "uint64", "that the call ran in"),
        Column("call", "int64", "number of the call in its step, callers before what they call"),
        Column("parent", "int64", "number of the caller; null where the loop made the call", optional=True),
        Column("depth", "int64", "0 where the loop made the call"),
        Column("function", "int64", "id of the function"),
        Column("begin_ns", "int64", "ns since the process' clock was zero"),
        Column("duration_ns", "int64", "ns from its begin to its end"),
        Column("self_ns", "int64", "ns of it outside of other Python functions"),
        Column("outcome", "string", "returned, yielded, raised or unfinished"),
        Column("exception", "string", "type of what was raised", optional=True),
    ),
    "lines": (
        _PROCESS,
        _ROLE,
        _N,
        Column("thread", "uint64", "that they ran in"),
        Column("function", "int64", "id of the function that they are in"),
        Column("body", "bool", "whether it is the function with the step's loop; only lines of the loop are here then"),
        Column("line", "int64", "of the function's file"),
        Column("hits", "int64", "how often it began"),
        Column("time_ns", "int64", "ns from its starts until another line of the same call began, calls included"),
    ),
    "losses": (
        _PROCESS,
        _ROLE,
        _N,
        Column("backward", "int64", "which call of backward() in the step, from 0"),
        Column("value", "double", "that it was called on; null where that was no scalar", optional=True),
    ),
    "state": (
        _PROCESS,
        _ROLE,
        _N,
        Column("kind", "string", "parameter, buffer or optimizer"),
        Column("name", "string", "of the parameter or buffer in its module; of an optimizer its class"),
        Column("optimizer", "int64", "id of the optimizer; 0: none holds it; null for buffers", optional=True),
        Column("group", "int64", "number of its parameter group; of an optimizer one row for each", optional=True),
        Column("settings", "string", "of an optimizer's group: its hyper-parameters as a JSON object", optional=True),
        Column("lr", "double", "of an optimizer's group: its learning rate", optional=True),
        Column("scale", "double", "of an optimizer: the gradient scaler's scale", optional=True),
        Column("parameter", "int64", "id of the parameter", optional=True),
        Column("shape", "int64 list", "of the parameter", optional=True),
        Column("dtype", "string", "of the parameter", optional=True),
        Column("device", "string", "of the parameter", optional=True),
        Column("requires_grad", "bool", "of the parameter", optional=True),
        Column("ran", "bool", "whether the module that holds the parameter was called", optional=True),
        Column("has_grad", "bool", "whether the optimizer got a gradient for it", optional=True),
        Column("norm", "double", "2-norm after the step", optional=True),
        Column("grad_norm", "double", "2-norm of the gradient as the optimizer got it", optional=True),
        Column("grad_before", "double", "2-norm of a gradient left over as the first backward began", optional=True),
        Column("grad_after", "double", "2-norm of the gradient at the end of the step", optional=True),
        Column("update", "double", "size of the step's change relative to norm, estimated", optional=True),
        Column("nonfinite", "int64", "elements that are NaN or infinite", optional=True),
        Column("grad_nonfinite", "int64", "elements of the gradient that are NaN or infinite", optional=True),
        Column("before", "string", "content hash before the optimizer's step; ~: of a sample only", optional=True),
        Column("after", "string", "content hash after it, or of the buffer at the end of the step", optional=True),
        Column("own", "string", "norms of the optimizer's tensors for it, as a JSON object", optional=True),
    ),
    "ops": (
        _PROCESS,
        _ROLE,
        _N,
        Column("device", "string", "cpu, cuda:0, ... that it ran on"),
        Column("thread", "uint64", "that it ran in, or the stream on a device"),
        Column("name", "string", "of the operator or kernel"),
        Column("begin_ns", "int64", "ns since the process' clock was zero"),
        Column("duration_ns", "int64", "ns that it took"),
        Column("bytes", "int64", "that it allocated; below zero: freed"),
    ),
    "devices": (
        _PROCESS,
        _ROLE,
        _N,
        Column("device", "string", "cuda:0, ..."),
        Column("busy_ns", "int64", "ns that it was busy with the step, from its own clock"),
    ),
}
"""The tables and their columns; besides them every table has the column rank, from the names of its folders."""

_OF_RECORDED: Final = frozenset({"calls", "lines", "losses", "state", "ops", "devices"})


def is_of_export(path: PurePath) -> bool:
    """Whether an export writes a file of this name, which is relative to its folder."""
    return path.parts[0] in TABLES and _FILE.fullmatch("/".join(path.parts[1:])) is not None


@dataclass(slots=True)
class Exported:
    """What an export came to."""

    steps: int = 0
    recorded: int = 0
    calls: int = 0
    damaged_calls: int = 0


def require_pyarrow() -> None:
    """Raise TcmonError, which says what to install, when pyarrow can't be imported."""
    try:
        import_module("pyarrow.parquet")
    except ImportError:
        raise TcmonError("Parquet needs pyarrow, which is not installed: pip install 'tcmon[parquet]'") from None


def export(
    run: Run,
    folder: Path,
    *,
    steps: StepRange | None = None,
    tables: Container[str] = TABLES,
    advance: Advance = lambda _: None,
) -> Exported:
    """Write the tables of `run` as files into `folder`, which is there and empty.

    With `steps`, only what lies in their time; of all tables only those named in `tables`. Raises TcmonError when there
    are no such steps, when pyarrow is missing, or when a file can't be read or written.
    """
    require_pyarrow()
    windows = [ALL_TIME if steps is None else window_of(process, steps, advance) for process in run.processes]
    if steps is not None and not any(windows):
        raise no_such_steps(run.processes, steps)
    exported = Exported()
    wanted = [name for name in TABLES if name in tables]
    try:
        for number, (process, window) in enumerate(zip(run.processes, windows, strict=True)):
            if window is not None:
                with ExitStack() as stack:
                    files = {name: stack.enter_context(_Table(folder, name, process.rank, number)) for name in wanted}
                    _ProcessExport(run, process, number, window, files, exported, advance).write()
        if not any(windows):  # readers find the columns nevertheless
            empty_tables(folder, wanted)
    except OSError as error:
        raise TcmonError(f"can't write the tables: {reason_of(error)}") from None
    return exported


def empty_tables(folder: Path, tables: Iterable[str] = TABLES) -> None:
    """Write tables without rows into `folder`."""
    for name in tables:
        with _Table(folder, name, None, 0):
            pass


class _Table:
    """Gathers rows of one table and process, and writes them batch by batch."""

    def __init__(self, folder: Path, name: str, rank: int | None, process: int) -> None:
        self._arrow: Any = import_module("pyarrow")
        types = {
            "int64": self._arrow.int64(),
            "uint64": self._arrow.uint64(),
            "double": self._arrow.float64(),
            "bool": self._arrow.bool_(),
            "string": self._arrow.string(),
            "list": self._arrow.list_(self._arrow.string()),
            "int64 list": self._arrow.list_(self._arrow.int64()),
        }
        self._schema = self._arrow.schema(
            [
                self._arrow.field(
                    each.name, types[each.type], nullable=each.optional, metadata={"description": each.meaning}
                )
                for each in TABLES[name]
            ]
        )
        self._path = folder / name / f"rank={rank or 0}" / f"{process}.parquet"
        self._writer: Any = None
        self._rows: list[tuple[object, ...]] = []

    def __enter__(self) -> "_Table":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        parquet: Any = import_module("pyarrow.parquet")
        self._writer = parquet.ParquetWriter(self._path, self._schema, compression="zstd")
        return self

    def __exit__(self, failed: object, *_rest: object) -> None:
        try:
            if failed is None:
                self._flush()
        finally:
            self._writer.close()

    def add(self, *row: object) -> None:
        """A row, its values in the order of the columns."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            columns = [
                self._arrow.array(values, type=each.type)
                for values, each in zip(zip(*self._rows, strict=True), self._schema, strict=True)
            ]
            self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=self._schema))
            self._rows.clear()


class _ProcessExport:
    """Writes the rows of one process."""

    def __init__(
        self,
        run: Run,
        process: Process,
        number: int,
        window: Window,
        tables: Mapping[str, _Table],
        exported: Exported,
        advance: Advance,
    ) -> None:
        self._run = run
        self._process = process
        self._number = number
        self._window = window
        self._tables = tables
        self._exported = exported
        self._advance = advance

    def write(self) -> None:
        tables = self._tables
        if "steps" in tables:
            self._write_steps(tables["steps"])
        if len(tables) == ("steps" in tables):
            return
        index = TraceIndex(self._process.trace, self._advance)
        if "runs" in tables:
            self._write_run(tables["runs"], index)
        if "loops" in tables:
            self._write_loops(tables["loops"], index)
        if "functions" in tables:
            for each in index.functions.values():
                tables["functions"].add(self._number, each.id, each.module, each.qualname, each.file, each.line)
        if not _OF_RECORDED.isdisjoint(tables):
            self._write_recorded(index)
        self._exported.damaged_calls += index.damaged_calls

    def _write_run(self, table: _Table, index: TraceIndex) -> None:
        meta, process = self._run.meta, self._process
        header = process.header()
        # Its facts are the first process'; what the others say of themselves is in their traces.
        ended = meta.ended if self._number == 0 else None
        table.add(
            self._number,
            process.pid,
            process.rank is not None,
            process.restart,
            meta.script,
            meta.command,
            meta.cwd,
            (header.host if header else None) or meta.host,
            meta.platform,
            meta.python,
            meta.torch,
            meta.tcmon,
            meta.start_unix_ns if index.start_unix_ns is None else index.start_unix_ns,
            orjson.dumps(dict(meta.options)).decode(),
            ended.reason if ended else None,
            ended.exit_code if ended else None,
            ended.clock_ns if ended else None,
        )

    def _write_loops(self, table: _Table, index: TraceIndex) -> None:
        meta = self._run.meta
        loops = {loop.id: loop for loop in meta.loops} if self._process.pid == meta.pid else {}
        for each in (loops | index.loops).values():
            table.add(self._number, each.id, each.role, each.file, each.qualname, each.line, each.found, each.evidence)

    def _write_steps(self, table: _Table) -> None:
        for each in every_step(self._process, self._advance):
            if self._window.holds(each.times.begin, each.times.begin + each.times.end):
                table.add(self._number, *_step_row(each))
                in_step = each.times.role != OUTSIDE
                self._exported.steps += in_step
                self._exported.recorded += in_step and each.recorded is not None

    def _write_recorded(self, index: TraceIndex) -> None:
        tables, number = self._tables, self._number
        names = names_of(self._process) if "state" in tables else Names()
        try:
            with self._process.trace.open("rb") as file:
                for place in index.in_time(self._window.begin, self._window.end):
                    recorded = index.load(file, place, calls="calls" in tables)
                    self._advance(index.size(place))
                    if "calls" in tables:
                        for row in _calls(recorded):
                            tables["calls"].add(number, *row)
                            self._exported.calls += 1
                    for name, row in _detail_rows(recorded, names):
                        if name in tables:
                            tables[name].add(number, recorded.step.role, recorded.step.n, *row)
        except OSError as error:
            raise TcmonError(f"can't export {str(self._process.trace)!r}: {reason_of(error)}") from None


def _step_row(each: TimedStep) -> tuple[object, ...]:
    times, recorded = each.times, each.recorded
    return (
        times.role,
        times.n,
        each.stage,
        times.loop,
        times.begin,
        times.wait,
        times.end,
        *(times.phases or (None,) * len(PHASES)),
        recorded.reason if recorded else None,
        recorded.calls_stored if recorded else None,
        recorded.calls_dropped if recorded else None,
    )


def _calls(recorded: RecordedStep) -> Iterator[tuple[object, ...]]:
    """The calls of a recorded step, each caller before what it calls."""
    step = recorded.step
    number = 0
    for root in recorded.calls:
        callers: list[int] = []
        for call in root.walk():
            del callers[call.depth :]
            raised = call.outcome.startswith(_RAISED)
            yield (
                step.role,
                step.n,
                call.thread,
                number,
                callers[-1] if callers else None,
                call.depth,
                call.function.id,
                call.start_ns,
                call.total_ns,
                call.self_ns,
                "raised" if raised else call.outcome,
                call.outcome.removeprefix(_RAISED) if raised else None,
            )
            callers.append(number)
            number += 1


def _detail_rows(recorded: RecordedStep, names: Names) -> Iterator[tuple[str, tuple[object, ...]]]:
    """What was kept of a step beside its calls: table and row, without the process and the step."""
    backwards = 0
    for row in recorded.details:
        match row:
            case Lines():
                for each in zip(row.line, row.hits, row.ns, strict=True):
                    yield "lines", (row.thread, row.function, row.body, *each)
            case Loss():
                for value in row.value:
                    yield "losses", (backwards, value)
                    backwards += 1
            case State():
                yield from (("state", each) for each in _groups(row, names))
                yield from (("state", each) for each in _parameters(row, names))
            case Buffers():
                for name, norm, nonfinite, hashed in zip(row.name, row.norm, row.nonfinite, row.hash, strict=True):
                    yield "state", _state_row(kind="buffer", name=name, norm=norm, nonfinite=nonfinite, after=hashed)
            case Ops():
                for each in zip(row.device, row.thread, row.name, row.begin, row.ns, row.bytes, strict=True):
                    yield "ops", each
            case DeviceTime():
                yield "devices", (row.device, row.ns)
            case _:
                pass


_OF_STATE: Final = tuple(column.name for column in TABLES["state"][3:])


def _state_row(**values: object) -> tuple[object, ...]:
    return tuple(values.get(name) for name in _OF_STATE)


def _groups(state: State, names: Names) -> Iterable[tuple[object, ...]]:
    if not state.optimizer:
        return
    for number, group in enumerate(state.groups):
        rate = group.get("lr")
        yield _state_row(
            kind="optimizer",
            name=names.optimizer(state.optimizer),
            optimizer=state.optimizer,
            group=number,
            settings=orjson.dumps(dict(group)).decode(),
            lr=float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) else None,
            scale=state.scale,
        )


def _parameters(state: State, names: Names) -> Iterable[tuple[object, ...]]:
    for at, id_ in enumerate(state.parameter):
        known = names.parameters.get(id_)
        own = {name: value for name, norms in state.state.items() if (value := norms[at]) is not None}
        yield _state_row(
            kind="parameter",
            name=names.parameter(id_),
            optimizer=state.optimizer,
            group=known.group if known else None,
            parameter=id_,
            shape=list(known.shape) if known else None,
            dtype=known.dtype if known else None,
            device=known.device if known else None,
            requires_grad=state.requires_grad[at],
            ran=state.ran[at],
            has_grad=state.has_grad[at],
            norm=state.norm[at],
            grad_norm=state.grad_norm[at],
            grad_before=state.grad_before[at],
            grad_after=state.grad_after[at],
            update=state.update[at],
            nonfinite=state.nonfinite[at],
            grad_nonfinite=state.grad_nonfinite[at],
            before=state.before[at],
            after=state.after[at],
            own=orjson.dumps({name: value if isfinite(value) else str(value) for name, value in own.items()}).decode()
            if own
            else None,
        )
