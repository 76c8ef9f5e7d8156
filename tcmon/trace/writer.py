"""The files of one process in a run directory.

Lines are written whole and unbuffered, so that a process that is killed leaves everything up to its last call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from tcmon.trace.journal import StepTimes

FORMAT = 1
"""Version of the trace format that this package writes."""


class TraceWriter:
    """Appends records, one JSON object a line, to a file that did not exist before."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.bytes = 0

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append `records`; raises `OSError` if the file can't take them."""
        data = b"".join(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE) for record in records)
        self.bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        os.close(self._descriptor)


def steps_records(rows: list[StepTimes]) -> list[dict[str, Any]]:
    """`rows` as columns: one record for each run of consecutive steps of one loop."""
    records: list[dict[str, Any]] = []
    open_records: dict[tuple[str, int], tuple[dict[str, Any], int]] = {}
    for row in rows:
        record, last = open_records.get((row.role, row.loop), (None, 0))
        if record is None or record["first"] + len(record["end"]) != row.n:
            record = {
                "kind": "steps",
                "role": row.role,
                "loop": row.loop,
                "first": row.n,
                "begin": [],
                "wait": [],
                "end": [],
            }
            records.append(record)
            last = 0
        record["begin"].append(row.begin - last)
        record["wait"].append(row.wait)
        record["end"].append(row.end)
        open_records[row.role, row.loop] = (record, row.begin)
    return records


def write_atomically(path: Path, value: dict[str, Any]) -> None:
    """Replace the file at `path` by `value` as JSON; a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    temporary.replace(path)
