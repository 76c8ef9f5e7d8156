"""What a summary says in whole sentences, alike on a terminal and on a page."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from tcmon.report import wording
from tcmon.report.frontier import Frontier
from tcmon.report.hang import HangSummary
from tcmon.report.health import HealthSummary
from tcmon.report.state import Condition
from tcmon.report.summary import ProcessSummary, Summary

PHASE_NAMES: Final = {"wait": "data wait", "evaluation": "eval", "checkpoint": "saving"}

HOW_FOUND: Final = {
    "static": "found in its code",
    "dynamic": "found as it ran",
    "manual": "marked by the program",
}

_HOW_ENDED: Final = {"exception": "ended by an exception", "interrupt": "was interrupted"}
_DELAYS: Final = 3
_STANDING: Final = 16


class Tone(StrEnum):
    """How a sentence is meant."""

    PLAIN = "plain"
    FAINT = "faint"
    GOOD = "good"
    MARKED = "marked"
    BAD = "bad"


type Sentence = tuple[str, Tone]


def state(summary: Summary) -> Sentence:
    """Where the run stands."""
    last, of = summary.main.last_ns, summary.state
    known = f"known up to {wording.duration(last)}" if last else "no step is known yet"
    match of.condition:
        case Condition.ENDED:
            how = _HOW_ENDED.get(of.reason or "", "ended")
            code = "" if of.exit_code is None else f", exit code {of.exit_code}"
            tone = Tone.GOOD if of.reason == "exit" and not of.exit_code else Tone.BAD
            return f"{how} after {wording.duration(of.clock_ns)}{code}", tone
        case Condition.RUNNING:
            return f"still running; {known}", Tone.MARKED
        case Condition.KILLED:
            return f"was killed; {known}", Tone.BAD
        case Condition.UNKNOWN:
            return f"running or killed, {summary.meta.host} can tell; {known}", Tone.BAD


def held_up(frontier: Frontier) -> Iterator[Sentence]:
    """Which ranks hold the others up, and where slow steps begin."""
    for delay in frontier.delays[:_DELAYS]:
        phase = PHASE_NAMES.get(delay.phase, delay.phase)
        per_step = wording.duration(delay.ns / delay.steps)
        held = f"rank {delay.rank} holds the others up in phase {phase}"
        steps = f"{wording.counted(delay.steps, 'step')}, {wording.share(delay.share)} of the time"
        yield f"{held}: {per_step} in each of {steps}", Tone.BAD
    for slow in frontier.slow[:_DELAYS]:
        where = f"phase {PHASE_NAMES.get(slow.phase, slow.phase)}"
        who = "of all ranks" if slow.rank is None else f"of rank {slow.rank}"
        step = f"slow step {slow.n:,} ({wording.duration(slow.ns)}) begins in {where} {who}"
        yield f"{step}: {wording.duration(slow.excess_ns)} more than usual", Tone.PLAIN
    if frontier.uncertain_ns is not None:
        yield f"clocks of the ranks agree to {wording.duration(frontier.uncertain_ns)}", Tone.FAINT
    else:
        yield "ranks ran on several hosts: steps are compared without their clocks", Tone.FAINT


def hang(of: HangSummary) -> Iterator[Sentence]:
    """Where each rank stood when there was no step for long, and which the others wait for."""
    for each in of.standing[:_STANDING]:
        at = each.hang
        who = "" if each.rank is None else f"rank {each.rank}  "
        step = "" if at.n is None else f"{at.role} step {at.n:,}  "
        place = at.at if at.collective is None else f"waits in {at.collective}()"
        called = "" if at.program in (None, at.at) else f", called at {at.program}"
        yield f"{who}{step}{place or 'nowhere in Python'}{called}", Tone.PLAIN
    if of.blamed:
        yield f"the others wait for rank {', '.join(map(str, of.blamed))}", Tone.BAD


def health(of: HealthSummary) -> Iterator[Sentence]:
    """What is wrong with the numbers of a training, or may be."""
    if of.spoilt:
        steps = wording.counted(of.spoilt, "recorded step")
        yield f"NaN or infinite values in {steps}, in step {of.first_spoilt:,} first", Tone.BAD
    if of.without_gradient or of.with_zero:
        last = f"in the last recorded step, of {wording.counted(of.parameters, 'parameter')}"
        yield f"{last} {of.without_gradient:,} had no gradient and {of.with_zero:,} a gradient of zero", Tone.MARKED


def longest_hang(of: HangSummary) -> str:
    """For how long there was no step."""
    longest = wording.duration(max(each.hang.ns for each in of.standing))
    return f"no step for {longest}; where the step's thread stood"


def overhead(process: ProcessSummary) -> str:
    """What watching cost."""
    of, measured = process.overhead, process.overhead.measured
    parts = ["not measured yet"]
    if measured is not None:
        callbacks = wording.duration(measured.callback_ns + measured.dispatch_ns)
        parts = [f"callbacks {callbacks}, writing {wording.duration(measured.write_ns)}"]
    if of.share is not None:
        parts = [f"{wording.share(of.share)} of step time ({parts[0]})"]
    if measured is not None and (budget := measured.budget) is not None:
        achieved = "not known yet" if budget.achieved is None else wording.share(budget.achieved)
        parts.append(f"budget {wording.share(budget.target)}, spent {achieved}")
    parts += [
        f"recorded {role} steps took {each.ratio:.2f} times as long as those around them ({each.steps:,} compared)"
        for role, steps in process.steps.items()
        if (each := steps.compared) is not None
    ]
    return "; ".join(parts)


def dropped(process: ProcessSummary) -> Sentence:
    """What the trace lacks."""
    of = process.dropped
    parts = [
        f"{wording.counted(number, noun)} {what}"
        for number, noun, what in (
            (of.calls, "call", "beyond the bound of a step"),
            (of.damaged_lines, "damaged line", "in the trace"),
            (of.unknown_records, "record", "of a later version"),
            (of.cut_bytes, "byte", "of a record cut off at the end"),
        )
        if number
    ]
    return ("; ".join(parts), Tone.BAD) if parts else ("nothing", Tone.PLAIN)
