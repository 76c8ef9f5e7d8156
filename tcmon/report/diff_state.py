"""Where the parameters of two runs part: the first recorded step at which content hashes differ.

Compared are the steps that both runs recorded, rank by rank, until they differ. Nothing is estimated: a hash is the
same or it is not. That the data differ, or the losses, is looked for on the way, since they tell why.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tcmon.trace.details import Inputs, Loss, Parameter, State
from tcmon.trace.reader import PendingRows, Process, Run
from tcmon.trace.records import Step

_AROUND: Final = 3
"""Steps whose losses are shown before and after the one that differs."""

_DETAILS: Final = ("state", "loss", "inputs", "parameter")


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first step of which parameters differ, by their names, in the order of the optimizer.

    `before` says that they did already before the optimizer's step; else they differ after it only. `sampled` says that
    hashes of samples of elements were compared.
    """

    n: int
    before: bool
    parameters: Sequence[str]
    of: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class LossPair:
    """The losses of a training step in both runs, the mean where there were several; None where there was none."""

    n: int
    a: float | None
    b: float | None

    @property
    def differs(self) -> bool:
        """Whether they are not the very same number; NaN is the same as NaN."""
        return self.a != self.b and not (self.a != self.a and self.b != self.b)


@dataclass(frozen=True, slots=True)
class StateDiff:
    """The training steps that both runs recorded of a rank, set against each other.

    `compared` counts those with parameters in both, `last_same` is the last one before `first`. `inputs` and `loss` are
    the first steps of which these differ, None where none does up to a little after `first`. `losses` are those around
    the first of these differences.
    """

    rank: int | None
    compared: int
    last_same: int | None
    first: FirstDifference | None
    inputs: int | None
    loss: LossPair | None
    losses: Sequence[LossPair]

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return self.first is not None or self.inputs is not None or self.loss is not None


@dataclass(slots=True)
class _Recorded:
    """What a recorded training step has to be compared: content hashes by parameter, inputs' hashes, the loss."""

    n: int
    hashes: dict[tuple[str, int], tuple[str | None, str | None]] = field(default_factory=dict)
    inputs: tuple[str | None, ...] = ()
    losses: list[float] = field(default_factory=list)

    @property
    def loss(self) -> float | None:
        """The mean of the step's losses."""
        return sum(self.losses) / len(self.losses) if self.losses else None


def state_diffs(a: Run, b: Run) -> tuple[StateDiff, ...]:
    """What differs, for each rank that both runs have; of several traces of a rank the latest is taken.

    Raises TcmonError when a trace can't be read.
    """
    first, second = _by_rank(a), _by_rank(b)
    diffs = (_diff(rank, first[rank], second[rank]) for rank in first if rank in second)
    return tuple(each for each in diffs if each is not None)


def _by_rank(run: Run) -> Mapping[int | None, Process]:
    processes: dict[int | None, Process] = {}
    for process in run.processes:
        processes.setdefault(process.rank, process)
    return dict(sorted(processes.items(), key=lambda each: each[0] or 0))


def _diff(rank: int | None, a: Process, b: Process) -> StateDiff | None:
    compared = 0
    last_same: int | None = None
    first: FirstDifference | None = None
    inputs: int | None = None
    loss: LossPair | None = None
    losses: deque[LossPair] = deque(maxlen=_AROUND + 1)
    after: list[LossPair] = []
    seen = False
    for of_a, of_b in _common(a, b):
        seen = True
        pair = LossPair(of_a.n, of_a.loss, of_b.loss)
        if first is None and inputs is None and loss is None:
            losses.append(pair)
        else:
            after.append(pair)
        if loss is None and pair.a is not None and pair.b is not None and pair.differs:
            loss = pair
        if inputs is None and _differ(of_a.inputs, of_b.inputs):
            inputs = of_a.n
        if first is None and of_a.hashes and of_b.hashes:
            compared += 1
            first = _first_difference(of_a, of_b)
            if first is None:
                last_same = of_a.n
        if first is not None and len(after) >= _AROUND:
            break
    if not seen:
        return None
    around = [*losses, *after[:_AROUND]] if first or inputs is not None or loss else []
    told = [pair for pair in around if pair.a is not None or pair.b is not None]
    return StateDiff(rank, compared, last_same, first, inputs, loss, tuple(told))


def _differ(a: Sequence[str | None], b: Sequence[str | None]) -> bool:
    return any(x != y for x, y in zip(a, b, strict=False) if x is not None and y is not None)


def _first_difference(a: _Recorded, b: _Recorded) -> FirstDifference | None:
    both = [key for key in a.hashes if key in b.hashes]
    for which in (0, 1):
        names: list[str] = []
        sampled = False
        for key in both:
            x, y = a.hashes[key][which], b.hashes[key][which]
            # Of a sample in one run and of the whole in the other, nothing is known.
            if x is None or y is None or x.startswith("~") != y.startswith("~") or x == y:
                continue
            names.append(key[0])
            sampled = sampled or x.startswith("~")
        if names:
            return FirstDifference(a.n, before=not which, parameters=names, of=len(both), sampled=sampled)
    return None


def _common(a: Process, b: Process) -> Iterator[tuple[_Recorded, _Recorded]]:
    """The training steps that both processes recorded."""
    of_a, of_b = _steps(a), _steps(b)
    one, other = next(of_a, None), next(of_b, None)
    while one is not None and other is not None:
        if one.n == other.n:
            yield one, other
            one, other = next(of_a, None), next(of_b, None)
        elif one.n < other.n:
            one = next(of_a, None)
        else:
            other = next(of_b, None)


def _steps(process: Process) -> Iterator[_Recorded]:
    names: dict[int, str] = {}
    pending = PendingRows[State | Loss | Inputs]()
    for record in process.read(calls=False, details=_DETAILS):
        match record:
            case Parameter():
                names[record.id] = record.name
            case State() | Loss() | Inputs():
                pending.add(record)
            case Step(role="train"):
                yield _recorded(record.n, pending.take(record), names)
            case Step():
                pending.take(record)
            case _:
                pass


def _recorded(n: int, rows: Sequence[State | Loss | Inputs], names: Mapping[int, str]) -> _Recorded:
    recorded = _Recorded(n)
    counts: dict[str, int] = {}
    for row in rows:
        if isinstance(row, Loss):
            recorded.losses += [value for value in row.value if value is not None]
        elif isinstance(row, Inputs):
            recorded.inputs += tuple(row.hash)
        else:
            for id_, before, after in zip(row.parameter, row.before, row.after, strict=True):
                if before is None and after is None:
                    continue
                # Parameters of two models may have one name: those of both runs are in the same order.
                name = names.get(id_, f"parameter {id_}")
                counts[name] = counts.get(name, 0) + 1
                recorded.hashes[name, counts[name]] = before, after
    return recorded
