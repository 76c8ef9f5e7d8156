"""Where a step of a distributed run begins to be slow: which phase, and which rank.

Ranks wait for each other in collectives, so that one late rank makes the others' steps just as long, in another phase.
The frontier is, at the end of each phase, the time of the rank that gets there last. What it advances by, phase for
phase, adds up to the time that the step took for all. A rank's wait for a late one lies behind the frontier and adds
nothing; the delay itself does, in the phase and on the rank where it first appears. The idea is known as StageFrontier.

Where all ranks ran on one host, their steps are laid on one clock, so that a rank that begins late because it ended
late is not blamed twice. Wall clocks of several hosts are not that close: each step then begins at zero on every rank.

A delay inside a phase that itself waits for the other ranks (a backward pass with its all-reduce) is as long on all of
them: the phase is told then, and no rank.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tcmon.trace.journal import PHASES
from tcmon.trace.reader import Process, Run
from tcmon.trace.records import Steps

WAIT: Final = "wait"
OTHER: Final = "other"
STEP_PHASES: Final = (WAIT, *PHASES, OTHER)
"""All of a step's time, in the order in which a training step goes through it."""

LATEST: Final = 10_000
"""How many of the latest steps are looked at, so that a long run fits into memory."""

SLOW: Final = 1.5
"""A step is slow that takes that many times as long as the middle one."""

_LEAST_SHARE: Final = 0.03
_MOST_SLOW: Final = 10


@dataclass(frozen=True, slots=True)
class StepPhases:
    """When a step began on a rank, in nanoseconds on the clock of the ranks, and its time in each of `STEP_PHASES`."""

    begin: int
    phases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Advance:
    """What one phase of one step adds to the frontier.

    `rank` got to its end last. `delay_ns` is the part of `ns` beyond what the phase took on the quickest rank.
    """

    phase: str
    rank: int
    ns: int
    delay_ns: int


@dataclass(frozen=True, slots=True)
class Delay:
    """Time that `rank` held the others up by in `phase`, over `steps` steps; `share` of the time of all steps."""

    phase: str
    rank: int
    ns: int
    steps: int
    share: float


@dataclass(frozen=True, slots=True)
class SlowStep:
    """A slow step: in `phase` it took `excess_ns` more than usual, and `rank` was late there, or none or all were."""

    n: int
    ns: int
    phase: str
    rank: int | None
    excess_ns: int


@dataclass(frozen=True, slots=True)
class RankPhases:
    """The times of one rank: its steps, and the median time of each phase that took any."""

    rank: int
    steps: int
    phases: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Frontier:
    """The training steps that all ranks took, `first` to `last`, and what held them up, worst first.

    `uncertain_ns` is how far apart the ranks' clocks may be; None where they ran on several hosts.
    """

    first: int
    last: int
    exposed_ns: int
    exposed: Mapping[str, int]
    ranks: tuple[RankPhases, ...]
    delays: tuple[Delay, ...]
    slow: tuple[SlowStep, ...]
    uncertain_ns: int | None


def frontier_of(run: Run) -> Frontier | None:
    """The frontier over the ranks' latest traces; None unless two ranks have training steps in common.

    Raises TcmonError when a trace can't be read.
    """
    latest: dict[int, Process] = {}
    for process in run.processes:
        held = None if process.rank is None else latest.get(process.rank)
        if process.rank is not None and (held is None or _age(process) > _age(held)):
            latest[process.rank] = process
    headers = {rank: process.header() for rank, process in latest.items()}
    known = {rank: header for rank, header in headers.items() if header is not None}
    together = len(known) == len(latest) and len({header.host for header in known.values()}) == 1
    uncertain = [header.start_uncertain_ns or 0 for header in known.values()]
    zero = min((header.start_unix_ns for header in known.values()), default=0)
    steps = {
        rank: _steps_of(latest[rank], header.start_unix_ns - zero if together else 0) for rank, header in known.items()
    }
    steps = {rank: of_rank for rank, of_rank in steps.items() if of_rank}
    if len(steps) < 2:
        return None
    return account(steps, sum(sorted(uncertain)[-2:]) if together else None)


