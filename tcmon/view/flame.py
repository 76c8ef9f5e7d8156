"""The calls of recorded steps by their paths: which function called which, from the loop's own code down.

All steps share one tree of paths, so that a step is a set of paths with times, and the sum of all steps is another. The
meaning of a trace's events is `trace.calltree`'s.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from tcmon.trace.records import Calls, Step

DEPTH: Final = 60
"""Calls below it count as time of the call above them."""

PATHS: Final = 50_000
"""Beyond so many different paths, a new one counts as time of the call above it."""


@dataclass(slots=True)
class PathTime:
    """What the calls along one path come to, in nanoseconds; `own` is what no call below them took."""

    calls: int = 0
    total: int = 0
    own: int = 0


class Paths:
    """The tree of all paths. The roots stand for the loop's own frame, and for other threads."""

    def __init__(self, depth: int = DEPTH, paths: int = PATHS) -> None:
        self.parent = array("q")
        self.function = array("q")
        self.roots: dict[tuple[str, bool], int] = {}
        """By role, and whether it is of the thread that the loop runs in."""
        self.folded = 0
        """Calls that have no path of their own."""
        self._below: dict[tuple[int, int], int] = {}
        self._depth = array("q")
        self._most_deep = depth
        self._most = paths

    def root(self, role: str, *, own_thread: bool) -> int:
        """The path of no call."""
        key = role, own_thread
        if key not in self.roots:
            self.roots[key] = self._new(-1, 0, 0)
        return self.roots[key]

    def times(self, step: Step, rows: Iterable[Calls]) -> dict[int, PathTime]:
        """The calls of a step by path; a root has only time of its own, and no calls."""
        threads: dict[int, list[Calls]] = {}
        for row in rows:
            threads.setdefault(row.thread, []).append(row)
        found: dict[int, PathTime] = {}
        for thread, of_thread in threads.items():
            self._replay(found, step, of_thread, own_thread=thread == step.thread)
        return found

    def _replay(self, found: dict[int, PathTime], step: Step, rows: Sequence[Calls], *, own_thread: bool) -> None:
        node = self.root(step.role, own_thread=own_thread)
        below = self._below
        # Of each open call the path that it was made from, and when it began; -1 for a call without a path of its own.
        stack: list[tuple[int, int, PathTime]] = []
        push, pop = stack.append, stack.pop
        at = found.setdefault(node, PathTime())
        since = -1
        now = rows[0].begin
        for row in rows:
            if row.begin > now:
                if not own_thread:
                    node, since, at = _end_all(node, since, at, stack, now)
                now = row.begin
            own = 0  # of the innermost open call, since it was last looked at
            for what, passed in zip(row.what, row.at, strict=True):
                now += passed
                own += passed
                if what > 0:
                    child = below.get((node, what)) or self._add(node, what)
                    push((node, since, at))
                    if child == node:
                        self.folded += 1
                        since = -1
                        continue
                    at.own += own
                    own = 0
                    node, since = child, now
                    try:
                        at = found[child]
                    except KeyError:
                        at = found[child] = PathTime()
                    at.calls += 1
                elif stack:
                    at.own += own
                    own = 0
                    if since >= 0:
                        at.total += now - since
                    node, since, at = pop()
            at.own += own
        last = now if step.calls_dropped else max(now, step.begin + step.end)
        at.own += last - now
        _end_all(node, since, at, stack, last)

    def _add(self, node: int, function: int) -> int:
        if self._depth[node] >= self._most_deep or len(self.parent) >= self._most:
            return node
        child = self._below[node, function] = self._new(node, function, self._depth[node] + 1)
        return child

    def _new(self, parent: int, function: int, depth: int) -> int:
        self.parent.append(parent)
        self.function.append(function)
        self._depth.append(depth)
        return len(self.parent) - 1


def _end_all(
    node: int, since: int, at: PathTime, stack: list[tuple[int, int, PathTime]], now: int
) -> tuple[int, int, PathTime]:
    while stack:
        if since >= 0:
            at.total += now - since
        node, since, at = stack.pop()
    return node, since, at


@dataclass(slots=True)
class Flame:
    """Some paths with their times, each after the one above it: columns."""

    path: array[int] = field(default_factory=lambda: array("q"))
    calls: array[int] = field(default_factory=lambda: array("q"))
    total: array[int] = field(default_factory=lambda: array("q"))
    own: array[int] = field(default_factory=lambda: array("q"))
    left_out: int = 0
    """Paths that are not among them."""


def largest(times: Mapping[int, PathTime], most: int) -> Flame:
    """The `most` paths with the most time, none without the one above it."""
    # A path takes no less time than one below it, and has a lower number.
    paths = [path for path, time in times.items() if time.calls]
    chosen = nsmallest(most, paths, key=lambda path: (-times[path].total, path))
    flame = Flame(left_out=len(paths) - len(chosen))
    for path in sorted(chosen):
        time = times[path]
        flame.path.append(path)
        flame.calls.append(time.calls)
        flame.total.append(time.total)
        flame.own.append(time.own)
    return flame


def add_times(into: dict[int, PathTime], times: Mapping[int, PathTime]) -> None:
    """Count the calls of a step in."""
    for path, time in times.items():
        sums = into.setdefault(path, PathTime())
        sums.calls += time.calls
        sums.total += time.total
        sums.own += time.own
