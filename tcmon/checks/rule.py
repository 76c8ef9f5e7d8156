"""What a rule is, and how it tells what it has found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol

from tcmon.checks.facts import RunFacts, StepFacts
from tcmon.trace.details import Finding

_SHOWN = 8
"""Parameters that one finding names."""


class Rule(Protocol):
    """Looks at the recorded steps of one process in their order, and says when asked what it has found so far."""

    id: ClassVar[str]

    def look(self, facts: StepFacts) -> None:
        """One more recorded step."""

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        """What is wrong; nothing, if there is no sign of it. It may be asked again after further steps."""


def made(
    rule: str,
    severity: str,
    n: int,
    observed: str,
    why: str,
    look: str,
    parameters: Sequence[str],
    *,
    role: str = "train",
) -> Finding:
    """A finding in step `n`; of `parameters` the first few are named."""
    shown = [*parameters[:_SHOWN], *(["…"] if len(parameters) > _SHOWN else [])]
    return Finding(rule, severity, role, n, observed, why, look, shown, None, None)
