"""The times of the latest steps, in a small memory-mapped file that survives the death of the process.

A step that is not recorded costs no system call: its times are stored into mapped memory, which the operating system
writes out even if the process is killed the next moment. When the journal is full, or with the next recorded step, its
rows move into the trace, and the journal is filled from the start again. Rows left from before are recognised by their
step numbers, which the trace already holds.

Behind the rows is room for a request: another process asks there for the next steps to be recorded, without a signal,
a thread or a look at the file system. It is found with the next step.

Locks here, and in all work of callbacks, know their owner and are acquired within the `try` that releases them. `with`
is not enough: from Python 3.14 on, a signal's handler may raise once a lock is acquired and not yet guarded.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable, Sequence
from operator import add, gt
from pathlib import Path
from typing import NamedTuple

from tcmon.control import STAGES

_ROW = struct.Struct("14q")  # in the machine's byte order, so that a column is a slice of the memory
_OLD_ROW = struct.Struct("6q")
_OLD_SIZES = frozenset(_OLD_ROW.size * rows for rows in (2304, 2305))
"""Journals of tcmon before it knew of phases."""
_ROWS = 1024
_SPARE_ROWS = 128
_REQUEST_AT = _ROW.size * (_ROWS + _SPARE_ROWS)
_REQUEST = struct.Struct("q")
"""How many steps are asked for; a byte that says that something is asked for stands before it, padded to a cell."""
_SIZE = _REQUEST_AT + _ROW.size
_MOST_ASKED = 1 << 31
ROLES = ("train", "eval")


def role_and_stage(code: int) -> tuple[str, str]:
    """The role and stage of a step, which the journal holds as one number."""
    return ROLES[code % len(ROLES)], STAGES[code // len(ROLES)]


class StepTimes(NamedTuple):
    """When one step was: `begin` on the session's clock, `wait` and `end` as durations from it, in nanoseconds."""

    role: str
    loop: int
    n: int
    begin: int
    wait: int
    end: int
    stage: str = ""
    """Empty where it is not known."""
    phases: tuple[int, ...] = ()
    """The time in each of `PHASES`; empty where it is not known."""


class Columns(NamedTuple):
    """Rows of a journal, column by column; role and stage as one number. `none` is the time in no phase."""

    loop: list[int]
    code: list[int]
    begin: list[int]
    wait: list[int]
    end: list[int]
    data: list[int]
    forward: list[int]
    backward: list[int]
    optimizer: list[int]
    evaluation: list[int]
    checkpoint: list[int]
    collective: list[int]
    none: list[int]
    n: list[int]

    @property
    def phases(self) -> tuple[list[int], ...]:
        """The columns of `PHASES`, in their order."""
        return self[_FIRST_PHASE:_NO_PHASE]


_FIRST_PHASE = Columns._fields.index("data")
_NO_PHASE = Columns._fields.index("none")
PHASES = Columns._fields[_FIRST_PHASE:_NO_PHASE]
"""The parts of a step's time that are told apart, in the order in which a training step goes through them."""


def no_rows() -> Columns:
    """Columns without a row."""
    return Columns(*([] for _ in Columns._fields))


type StoreStep = Callable[[int, int, int, int, int, int, Sequence[int]], None]
"""Takes a step's loop, role and stage as one number, number, begin, body, end and phases."""


class StepJournal:
    """Appends the times of steps; `full` is called when there is room for no more, and must call `take`.

    `add(loop, code, n, begin, body, end, phases)` stores one step, `begin`, `body` and `end` as `perf_counter_ns`, the
    times in the phases and in none of them as durations. `asked` is
    called with the number of steps that another process wants to be recorded (`request_steps`).
    """

    def __init__(self, path: Path, origin: int, full: Callable[[], None], asked: Callable[[int], None]) -> None:
        # Room for one row more from every thread that adds while another moves the rows into the trace.
        self._buffer = _mapped(path, _SIZE)
        self._lock = threading.RLock()
        self._asked = asked
        self.add, self._used, self._drop = _adder(self._buffer, self._lock, origin, full, self._take_request)
        self._taken = 0

    def take(self) -> Columns:
        """The rows since the last call of `drop_taken`. One thread at a time may take and drop rows."""
        try:
            self._lock.acquire()
            self._taken = self._used()
            cells = memoryview(self._buffer)[: self._taken].cast("q").tolist()
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass  # a signal's handler raised before it was acquired
        width = len(Columns._fields)
        columns = Columns(*(cells[column::width] for column in range(width)))
        return _sound(columns) if columns.n else columns

    def drop_taken(self) -> None:
        """Forget the rows that were taken last: they are in the trace."""
        try:
            self._lock.acquire()
            self._drop(self._taken)
            self._taken = 0
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass  # a signal's handler raised before it was acquired

    def _take_request(self) -> None:
        [steps] = _REQUEST.unpack_from(self._buffer, _REQUEST_AT + _REQUEST.size)
        self._buffer[_REQUEST_AT] = 0
        self._asked(max(1, min(steps, _MOST_ASKED)))

    def close(self) -> None:
        """Let go of the file. Another thread may still add steps, to nowhere."""
        try:
            self._lock.acquire()
            if isinstance(self._buffer, mmap.mmap):
                self._buffer.close()
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass  # a signal's handler raised before it was acquired


