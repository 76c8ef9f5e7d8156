"""Sets two runs of a program against each other, and says only what their noise leaves standing.

Compared are the times of steps, the self time of functions and the time at lines per recorded step, which functions are
called, and the parameters (see `diff_state`). A
difference is claimed when it is beyond the noise within the runs (see `noise`; the error of 1 % is shared by all
comparisons of a role), larger than a share of the whole, and, for functions, beyond the scatter between the runs: no
two runs of one program are alike, and by how much they differ in general shows in the functions themselves, most of
which have not changed.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, log
from pathlib import PurePath
from statistics import fmean, median
from typing import Final

from tcmon.report.diff_state import StateDiff, state_diffs
from tcmon.report.noise import (
    LEAST,
    Batches,
    Difference,
    batches_for,
    chance_of_absence,
    compare,
    median_and_spread,
)
from tcmon.trace.calltree import FunctionTimes, add_calls
from tcmon.trace.details import Lines
from tcmon.trace.everystep import every_step
from tcmon.trace.fields import Setting
from tcmon.trace.index import TraceIndex
from tcmon.trace.reader import PendingRows, Process, Run
from tcmon.trace.records import Calls, Function, RunMeta, Step

ROLES: Final = ("train", "eval")

_ERROR: Final = 0.01

# Of a step's time: a function below it matters to nobody, whatever its ratio.
_LEAST_SHARE: Final = 0.002

# In standard deviations of the scatter between the runs; estimated from this many functions at least.
_BEYOND_SCATTER: Final = 3.0
_FUNCTIONS_FOR_SCATTER: Final = 8

_FACTS: Final = ("tcmon", "python", "implementation", "torch", "platform", "host")


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that differs between the runs: a version, an option, the command."""

    name: str
    a: Setting
    b: Setting


@dataclass(frozen=True, slots=True)
class StepsDiff:
    """Times of the steps of a role that were not recorded, in nanoseconds; None with too few steps to compare."""

    role: str
    counts: tuple[int, int]
    time: Difference | None
    wait: Difference | None
    claimed: bool


@dataclass(frozen=True, slots=True)
class FunctionDiff:
    """A function that both runs call: self time in nanoseconds and calls, each per recorded step."""

    role: str
    function: Function
    self_ns: Difference
    calls: Difference
    claimed: bool
    calls_claimed: bool


@dataclass(frozen=True, slots=True)
class OnlyIn:
    """A function that only one run calls, in `steps` of its `of` recorded steps."""

    role: str
    function: Function
    steps: int
    of: int
    self_ns: float


@dataclass(frozen=True, slots=True)
class LineDiff:
    """A line that runs in both, `line` in B: its time with all that it calls, in nanoseconds per recorded step.

    Lines are the same if they are as far from the beginning of one function.
    """

    role: str
    function: Function
    line: int
    ns: Difference
    claimed: bool


@dataclass(frozen=True, slots=True)
class RoleDiff:
    """The recorded steps of a role in both runs.

    `common` is how many times as long functions took in general, and `scatter` how much they differ in that, as a
    standard deviation of logarithms; both are None with too few functions to tell. `functions`, `lines`, `appeared` and
    `vanished` are empty with too few recorded steps (`enough` is False then).
    """

    role: str
    recorded: tuple[int, int]
    enough: bool
    common: float | None
    scatter: float | None
    functions: tuple[FunctionDiff, ...]
    lines: tuple[LineDiff, ...]
    appeared: tuple[OnlyIn, ...]
    vanished: tuple[OnlyIn, ...]


@dataclass(frozen=True, slots=True)
class Diff:
    """Two runs, set against each other. Facts, functions and steps that differ are claimed, all others are there."""

    a: Run
    b: Run
    least_change: float
    facts: tuple[Fact, ...]
    steps: tuple[StepsDiff, ...]
    roles: tuple[RoleDiff, ...]
    states: tuple[StateDiff, ...]

    @property
    def nothing_claimed(self) -> bool:
        """Whether the runs don't differ beyond their noise."""
        return not (
            any(each.claimed for each in self.steps)
            or any(each.differs for each in self.states)
            or any(
                role.appeared
                or role.vanished
                or any(each.claimed or each.calls_claimed for each in role.functions)
                or any(each.claimed for each in role.lines)
                for role in self.roles
            )
        )


def diff(a: Run, b: Run, *, least_change: float = 0.05) -> Diff:
    """Set run `b` against run `a`; times that differ by less than the share `least_change` are not claimed.

    Of runs with several processes times are those of the first, and parameters are compared rank by rank. Raises
    TcmonError when a trace can't be read.
    """
    measured = _measured(a, b)
    return Diff(
        a=a,
        b=b,
        least_change=least_change,
        facts=tuple(_facts(a.meta, b.meta)),
        steps=tuple(_steps(role, *measured, least_change) for role in ROLES),
        roles=tuple(_role(role, *measured, least_change) for role in ROLES),
        states=state_diffs(a, b),
    )


