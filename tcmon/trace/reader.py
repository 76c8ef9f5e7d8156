"""Reads a run directory, one record at a time.

Nothing here holds a whole trace: records come from an iterator, and what is kept to bring calls and
their step together is one step's worth. A trace that was cut at any byte, or damaged in the middle,
gives the records that are whole, and counts what isn't.
"""

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tcmon.errors import TcmonError
from tcmon.trace import details, fields, records
from tcmon.trace.calltree import Call, call_trees
from tcmon.trace.details import (
    Args,
    Buffers,
    DeviceTime,
    Inputs,
    Lines,
    Loss,
    Modes,
    Module,
    Ops,
    Owners,
    Signs,
    State,
    StepDetail,
)
from tcmon.trace.fields import Damaged
from tcmon.trace.journal import StepTimes, read_journal
from tcmon.trace.records import (
    FORMAT,
    Calls,
    End,
    ExceptionType,
    Function,
    Header,
    Loop,
    Record,
    RunMeta,
    Step,
    Steps,
    UnknownKind,
)

_META: Final = "run.json"
_META_OF_RANK: Final = re.compile(r"run-rank(\d{1,9})\.json")
_TRACE: Final = re.compile(r"trace-(?:rank(\d{1,9})\.(\d{1,9})-)?(\d{1,19})(?:\.(\d{1,9}))?\.jsonl")

# The writer's lines are far shorter; what is longer is damage, and must not be held in memory.
LINE_LIMIT: Final = 64 << 20

_BLOCK: Final = 1 << 17

_LOOP: Final = b'{"kind":"loop"'
CALLS: Final = b'{"kind":"calls"'
_DETAILS: Final = {kind: f'{{"kind":"{kind}"'.encode() for kind in details.READERS}

OF_A_STEP: Final = (Calls, Lines, Args, Owners, Loss, State, Modes, Buffers, Inputs, Signs, Ops, DeviceTime)
_OF_A_LOOP: Final = (Steps, Step, *OF_A_STEP)

# Steps of several roles and threads can be open at once, but few. What is more was left over by damage.
OPEN_STEPS: Final = 16


def open_run(path: Path, rank: int | None = None) -> "Run":
    """The run that the directory `path` holds, with the facts of `rank`, or of the lowest rank that left any.

    Raises TcmonError when there is no such directory or no run in it, when its run.json is damaged, and
    when another format than this version's was written by a later one.
    """
    name = repr(str(path))
    try:
        if not path.is_dir():
            raise TcmonError(f"not a directory: {name}" if path.exists() else f"no such directory: {name}")
        files = sorted(path.iterdir())
        of_ranks = {int(match[1]): match[0] for each in files if (match := _META_OF_RANK.fullmatch(each.name))}
        chosen = _META
        if rank:
            chosen = of_ranks.get(rank, f"run-rank{rank}.json")
        elif rank is None and of_ranks and not (path / _META).exists():
            chosen = of_ranks[min(of_ranks)]  # rank 0 wrote to another disk, or died first
        data = (path / chosen).read_bytes()
    except FileNotFoundError:
        if rank is not None:
            raise TcmonError(f"{name} holds nothing of rank {rank}") from None
        raise TcmonError(f"{name} holds no tcmon run (no {_META})") from None
    except (OSError, ValueError) as error:
        raise TcmonError(f"{name} can't be read: {reason_of(error)}") from None
    try:
        facts = fields.parse(data)
        require_known(records.read_format(facts), name)
        meta = records.read_meta(facts)
    except Damaged as damage:
        raise TcmonError(f"{chosen} is damaged in {name}: {damage}") from None
    if rank is not None and (meta.rank or 0) != rank:
        raise TcmonError(f"{name} holds nothing of rank {rank}")
    processes = [_process(each, match) for each in files if (match := _TRACE.fullmatch(each.name))]
    # A rank that was started anew, or attached to again, shows its latest trace first.
    processes.sort(key=lambda each: (each.rank or 0, -each.restart, each.pid, -each.session))
    processes.sort(key=lambda each: not (each.pid == meta.pid and each.rank in (None, meta.rank)))
    return Run(path, meta, tuple(processes))


