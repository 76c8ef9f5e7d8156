"""What the page's charts are drawn from: plain objects, as small as they can be.

Times are microseconds, rounded to a tenth; other figures have five digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import PurePath
from typing import Final

from tcmon.report import wording
from tcmon.report.frontier import STEP_PHASES
from tcmon.report.summary import Summary
from tcmon.trace.calltree import lost_function
from tcmon.trace.records import Function
from tcmon.view.course import Course
from tcmon.view.flame import Flame
from tcmon.view.gather import Recorded, Times, TimesByRole
from tcmon.view.parameters import Grid, Norms

type Json = str | int | float | bool | Sequence["Json"] | Mapping[str, "Json"] | None

PART_NAMES: Final = {
    "wait": "data wait",
    "data": "data wait in the body",
    "evaluation": "evaluation",
    "checkpoint": "saving",
    "collective": "waiting for ranks",
}

_SHARES: Final = 300
_NAME: Final = 120
_KINDS: Final = ("torch", "torchvision", "torchaudio")


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The training steps of one rank."""

    label: str
    own: Course


def page_data(
    summary: Summary, times: TimesByRole, recorded: Recorded, ranks: Sequence[RankTimes], cwd: PurePath
) -> dict[str, Json]:
    """All of it as one object."""
    packed = _Functions(recorded, cwd)
    return {
        "roles": {role: _role(each) for role, each in times.roles.items() if each.count},
        "texts": [shown(text) for text in times.texts],
        "steps": {role: _steps(role, times, recorded, packed) for role in times.roles if times.roles[role].count},
        "all": {
            role: {
                "steps": recorded.steps[role],
                "took": _us(recorded.took[role]),
                "flame": packed.flame(recorded.of_all(role)),
            }
            for role in times.roles
            if recorded.steps[role]
        },
        "loss": {role: _course(each) for role, each in recorded.losses.items() if len(each) or each.nonfinite},
        "norms": _norms(recorded.norms, recorded) if len(recorded.norms.norm) or recorded.norms.spoilt else None,
        "ranks": _ranks(summary, ranks),
        # Last, when all that is used is known.
        "functions": packed.functions(),
        "paths": packed.paths(),
    }


def shown(text: str, most: int = _NAME) -> str:
    """A text of the program without anything that is no character to be read, its end if it is long."""
    return wording.cropped(wording.printable(text), most, "…")


def _role(times: Times) -> Json:
    course = times.own
    return {
        "count": times.count,
        "course": _times(course),
        "whole": {"n": list(times.whole.highest), "took": _times_of(times.whole.high)},
        "shares": _shares(times),
        "perBucket": course.per_bucket,
    }


def _times(course: Course) -> Json:
    return {
        "first": list(course.first),
        "last": list(course.last),
        "low": _times_of(course.low),
        "mean": _times_of(course.mean()),
        "high": _times_of(course.high),
        "highest": list(course.highest),
    }


