"""Applies all rules to a run."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from tcmon.checks.facts import RunFacts, recorded_facts
from tcmon.checks.rules import RULES
from tcmon.trace.details import SEVERITIES, Finding
from tcmon.trace.reader import Run


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings of a run, gravest first, and from how many recorded steps with `state` they come."""

    findings: tuple[Finding, ...]
    steps: int


def check(run: Run, *, ignored: Container[str] = ()) -> Checked:
    """What is wrong with the training of `run`, of all its processes; rules in `ignored` are left out.

    A finding that several processes share is told once. Raises `TcmonError` when a trace can't be read.
    """
    found: dict[tuple[str, str], Finding] = {}
    steps = 0
    for process in run.processes:
        rules = [rule() for rule in RULES if rule.id not in ignored]
        facts_of_run = RunFacts({})
        for facts in recorded_facts(process, facts_of_run):
            steps += bool(facts.states or facts.modes)
            for rule in rules:
                rule.look(facts)
        for rule in rules:
            for finding in rule.findings(facts_of_run):
                found.setdefault((finding.rule, finding.observed), finding)
    ordered = sorted(found.values(), key=lambda finding: SEVERITIES.index(finding.severity))
    return Checked(tuple(ordered), steps)
