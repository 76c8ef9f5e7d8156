"""Findings for people and for programs."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from tcmon.checks.run import Checked
from tcmon.report.layout import BAD, FAINT, GOOD, MARKED, show, show_line
from tcmon.report.wording import printable
from tcmon.trace.details import Finding

_BRIEF: Final = 5
_STYLES: Final = {"error": BAD, "warning": MARKED, "hint": FAINT}


def brief(checked: Checked, run: str, console: Console) -> None:
    """Print a line for each of the gravest findings, where there are any, and how to read them in `run` whole."""
    for finding in checked.findings[:_BRIEF]:
        text = f"  {finding.rule}: {finding.observed}"
        show_line(
            Text.assemble((finding.severity, _STYLES[finding.severity]), printable(text, console.encoding)), console
        )
    if checked.findings:
        show_line(Text(f"          tcmon check {run}", FAINT), console)


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
    if finding.file is not None:
        lines.append(Text(f"  Loop: {shown(finding.file)}:{finding.line}", FAINT))
    if finding.parameters:
        lines.append(Text(f"  Parameters: {shown(', '.join(finding.parameters))}", FAINT))
    return lines
