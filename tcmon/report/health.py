"""How the loss, the gradients and the parameters of a run went, in a few figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Final

from tcmon.trace.details import Loss, State

_TRAINING: Final = "train"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure over recorded training steps: its `first` and `last`, and the `least` and `most` with their steps."""

    name: str
    first: float
    last: float
    least: float
    most: float
    least_step: int
    most_step: int


@dataclass(frozen=True, slots=True)
class HealthSummary:
    """What the recorded training steps of a process tell about the training itself.

    `figures` are those that were recorded: the loss, the 2-norms of all gradients (as the optimizers got them) and of
    all parameters, and the middle one of the parameters' updates relative to their norms. `spoilt` steps had NaN or
    infinite elements in their loss, gradients or parameters, `first_spoilt` first. In the last step, `parameters` were
    held by optimizers, of which `without_gradient` had none, and `with_zero` one that was zero.
    """

    steps: int
    figures: tuple[Figure, ...]
    spoilt: int
    first_spoilt: int | None
    parameters: int
    without_gradient: int
    with_zero: int


class _Course:
    def __init__(self) -> None:
        self.first: tuple[int, float] | None = None
        self.last = self.least = self.most = (0, 0.0)

    def add(self, n: int, value: float) -> None:
        self.last = n, value
        if self.first is None:
            self.first = self.least = self.most = self.last
        self.least = min(self.least, self.last, key=_value)
        self.most = max(self.most, self.last, key=_value)


class HealthLog:
    """Gathers the figures while the records of a trace pass by, those of a step together."""

    def __init__(self) -> None:
        self._courses = {
            name: _Course() for name in ("loss", "gradient norm", "parameter norm", "update / parameter norm")
        }
        self._steps = 0
        self._spoilt = 0
        self._first_spoilt: int | None = None
        self._parameters = self._without = self._zero = 0

    def add(self, n: int, rows: Iterable[Loss | State]) -> None:
        """Count in the rows of training step `n`."""
        states, spoilt, known = [], False, False
        for row in rows:
            known = True
            if isinstance(row, State):
                if row.optimizer:
                    states.append(row)
            else:
                losses = [value for value in row.value if value is not None]
                spoilt = spoilt or not all(map(isfinite, losses))
                self._add("loss", n, sum(losses) / len(losses) if losses else None)
        self._steps += known
        if states:
            spoilt = self._add_states(n, states) or spoilt
        if spoilt:
            self._spoilt += 1
            if self._first_spoilt is None:
                self._first_spoilt = n

    def _add_states(self, n: int, states: Sequence[State]) -> bool:
        grads = [each for state in states for each in state.grad_norm]
        updates = sorted(each for state in states for each in state.update if each is not None and isfinite(each))
        self._add("gradient norm", n, _norm(grads))
        self._add("parameter norm", n, _norm(each for state in states for each in state.norm))
        self._add("update / parameter norm", n, updates[len(updates) // 2] if updates else None)
        self._parameters = len(grads)
        self._without = sum(not each for state in states for each in state.has_grad)
        self._zero = grads.count(0.0)
        return any(any(state.nonfinite) or any(state.grad_nonfinite) for state in states)

    def _add(self, name: str, n: int, value: float | None) -> None:
        if value is not None and isfinite(value):
            self._courses[name].add(n, value)

    def summary(self) -> HealthSummary | None:
        """The figures; None where no step told anything."""
        if not self._steps:
            return None
        figures = tuple(
            Figure(name, each.first[1], each.last[1], each.least[1], each.most[1], each.least[0], each.most[0])
            for name, each in self._courses.items()
            if each.first is not None
        )
        return HealthSummary(
            self._steps, figures, self._spoilt, self._first_spoilt, self._parameters, self._without, self._zero
        )


def _norm(norms: Iterable[float | None]) -> float | None:
    known = [each for each in norms if each is not None]
    return sqrt(sum(each * each for each in known)) if known else None


def _value(of_step: tuple[int, float]) -> float:
    return of_step[1]
