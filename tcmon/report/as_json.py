"""A summary for programs: plain objects that any JSON writer takes.

Times are in milliseconds and shares are fractions of one. What can't be known is null.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

from tcmon.report.anatomy import LineSummary
from tcmon.report.frontier import Frontier
from tcmon.report.health import HealthSummary
from tcmon.report.onestep import OneStep
from tcmon.report.summary import (
    STEP_ROLES,
    FunctionSummary,
    LoopSummary,
    OverheadSummary,
    ProcessSummary,
    StepSummary,
    Summary,
)
from tcmon.trace.details import Finding

type Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None


def as_json(summary: Summary, *, all_loops: bool = False, findings: Sequence[Finding] | None = None) -> dict[str, Json]:
    """The whole summary as one object.

    `run` holds the facts of the run, `loops` the loops that count steps (every loop with `all_loops`), `steps` the
    figures by role, `evaluation_share` the part of the time in steps that evaluation steps took, `lines` where in the
    loops' own code the time of recorded steps goes, `functions` those with the most self time over recorded steps,
    `functions_by_total` those with the most total time, `health` how the loss, the gradients and the parameters went,
    `overhead` what watching cost, `dropped` what the trace lacks, `ranks` the figures of each process, `missing` what
    is not there of them, `frontier` which rank holds the others up in which phase, `hang` where the ranks stood when
    there was no step for long, and `findings` those of health checks, if any ran, which `checks` says.
    """
    main = summary.main
    return {
        "run": _run(summary),
        "loops": [_loop(each) for each in main.shown_loops(all_loops=all_loops)],
        "steps": _steps(main, all_loops=all_loops),
        "evaluation_share": summary.evaluation_share,
        "functions": [_function(each) for each in main.functions],
        "functions_by_total": [_function(each) for each in main.by_total],
        "health": _health(main.health),
        "lines": [_line(each) for each in main.lines],
        "overhead": _overhead(main.overhead, main.steps),
        "dropped": _dropped(main),
        "hang": None if summary.hang is None else dataclasses.asdict(summary.hang),
        "notes": [{"level": each.level, "text": each.text} for each in main.notes],
        "ranks": [_rank(each, all_loops=all_loops) for each in summary.processes],
        "missing": list(summary.missing),
        "frontier": None if summary.frontier is None else _frontier(summary.frontier),
        "findings": [finding_as_json(each) for each in findings or ()],
        "checks": "not run" if findings is None else "run",
    }


def _health(health: HealthSummary | None) -> Json:
    if health is None:
        return None
    figures: dict[str, Json] = {
        each.name: {key: value for key, value in dataclasses.asdict(each).items() if key != "name"}
        for each in health.figures
    }
    return {**dataclasses.asdict(health), "figures": figures}


def _line(line: LineSummary) -> dict[str, Json]:
    return {
        "role": line.role,
        "file": line.function.file,
        "function": line.function.qualname,
        "line": line.line,
        "ms": line.ns / line.steps / 1e6,
        "share": line.share,
        "hits": line.hits / line.steps,
        "recorded_steps": line.steps,
    }


def finding_as_json(finding: Finding) -> dict[str, Json]:
    """A finding: its fields by name."""
    return {**dataclasses.asdict(finding), "parameters": list(finding.parameters)}


def _run(summary: Summary) -> dict[str, Json]:
    meta, state, main = summary.meta, summary.state, summary.main
    end = main.end
    return {
        "directory": str(summary.directory),
        "trace": str(main.trace) if main.trace else None,
        "trace_bytes": main.trace_bytes,
        "format": meta.format,
        "tcmon": meta.tcmon,
        "command": list(meta.command),
        "script": meta.script,
        "cwd": meta.cwd,
        "python": meta.python,
        "implementation": meta.implementation,
        "torch": meta.torch,
        "platform": meta.platform,
        "host": meta.host,
        "pid": meta.pid,
        "started": meta.started,
        "options": {key: list(value) if isinstance(value, tuple) else value for key, value in meta.options.items()},
        "state": str(state.condition),
        "reason": state.reason,
        "exit_code": state.exit_code,
        "duration_ms": milliseconds(state.clock_ns),
        "seen": _seen(summary),
        "hint": end.hint if end else None,
    }


def _seen(summary: Summary) -> Json:
    seen = summary.seen
    if seen is None:
        return None
    return {"code_objects": seen.code_objects, "analysed": seen.analysed, "loops": seen.loops}


def _loop(each: LoopSummary) -> Json:
    return {
        "file": each.loop.file,
        "qualname": each.loop.qualname,
        "line": each.loop.line,
        "role": each.loop.role,
        "found": each.loop.found,
        "evidence": list(each.loop.evidence),
        "steps": each.steps,
        "sampled": each.recorded,
    }


def _steps(process: ProcessSummary, *, all_loops: bool) -> dict[str, Json]:
    return {each.role: _role(each) for each in process.shown_steps(all_loops=all_loops)}


def _role(each: StepSummary) -> Json:
    return {
        "count": each.count,
        "sampled": each.recorded,
        "p50_ms": milliseconds(each.p50_ns),
        "p95_ms": milliseconds(each.p95_ns),
        "max_ms": milliseconds(each.max_ns),
        "data_wait_share": each.data_wait_share,
        "without_evaluation": _without_evaluation(each),
        "phases": {
            name: {"ms_per_step": milliseconds(ns / each.count), "share": ns / each.total_ns if each.total_ns else None}
            for name, ns in each.phases.items()
        },
    }


def _without_evaluation(steps: StepSummary) -> Json:
    own = steps.without_evaluation
    if own is None:
        return None
    return {
        "p50_ms": milliseconds(own.p50_ns),
        "p95_ms": milliseconds(own.p95_ns),
        "max_ms": milliseconds(own.max_ns),
        "evaluation_ms": milliseconds(own.evaluation_ns),
    }


def _function(each: FunctionSummary) -> Json:
    return {
        "role": each.role,
        "module": each.function.module,
        "qualname": each.function.qualname,
        "file": each.function.file,
        "line": each.function.line,
        "calls": each.calls,
        "raised": each.raised,
        "self_ms": milliseconds(each.self_ns),
        "self_ms_per_step": milliseconds(each.self_ns / each.steps) if each.steps else None,
        "total_ms": milliseconds(each.total_ns),
    }


def _overhead(overhead: OverheadSummary, steps: Mapping[str, StepSummary]) -> Json:
    measured = overhead.measured
    return {
        "callbacks": measured.callbacks if measured else None,
        "callback_ms": milliseconds(measured.callback_ns) if measured else None,
        "dispatch_ms": milliseconds(measured.dispatch_ns) if measured else None,
        "write_ms": milliseconds(measured.write_ns) if measured else None,
        "events": measured.events if measured else None,
        "steps_ms": milliseconds(overhead.wall_ns),
        "share": overhead.share,
        "budget": dataclasses.asdict(measured.budget) if measured and measured.budget else None,
        "recorded_ratio": {role: each.ratio if (each := steps[role].compared) else None for role in STEP_ROLES},
        "recorded_compared": {role: each.steps if (each := steps[role].compared) else 0 for role in STEP_ROLES},
    }


def _dropped(process: ProcessSummary) -> Json:
    dropped = process.dropped
    return {
        "calls": dropped.calls,
        "damaged_lines": dropped.damaged_lines,
        "unknown_records": dropped.unknown_records,
        "cut_bytes": dropped.cut_bytes,
    }


def _rank(process: ProcessSummary, *, all_loops: bool) -> Json:
    return {
        "rank": process.rank,
        "restart": process.restart,
        "pid": process.pid,
        "complete": process.end is not None,
        "calls": process.calls,
        "raised": process.raised,
        "steps": _steps(process, all_loops=all_loops),
        "overhead": _overhead(process.overhead, process.steps),
        "dropped": _dropped(process),
    }


def _frontier(frontier: Frontier) -> Json:
    return {
        "first": frontier.first,
        "last": frontier.last,
        "exposed_ms": milliseconds(frontier.exposed_ns),
        "exposed_by_phase_ms": {phase: milliseconds(ns) for phase, ns in frontier.exposed.items()},
        "clocks_uncertain_ms": milliseconds(frontier.uncertain_ns),
        "ranks": [
            {
                "rank": each.rank,
                "steps": each.steps,
                "phases_p50_ms": {phase: milliseconds(ns) for phase, ns in each.phases.items()},
            }
            for each in frontier.ranks
        ],
        "delays": [
            {
                "phase": each.phase,
                "rank": each.rank,
                "ms": milliseconds(each.ns),
                "steps": each.steps,
                "share": each.share,
            }
            for each in frontier.delays
        ],
        "slow_steps": [
            {
                "n": each.n,
                "ms": milliseconds(each.ns),
                "phase": each.phase,
                "rank": each.rank,
                "excess_ms": milliseconds(each.excess_ns),
            }
            for each in frontier.slow
        ],
    }


def milliseconds(nanoseconds: float | None) -> float | None:
    """A time as reports give it to programs, exact to a nanosecond."""
    return None if nanoseconds is None else round(nanoseconds / 1e6, 6)


def step_as_json(one: OneStep) -> dict[str, Json]:
    """A recorded step as one object: when it was, and under `calls` all its calls.

    Each call comes before those that it made, which are one deeper; `start_ms` counts from the step's begin.
    """
    step, loop = one.recorded.step, one.loop
    return {
        "role": step.role,
        "n": step.n,
        "loop": {"file": loop.file, "qualname": loop.qualname, "line": loop.line} if loop else None,
        "reason": step.reason,
        "stage": step.stage,
        "begin_ms": milliseconds(step.begin),
        "wait_ms": milliseconds(step.wait),
        "duration_ms": milliseconds(step.end),
        "thread": step.thread,
        "dropped": step.calls_dropped,
        "calls": [
            {
                "thread": call.thread,
                "depth": call.depth,
                "module": call.function.module,
                "qualname": call.function.qualname,
                "file": call.function.file,
                "line": call.function.line,
                "start_ms": milliseconds(call.start_ns - step.begin),
                "total_ms": milliseconds(call.total_ns),
                "self_ms": milliseconds(call.self_ns),
                "outcome": call.outcome,
                "owner": {"name": call.module.name, "class": call.module.class_name} if call.module else None,
                "arguments": None if call.arguments is None else cast("Json", dict(call.arguments)),
                "returned": cast("Json", call.returned),
            }
            for root in one.recorded.calls
            for call in root.walk()
        ],
    }
