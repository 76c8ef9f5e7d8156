"""One recorded step for people: when its calls began, how long they took, and how they ended, as a tree."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from rich.console import Console
from rich.text import Text

from tcmon.report import wording
from tcmon.report.layout import BAD, FAINT, HEADING, MARKED, ellipsis_of, show, show_line, table, width_of
from tcmon.report.onestep import Line, OneStep, Thread, operators, trees
from tcmon.trace.calltree import RETURNED
from tcmon.trace.records import Function

_NAME_WIDTH: Final = 24
_PLACE_WIDTH: Final = 10
_OUTCOME_WIDTH: Final = 24
_OPERATORS: Final = 15
_STYLES: Final = {"start": FAINT, "ended by": MARKED, "arguments": FAINT, "": FAINT}


def render_step(one: OneStep, console: Console, *, most: int) -> None:
    """Print a step on `console`, its calls in `most` lines; the rest is counted where it belongs."""
    page = _StepPage(one, console)
    for line in page.heading():
        show_line(line, console)
    threads = trees(one.recorded.calls, most)
    if any(line.hidden_calls for thread in threads for line in thread.walk()):
        show_line(Text("(+N): N calls right below that are not shown", FAINT), console)
    for thread in threads:
        console.print()
        page.tree(thread)
    if not threads:
        console.print()
        show_line(Text("No call was recorded in it."), console)
    page.operators()


class _StepPage:
    def __init__(self, one: OneStep, console: Console) -> None:
        self._one = one
        self._step = one.recorded.step
        self._console = console
        self._ellipsis = ellipsis_of(console)
        self._cwd = Path.cwd()

    def heading(self) -> Iterator[Text]:
        step = self._step
        waited = f", {wording.duration(step.wait)} of it waiting for data" if step.wait else ""
        yield Text.assemble(
            (f"{step.role} step {step.n:,}", HEADING),
            f"  took {wording.duration(step.end)}{waited}, from {wording.duration(step.begin)} of the run on",
        )
        loop = self._one.loop
        where = f"{wording.path(loop.file, self._cwd)}:{loop.line} in {loop.qualname}, " if loop else ""
        yield self._text(f"{where}stage {step.stage}, recorded because of {step.reason}", FAINT)
        if step.calls_dropped:
            dropped = wording.counted(step.calls_dropped, "call")
            yield Text(f"{dropped} beyond the bound of a step were dropped: they came last", BAD)

    def tree(self, thread: Thread) -> None:
        which = "of the step" if thread.thread == self._step.thread else "beside it"
        of = f"{wording.counted(thread.calls, 'call')}, {wording.duration(thread.total_ns)}"
        show_line(Text.assemble((f"Thread {thread.thread}", HEADING), f" {which}: {of}"), self._console)
        lines = list(thread.walk())
        columns = {
            "start": [wording.duration(line.start_ns - self._step.begin) for line in lines],
            "total": [wording.duration(line.total_ns) for line in lines],
            "self": [wording.duration(line.self_ns) for line in lines],
        }
        outcomes = [self._ended_by(line.outcomes) for line in lines]
        if any(outcomes):
            columns["ended by"] = outcomes
        room = width_of(self._console) - sum(max(len(head), *map(len, cells)) + 2 for head, cells in columns.items())
        columns["call"] = [self._name(line, max(_NAME_WIDTH, room)) for line in lines]
        room -= max(map(len, columns["call"])) + 2
        signatures = [self._text(line.signature).plain for line in lines]
        if any(signatures) and room >= _PLACE_WIDTH:
            columns["arguments"] = [self._begin_of(each, room) for each in signatures]
        elif room >= _PLACE_WIDTH:
            columns[""] = [self._place(line.function, room) for line in lines]
        shown = [head for head in ("start", "total", "self", "call", "ended by", "arguments", "") if head in columns]
        rows = table()
        for head in shown:
            justify: Literal["left", "right"] = "right" if head in ("start", "total", "self") else "left"
            rows.add_column(head, justify=justify, no_wrap=True, style=_STYLES.get(head, ""))
        for row in zip(*(columns[head] for head in shown), strict=True):
            rows.add_row(*map(Text, row))
        show(rows, self._console)
        if thread.hidden_calls:
            hidden = f"{wording.counted(thread.hidden_calls, 'more call')}, {wording.duration(thread.hidden_ns)}"
            show_line(Text(f"{self._ellipsis} {hidden}", FAINT), self._console)

    def operators(self) -> None:
        """The operators that took the most time."""
        shown, others = operators(self._one.recorded, _OPERATORS)
        if not shown:
            return
        self._console.print()
        show_line(Text.assemble(("Operators", HEADING), ("  those that they call included", FAINT)), self._console)
        rows = table()
        for head in ("time", "calls"):
            rows.add_column(head, justify="right", no_wrap=True)
        rows.add_column("device", no_wrap=True, style=FAINT)
        rows.add_column("operator", no_wrap=True)
        for each in shown:
            name = wording.cropped(
                wording.printable(each.name, self._console.encoding), width_of(self._console) - 32, self._ellipsis
            )
            rows.add_row(wording.duration(each.ns), f"{each.calls:,}", Text(each.device), Text(name))
        show(rows, self._console)
        if others:
            show_line(Text(f"{self._ellipsis} {wording.counted(others, 'more operator')}", FAINT), self._console)

    def _name(self, line: Line, width: int) -> str:
        """What was called, indented; so deep that there is no room, it moves left and says how deep it is."""
        times = f"{line.calls:,}x " if line.calls > 1 else ""
        hidden = f" (+{line.hidden_calls:,})" if line.hidden_calls else ""
        name = line.function.qualname
        if line.module is not None:
            name = f"{line.module.name or line.module.class_name}: {name}"
        name = wording.printable(name, self._console.encoding)
        indent = " " * line.depth
        if line.depth > width // 2:
            indent = " " * (width // 2)
            times = f"[{line.depth}] {times}"
        return indent + times + wording.cropped(name, width - len(indent + times + hidden), self._ellipsis) + hidden

    def _place(self, function: Function, width: int) -> str:
        encoding = self._console.encoding
        return wording.place(function.file, function.line, self._cwd, width, self._ellipsis, encoding)

    def _ended_by(self, outcomes: Counter[str]) -> str:
        """How calls ended that did not return; how many of them, where there are others."""
        others = [(outcome, count) for outcome, count in outcomes.most_common() if outcome != RETURNED]
        parts = [outcome if len(outcomes) == 1 else f"{count:,} {outcome}" for outcome, count in others]
        text = wording.printable(", ".join(parts), self._console.encoding)
        return wording.cropped(text, _OUTCOME_WIDTH, self._ellipsis)

    def _begin_of(self, text: str, width: int) -> str:
        return text if len(text) <= width else text[: width - len(self._ellipsis)] + self._ellipsis

    def _text(self, text: str, style: str = "") -> Text:
        return Text(wording.printable(text, self._console.encoding), style)