def _sound(columns: Columns) -> Columns:
    """`columns` without what an odd moment has left in them.

    Every row pays for these looks, so they go over whole columns, without a step of Python's for each row.
    """
    if min(map(min, columns)) < 0 or any(map(gt, columns.wait, columns.end)):
        # A clock that was set back, by a library for tests.
        columns = Columns(*([max(0, value) for value in column] for column in columns))
        columns.end[:] = map(max, columns.wait, columns.end)
    # A signal's handler may have raised as a phase was just ended, and it was ended again.
    told = columns.wait
    for column in columns.phases:
        if any(column):
            told = list(map(add, told, column))
    if any(map(gt, told, columns.end)):
        for row, (time, end) in enumerate(zip(told, columns.end, strict=True)):
            if time > end:
                for column in columns.phases:
                    column[row] = 0
    if len(set(columns.n)) == len(columns.n):
        return columns
    last = {key: i for i, key in enumerate(zip(columns.loop, columns.n, strict=True))}
    if len(last) < len(columns.n):
        # A signal's handler raised when the step was just stored, and it was stored again as the loop was left.
        columns = Columns(*([column[i] for i in last.values()] for column in columns))
    return columns


def _adder(
    buffer: mmap.mmap | bytearray,
    lock: threading.RLock,
    origin: int,
    full: Callable[[], None],
    requested: Callable[[], None],
) -> tuple[StoreStep, Callable[[], int], Callable[[int], None]]:
    """`add` as a closure, since it is called for every step: attributes would cost more than what it does."""
    pack = _ROW.pack_into
    row = _ROW.size
    size = _ROW.size * _ROWS
    used = 0

    def add(loop: int, code: int, n: int, begin: int, body: int, end: int, phases: Sequence[int]) -> None:
        nonlocal used
        try:
            lock.acquire()
            # The step number is written last.
            pack(buffer, used, loop, code, begin - origin, body - begin, end - begin, *phases, n)
            used += row
        finally:
            try:
                lock.release()
            except RuntimeError:
                pass  # a signal's handler raised before it was acquired
        if used >= size:
            full()
        if buffer[_REQUEST_AT]:
            requested()

    def used_now() -> int:
        return used

    def drop(count: int) -> None:
        nonlocal used
        rest = used - count
        if rest:  # of other threads, meanwhile
            buffer[:rest] = buffer[count:used]
        used = rest

    return add, used_now, drop


def request_steps(path: Path, steps: int) -> None:
    """Ask the process whose journal this is to record its next `steps` steps; a request not yet taken is replaced.

    Raises `OSError` if the file can't be written, and `ValueError` if it is no journal.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size != _SIZE:
            raise ValueError("it is no journal of this version")
        os.pwrite(descriptor, _REQUEST.pack(steps), _REQUEST_AT + _REQUEST.size)
        os.pwrite(descriptor, b"\1", _REQUEST_AT)
    finally:
        os.close(descriptor)


def is_request_open(path: Path) -> bool:
    """Whether the process has not yet seen a request. Raises `OSError`."""
    with path.open("rb") as file:
        file.seek(_REQUEST_AT)
        return file.read(1) == b"\1"


def read_journal(path: Path) -> list[StepTimes]:
    """All rows of a journal, also those that the trace may hold already, in the order of writing.

    Raises `OSError` if it can't be read; a file that is no journal gives no rows.
    """
    return sorted(_rows(path.read_bytes()), key=lambda row: row.begin + row.end)


def _rows(data: bytes | bytearray) -> list[StepTimes]:
    row = _OLD_ROW if len(data) in _OLD_SIZES else _ROW
    whole = len(data) - len(data) % row.size
    return [
        _times(code, loop, n, max(0, begin), max(0, wait), max(0, wait, end), phases[: len(PHASES)])
        for loop, code, begin, wait, end, *phases, n in row.iter_unpack(data[:whole])
        if n > 0 and 0 <= code < len(ROLES) * len(STAGES) and loop > 0
    ]


def _times(code: int, loop: int, n: int, begin: int, wait: int, end: int, phases: Sequence[int]) -> StepTimes:
    role, stage = role_and_stage(code)
    if phases and (min(phases) < 0 or wait + sum(phases) > end):
        phases = ()
    return StepTimes(role, loop, n, begin, wait, end, stage, tuple(phases))


def _mapped(path: Path, size: int) -> mmap.mmap | bytearray:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            # Written, not truncated to length: a hole that can't be filled on a full disk would kill the process
            # with SIGBUS when it is stored into.
            os.write(descriptor, bytes(size))
            return mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return bytearray(size)  # without a mapping the rows since the last recorded step die with the process
