"""Findings for people and for programs."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from tcmon.checks.run import Checked
from tcmon.report.layout import BAD, FAINT, GOOD, MARKED, show
from tcmon.report.wording import printable
from tcmon.trace.details import Finding

_STYLES: Final = {"error": BAD, "warning": MARKED, "hint": FAINT}


def as_objects(checked: Checked) -> list[dict[str, Any]]:
    """The findings as JSON has them: the fields of `Finding`, by name."""
    return [dataclasses.asdict(finding) for finding in checked.findings]


def render(checked: Checked, console: Console | None = None) -> None:
    """Print the findings on `console` (None: standard output), gravest first."""
    console = console or Console()
    encoding = console.encoding
    if not checked.steps:
        show(
            Text("No recorded step holds state; nothing can be told (record it with --record state,loss).", BAD),
            console,
        )
        return
    for finding in checked.findings:
        for line in _lines(finding, encoding):
            show(line, console)
        console.print()
    if not checked.findings:
        show(Text(f"Nothing wrong was found in {checked.steps:,} recorded steps.", GOOD), console)


def _lines(finding: Finding, encoding: str) -> list[Text]:
    def shown(text: str) -> str:
        return printable(text, encoding)

    role = "evaluation step" if finding.role == "eval" else "step"
    lines = [
        Text.assemble((finding.severity, _STYLES[finding.severity]), f"  {shown(finding.rule)}, {role} {finding.n}"),
        Text(f"  {shown(finding.observed)}"),
        Text(f"  Why it matters: {shown(finding.why)}"),
        Text(f"  Look {shown(finding.look)}"),
    ]
    if finding.parameters:
        lines.append(Text(f"  Parameters: {shown(', '.join(finding.parameters))}", FAINT))
    return lines
