"""A summary for people: one screen of text, coloured on a terminal that wants colours."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tcmon.report import sentences, wording
from tcmon.report.anatomy import LineSummary, source_line
from tcmon.report.frontier import STEP_PHASES
from tcmon.report.layout import (
    BAD,
    FAINT,
    GOOD,
    HEADING,
    MARKED,
    ellipsis_of,
    show,
    show_line,
    table,
    width_of,
)
from tcmon.report.summary import FunctionSummary, LoopSummary, ProcessSummary, StepSummary, Summary
from tcmon.trace.records import Function

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = ".:-=+*#@"

_LABEL_WIDTH: Final = 10
_PLACE_WIDTH: Final = 16
_NOTES_SHOWN: Final = 5
_TOTAL_PART: Final = 3
_LINES_SHOWN: Final = 8
_RANKS_SHOWN: Final = 16
_DELAYS_SHOWN: Final = 3
_RANK_WIDTH: Final = 30
_PHASE_WIDTH: Final = 10
_LEAST_SHARE: Final = 0.005
_STYLES: Final = {
    sentences.Tone.PLAIN: "",
    sentences.Tone.FAINT: FAINT,
    sentences.Tone.GOOD: GOOD,
    sentences.Tone.MARKED: MARKED,
    sentences.Tone.BAD: BAD,
}
_CHANGED: Final = "(its source is gone, or was changed since the run began)"


def render(summary: Summary, console: Console, *, all_loops: bool = False) -> None:
    """Print `summary` on `console`: the loops that count steps, or every loop with `all_loops`.

    Texts of the watched program appear without anything that a terminal would act on.
    """
    page = _Page(summary, console, all_loops=all_loops)
    sections = (
        page.heading(),
        page.loops(),
        page.steps(),
        page.ranks(),
        page.hang(),
        page.course(),
        page.anatomy(),
        page.health(),
        page.functions(),
        page.costs(),
    )
    for section in map(list, sections):
        for part in section:
            show(part, console)
        if section:
            console.print()
    for line in page.whereabouts():
        show_line(line, console)


class _Page:
    """The sections of the text, from top to bottom."""

    def __init__(self, summary: Summary, console: Console, *, all_loops: bool) -> None:
        self._summary = summary
        self._main = summary.main
        self._all_loops = all_loops
        self._encoding = console.encoding
        self._ascii = console.options.ascii_only
        self._ellipsis = ellipsis_of(console)
        self._width = width_of(console)
        self._cwd = Path.cwd()

    def heading(self) -> Iterator[RenderableType]:
        meta = self._summary.meta
        yield Text.assemble(
            self._text(wording.path(meta.script, self._cwd), HEADING),
            "  ",
            self._sentence(sentences.state(self._summary)),
        )
        yield self._text(shlex.join(meta.command), FAINT)
        torch = f"torch {meta.torch}, " if meta.torch else ""
        facts = f"Python {meta.python}, {torch}pid {meta.pid} on {meta.host}, {wording.moment(meta.started)}"
        yield self._text(facts, FAINT)

    def loops(self) -> Iterator[RenderableType]:
        if not self._summary.training_loop_found and self._summary.loop is None:
            yield from self._no_training_loop()
        shown = self._main.shown_loops(all_loops=self._all_loops)
        if shown:
            yield Text("Loops", HEADING)
        for each in shown:
            yield from self._loop(each)

    def steps(self) -> Iterator[RenderableType]:
        shown = [each for each in self._main.shown_steps(all_loops=self._all_loops) if each.count]
        if not shown:
            return
        rows = table()
        rows.add_column("Steps", no_wrap=True)
        for head in ("counted", "recorded", "p50", "p95", "longest", "waiting for data"):
            rows.add_column(head, justify="right", no_wrap=True)
        for each in shown:
            rows.add_row(
                each.role,
                wording.count(each.count),
                wording.count(each.recorded),
                wording.duration(each.p50_ns),
                wording.duration(each.p95_ns),
                wording.duration(each.max_ns),
                wording.share(each.data_wait_share),
            )
            own = each.without_evaluation
            if own is not None:
                times = (wording.duration(each) for each in (own.p50_ns, own.p95_ns, own.max_ns))
                rows.add_row("  less eval", "", "", *times, "")
        yield rows
        if self._main.steps["eval"].count and self._main.steps["train"].count:
            took = wording.share(self._summary.evaluation_share)
            yield Text(f"evaluation steps took {took} of the time in steps", FAINT)
        for each in shown:
            if each.phases:
                parts = (
                    f"{sentences.PHASE_NAMES.get(name, name)} {wording.duration(ns / each.count)} "
                    f"({wording.share(ns / each.total_ns if each.total_ns else None)})"
                    for name, ns in each.phases.items()
                )
                yield Text.assemble(
                    ("Phases", HEADING), (f"  of a {each.role} step: ", FAINT), self._text(", ".join(parts))
                )

    def ranks(self) -> Iterator[RenderableType]:
        """The ranks side by side, and which of them holds the others up."""
        processes = [each for each in self._summary.processes if each.rank is not None]
        frontier = self._summary.frontier
        if len(processes) < 2 and not self._summary.missing:
            return
        of_ranks: dict[int | None, Mapping[str, float]] = {}
        if frontier is not None:
            of_ranks = {each.rank: each.phases for each in frontier.ranks}
        most = {phase: max((phases.get(phase, 0) for phases in of_ranks.values()), default=0) for phase in STEP_PHASES}
        # The phases that take most, as many as there is room for; all of them are in --json.
        longest = sorted(filter(most.__getitem__, STEP_PHASES), key=lambda phase: -most[phase])
        longest = longest[: (self._width - _RANK_WIDTH) // _PHASE_WIDTH]
        shown = [phase for phase in STEP_PHASES if phase in longest]
        rows = table()
        rows.add_column("Rank", no_wrap=True)
        for head in ("steps", "p50", *(sentences.PHASE_NAMES.get(phase, phase) for phase in shown)):
            rows.add_column(head, justify="right", no_wrap=True)
        for each in sorted(processes, key=lambda each: (each.rank or 0, each.restart))[:_RANKS_SHOWN]:
            steps = each.steps["train"]
            phases = of_ranks.get(each.rank, {})
            rows.add_row(
                f"{each.rank} (restart {each.restart})" if each.restart else str(each.rank),
                wording.count(steps.count),
                wording.duration(steps.p50_ns),
                *(wording.duration(phases.get(phase, 0)) for phase in shown),
            )
        yield rows
        if len(processes) > _RANKS_SHOWN:
            yield Text(f"{len(processes) - _RANKS_SHOWN} more ranks in --json", FAINT)
        yield from self._held_up()
        for missing in self._summary.missing[:_NOTES_SHOWN]:
            yield self._text(missing, BAD)

    def _held_up(self) -> Iterator[RenderableType]:
        frontier = self._summary.frontier
        if frontier is not None:
            yield from map(self._sentence, sentences.held_up(frontier))

    def hang(self) -> Iterator[RenderableType]:
        """Where each rank stood when there was no step for long."""
        hang = self._summary.hang
        if hang is None:
            return
        yield Text.assemble(("Hang", HEADING), (f"  {sentences.longest_hang(hang)}", FAINT))
        for each in sentences.hang(hang):
            yield Padding(self._sentence(each), (0, 0, 0, 2))

    def course(self) -> Iterator[RenderableType]:
        shown = self._main.shown_steps(all_loops=self._all_loops)
        steps = next((each for each in shown if each.count > 1), None)
        if steps is None or len(steps.profile) + 2 > self._width:
            return
        slices = steps.profile
        most = max(each.last - each.first + 1 for each in slices)
        what = "" if most == 1 else f", longest of every {most}"
        scale = f"{steps.role} steps {slices[0].first:,} to {slices[-1].last:,}{what}; middle: p50"
        yield Text.assemble(("Time of steps", HEADING), (f"  {scale}", FAINT))
        yield Padding(self._bars(steps), (0, 0, 0, 2))
        if not all(each.recorded for each in slices):
            mark = "^" if self._ascii else "•"
            marks = Text("".join(mark if each.recorded else " " for each in slices), MARKED)
            if len(slices) + 14 <= self._width:
                marks.append("  recorded", FAINT)
            yield Padding(marks, (0, 0, 0, 2))

    def anatomy(self) -> Iterator[RenderableType]:
        """Where in the training loop's own code the time of a recorded step goes."""
        told = [each for each in self._main.lines if each.role == "train"]
        yield from self._lines(
            "Lines of the training loop", [each for each in told if each.body and each.share >= _LEAST_SHARE]
        )
        named = {id(each.function): each.function for each in told if not each.body}
        for function in named.values():
            of_function = [each for each in told if not each.body and each.function is function]
            yield from self._lines(f"Lines of {function.qualname}", of_function)

    def _lines(self, title: str, lines: list[LineSummary]) -> Iterator[RenderableType]:
        lines = lines[:_LINES_SHOWN]
        if not lines:
            return
        heading = wording.printable(title, self._encoding)
        yield Text.assemble((heading, HEADING), ("  per recorded step, calls included", FAINT))
        rows = table()
        for head in ("time", "share"):
            rows.add_column(head, justify="right", no_wrap=True, style=FAINT)
        rows.add_column("line", no_wrap=True, style=FAINT)
        rows.add_column("", no_wrap=True)
        room = self._width - 2 - sum((10, 9, 6))
        for each in sorted(lines[:_LINES_SHOWN], key=lambda each: each.line):
            text = source_line(each.function.file, each.line, self._summary.meta.start_unix_ns / 1e9)
            shown = _CHANGED if text is None else wording.printable(text, self._encoding)
            rows.add_row(
                wording.duration(each.ns / each.steps),
                wording.share(each.share),
                str(each.line),
                Text(wording.cropped(shown, max(8, room), self._ellipsis), FAINT if text is None else ""),
            )
        yield rows

    def health(self) -> Iterator[RenderableType]:
        """How the loss, the gradients and the parameters went."""
        health = self._main.health
        if health is None:
            return
        over = f"  over {wording.counted(health.steps, 'recorded step')}"
        yield Text.assemble(("Loss, gradients, parameters", HEADING), (over, FAINT))
        if health.figures:
            rows = table()
            rows.add_column("", no_wrap=True)
            for head in ("first", "last", "least", "most"):
                rows.add_column(head, justify="right", no_wrap=True, style=FAINT)
            rows.add_column("", style=FAINT, no_wrap=True)
            for each in health.figures:
                figures = map(wording.figure, (each.first, each.last, each.least, each.most))
                rows.add_row(f"  {each.name}", *figures, f"most in step {each.most_step:,}")
            yield rows
        yield from (Padding(self._sentence(each), (0, 0, 0, 2)) for each in sentences.health(health))

    def functions(self) -> Iterator[RenderableType]:
        """The functions with the most self time and, a third of the rows, others with the most total time."""
        functions, others = self._main.functions, []
        if not functions:
            return
        # Where all functions are among the first there is nothing to add.
        if set(self._main.by_total) - set(functions):
            functions = functions[: len(functions) - len(functions) // _TOTAL_PART]
            others = [each for each in self._main.by_total if each not in functions]
            others = others[: len(self._main.functions) - len(functions)]
        recorded = [f"{each.recorded:,} {role}" for role, each in self._main.steps.items() if each.recorded]
        heading = "Functions by self, then by total time" if others else "Functions by self time"
        yield Text.assemble((heading, HEADING), (f"  per recorded step ({', '.join(recorded)})", FAINT))
        yield self._function_table(functions, others, roles=len(recorded) > 1)
        if self._main.raised:
            calls = wording.counted(self._main.calls, "call")
            yield self._text(f"{self._main.raised:,} of {calls} ended by an exception", FAINT)

    def _function_table(
        self, by_self: Sequence[FunctionSummary], by_total: Sequence[FunctionSummary], *, roles: bool
    ) -> Table:
        # The top by their sums, each in the terms of a step of its role: in that order they read well.
        functions = sorted(by_self, key=lambda each: each.self_ns / each.steps, reverse=True)
        functions += sorted(by_total, key=lambda each: each.total_ns / each.steps, reverse=True)
        columns = {
            "self": [wording.duration(each.self_ns / each.steps) for each in functions],
            "share": [wording.share(each.self_ns / each.steps_ns if each.steps_ns else None) for each in functions],
            "total": [wording.duration(each.total_ns / each.steps) for each in functions],
            "calls": [wording.count(each.calls / each.steps) for each in functions],
        }
        if roles:
            columns["in"] = [each.role for each in functions]
        # What the figures and the gaps leave is for names and places; a name goes first, but not over all
        # of it.
        room = self._width - sum(max(len(head), *map(len, cells)) + 2 for head, cells in columns.items()) - 2
        names = [wording.printable(each.function.qualname, self._encoding) for each in functions]
        for_names = max(8, min(max(map(len, names)), room - _PLACE_WIDTH))
        columns["function"] = [wording.cropped(name, for_names, self._ellipsis) for name in names]
        columns[""] = [self._place(each.function, room - for_names) for each in functions]
        rows = table()
        for head in columns:
            left = head in ("in", "function", "")
            rows.add_column(head, justify="left" if left else "right", no_wrap=True, style="" if head else FAINT)
        for at, row in enumerate(zip(*columns.values(), strict=True), 1):
            rows.add_row(*map(Text, row), end_section=at == len(by_self))
        return rows

    def costs(self) -> Iterator[RenderableType]:
        yield _labelled("Overhead", self._text(sentences.overhead(self._main)))
        yield _labelled("Dropped", self._sentence(sentences.dropped(self._main)))
        notes = [note for note in self._main.notes if note.hang is None]
        for note in notes[:_NOTES_SHOWN]:
            yield _labelled("Note", self._text(note.text))
        if len(notes) > _NOTES_SHOWN:
            yield _labelled("", Text(f"{len(notes) - _NOTES_SHOWN} more notes in the trace"))
        for process in self._summary.processes[1:]:
            if process.rank is not None:
                continue  # beside the others above
            yield _labelled("Also", self._text(self._other(process)))

    def whereabouts(self) -> Iterator[Text]:
        directory = wording.path(str(self._summary.directory.absolute()), self._cwd)
        written = sum(process.trace_bytes for process in self._summary.processes)
        for label, text in (
            ("Trace", f"{directory} ({wording.size(written)})"),
            ("Next", f"tcmon report {shlex.quote(directory)} --json"),
        ):
            yield Text.assemble((f"{label:<{_LABEL_WIDTH}}", HEADING), self._text(text))

    def _no_training_loop(self) -> Iterator[RenderableType]:
        yield Text("No training loop was found." if self._main.end else "No training loop was found so far.", BAD)
        seen = self._summary.seen
        if seen is not None:
            ran = wording.counted(seen.code_objects, "code object")
            loops = wording.counted(seen.loops, "loop")
            yield Text(f"{ran} ran; {seen.analysed:,} of them were analysed, with {loops} in them.")
        if self._main.end and self._main.end.hint:
            yield self._text(self._main.end.hint)

    def _loop(self, each: LoopSummary) -> Iterator[RenderableType]:
        loop = each.loop
        where = f"{wording.path(loop.file, self._cwd)}:{loop.line}"
        steps = f"{wording.counted(each.steps, 'step')}, {each.recorded:,} recorded"
        line = Text.assemble((f"{loop.role:<6}", MARKED), self._text(f"{where} in {loop.qualname}  {steps}"))
        yield Padding(line, (0, 0, 0, 2))
        evidence = "; ".join([sentences.HOW_FOUND[loop.found], *loop.evidence])
        yield Padding(self._text(evidence, FAINT), (0, 0, 0, 8))

    def _bars(self, steps: StepSummary) -> Text:
        bars = _ASCII_BARS if self._ascii else _BARS
        # Twice the median fills the height: usual steps stand in the middle, and one slow step flattens none.
        full = 2 * (steps.p50_ns or 1)
        line = Text()
        for each in steps.profile:
            level = min(int(each.longest_ns / full * len(bars)), len(bars) - 1)
            line.append(bars[level], BAD if each.longest_ns >= full else MARKED if each.recorded else FAINT)
        return line

    def _other(self, process: ProcessSummary) -> str:
        shown = process.shown_steps(all_loops=self._all_loops)
        counts = [wording.counted(each.count, f"{each.role} step") for each in shown if each.count]
        return f"{process.label}: {', '.join(counts) or 'no steps'}"

    def _place(self, function: Function, width: int) -> str:
        return wording.place(function.file, function.line, self._cwd, width, self._ellipsis, self._encoding)

    def _sentence(self, sentence: sentences.Sentence) -> Text:
        text, tone = sentence
        return self._text(text, _STYLES[tone])

    def _text(self, text: str, style: str = "") -> Text:
        # A Text and no string: in a string, rich would look for markup.
        return Text(wording.printable(text, self._encoding), style)


def _labelled(label: str, content: Text) -> Table:
    line = Table.grid()
    line.add_column(width=_LABEL_WIDTH, no_wrap=True, style=HEADING)
    line.add_column()
    line.add_row(label, content)
    return line