def _process(trace: Path, match: re.Match[str]) -> "Process":
    rank, restart, pid, session = match.groups()
    return Process(
        trace, int(pid), None if rank is None else int(rank), int(restart or 0), 1 if session is None else int(session)
    )


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its facts, and its processes that left a trace; the one that was started first leads."""

    path: Path
    meta: RunMeta
    processes: tuple["Process", ...]


@dataclass(frozen=True, slots=True)
class Process:
    """What one process left in a run directory."""

    trace: Path
    pid: int
    rank: int | None = None
    """Of a distributed run whose ranks share the directory."""
    restart: int = 0
    session: int = 1

    def header(self) -> Header | None:
        """The first record; None where it is not whole. Raises TcmonError when the file can't be read."""
        try:
            with self.trace.open("rb") as file:
                first = records.read_record(file.readline(LINE_LIMIT))
        except Damaged:
            return None
        except OSError as error:
            raise TcmonError(f"{str(self.trace)!r} can't be read: {reason_of(error)}") from None
        return first if isinstance(first, Header) else None

    def read(self, *, calls: bool = True, details: bool | Container[str] = False) -> "Reading":
        """The records of the trace, read from its first one on; those of `calls` or `details` only if asked for.

        `details` may also name the kinds that are wanted.
        """
        return Reading(self.trace, calls=calls, details=details)

    def unwritten_steps(self) -> list[StepTimes]:
        """Times of the latest steps, which the journal keeps since they may not have reached the trace yet.

        While the process runs, read them before the trace: steps then turn up twice, by the same role
        and number, and not at all never.
        """
        try:
            times = read_journal(self.trace.with_suffix(".journal"))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TcmonError(f"the journal of {str(self.trace)!r} can't be read: {reason_of(error)}") from None
        retracted = retracted_loops(self.trace)
        return [each for each in times if _is_sound(each) and each.loop not in retracted]

    def recorded_steps(self) -> Iterator["RecordedStep"]:
        """The steps that were recorded in detail, in the order in which they ended."""
        functions: dict[int, Function] = {}
        exceptions: dict[int, ExceptionType] = {}
        modules: dict[int, Module] = {}
        pending = PendingRows[Calls | StepDetail]()
        for record in self.read(details=True):
            if isinstance(record, OF_A_STEP):
                pending.add(record)
                continue
            match record:
                case Function():
                    functions[record.id] = record
                case ExceptionType():
                    exceptions[record.id] = record
                case Module():
                    modules[record.id] = record
                case Step():
                    yield recorded_step(record, pending.take(record), functions, exceptions, modules)
                case _:
                    pass


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step that was recorded in detail, with the outermost calls of every thread in it, and all else kept of it."""

    step: Step
    calls: tuple[Call, ...]
    details: tuple[StepDetail, ...] = ()


def recorded_step(
    step: Step,
    rows: Sequence[Calls | StepDetail],
    functions: Mapping[int, Function],
    exceptions: Mapping[int, ExceptionType],
    modules: Mapping[int, Module],
) -> RecordedStep:
    """A step with its rows put together."""
    calls = [row for row in rows if isinstance(row, Calls)]
    details = tuple(row for row in rows if not isinstance(row, Calls))
    return RecordedStep(step, call_trees(step, calls, functions, exceptions, details, modules), details)


class Reading:
    """One pass over a trace, first record to last. What it tells holds for what was read so far."""

    complete: bool
    """Whether the trace has an end record: its process came to an end and could say so."""

    damaged: int
    """Lines that are no record, somewhere before the end; they were passed over."""

    unknown: int
    """Records of a kind that this version doesn't know; they were passed over."""

    cut: int
    """Bytes at the end that are the beginning of a record: the process was killed, or is just writing."""

    size: int
    """Bytes read."""

    def __init__(self, trace: Path, *, calls: bool = True, details: bool | Container[str] = False) -> None:
        self._trace = trace
        wanted = (_DETAILS if details else ()) if isinstance(details, bool) else details
        unwanted = tuple(prefix for kind, prefix in _DETAILS.items() if kind not in wanted)
        self._skipped = (() if calls else (CALLS,)) + unwanted
        self._records = self._pass()
        self.complete = False
        self.damaged = self.unknown = self.cut = self.size = 0

    def __iter__(self) -> Iterator[Record]:
        """The records in order. Raises TcmonError when the file can't be read, or is of a later format."""
        return self._records

    def _pass(self) -> Iterator[Record]:
        try:
            retracted = retracted_loops(self._trace)
            with self._trace.open("rb") as file:
                while line := file.readline(LINE_LIMIT):
                    self.size += len(line)
                    if line.startswith(self._skipped):
                        continue
                    record = self._record(line)
                    if record is None:
                        continue
                    if retracted and isinstance(record, _OF_A_LOOP) and record.loop in retracted:
                        continue
                    yield record
        except OSError as error:
            raise TcmonError(f"{str(self._trace)!r} can't be read: {reason_of(error)}") from None

    def _record(self, line: bytes) -> Record | None:
        try:
            record = records.read_record(line)
        except UnknownKind:
            self.unknown += 1
            return None
        except Damaged:
            if line.endswith(b"\n") or len(line) == LINE_LIMIT:
                self.damaged += 1
            else:
                self.cut = len(line)
            return None
        if isinstance(record, Header):
            require_known(record.format, repr(str(self._trace)))
        elif isinstance(record, End):
            self.complete = True
        return record


