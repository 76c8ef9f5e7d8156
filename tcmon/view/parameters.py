"""Norms of gradients and parameters, and sizes of updates, over the recorded steps of a run, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import isfinite, sqrt
from typing import Final

from tcmon.trace.details import State
from tcmon.view.course import Course

PARAMETERS: Final = 300
"""Those that are told apart; further ones are in the totals only."""

_CELLS: Final = 20_000
_COLUMNS: Final = 200


class Norms:
    """All parameters together, step by step, and each by itself in coarser time."""

    def __init__(self) -> None:
        self.grad = Course()
        """The norm of all gradients, as the optimizers got them."""
        self.norm = Course()
        """The norm of all parameters."""
        self.update = Course()
        """The middle one of the parameters' updates relative to their norms."""
        self.update_most = Course()
        """The largest one."""
        self.spoilt: list[tuple[int, int, int]] = []
        """Steps with how many NaN or infinite elements of gradients and of parameters, of the first such steps."""
        self.grids = {name: Grid() for name in ("grad", "norm", "update")}
        self.left_out: set[int] = set()
        """Parameters beyond those that are told apart."""

    def add(self, states: Sequence[State]) -> None:
        """Count in the states of all optimizers after one step."""
        if not states:
            return
        n = states[0].n
        grads = [each for state in states for each in state.grad_norm if each is not None]
        norms = [each for state in states for each in state.norm if each is not None]
        updates = sorted(each for state in states for each in state.update if each is not None and isfinite(each))
        spoilt_grads = sum(each or 0 for state in states for each in state.grad_nonfinite)
        spoilt = sum(each or 0 for state in states for each in state.nonfinite)
        if (spoilt_grads or spoilt) and len(self.spoilt) < PARAMETERS:
            self.spoilt.append((n, spoilt_grads, spoilt))
        if grads:
            self.grad.add(n, _norm(grads))
        if norms:
            self.norm.add(n, _norm(norms))
        if updates:
            self.update.add(n, updates[len(updates) // 2])
            self.update_most.add(n, updates[-1])
        for state in states:
            for name, column in (("grad", state.grad_norm), ("norm", state.norm), ("update", state.update)):
                for parameter in self.grids[name].add(n, state.parameter, column):
                    self.left_out.add(parameter)


class Grid:
    """A figure of each of many parameters: the mean and the greatest of each, in as many columns as there is room for.

    A column holds the steps from `first` on; figures that are not finite are in neither.
    """

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        """Where a parameter stands, by its id."""
        self.first = array("q")
        self.last = array("q")
        self._steps = array("q")
        self._sums: list[array[float]] = []
        self._counts: list[array[int]] = []
        self._most: list[array[float]] = []
        self._per_column = 1

    def add(self, n: int, parameters: Sequence[int], values: Sequence[float | None]) -> list[int]:
        """Count in a step; returns the parameters that there is no room for."""
        refused: list[int] = []
        if not self.first or self.last[-1] != n:
            self._next(n)
        at = len(self.first) - 1
        for parameter, value in zip(parameters, values, strict=True):
            row = self.rows.get(parameter)
            if row is None:
                if len(self.rows) == PARAMETERS:
                    refused.append(parameter)
                    continue
                row = self.rows[parameter] = len(self.rows)
                self._sums.append(array("d", [0.0]) * len(self.first))
                self._most.append(array("d", [0.0]) * len(self.first))
                self._counts.append(array("q", [0]) * len(self.first))
            if value is not None and isfinite(value):
                self._sums[row][at] += value
                self._most[row][at] = value if not self._counts[row][at] else max(self._most[row][at], value)
                self._counts[row][at] += 1
        return refused

    def means(self) -> list[list[float | None]]:
        """By parameter, of each column."""
        return [
            [total / count if count else None for total, count in zip(*row, strict=True)]
            for row in zip(self._sums, self._counts, strict=True)
        ]

    def most(self) -> list[list[float | None]]:
        """By parameter, of each column."""
        return [
            [most if count else None for most, count in zip(*row, strict=True)]
            for row in zip(self._most, self._counts, strict=True)
        ]

    def _next(self, n: int) -> None:
        if self.first and self._steps[-1] < self._per_column:
            self._steps[-1] += 1
            self.last[-1] = n
            return
        while len(self.first) >= min(_COLUMNS, max(20, _CELLS // max(1, len(self.rows)))):
            self._halve()
        self.first.append(n)
        self.last.append(n)
        self._steps.append(1)
        for sums, counts, most in zip(self._sums, self._counts, self._most, strict=True):
            sums.append(0.0)
            counts.append(0)
            most.append(0.0)

    def _halve(self) -> None:
        odd = len(self.first) % 2
        self.last = self.last[1::2] + (self.last[-1:] if odd else array("q"))
        self.first = self.first[::2]
        self._steps = array("q", map(sum, _pairs(self._steps)))
        for row, (counts, most) in enumerate(zip(self._counts, self._most, strict=True)):
            # One that has no figure counts for nothing beside one that has.
            largest = [max((value for value, count in pair if count), default=0.0) for pair in _both(most, counts)]
            self._most[row] = array("d", largest)
            self._sums[row] = array("d", map(sum, _pairs(self._sums[row])))
            self._counts[row] = array("q", map(sum, _pairs(counts)))
        self._per_column *= 2


def _pairs[Number: (int, float)](column: Sequence[Number]) -> list[Sequence[Number]]:
    return [column[at : at + 2] for at in range(0, len(column), 2)]


def _both(values: Sequence[float], counts: Sequence[int]) -> list[list[tuple[float, int]]]:
    return [[*zip(values[at : at + 2], counts[at : at + 2], strict=True)] for at in range(0, len(values), 2)]


def _norm(norms: Sequence[float]) -> float:
    return sqrt(sum(each * each for each in norms))
