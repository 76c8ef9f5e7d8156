"""Sums up a run: what it was, how its steps went, where their time went, and what watching them cost."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import chain
from pathlib import Path
from typing import Final

from tcmon.report.anatomy import LineSummary, LineTimes
from tcmon.report.frontier import OTHER, WAIT, Frontier, frontier_of
from tcmon.report.hang import HangSummary, hang_of
from tcmon.report.health import HealthLog, HealthSummary
from tcmon.report.loopchoice import LoopChoice, loops_of
from tcmon.report.state import State, state_of
from tcmon.report.steptimes import (
    Comparison,
    Series,
    Slice,
    StepLog,
    compare_recorded,
    evaluated_within,
    profile,
    quantile,
)
from tcmon.trace.calltree import FunctionTime, FunctionTimes, add_calls, lost_function
from tcmon.trace.details import Lines, Loss, StepDetail
from tcmon.trace.details import State as ParameterState
from tcmon.trace.journal import PHASES, StepTimes
from tcmon.trace.reader import PendingRows, Process, Reading, Run
from tcmon.trace.records import (
    ROLES,
    Calls,
    End,
    ExceptionType,
    Function,
    Header,
    Loop,
    Note,
    Overhead,
    Record,
    RunMeta,
    Seen,
    Step,
    Steps,
)

STEP_ROLES: Final = ("train", "eval")
"""Roles of the loops whose iterations are steps."""

PROFILE_SLICES: Final = 60
"""Into how many slices the course of a role's step times is cut at most."""

_OF_A_LOOP: Final = (Steps, Step, Calls, Lines, Loss, ParameterState)

# A summary shows a few; a writer in trouble may have left any number.
_NOTES: Final = 100


@dataclass(frozen=True, slots=True)
class LoopSummary:
    """A loop, with its steps counted and recorded."""

    loop: Loop
    steps: int
    recorded: int