def retracted_loops(trace: Path) -> frozenset[int]:
    """Loops of which the trace says in the end that they were none of the roles that their steps were counted for.

    The steps of such a loop are in the trace, since it was not known yet when they were written; they do not count.
    """
    last: dict[int, str] = {}
    with trace.open("rb") as file:
        for line in _lines_with(_LOOP, file):
            try:
                record = records.read_record(line)
            except Damaged:
                continue
            if isinstance(record, Loop):
                last[record.id] = record.role
    return frozenset(loop for loop, role in last.items() if role == "other")


def _lines_with(text: bytes, file: BinaryIO) -> Iterator[bytes]:
    """What follows `text` wherever it occurs, and it itself, up to the end of the line; fast where it is rare."""
    at, kept = 0, b""
    while block := file.read(_BLOCK):
        data = kept + block
        begin = data.find(text)
        while begin >= 0:
            file.seek(at + begin)
            yield file.readline(LINE_LIMIT).removesuffix(b"\n")
            begin = data.find(text, begin + 1)
        at += len(data)
        kept = data[1 - len(text) :]
        at -= len(kept)
        file.seek(at + len(kept))


class PendingRows[Row: Calls | StepDetail]:
    """Holds what was kept of steps being recorded until the record of the step, which follows it, is there."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], list[Row]] = {}

    def add(self, row: Row) -> None:
        """Keep `row` for its step."""
        self._rows.setdefault((row.role, row.n), []).append(row)
        if len(self._rows) > OPEN_STEPS:
            del self._rows[next(iter(self._rows))]

    def take(self, step: Step) -> list[Row]:
        """Everything that was kept for `step`, which is then forgotten."""
        return self._rows.pop((step.role, step.n), [])


def _is_sound(times: StepTimes) -> bool:
    return (
        0 < times.n < fields.COUNT_LIMIT
        and 0 <= times.begin < fields.TIME_LIMIT
        and 0 <= times.wait <= times.end < fields.TIME_LIMIT
    )


def require_known(found: int, name: str) -> None:
    """Raise TcmonError when format `found` in the file or directory `name` is a later version's."""
    if found > FORMAT:
        raise TcmonError(f"{name} was written by a newer tcmon (format {found}; this one reads format {FORMAT})")


def reason_of(error: OSError | ValueError) -> str:
    """Why a file can't be read, in a few words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
