"""Where a trace holds its recorded steps, to read them in the order of time, or just some of them.

A step's record stands where the step ended, so that of a step with another loop's steps in it comes after theirs.
"""

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from tcmon.errors import TcmonError
from tcmon.trace.details import ROLES, Module, StepDetail
from tcmon.trace.fields import Damaged
from tcmon.trace.reader import (
    CALLS,
    LINE_LIMIT,
    OF_A_STEP,
    OPEN_STEPS,
    RecordedStep,
    reason_of,
    recorded_step,
    require_known,
    retracted_loops,
)
from tcmon.trace.records import Calls, ExceptionType, Function, Header, Loop, Record, Step, read_record

_STEP_OF_ROWS: Final = re.compile(rb'\{"kind":"(?:calls|args|owners|lines|ops)","role":"([a-z]+)","n":(\d{1,15}),')


def _column() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class _Places:
    """One entry a recorded step: which it is, its clock values, and where its first row and its record stand."""

    role: "array[int]" = field(default_factory=_column)
    n: "array[int]" = field(default_factory=_column)
    begin: "array[int]" = field(default_factory=_column)
    end: "array[int]" = field(default_factory=_column)
    rows: "array[int]" = field(default_factory=_column)
    record: "array[int]" = field(default_factory=_column)


class TraceIndex:
    """The recorded steps of one trace (48 bytes each are kept), and the records that their calls refer to.

    Reads the trace once, calls unread; `advance` is told of the bytes read. What is appended to the trace later is
    not in the index. Raises TcmonError when the trace can't be read.
    """

    def __init__(self, trace: Path, advance: Callable[[int], object] | None = None) -> None:
        self.functions: dict[int, Function] = {}
        self.exceptions: dict[int, ExceptionType] = {}
        self.modules: dict[int, Module] = {}
        self.loops: dict[int, Loop] = {}
        self.start_unix_ns: int | None = None
        """When the session's clock was zero; None where the trace lost it."""
        self.damaged_calls = 0
        """Rows of calls that `load` found to be no records."""
        self._trace = trace
        self._places = _Places()
        try:
            self._retracted = retracted_loops(trace)
            with trace.open("rb") as file:
                self._read(file, advance)
        except OSError as error:
            raise TcmonError(f"{str(trace)!r} can't be read: {reason_of(error)}") from None

    def numbers(self, role: str) -> list[int]:
        """The numbers of the recorded steps of a role, sorted."""
        wanted = ROLES.index(role)
        places = self._places
        return sorted(n for each, n in zip(places.role, places.n, strict=True) if each == wanted)

    def find(self, role: str, n: int) -> int | None:
        """The place of a step in the index; None when it was not recorded."""
        wanted = ROLES.index(role), n
        pairs = zip(self._places.role, self._places.n, strict=True)
        return next((place for place, pair in enumerate(pairs) if pair == wanted), None)

    def in_time(self, begin: int, end: int) -> list[int]:
        """The places of the steps that lie within two clock values, sorted by their begin."""
        places = self._places
        chosen = [at for at in range(len(places.n)) if begin <= places.begin[at] and places.end[at] <= end]
        chosen.sort(key=lambda at: (places.begin[at], -places.end[at]))
        return chosen

    def begin(self, place: int) -> int:
        """The clock value at which a step began."""
        return self._places.begin[place]

    def size(self, place: int) -> int:
        """How many bytes of the trace `load` reads for a step."""
        return self._places.record[place] - self._places.rows[place]

    def load(self, file: BinaryIO, place: int, *, calls: bool = True) -> RecordedStep:
        """The step at `place` with all that was kept of it, out of the trace opened as `file`; calls if asked for."""
        places = self._places
        wanted = ROLES[places.role[place]], places.n[place]
        at = places.rows[place]
        rows: list[Calls | StepDetail] = []
        file.seek(at)
        while at < places.record[place] and (line := file.readline(LINE_LIMIT)):
            at += len(line)
            if not calls and line.startswith(CALLS):
                continue
            record = _record(line)
            if isinstance(record, OF_A_STEP):
                if (record.role, record.n) == wanted and record.loop not in self._retracted:
                    rows.append(record)
            elif record is None and line.startswith(CALLS):
                self.damaged_calls += 1
        step = _record(file.readline(LINE_LIMIT))
        if not isinstance(step, Step):
            raise TcmonError(f"{str(self._trace)!r} was changed while it was read")
        return recorded_step(step, rows, self.functions, self.exceptions, self.modules)

    def _read(self, file: BinaryIO, advance: Callable[[int], object] | None) -> None:
        first_rows: dict[tuple[str, int], int] = {}
        at = 0
        while line := file.readline(LINE_LIMIT):
            here, at = at, at + len(line)
            if advance is not None:
                advance(len(line))
            if match := _STEP_OF_ROWS.match(line):
                _note(first_rows, match[1].decode("ascii"), int(match[2]), here)
                continue
            record = _record(line)
            if isinstance(record, OF_A_STEP):
                _note(first_rows, record.role, record.n, here)
                continue
            match record:
                case Function():
                    self.functions[record.id] = record
                case ExceptionType():
                    self.exceptions[record.id] = record
                case Module():
                    self.modules[record.id] = record
                case Loop():
                    self.loops[record.id] = record
                case Step():
                    rows = first_rows.pop((record.role, record.n), here)
                    if record.loop not in self._retracted:
                        self._add(record, rows, here)
                case Header():
                    require_known(record.format, repr(str(self._trace)))
                    self.start_unix_ns = record.start_unix_ns
                case _:
                    pass

    def _add(self, step: Step, rows: int, record: int) -> None:
        places = self._places
        places.role.append(ROLES.index(step.role))
        places.n.append(step.n)
        places.begin.append(step.begin)
        places.end.append(step.begin + step.end)
        places.rows.append(rows)
        places.record.append(record)


def _record(line: bytes) -> Record | None:
    try:
        return read_record(line)
    except Damaged:
        return None


def _note(first_rows: dict[tuple[str, int], int], role: str, n: int, at: int) -> None:
    first_rows.setdefault((role, n), at)
    if len(first_rows) > OPEN_STEPS:
        del first_rows[next(iter(first_rows))]
