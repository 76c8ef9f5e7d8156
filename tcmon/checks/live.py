"""Checks a run while it runs: what is found is told at once, in one line, and written to the trace.

The rules look at each recorded step's own records, soon after it was written and in its thread, but no more often than
a share of the time allows; nothing is read from the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any, Final

from tcmon.checks.facts import KINDS, Gathering
from tcmon.checks.rules import RULES
from tcmon.checks.run import placed
from tcmon.trace.details import SEVERITIES, Finding
from tcmon.trace.fields import Damaged
from tcmon.trace.records import Loop, Step, read_record
from tcmon.trace.writer import lines

_MOST_TOLD: Final = 5
_MOST_WAITING: Final = 64
"""Recorded steps that wait to be looked at; those that come when so many wait are left to `tcmon check`."""
_REST: Final = 500
"""How many times as long as it took to look at steps no further ones are looked at: a share of 0.2 % of the time."""
_FIRST: Final = 3
"""So many recorded steps are looked at without such a rest before: most of what is wrong can be told from them."""
_AT_ONCE: Final = frozenset({"not-finite"})
"""Rules whose findings no later step can take back."""


class LiveChecks:
    """Looks at recorded steps as they come. `tell` is called with each finding that is to be told, a few in a run.

    A finding is told when it was there after two recorded steps, or at once where no later step can take it back. Hints
    are not told.
    """

    def __init__(self, tell: Callable[[Finding], None], ignored: Container[str] = ()) -> None:
        self._tell = tell
        self._ignored = ignored
        self._told: set[str] = set()
        self._waiting: list[tuple[Step, bytes]] = []
        self._next = 0
        self._begin()

    def _begin(self) -> None:
        self._rules = [rule() for rule in RULES if rule.id not in self._ignored]
        self._gathering = Gathering()
        self._suspected: dict[str, int] = {}
        self._looked = 0

    def start_over(self) -> None:
        """What was counted as steps so far were none."""
        self._waiting.clear()
        self._begin()

    def loop(self, record: dict[str, Any]) -> None:
        """A loop was found."""
        found = read_record(lines([record]))
        if isinstance(found, Loop):
            self._gathering.add(found)

    def recorded(self, step: Step, records: list[dict[str, Any]]) -> None:
        """A step was recorded: keep what rules want of it."""
        if len(self._told) < _MOST_TOLD and len(self._waiting) < _MOST_WAITING:
            self._waiting.append((step, lines(record for record in records if record["kind"] in KINDS)))

    def look(self) -> None:
        """Look at the steps that wait, if it is time."""
        begin = perf_counter_ns()
        if begin < self._next or not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        for step, data in waiting:
            for line in data.splitlines():
                try:
                    self._gathering.add(read_record(line))
                except Damaged:
                    continue
            self._gathering.count(step.role, step.n)
            facts = self._gathering.add(step)
            if facts is not None:
                self._looked += 1
                for rule in self._rules:
                    rule.look(facts)
        self._tell_what_is_found()
        now = perf_counter_ns()
        self._next = now + (now - begin) * _REST if self._looked > _FIRST else now

    def _tell_what_is_found(self) -> None:
        suspected: dict[str, int] = {}
        for rule in self._rules:
            for finding in rule.findings(self._gathering.run):
                if finding.severity == SEVERITIES[-1] or finding.rule in self._told:
                    continue
                since = suspected[finding.rule] = self._suspected.get(finding.rule, self._looked)
                if (since < self._looked or finding.rule in _AT_ONCE) and len(self._told) < _MOST_TOLD:
                    self._told.add(finding.rule)
                    self._tell(placed(finding, self._gathering.run))
        self._suspected = suspected


def as_record(finding: Finding) -> dict[str, Any]:
    """A finding as the trace holds it."""
    return {"kind": "finding", **asdict(finding)}
