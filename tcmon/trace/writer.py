"""The files of one process in a run directory.

Lines are written whole and unbuffered, so that a process that is killed leaves everything up to its last call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import compress, pairwise
from operator import sub
from pathlib import Path
from typing import Any

import orjson

from tcmon.trace.journal import ROLES, Columns


class TraceWriter:
    """Appends records, one JSON object a line, to a file that did not exist before."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self.bytes = 0

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Append `records`; raises `OSError` if the file can't take them."""
        data = b"".join(_line(record) for record in records)
        self.bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def close(self) -> None:
        os.close(self._descriptor)


def _line(record: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # A name with lone surrogates, as of a file that is no UTF-8: orjson takes none of these.
        return json.dumps(record).encode() + b"\n"


def steps_records(rows: Columns) -> Iterator[dict[str, Any]]:
    """`rows` as the trace's columns: one record for each run of consecutive steps of one loop."""
    for loop in dict.fromkeys(rows.loop):
        chosen = rows
        if rows.loop.count(loop) < len(rows.loop):
            of_loop = [each == loop for each in rows.loop]
            chosen = Columns(*(list(compress(column, of_loop)) for column in rows))
        numbers = chosen.n
        breaks: list[int] = []
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            breaks = [i for i, (n, following) in enumerate(pairwise(numbers), 1) if following != n + 1]
        for low, high in pairwise([0, *breaks, len(numbers)]):
            begin = chosen.begin[low:high]
            yield {
                "kind": "steps",
                "role": ROLES[chosen.role[low]],
                "loop": loop,
                "first": numbers[low],
                "begin": [begin[0], *map(sub, begin[1:], begin)],
                "wait": chosen.wait[low:high],
                "end": chosen.end[low:high],
            }


def write_atomically(path: Path, value: dict[str, Any]) -> None:
    """Replace the file at `path` by `value` as JSON; a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="ascii")
    temporary.replace(path)