type _Key = tuple[str, str]
type _LineKey = tuple[_Key, int]


@dataclass(slots=True)
class _FunctionSeries:
    """A function in the recorded steps of a role: sums for each batch of steps, and in how many steps it was."""

    function: Function
    self_ns: list[int]
    calls: list[int]
    steps: int = 0


@dataclass(slots=True)
class _Recorded:
    """The recorded steps of a role, but for the very first step."""

    batches: Batches
    steps: int = 0
    functions: dict[_Key, _FunctionSeries] = field(default_factory=dict)
    lines: dict[_LineKey, list[int]] = field(default_factory=dict)
    """By function and distance from its beginning: nanoseconds for each batch."""
    places: dict[_Key, Function] = field(default_factory=dict)
    """The functions that lines are in."""

    def self_ns(self, key: _Key) -> list[float]:
        """Self time per step, batch by batch."""
        return [total / self.batches.size for total in self.functions[key].self_ns]

    def line_ns(self, key: _LineKey) -> list[float]:
        """Time at a line per step, batch by batch."""
        return [total / self.batches.size for total in self.lines[key]]

    def calls(self, key: _Key) -> list[float]:
        """Calls per step, batch by batch."""
        return [total / self.batches.size for total in self.functions[key].calls]


@dataclass(slots=True)
class _Measured:
    """What is compared of a run: 16 bytes for each step, and for each function two numbers for each batch."""

    times: "Mapping[str, array[int]]"
    waits: "Mapping[str, array[int]]"
    recorded: Mapping[str, _Recorded]


def _measured(a: Run, b: Run) -> tuple[_Measured, _Measured]:
    indices = [TraceIndex(run.processes[0].trace) if run.processes else None for run in (a, b)]
    counts = [[sum(n > 1 for n in index.numbers(role)) if index else 0 for role in ROLES] for index in indices]
    plans = [batches_for(*pair) for pair in zip(*counts, strict=True)]
    first, second = (
        _measured_run(run, index, {role: _Recorded(plan[which]) for role, plan in zip(ROLES, plans, strict=True)})
        for which, (run, index) in enumerate(zip((a, b), indices, strict=True))
    )
    return first, second


def _measured_run(run: Run, index: TraceIndex | None, recorded: Mapping[str, _Recorded]) -> _Measured:
    times = {role: array("q") for role in ROLES}
    waits = {role: array("q") for role in ROLES}
    if index is not None:
        process = run.processes[0]
        for each in every_step(process):
            role, n = each.times.role, each.times.n
            # The first step is slow for reasons of its own, and a recorded one since it is.
            if role in times and n > 1 and each.recorded is None:
                times[role].append(each.times.end)
                waits[role].append(each.times.wait)
        _add_functions(process, index, recorded)
    return _Measured(times, waits, recorded)


def _add_functions(process: Process, index: TraceIndex, recorded: Mapping[str, _Recorded]) -> None:
    keys = {id_: _key(function) for id_, function in index.functions.items()}
    pending = PendingRows[Calls | Lines]()
    for record in process.read(details=("lines",)):
        if isinstance(record, Calls | Lines):
            pending.add(record)
        elif isinstance(record, Step):
            rows = pending.take(record)
            of_role = recorded.get(record.role)
            # A running program may have added steps since they were counted.
            if of_role is None or record.n == 1 or of_role.steps == of_role.batches.count:
                continue
            times: FunctionTimes = {}
            add_calls(times, record, [row for row in rows if isinstance(row, Calls)])
            batch = of_role.batches.of(of_role.steps)
            of_role.steps += 1
            _add_step(of_role, batch, {id_: time for id_, time in times.items() if id_ in keys}, keys, index)
            if batch is not None:
                _add_lines(of_role, batch, [row for row in rows if isinstance(row, Lines)], keys, index)


def _add_step(
    recorded: _Recorded, batch: int | None, times: FunctionTimes, keys: Mapping[int, _Key], index: TraceIndex
) -> None:
    # A function whose record was lost is left out: nothing in the other run can be known as the same.
    for key, id_ in {keys[id_]: id_ for id_ in times}.items():
        if key not in recorded.functions:
            zeros = [0] * recorded.batches.number
            recorded.functions[key] = _FunctionSeries(index.functions[id_], zeros, [*zeros])
        recorded.functions[key].steps += 1
    if batch is None:
        return
    for id_, time in times.items():
        series = recorded.functions[keys[id_]]
        series.self_ns[batch] += time.self_ns
        series.calls[batch] += time.calls


def _add_lines(
    recorded: _Recorded, batch: int, rows: Sequence[Lines], keys: Mapping[int, _Key], index: TraceIndex
) -> None:
    for row in rows:
        if row.function in keys:
            for line, ns in zip(row.line, row.ns, strict=True):
                key = keys[row.function], line - index.functions[row.function].line
                if key not in recorded.lines:
                    recorded.lines[key] = [0] * recorded.batches.number
                    recorded.places[key[0]] = index.functions[row.function]
                recorded.lines[key][batch] += ns


