"""The anatomy of a step: which lines of the loop's own code its time goes to."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import Final

from tcmon.trace.details import Lines
from tcmon.trace.records import Function

_ROLES: Final = ("train", "eval")


@dataclass(frozen=True, slots=True)
class LineSummary:
    """One line of a loop's code: how often it began and how long it took, in `steps` recorded steps of a role.

    `share` is its part of these steps' time, calls from it included.
    """

    role: str
    function: Function
    line: int
    hits: int
    ns: int
    steps: int
    share: float
    body: bool = True
    """Whether it is a line of the loop itself, not of a function that was named."""


class LineTimes:
    """Adds up the lines of recorded steps."""

    def __init__(self) -> None:
        self._ns: Counter[tuple[str, int, int]] = Counter()
        self._hits: Counter[tuple[str, int, int]] = Counter()
        self._steps: Counter[str] = Counter()
        self._total: Counter[str] = Counter()
        self._functions: dict[int, tuple[Counter[tuple[str, int, int]], Counter[tuple[str, int, int]]]] = {}

    def add(self, lines: Lines) -> None:
        """The lines of one more step."""
        if lines.body and lines.role in _ROLES:
            self._steps[lines.role] += 1
            for line, hits, ns in zip(lines.line, lines.hits, lines.ns, strict=True):
                self._ns[lines.role, lines.function, line] += ns
                self._hits[lines.role, lines.function, line] += hits
                self._total[lines.role] += ns
        elif lines.role in _ROLES:
            times, starts = self._functions.setdefault(lines.function, (Counter(), Counter()))
            for line, hits, ns in zip(lines.line, lines.hits, lines.ns, strict=True):
                times[lines.role, lines.function, line] += ns
                starts[lines.role, lines.function, line] += hits

    def of_functions(self, count: int, functions: Mapping[int, Function]) -> tuple[LineSummary, ...]:
        """The lines with the most time of each function that was named, by role; `count` of each."""
        found: list[LineSummary] = []
        for id_, (times, starts) in self._functions.items():
            for role in _ROLES:
                keys = [key for key in times if key[0] == role and id_ in functions]
                steps, total = self._steps[role], self._total[role]
                found += (
                    LineSummary(
                        role,
                        functions[id_],
                        key[2],
                        starts[key],
                        times[key],
                        max(1, steps),
                        times[key] / total if total else 0.0,
                        body=False,
                    )
                    for key in nlargest(count, keys, key=lambda key: times[key])
                )
        return tuple(found)

    def most(self, count: int, functions: Mapping[int, Function]) -> tuple[LineSummary, ...]:
        """The lines with the most time of a step, of training before evaluation; `count` of each."""
        found: list[LineSummary] = []
        for role in _ROLES:
            of_role = [key for key in self._ns if key[0] == role and key[1] in functions]
            found += (
                LineSummary(
                    role,
                    functions[key[1]],
                    key[2],
                    self._hits[key],
                    self._ns[key],
                    self._steps[role],
                    self._ns[key] / self._total[role] if self._total[role] else 0.0,
                )
                for key in nlargest(count, of_role, key=lambda key: self._ns[key])
            )
        return tuple(found)


def source_line(file: str, line: int, started_s: float) -> str | None:
    """The text of a line of a file as it was when the run began (unix time); None if it is gone or may be another."""
    try:
        path = Path(file)
        if not path.is_file() or path.stat().st_mtime > started_s:
            return None
    except (OSError, ValueError):
        return None
    linecache.checkcache(file)
    return linecache.getline(file, line).strip() or None
