"""A run as Parquet tables, for pandas, polars, DuckDB and Spark. Needs pyarrow, which is an extra.

Times are nanoseconds. Rows are written in batches, so memory does not grow with the trace.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Final

import orjson

from tcmon.errors import TcmonError
from tcmon.export.selection import ALL_TIME, StepRange, Window, no_such_steps, window_of
from tcmon.trace.everystep import OUTSIDE, every_step
from tcmon.trace.index import TraceIndex
from tcmon.trace.reader import Process, Run, reason_of

_ROWS: Final = 1 << 16  # of a batch, which becomes a row group

_RAISED: Final = "raised "

type Advance = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type as pyarrow names it, and what it means. Only an optional one has nulls."""

    name: str
    type: str
    meaning: str
    optional: bool = False


_PID: Final = Column("pid", "int64", "process")
_ROLE: Final = Column("role", "string", "train or eval; other: outside of steps, after the program entered a stage")
_N: Final = Column("n", "int64", "number of the step, from 1, in its process and role")

TABLES: Final = {
    "runs": (
        _PID,
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
        _PID,
        Column("loop", "int64", "id in its process"),
        Column("role", "string", "train, eval or other"),
        Column("file", "string", "of the loop"),
        Column("qualname", "string", "the function that it is in"),
        Column("line", "int64", "of its for or while"),
        Column("found", "string", "static, dynamic or manual"),
        Column("evidence", "list", "why it has its role"),
    ),
    "functions": (
        _PID,
        Column("function", "int64", "id in its process"),
        Column("module", "string", "null where it couldn't be told", optional=True),
        Column("qualname", "string", "qualified name"),
        Column("file", "string", "of its source"),
        Column("line", "int64", "first of its source"),
    ),
    "steps": (
        _PID,
        _ROLE,
        _N,
        Column("stage", "string", "training, evaluation, ..."),
        Column("loop", "int64", "id of its loop"),
        Column("begin_ns", "int64", "ns since the process' clock was zero"),
        Column("wait_ns", "int64", "ns that it waited for data, from its begin on"),
        Column("duration_ns", "int64", "ns that it took, the wait included"),
        Column("recorded", "string", "why it was recorded in detail; null if it was not", optional=True),
        Column("calls_stored", "int64", "calls of it in the table calls", optional=True),
        Column("calls_dropped", "int64", "calls of it beyond the bound of a step", optional=True),
    ),
    "calls": (
        _PID,
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
}
"""The tables and their columns."""


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


def export(run: Run, folder: Path, *, steps: StepRange | None = None, advance: Advance = lambda _: None) -> Exported:
    """Write the tables of `run` as files into `folder`, which is there and empty.

    With `steps`, only the steps and calls that lie in their time. Raises TcmonError when there are no such steps,
    when pyarrow is missing, or when a file can't be read or written.
    """
    require_pyarrow()
    windows = [ALL_TIME if steps is None else window_of(process, steps, advance) for process in run.processes]
    if steps is not None and not any(windows):
        raise no_such_steps(run.processes, steps)
    exported = Exported()
    try:
        with ExitStack() as stack:
            tables = {
                name: stack.enter_context(_Table(folder / f"{name}.parquet", columns))
                for name, columns in TABLES.items()
            }
            for process, window in zip(run.processes, windows, strict=True):
                if window is not None:
                    _write(run, process, window, tables, exported, advance)
    except OSError as error:
        raise TcmonError(f"can't write the tables: {reason_of(error)}") from None
    return exported


class _Table:
    """Gathers rows and writes them batch by batch."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._arrow: Any = import_module("pyarrow")
        types = {
            "int64": self._arrow.int64(),
            "uint64": self._arrow.uint64(),
            "string": self._arrow.string(),
            "list": self._arrow.list_(self._arrow.string()),
        }
        self._schema = self._arrow.schema(
            [
                self._arrow.field(
                    each.name, types[each.type], nullable=each.optional, metadata={"description": each.meaning}
                )
                for each in columns
            ]
        )
        self._path = path
        self._writer: Any = None
        self._rows: list[tuple[object, ...]] = []

    def __enter__(self) -> "_Table":
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


def _write(
    run: Run, process: Process, window: Window, tables: dict[str, _Table], exported: Exported, advance: Advance
) -> None:
    meta, pid = run.meta, process.pid
    index = TraceIndex(process.trace, advance)
    ended = meta.ended
    tables["runs"].add(
        pid,
        meta.script,
        meta.command,
        meta.cwd,
        meta.host,
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
    loops = {loop.id: loop for loop in meta.loops} if pid == meta.pid else {}
    for loop in (loops | index.loops).values():
        tables["loops"].add(pid, loop.id, loop.role, loop.file, loop.qualname, loop.line, loop.found, loop.evidence)
    for function in index.functions.values():
        tables["functions"].add(pid, function.id, function.module, function.qualname, function.file, function.line)
    for each in every_step(process, advance):
        times, recorded = each.times, each.recorded
        if window.holds(times.begin, times.begin + times.end):
            tables["steps"].add(
                pid,
                times.role,
                times.n,
                each.stage,
                times.loop,
                times.begin,
                times.wait,
                times.end,
                recorded.reason if recorded else None,
                recorded.calls_stored if recorded else None,
                recorded.calls_dropped if recorded else None,
            )
            exported.steps += times.role != OUTSIDE
            exported.recorded += times.role != OUTSIDE and recorded is not None
    try:
        with process.trace.open("rb") as file:
            for row in _calls(index, file, window, advance):
                tables["calls"].add(pid, *row)
                exported.calls += 1
    except OSError as error:
        raise TcmonError(f"can't export {str(process.trace)!r}: {reason_of(error)}") from None
    exported.damaged_calls += index.damaged_calls


def _calls(index: TraceIndex, file: BinaryIO, window: Window, advance: Advance) -> Iterator[tuple[object, ...]]:
    """The calls of the recorded steps in a window, by the order in which the steps began, without the pid."""
    for place in index.in_time(window.begin, window.end):
        recorded = index.load(file, place)
        advance(index.size(place))
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