def _key(function: Function) -> _Key:
    """What makes a function the same in another run: lines and folders change. Lambdas of a module are one."""
    return function.module or PurePath(function.file).name, function.qualname


def _facts(a: RunMeta, b: RunMeta) -> list[Fact]:
    facts = [Fact(name, getattr(a, name), getattr(b, name)) for name in ("command", *_FACTS)]
    facts += [
        Fact(f"option {name}", a.options.get(name), b.options.get(name))
        for name in dict.fromkeys([*a.options, *b.options])
    ]
    return [fact for fact in facts if fact.a != fact.b]


def _steps(role: str, a: _Measured, b: _Measured, least_change: float) -> StepsDiff:
    counts = len(a.times[role]), len(b.times[role])
    if min(counts) < LEAST:
        return StepsDiff(role, counts, None, None, claimed=False)
    cut_a, cut_b = batches_for(*counts)
    time = compare(cut_a.levels(a.times[role], median), cut_b.levels(b.times[role], median), _ERROR)
    wait = compare(cut_a.levels(a.waits[role], median), cut_b.levels(b.waits[role], median), _ERROR)
    return StepsDiff(role, counts, time, wait, time.beyond_noise and _is_large(time, least_change))


def _is_large(difference: Difference, least_change: float) -> bool:
    return abs(difference.change) > least_change * min(difference.a, difference.b)


def _role(role: str, a: _Measured, b: _Measured, least_change: float) -> RoleDiff:
    first, second = a.recorded[role], b.recorded[role]
    recorded = first.steps, second.steps
    if min(recorded) < LEAST:
        return RoleDiff(
            role, recorded, enough=False, common=None, scatter=None, functions=(), lines=(), appeared=(), vanished=()
        )
    shared = [key for key in first.functions if key in second.functions]
    error = _ERROR / max(1, len(first.functions.keys() | second.functions.keys()))
    times = {key: compare(first.self_ns(key), second.self_ns(key), error) for key in shared}
    calls = {key: compare(first.calls(key), second.calls(key), error) for key in shared}
    matter = _LEAST_SHARE * min(_in_functions(first), _in_functions(second))
    ratios = [log(time.b / time.a) for time in times.values() if min(time.a, time.b) > matter]
    known = len(ratios) >= _FUNCTIONS_FOR_SCATTER
    common, scatter = median_and_spread(ratios) if known else (0.0, 0.0)

    claimed = partial(_claimed, matter=matter, common=common, scatter=scatter, least_change=least_change)
    functions = [
        FunctionDiff(
            role=role,
            function=second.functions[key].function,
            self_ns=times[key],
            calls=calls[key],
            claimed=claimed(times[key]),
            calls_claimed=calls[key].beyond_noise,
        )
        for key in shared
    ]
    functions.sort(key=lambda each: abs(each.self_ns.change), reverse=True)
    return RoleDiff(
        role=role,
        recorded=recorded,
        enough=True,
        common=exp(common) if known else None,
        scatter=scatter if known else None,
        functions=tuple(functions),
        lines=_lines(role, first, second, claimed),
        appeared=_only_in(role, second, first, error),
        vanished=_only_in(role, first, second, error),
    )


def _claimed(time: Difference, *, matter: float, common: float, scatter: float, least_change: float) -> bool:
    if not time.beyond_noise or abs(time.change) <= matter or not _is_large(time, least_change):
        return False
    if not time.a or not time.b:
        return True
    return abs(log(time.b / time.a) - common) > max(_BEYOND_SCATTER * scatter, log(1 + least_change))


def _lines(role: str, a: _Recorded, b: _Recorded, claimed: Callable[[Difference], bool]) -> tuple[LineDiff, ...]:
    """Lines that ran in both runs; what lines in general took is what functions in general took."""
    shared = [key for key in a.lines if key in b.lines]
    error = _ERROR / max(1, len(shared))
    found = []
    for key in shared:
        function = b.places[key[0]]
        difference = compare(a.line_ns(key), b.line_ns(key), error)
        found.append(LineDiff(role, function, function.line + key[1], difference, claimed(difference)))
    found.sort(key=lambda each: abs(each.ns.change), reverse=True)
    return tuple(found)


def _in_functions(recorded: _Recorded) -> float:
    """The time in functions per recorded step."""
    return sum(fmean(recorded.self_ns(key)) for key in recorded.functions)


def _only_in(role: str, one: _Recorded, other: _Recorded, error: float) -> tuple[OnlyIn, ...]:
    """Functions that one run calls so often that it is no chance that the other doesn't."""
    found = [
        OnlyIn(role, series.function, series.steps, one.steps, fmean(one.self_ns(key)))
        for key, series in one.functions.items()
        if key not in other.functions and chance_of_absence(series.steps, one.steps, other.steps) < error
    ]
    return tuple(sorted(found, key=lambda each: each.self_ns, reverse=True))