def _shares(times: Times) -> Json:
    """Parts of the steps' time, each as its share of a stretch of steps."""
    course = times.own
    if not len(course):
        return None
    each = -(-len(course) // _SHARES)
    starts = range(0, len(course), each)
    whole, *parts = ([sum(column[at : at + each]) for at in starts] for column in course.sums)
    return {
        "n": [(course.first[at] + course.last[min(at + each, len(course)) - 1]) / 2 for at in starts],
        "parts": [
            {
                "name": PART_NAMES.get(name, name),
                "share": [round(part / of, 4) if of else 0 for part, of in zip(column, whole, strict=True)],
            }
            for name, column in zip(Times.PARTS, parts, strict=True)
            if times.parts[name]
        ],
    }


def _steps(role: str, times: TimesByRole, recorded: Recorded, packed: _Functions) -> Json:
    marks = times.roles[role].marks
    places = times.drawn(role)
    flames, lines, at_line = [], [], []
    for n in places:
        drawn = recorded.drawn.get((role, n))
        flames.append(packed.flame(drawn.flame) if drawn else None)
        lines.append(_times_of(drawn.lines.ns) if drawn else [])
        at_line.append(list(drawn.lines.at) if drawn else [])
    return {
        "n": list(places),
        "took": _times_of(marks.took[at] for at in places.values()),
        "waited": _times_of(marks.waited[at] for at in places.values()),
        "evaluated": _times_of(marks.evaluated[at] for at in places.values()),
        "reason": [marks.reason[at] for at in places.values()],
        "stage": [marks.stage[at] for at in places.values()],
        "recorded": len(marks.n),
        "flames": flames,
        "line": at_line,
        "lineTook": lines,
    }


class _Functions:
    """Functions and paths that the page needs, numbered anew."""

    def __init__(self, recorded: Recorded, cwd: PurePath) -> None:
        self._recorded = recorded
        self._cwd = cwd
        self._function: dict[int, int] = {}
        self._path: dict[int, int] = {}
        self._others = {root for (_, own), root in recorded.paths.roots.items() if not own}

    def flame(self, flame: Flame) -> Json:
        """Columns: numbers of paths, total and own time, calls."""
        return [
            [self._numbered(path) for path in flame.path],
            _times_of(flame.total),
            _times_of(flame.own),
            list(flame.calls),
            flame.left_out,
        ]

    def functions(self) -> Json:
        """Name, place and kind of each function; the kind is 0 for the program's own, 1 for torch, 2 for others."""
        known = self._recorded.functions
        return [self._described(known.get(id_) or lost_function(id_)) for id_ in self._function]

    def paths(self) -> Json:
        """Columns: the path above (-1: none, -2: none, in another thread), and the function."""
        paths = self._recorded.paths
        above = (paths.parent[path] for path in self._path)
        return [
            [self._path.get(parent, -2 if parent in self._others else -1) for parent in above],
            [self._function[paths.function[path]] for path in self._path],
        ]

    def _numbered(self, path: int) -> int:
        number = self._path.get(path)
        if number is None:
            number = self._path[path] = len(self._path)
            self._function.setdefault(self._recorded.paths.function[path], len(self._function))
        return number

    def _described(self, function: Function) -> Json:
        place = wording.path(function.file, self._cwd)
        return [shown(function.qualname), shown(f"{place}:{function.line}") if function.file else "", _kind(function)]


def _kind(function: Function) -> int:
    if (function.module or "").partition(".")[0] in _KINDS:
        return 1
    installed = any(part in ("site-packages", "dist-packages", "lib") for part in PurePath(function.file).parts)
    return 2 if installed or function.file.startswith("<") else 0


def _course(course: Course) -> Json:
    return {
        "first": list(course.first),
        "last": list(course.last),
        "low": _digits(course.low),
        "mean": _digits(course.mean()),
        "high": _digits(course.high),
        "highest": list(course.highest),
        "nonfinite": course.nonfinite,
    }


def _norms(norms: Norms, recorded: Recorded) -> Json:
    names = {}
    for parameter in norms.grids["norm"].rows:
        known = recorded.parameters.get(parameter)
        names[parameter] = shown(known.name) if known else f"parameter {parameter}"
    return {
        "grad": _course(norms.grad),
        "norm": _course(norms.norm),
        "update": _course(norms.update),
        "updateMost": _course(norms.update_most),
        "spoilt": norms.spoilt,
        "names": list(names.values()),
        "leftOut": len(norms.left_out),
        "grids": {name: _grid(grid) for name, grid in norms.grids.items()},
    }


def _grid(grid: Grid) -> Json:
    return {
        "first": list(grid.first),
        "last": list(grid.last),
        "mean": [_digits(row) for row in grid.means()],
        "most": [_digits(row) for row in grid.most()],
    }


def _ranks(summary: Summary, ranks: Sequence[RankTimes]) -> Json:
    if len(ranks) < 2:
        return None
    frontier = summary.frontier
    phases = {each.rank: each.phases for each in frontier.ranks} if frontier else {}
    return {
        "courses": [
            {"label": each.label, "n": list(each.own.first), "mean": _times_of(each.own.mean())} for each in ranks
        ],
        "phases": [
            {
                "name": PART_NAMES.get(phase, phase),
                "rank": [f"rank {rank}" for rank in phases],
                "took": _times_of(of_rank.get(phase, 0) for of_rank in phases.values()),
            }
            for phase in STEP_PHASES
            if any(of_rank.get(phase) for of_rank in phases.values())
        ],
    }


def _us(nanoseconds: float) -> float:
    return round(nanoseconds / 1000, 1)


def _times_of(nanoseconds: Iterable[float]) -> list[float]:
    return [round(each / 1000, 1) for each in nanoseconds]


def _digits(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None or not isfinite(value) else float(f"{value:.5g}") for value in values]
