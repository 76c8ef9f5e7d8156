"""The files of one process in a run directory.

Lines are written whole and unbuffered, so that a process that is killed leaves everything up to its last call.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, pairwise
from operator import sub
from pathlib import Path
from typing import Any

import orjson

from tcmon.trace.journal import PHASES, Columns, role_and_stage

type _Data = bytes


class TraceWriter:
    """Appends records, one JSON object a line, to a file that did not exist before.

    What could not be written, since the disk was full or a signal's handler raised, is written with the next records.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._lock = threading.RLock()
        self._written = 0
        self._pending = b""
        self.receipt: object = None

    @property
    def bytes(self) -> int:
        """Bytes of all records so far."""
        return self._written + len(self._pending)

    def write(self, records: Iterable[dict[str, Any]], receipt: object = None) -> None:
        """Append `records`; raises `OSError` if the file can't take them (yet). Does nothing once it is closed.

        `self.receipt` is `receipt`, if there is one, as soon as the records are held here; they are not lost from then
        on, whatever this raises.
        """
        self.append(lines(records), receipt)

    def append(self, data: _Data, receipt: object = None) -> None:
        """As `write`, for records that are `lines` already."""
        try:
            self._lock.acquire()
            if self._descriptor >= 0:
                # No call in between, in which a signal's handler could run.
                self._pending, self.receipt = self._pending + data, receipt or self.receipt
                self._flush()
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass  # a signal's handler raised before it was acquired

    def _flush(self) -> None:
        # The file itself tells how much it holds: a signal's handler may raise right after a write, or within.
        while (done := max(0, os.fstat(self._descriptor).st_size - self._written)) < len(self._pending):
            try:
                os.write(self._descriptor, memoryview(self._pending)[done:])
            except OSError:
                os.ftruncate(self._descriptor, self._written + self._pending.rfind(b"\n", 0, done) + 1)
                raise
        self._written, self._pending = self._written + len(self._pending), b""

    def close(self) -> None:
        """Close the file. Another thread may still write, to nowhere."""
        try:
            self._lock.acquire()
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                os.close(descriptor)
        finally:
            try:
                self._lock.release()
            except RuntimeError:
                pass  # a signal's handler raised before it was acquired


def lines(records: Iterable[dict[str, Any]]) -> bytes:
    """Records as they stand in a trace."""
    return b"".join(_json(record, orjson.OPT_APPEND_NEWLINE) for record in records)


def _json(value: dict[str, Any], options: int) -> bytes:
    try:
        return orjson.dumps(value, option=options)
    except TypeError:
        return orjson.dumps(_encodable(value), option=options)


def _encodable(value: Any) -> Any:
    """`value` with lone surrogates, as in names of files that are no UTF-8, spelt out: JSON has no place for them."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {key: _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(each) for each in value]
    return value


_PHASE_UNIT = 1000


def steps_records(rows: Columns) -> Iterator[dict[str, Any]]:
    """`rows` as the trace's columns: a record for each run of consecutive steps of one loop and stage."""
    for loop, code in dict.fromkeys(zip(rows.loop, rows.code, strict=True)):
        chosen = rows
        if rows.loop.count(loop) < len(rows.loop) or rows.code.count(code) < len(rows.code):
            of_loop = [each == (loop, code) for each in zip(rows.loop, rows.code, strict=True)]
            chosen = Columns(*(list(compress(column, of_loop)) for column in rows))
        numbers = chosen.n
        breaks: list[int] = []
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            breaks = [i for i, (n, following) in enumerate(pairwise(numbers), 1) if following != n + 1]
        for low, high in pairwise([0, *breaks, len(numbers)]):
            begin = chosen.begin[low:high]
            role, stage = role_and_stage(code)
            yield {
                "kind": "steps",
                "role": role,
                "stage": stage,
                "loop": loop,
                "first": numbers[low],
                "begin": [begin[0], *map(sub, begin[1:], begin)],
                "wait": chosen.wait[low:high],
                "end": chosen.end[low:high],
                **_phases([column[low:high] for column in chosen.phases]),
            }


def _phases(columns: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The phases in which any time was spent, rounded down to microseconds: half the size of all that is written."""
    spent = {
        name: [each // _PHASE_UNIT for each in column]
        for name, column in zip(PHASES, columns, strict=True)
        if any(column)
    }
    return {"phases_unit": _PHASE_UNIT, "phases": spent} if spent else {}


def write_atomically(path: Path, value: dict[str, Any]) -> None:
    """Replace the file at `path` by `value` as JSON; a reader sees the old text or the new one, never a part.

    Raises `OSError` if that can't be done; the file is the old one then.
    """
    data = _json(value, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    temporary.unlink(missing_ok=True)
    try:
        # Never through a link that somebody put there.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