def account(steps: Mapping[int, Mapping[int, StepPhases]], uncertain_ns: int | None) -> Frontier | None:
    """The frontier over `steps[rank][n]`; None where no step is on all ranks. Begins count only on one clock."""
    common = sorted(set.intersection(*(set(of_rank) for of_rank in steps.values())))
    if not common:
        return None
    before: int | None = None
    taken: list[tuple[int, list[Advance]]] = []
    for place, n in enumerate(common):
        if uncertain_ns is None or (place and common[place - 1] != n - 1):
            before = None
        advances, before = _advances({rank: of_rank[n] for rank, of_rank in steps.items()}, before, uncertain_ns)
        taken.append((n, advances))
    exposed = Counter(dict.fromkeys(STEP_PHASES, 0))
    delays: Counter[tuple[str, int]] = Counter()
    held: Counter[tuple[str, int]] = Counter()
    for _, advances in taken:
        for each in advances:
            exposed[each.phase] += each.ns
            if each.delay_ns:
                delays[each.phase, each.rank] += each.delay_ns
                held[each.phase, each.rank] += 1
    total = sum(exposed.values())
    return Frontier(
        common[0],
        common[-1],
        total,
        {phase: ns for phase, ns in exposed.items() if ns},
        tuple(_rank(rank, of_rank) for rank, of_rank in sorted(steps.items())),
        tuple(
            Delay(*where, ns, held[where], ns / total)
            for where, ns in delays.most_common()
            if ns >= _LEAST_SHARE * total
        ),
        _slow(taken),
        uncertain_ns,
    )


def _advances(
    step: Mapping[int, StepPhases], before: int | None, uncertain_ns: int | None
) -> tuple[list[Advance], int]:
    """What each phase of one step adds to the frontier, which stood at `before`, and where it stands then."""
    at = {rank: each.begin if uncertain_ns is not None else 0 for rank, each in step.items()}
    # Between two steps of a rank nothing passes but what lies outside of the loop; without it the sum would be wrong.
    stands = max(at.values()) if before is None else max(before, *at.values())
    advances = []
    for index, phase in enumerate(STEP_PHASES):
        for rank, each in step.items():
            at[rank] += each.phases[index]
        last = max(at, key=at.__getitem__)
        ns = max(0, at[last] - stands)
        quickest = min(each.phases[index] for each in step.values())
        advances.append(Advance(phase, last, ns, max(0, ns - quickest)))
        stands += ns
    return advances, stands


def _slow(taken: Sequence[tuple[int, Sequence[Advance]]]) -> tuple[SlowStep, ...]:
    totals = [sum(each.ns for each in advances) for _, advances in taken]
    limit = SLOW * median(totals)
    usual = [median(advances[index].ns for _, advances in taken) for index in range(len(STEP_PHASES))]
    found = []
    for (n, advances), total in zip(taken, totals, strict=True):
        if total <= limit:
            continue
        index = max(range(len(usual)), key=lambda each: advances[each].ns - usual[each])
        worst, excess = advances[index], round(advances[index].ns - usual[index])
        late = worst.delay_ns * 2 >= excess
        found.append(SlowStep(n, total, worst.phase, worst.rank if late else None, excess))
    return tuple(sorted(found, key=lambda each: -each.excess_ns)[:_MOST_SLOW])


def _rank(rank: int, steps: Mapping[int, StepPhases]) -> RankPhases:
    times = {phase: median(each.phases[index] for each in steps.values()) for index, phase in enumerate(STEP_PHASES)}
    return RankPhases(rank, len(steps), {phase: ns for phase, ns in times.items() if ns})


def _steps_of(process: Process, offset: int) -> dict[int, StepPhases]:
    """The latest training steps of a rank, with their begins on the clock that is `offset` behind its own."""
    nothing = (0,) * len(PHASES)
    steps = {
        each.n: _step(offset + each.begin, each.wait, each.end, each.phases or nothing)
        for each in process.unwritten_steps()
        if each.role == "train"
    }
    for record in process.read(calls=False):
        if not isinstance(record, Steps) or record.role != "train":
            continue
        for index, (begin, wait, end) in enumerate(zip(record.begin, record.wait, record.end, strict=True)):
            steps[record.first + index] = _step(offset + begin, wait, end, record.phases_of(index) or nothing)
        if len(steps) > 2 * LATEST:
            steps = {n: steps[n] for n in sorted(steps)[-LATEST:]}
    return {n: steps[n] for n in sorted(steps)[-LATEST:]}


def _step(begin: int, wait: int, end: int, phases: tuple[int, ...]) -> StepPhases:
    return StepPhases(begin, (wait, *phases, end - wait - sum(phases)))


def _age(process: Process) -> tuple[int, int, int]:
    header = process.header()
    return process.restart, header.start_unix_ns if header else 0, process.session
