"""The source around the lines that a loop's time goes to."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from pathlib import Path

_AROUND = 2


def source_lines(file: str, lines: Iterable[int], started_s: float) -> dict[int, str] | None:
    """Lines of a file from the first of `lines` to the last, with a few around them, by number.

    None if the file is gone, or was changed after `started_s` (unix time) and may be another than the one that ran.
    """
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_mtime > started_s:
            return None
    except (OSError, ValueError):
        return None
    linecache.checkcache(file)
    known = linecache.getlines(file)
    wanted = sorted(lines)
    if not known or wanted[-1] > len(known):
        return None
    numbers: list[int] = []
    for line in wanted:
        # What lies between two lines is shown too, unless it is long.
        begin = line - _AROUND
        if numbers and begin - numbers[-1] < _AROUND * 4:
            begin = numbers[-1] + 1
        numbers += range(max(1, begin), line + 1)
    numbers += range(wanted[-1] + 1, min(len(known), wanted[-1] + _AROUND) + 1)
    return {number: known[number - 1].rstrip("\n") for number in dict.fromkeys(numbers)}
