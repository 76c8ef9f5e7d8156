"""What differs between two runs, for programs: plain objects that any JSON writer takes.

Times are in milliseconds and shares are fractions of one. What can't be known is null.
"""

from math import isfinite

from tcmon.report.as_json import Json, milliseconds
from tcmon.report.diff import Diff, OnlyIn
from tcmon.report.diff_state import StateDiff
from tcmon.report.noise import Difference
from tcmon.trace.fields import Setting
from tcmon.trace.records import Function


def diff_as_json(diff: Diff) -> dict[str, Json]:
    """What differs between two runs as one object.

    `steps` compares times of steps, `functions` the self time and calls of those that both runs call, each per
    recorded step, `lines` the time at lines of these with all that they call; `claimed` says whether a difference is
    beyond noise, and `low_ms` and `high_ms` within what noise leaves open. `state` tells, for each rank, the first
    recorded step of which parameters differ. `appeared` and `vanished` are functions that only B, or only A, calls.
    """
    return {
        "a": {"directory": str(diff.a.path), "script": diff.a.meta.script, "started": diff.a.meta.started},
        "b": {"directory": str(diff.b.path), "script": diff.b.meta.script, "started": diff.b.meta.started},
        "differs": not diff.nothing_claimed,
        "least_change": diff.least_change,
        "facts": [{"name": each.name, "a": _setting(each.a), "b": _setting(each.b)} for each in diff.facts],
        "steps": {
            each.role: {
                "count": list(each.counts),
                "claimed": each.claimed,
                "time": _difference(each.time) if each.time else None,
                "data_wait": _difference(each.wait) if each.wait else None,
            }
            for each in diff.steps
        },
        "recorded": {role.role: list(role.recorded) for role in diff.roles},
        "common_ratio": {role.role: role.common for role in diff.roles},
        "scatter": {role.role: role.scatter for role in diff.roles},
        "functions": [
            {
                **_function(each.role, each.function),
                "claimed": each.claimed,
                "self": _difference(each.self_ns),
                "calls": [each.calls.a, each.calls.b],
                "calls_claimed": each.calls_claimed,
            }
            for role in diff.roles
            for each in role.functions
        ],
        "lines": [
            {
                **_function(each.role, each.function),
                "line": each.line,
                "claimed": each.claimed,
                "time": _difference(each.ns),
            }
            for role in diff.roles
            for each in role.lines
        ],
        "state": [_state(each) for each in diff.states],
        "appeared": [_only_in(each) for role in diff.roles for each in role.appeared],
        "vanished": [_only_in(each) for role in diff.roles for each in role.vanished],
    }


def _state(diff: StateDiff) -> Json:
    first = diff.first
    return {
        "rank": diff.rank,
        "compared": diff.compared,
        "last_same": diff.last_same,
        "first": None
        if first is None
        else {
            "step": first.n,
            "before_the_optimizer": first.before,
            "parameters": list(first.parameters),
            "of": first.of,
            "sampled": first.sampled,
        },
        "inputs_differ_at": diff.inputs,
        "loss_differs_at": None if diff.loss is None else diff.loss.n,
        "losses": [{"step": each.n, "a": _number(each.a), "b": _number(each.b)} for each in diff.losses],
    }


def _number(value: float | None) -> Json:
    return value if value is None or isfinite(value) else str(value)


def _difference(difference: Difference) -> Json:
    return {
        "a_ms": milliseconds(difference.a),
        "b_ms": milliseconds(difference.b),
        "change_ms": milliseconds(difference.change),
        "low_ms": milliseconds(difference.low),
        "high_ms": milliseconds(difference.high),
        "ratio": difference.ratio,
    }


def _only_in(each: OnlyIn) -> Json:
    return {
        **_function(each.role, each.function),
        "steps": each.steps,
        "recorded": each.of,
        "self_ms_per_step": milliseconds(each.self_ns),
    }


def _function(role: str, function: Function) -> dict[str, Json]:
    return {
        "role": role,
        "module": function.module,
        "qualname": function.qualname,
        "file": function.file,
        "line": function.line,
    }


def _setting(value: Setting) -> Json:
    return list(value) if isinstance(value, tuple) else value
