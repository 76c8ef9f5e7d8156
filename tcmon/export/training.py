"""What recorders kept of training beside calls, put together for exports: names, and figures of a step."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite, sqrt
from statistics import median
from typing import Final

from tcmon.trace.details import Loss, Optimizer, Parameter, State, StepDetail
from tcmon.trace.reader import Process

_KINDS: Final = ("optimizer", "parameter")


@dataclass(frozen=True, slots=True)
class Names:
    """Optimizers and parameters of a process by id, as they were known last."""

    optimizers: dict[int, Optimizer] = field(default_factory=dict)
    parameters: dict[int, Parameter] = field(default_factory=dict)

    def optimizer(self, id: int) -> str:
        """The class of an optimizer; a name made of the id where its record was lost."""
        known = self.optimizers.get(id)
        return f"optimizer {id}" if known is None else known.name

    def parameter(self, id: int) -> str:
        """The name of a parameter; one made of the id where its record was lost."""
        known = self.parameters.get(id)
        return f"parameter {id}" if known is None else known.name


def names_of(process: Process) -> Names:
    """Reads the trace once, for nothing but the names. Raises TcmonError when it can't be read."""
    names = Names()
    for record in process.read(calls=False, details=_KINDS):
        if isinstance(record, Optimizer):
            names.optimizers[record.id] = record
        elif isinstance(record, Parameter):
            names.parameters[record.id] = record
    return names


@dataclass(slots=True)
class Figures:
    """Figures of one recorded step; None where there is none.

    `loss` is the mean of the scalars that `backward()` was called on. `norm` and `grad_norm` are 2-norms over all
    parameters that optimizers stepped, `update` the median of their relative changes.
    """

    loss: float | None = None
    norm: float | None = None
    grad_norm: float | None = None
    update: float | None = None
    rates: dict[str, float] = field(default_factory=dict)
    """Learning rates by optimizer's id and group's number, "1.0"."""
    scale: float | None = None


def figures_of(details: Iterable[StepDetail]) -> Figures:
    """The figures of a step from what recorders kept of it."""
    losses: list[float] = []
    norms: list[float] = []
    grad_norms: list[float] = []
    updates: list[float] = []
    figures = Figures()
    for row in details:
        if isinstance(row, Loss):
            losses += [value for value in row.value if value is not None]
        elif isinstance(row, State) and row.optimizer:
            norms += [value for value in row.norm if value is not None]
            grad_norms += [value for value in row.grad_norm if value is not None]
            updates += [value for value in row.update if value is not None and isfinite(value)]
            if row.scale is not None:
                figures.scale = row.scale
            for number, group in enumerate(row.groups):
                rate = group.get("lr")
                if isinstance(rate, int | float) and not isinstance(rate, bool):
                    figures.rates[f"{row.optimizer}.{number}"] = float(rate)
    figures.loss = sum(losses) / len(losses) if losses else None
    figures.norm = _together(norms)
    figures.grad_norm = _together(grad_norms)
    figures.update = median(updates) if updates else None
    return figures


def _together(norms: list[float]) -> float | None:
    """The 2-norm of tensors out of their own."""
    return sqrt(sum(norm * norm for norm in norms)) if norms else None
