"""Applies all rules to a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from dataclasses import dataclass

from tcmon.checks.facts import Gathering, RunFacts, recorded_facts
from tcmon.checks.ranks import RANK_RULES
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
    across = [rule() for rule in RANK_RULES if rule.id not in ignored]
    compared: set[int] = set()
    for process in run.processes:
        rules = [rule() for rule in RULES if rule.id not in ignored]
        gathering = Gathering()
        # The latest trace of each rank comes first.
        rank = process.rank if process.rank not in compared else None
        if rank is not None:
            compared.add(rank)
        for facts in recorded_facts(process, gathering):
            steps += bool(facts.states or facts.modes)
            for rule in rules:
                rule.look(facts)
            for rank_rule in across if rank is not None else ():
                rank_rule.look(process.rank or 0, facts)
        for rule in rules:
            for finding in rule.findings(gathering.run):
                found.setdefault((finding.rule, finding.observed), placed(finding, gathering.run))
    for rank_rule in across:
        for finding in rank_rule.findings():
            found.setdefault((finding.rule, finding.observed), finding)
    ordered = sorted(found.values(), key=lambda finding: SEVERITIES.index(finding.severity))
    return Checked(tuple(ordered), steps)


def placed(finding: Finding, run: RunFacts) -> Finding:
    """A finding with a place: that of the loop whose step it was found in, unless it has one of its own."""
    place = run.places.get(finding.role)
    if finding.file is not None or place is None:
        return finding
    return dataclasses.replace(finding, file=place[0], line=place[1])


def rule_ids() -> tuple[str, ...]:
    """The ids of all rules."""
    return (*(rule.id for rule in RULES), *(rule.id for rule in RANK_RULES))