@dataclass(frozen=True, slots=True)
class WithoutEvaluation:
    """Training steps less the evaluation steps within them; `evaluation_ns` is what these took together."""

    p50_ns: float
    p95_ns: float
    max_ns: int
    evaluation_ns: int


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The steps of one role in one process; times are in nanoseconds, None where there was no step.

    `p50_ns`, `p95_ns` and `max_ns` are over all steps, recorded or not, the slow first ones included.
    `data_wait_share` is the part of all steps' time in which they waited for data. `compared`
    sets recorded steps against the unrecorded ones around them (see `steptimes.compare_recorded`).
    `without_evaluation` is None unless evaluation steps ran within these.
    """

    role: str
    count: int
    recorded: int
    total_ns: int
    p50_ns: float | None
    p95_ns: float | None
    max_ns: int | None
    data_wait_share: float | None
    compared: Comparison | None
    without_evaluation: WithoutEvaluation | None
    profile: tuple[Slice, ...]
    phases: Mapping[str, int] = field(default_factory=dict)
    """The time of all steps by phase, those that took any: first waiting for data, last what lies in none."""


@dataclass(frozen=True, slots=True)
class FunctionSummary:
    """A function's calls over the recorded steps of one role.

    `calls` counts entries, a generator's resumptions included, and `raised` those that ended by an
    exception. `self_ns` is time outside of other Python functions, work of C code that it called
    included; `total_ns` is all the time in it, recursive calls counted once. `steps` recorded steps took
    `steps_ns` together.
    """

    role: str
    function: Function
    calls: int
    raised: int
    self_ns: int
    total_ns: int
    steps: int
    steps_ns: int


@dataclass(frozen=True, slots=True)
class OverheadSummary:
    """What watching cost, as measured in the run itself.

    `measured` adds up time in step callbacks, the interpreter's cost of calling them, and assembling and
    writing records; None where the trace doesn't have it (yet). `share` is that sum as a part of the
    wall time of all steps, `wall_ns`; it leaves out what recording does to the step itself, which
    `StepSummary.compared` shows.
    """

    measured: Overhead | None
    wall_ns: int
    share: float | None


@dataclass(frozen=True, slots=True)
class DroppedSummary:
    """What the trace lacks: calls beyond the bound, lines that can't be read, records of a kind unknown
    here, bytes of a record that was cut off at the end."""

    calls: int
    damaged_lines: int
    unknown_records: int
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class ProcessSummary:
    """One process of a run; `last_ns` is the latest clock value known, `raised` counts calls that raised."""

    pid: int
    trace: Path | None
    trace_bytes: int
    end: End | None
    last_ns: int
    loops: tuple[LoopSummary, ...]
    steps: Mapping[str, StepSummary]
    functions: tuple[FunctionSummary, ...]
    lines: tuple[LineSummary, ...]
    calls: int
    raised: int
    overhead: OverheadSummary
    dropped: DroppedSummary
    notes: tuple[Note, ...]
    by_total: tuple[FunctionSummary, ...] = ()
    """Those with the most total time; `functions` are those with the most self time."""
    health: HealthSummary | None = None
    """None where neither losses nor states were recorded."""
    rank: int | None = None
    restart: int = 0

    @property
    def label(self) -> str:
        """What to call it: its rank, or its process id."""
        if self.rank is None:
            return f"process {self.pid}"
        return f"rank {self.rank}" + (f", restart {self.restart}" if self.restart else "")

    def shown_loops(self, *, all_loops: bool) -> list[LoopSummary]:
        """The loops that count steps, or all of them."""
        return [each for each in self.loops if all_loops or each.loop.role in STEP_ROLES]

    def shown_steps(self, *, all_loops: bool) -> list[StepSummary]:
        """The figures of the roles that count steps, or of every role."""
        return [each for role, each in self.steps.items() if all_loops or role in STEP_ROLES]


@dataclass(frozen=True, slots=True)
class Summary:
    """A run, summed up. `processes` holds at least one, the one that was started first at the head."""

    directory: Path
    meta: RunMeta
    state: State
    processes: tuple[ProcessSummary, ...]
    frontier: Frontier | None = None
    missing: tuple[str, ...] = ()
    """What is not there of the ranks of a distributed run."""
    hang: HangSummary | None = None
    loop: LoopChoice | None = None
    """The loop that all figures are of, if not of all."""

    @property
    def main(self) -> ProcessSummary:
        """The process that the figures of the run are of."""
        return self.processes[0]

    @property
    def seen(self) -> Seen | None:
        """How much code was looked at; None until the run has ended."""
        return self.main.end.seen if self.main.end else None

    @property
    def evaluation_share(self) -> float | None:
        """The part of the time in steps that evaluation steps took; None where there were no steps."""
        return _share(self.main.steps["eval"].total_ns, self.main.overhead.wall_ns)

    @property
    def training_loop_found(self) -> bool:
        """Whether some loop counts training steps."""
        return any(each.loop.role == "train" for each in self.main.loops)


def summarise(
    run: Run, *, top: int = 10, loop: LoopChoice | None = None, advance: Callable[[int], object] = lambda _: None
) -> Summary:
    """Sum `run` up, keeping the `top` functions with the most self time, and as many with the most total time.

    With `loop`, only its steps count. Reads every trace once, and tells `advance` of the bytes read. Raises TcmonError
    when one can't be read, or has no such loop.
    """
    if loop is not None:
        loop.require_in(run)
    processes = [_summarise(process, run.meta, top, loop, advance) for process in run.processes]
    if not processes:
        processes.append(_Gathering(run.meta.loops, []).summary(run.meta.pid, None, None, top))
    state = state_of(run.meta, processes[0].end)
    missing = tuple(_missing(run.meta, processes))
    hang = hang_of([(each.rank, each.notes) for each in processes])
    frontier = frontier_of(run) if loop is None else None
    return Summary(run.path, run.meta, state, tuple(processes), frontier, missing, hang, loop)


def _missing(meta: RunMeta, processes: Sequence[ProcessSummary]) -> Iterator[str]:
    if meta.world_size is None:
        return
    of_ranks: dict[int, list[ProcessSummary]] = {}
    for each in processes:
        if each.rank is not None:
            of_ranks.setdefault(each.rank, []).append(each)
    if not of_ranks:
        return
    if absent := sorted(set(range(meta.world_size)) - set(of_ranks)):
        of = f"{'rank' if len(absent) == 1 else 'ranks'} {', '.join(map(str, absent[:20]))}"
        yield f"no trace of {of}{', ...' if len(absent) > 20 else ''} of {meta.world_size}"
    latest = {rank: max(each, key=lambda one: one.restart) for rank, each in sorted(of_ranks.items())}
    most = max(each.steps["train"].count for each in latest.values())
    for each in latest.values():
        if (steps := each.steps["train"].count) < most:
            yield f"{each.label} has {steps:,} training steps, others {most:,}"
    for each in processes:
        if each.rank is not None and each.end is None:
            yield f"{each.label} (pid {each.pid}) has not written its end: it was killed, or still runs"


def _summarise(
    process: Process, meta: RunMeta, top: int, choice: LoopChoice | None, advance: Callable[[int], object]
) -> ProcessSummary:
    leads = process.pid == meta.pid and process.rank in (None, meta.rank)
    loops, journal = [*(meta.loops if leads else ())], process.unwritten_steps()
    left_out: set[int] = set()
    if choice is not None:
        left_out = {each.id for each in (*loops, *loops_of(process)) if not choice.holds(each)}
        loops = [each for each in loops if each.id not in left_out]
        journal = [each for each in journal if each.loop not in left_out]
    gathering = _Gathering(loops, journal)
    reading, told = process.read(details=("lines", "loss", "state")), 0
    for record in reading:
        advance(reading.size - told)
        told = reading.size
        if isinstance(record, _OF_A_LOOP) and record.loop in left_out:
            continue
        if not isinstance(record, Loop) or record.id not in left_out:
            gathering.add(record)
    summary = gathering.summary(process.pid, process.trace, reading, top)
    if choice is not None:
        # What watching cost is known of the whole run only.
        summary = replace(summary, overhead=replace(summary.overhead, share=None))
    return replace(summary, rank=process.rank, restart=process.restart)


class _Gathering:
    """What one process' records come to while they pass by."""

    def __init__(self, loops: Iterable[Loop], journal: Iterable[StepTimes]) -> None:
        self._loops = {loop.id: loop for loop in loops}
        self._steps = StepLog(journal)
        self._functions: dict[int, Function] = {}
        self._times: dict[str, FunctionTimes] = {}
        self._recorded_ns: Counter[str] = Counter()
        self._lines = LineTimes()
        self._pending = PendingRows[Calls | StepDetail]()
        self._health = HealthLog()
        self._calls_dropped = 0
        self._overhead: Overhead | None = None
        self._notes: list[Note] = []
        self._end: End | None = None

    def add(self, record: Record) -> None:
        match record:
            case Calls() | Loss() | ParameterState():
                self._pending.add(record)
            case Step():
                self._add_step(record)
            case Lines():
                self._lines.add(record)
            case Steps():
                self._steps.add_row(record)
            case Function():
                self._functions[record.id] = record
            case Loop():
                self._loops[record.id] = record
            case Overhead():
                self._overhead = record
            case Note():
                if len(self._notes) < _NOTES:
                    self._notes.append(record)
            case End():
                self._end = record
            case Header() | ExceptionType():
                pass

    def _add_step(self, step: Step) -> None:
        self._steps.add_recorded(step)
        self._recorded_ns[step.role] += step.end
        self._calls_dropped += step.calls_dropped
        rows = self._pending.take(step)
        add_calls(self._times.setdefault(step.role, {}), step, [row for row in rows if isinstance(row, Calls)])
        if step.role == "train":
            self._health.add(step.n, (row for row in rows if isinstance(row, Loss | ParameterState)))

    def summary(self, pid: int, trace: Path | None, reading: Reading | None, top: int) -> ProcessSummary:
        self._steps.finish()
        wall_ns = self._steps.wall_ns()
        times = [time for of_role in self._times.values() for time in of_role.values()]
        return ProcessSummary(
            pid=pid,
            trace=trace,
            trace_bytes=reading.size if reading else 0,
            end=self._end,
            last_ns=max(self._steps.last_ns(), self._end.clock_ns if self._end else 0),
            loops=tuple(self._loop(loop) for loop in self._loops.values()),
            steps={role: self._role(role) for role in ROLES},
            functions=self._top(top, lambda time: time.self_ns),
            lines=self._lines.most(top, self._functions) + self._lines.of_functions(top, self._functions),
            calls=sum(time.calls for time in times),
            raised=sum(time.raised for time in times),
            overhead=OverheadSummary(self._overhead, wall_ns, _share(_cost_ns(self._overhead), wall_ns)),
            dropped=DroppedSummary(
                calls=self._calls_dropped,
                damaged_lines=reading.damaged if reading else 0,
                unknown_records=reading.unknown if reading else 0,
                cut_bytes=reading.cut if reading else 0,
            ),
            notes=tuple(self._notes),
            by_total=self._top(top, lambda time: time.total_ns),
            health=self._health.summary(),
        )

    def _loop(self, loop: Loop) -> LoopSummary:
        steps = sum(len(series.numbers) for (_, id_), series in self._steps.series.items() if id_ == loop.id)
        recorded = sum(len(numbers) for (_, id_), numbers in self._steps.recorded.items() if id_ == loop.id)
        return LoopSummary(loop, steps, recorded)

    def _role(self, role: str) -> StepSummary:
        loops = self._steps.of_role(role)
        ordered = sorted(chain.from_iterable(series.durations for series, _ in loops))
        total_ns = sum(ordered)
        return StepSummary(
            role=role,
            count=len(ordered),
            recorded=sum(len(recorded) for _, recorded in loops),
            total_ns=total_ns,
            p50_ns=quantile(ordered, 0.50) if ordered else None,
            p95_ns=quantile(ordered, 0.95) if ordered else None,
            max_ns=ordered[-1] if ordered else None,
            data_wait_share=_share(sum(series.waited_ns for series, _ in loops), total_ns),
            compared=compare_recorded(loops),
            without_evaluation=self._without_evaluation() if role == "train" else None,
            profile=profile(loops, PROFILE_SLICES),
            phases=_phases([series for series, _ in loops], total_ns),
        )

    def _without_evaluation(self) -> WithoutEvaluation | None:
        training, evaluation = ([series for series, _ in self._steps.of_role(role)] for role in ("train", "eval"))
        if not evaluation:
            return None
        steps = evaluated_within(training, evaluation)
        evaluation_ns = sum(held for _, held in steps)
        if not evaluation_ns:
            return None
        own = sorted(duration - held for duration, held in steps)
        return WithoutEvaluation(quantile(own, 0.50), quantile(own, 0.95), own[-1], evaluation_ns)

    def _top(self, count: int, by: Callable[[FunctionTime], int]) -> tuple[FunctionSummary, ...]:
        every = ((role, id_, time) for role, times in self._times.items() for id_, time in times.items())
        most = nlargest(count, every, key=lambda each: by(each[2]))
        return tuple(
            FunctionSummary(
                role=role,
                function=self._functions.get(id_) or lost_function(id_),
                calls=time.calls,
                raised=time.raised,
                self_ns=time.self_ns,
                total_ns=time.total_ns,
                steps=sum(len(recorded) for _, recorded in self._steps.of_role(role)),
                steps_ns=self._recorded_ns[role],
            )
            for role, id_, time in most
        )


def _phases(steps: Sequence[Series], total_ns: int) -> dict[str, int]:
    told = Counter[str]()
    for series in steps:
        told.update(series.phases)
    if not told.total():
        return {}
    waited = sum(series.waited_ns for series in steps)
    phases = {WAIT: waited, **{name: told[name] for name in PHASES}, OTHER: total_ns - waited - told.total()}
    return {name: ns for name, ns in phases.items() if ns}


def _cost_ns(overhead: Overhead | None) -> int | None:
    return overhead.callback_ns + overhead.dispatch_ns + overhead.write_ns if overhead else None


def _share(part: int | None, whole: int) -> float | None:
    return None if part is None or not whole else part / whole
