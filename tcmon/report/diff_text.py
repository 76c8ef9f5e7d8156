"""What differs between two runs, for people."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from tcmon.report import wording
from tcmon.report.diff import Diff, FunctionDiff, LineDiff, OnlyIn, RoleDiff
from tcmon.report.diff_state import StateDiff
from tcmon.report.layout import BAD, FAINT, GOOD, HEADING, ellipsis_of, show, show_line, table, width_of
from tcmon.report.noise import LEAST, Difference
from tcmon.trace.fields import Setting
from tcmon.trace.reader import Run

_BLANK: Final = Text()
_PLACE_WIDTH: Final = 12
_NAME_WIDTH: Final = 20


def render_diff(diff: Diff, console: Console, *, top: int) -> None:
    """Print on `console` what differs, of the functions `top` in each list."""
    page = _DiffPage(diff, console, top)
    for section in (page.heading(), page.states(), page.steps(), page.functions(), page.conclusion()):
        for part in section:
            if isinstance(part, Text):
                show_line(part, console)
            else:
                show(part, console)


class _DiffPage:
    def __init__(self, diff: Diff, console: Console, top: int) -> None:
        self._diff = diff
        self._top = top
        self._encoding = console.encoding
        self._ellipsis = ellipsis_of(console)
        self._width = width_of(console)
        self._cwd = Path.cwd()

    def heading(self) -> Iterator[RenderableType]:
        for label, run in (("A", self._diff.a), ("B", self._diff.b)):
            yield Text.assemble((f"{label}  ", HEADING), self._text(self._run(run)))
        for fact in self._diff.facts:
            yield self._text(f"{fact.name}: {_setting(fact.a)} in A, {_setting(fact.b)} in B", BAD)
        if not self._diff.facts:
            yield Text("The same command, options and versions.", FAINT)

    def states(self) -> Iterator[RenderableType]:
        for each in self._diff.states:
            if not each.compared and not each.differs:
                continue
            of = "" if each.rank is None else f"  rank {each.rank}"
            yield _BLANK
            yield Text.assemble(("Parameters", HEADING), (of, FAINT))
            yield from (self._text(*line) for line in _told(each, self._top))
            if each.losses:
                rows = table()
                for head in ("loss at step", "A", "B"):
                    rows.add_column(head, justify="right", no_wrap=True)
                rows.add_column("", no_wrap=True)
                for pair in each.losses:
                    verdict = Text("differs", BAD) if pair.differs else Text("the same", FAINT)
                    rows.add_row(f"{pair.n:,}", _loss(pair.a), _loss(pair.b), verdict)
                yield rows

    def steps(self) -> Iterator[RenderableType]:
        shown = [each for each in self._diff.steps if any(each.counts)]
        if not shown:
            return
        yield _BLANK
        rows = table()
        rows.add_column("Steps", no_wrap=True)
        for head in ("A", "B", "change", "interval"):
            rows.add_column(head, justify="right", no_wrap=True)
        rows.add_column("", no_wrap=True)
        for each in shown:
            for what, difference in ((each.role, each.time), ("  of it waiting", each.wait)):
                if difference is None:
                    continue
                verdict = self._verdict(difference, claimed=each.claimed) if what == each.role else Text()
                rows.add_row(Text(what), *self._cells(difference), verdict)
        if rows.row_count:
            yield rows
        for each in shown:
            if each.time is None:
                counts = f"{each.counts[0]:,} and {each.counts[1]:,}"
                yield Text(f"{each.role}: too few unrecorded steps to compare ({counts}; {LEAST} needed)", FAINT)

    def functions(self) -> Iterator[RenderableType]:
        for role in self._diff.roles:
            if not any(role.recorded):
                continue
            recorded = f"{role.recorded[0]:,} and {role.recorded[1]:,} {role.role} steps recorded"
            if not role.enough:
                yield _BLANK
                yield Text(f"Functions not compared: {recorded}, {LEAST} needed of each", FAINT)
                continue
            yield from self._slower_or_faster(role, recorded)
            yield from self._lines(role)
            yield from self._called(role)
            yield from self._only_in("Called in B only", role.appeared)
            yield from self._only_in("Called in A only", role.vanished)

    def conclusion(self) -> Iterator[RenderableType]:
        if self._diff.nothing_claimed:
            least = wording.share(self._diff.least_change)
            yield _BLANK
            yield Text(f"No difference beyond noise, and beyond {least}, was found.", GOOD)

    def _slower_or_faster(self, role: RoleDiff, recorded: str) -> Iterator[RenderableType]:
        claimed = [each for each in role.functions if each.claimed]
        general = ""
        if role.common is not None and role.scatter is not None:
            general = f"functions in general took {role.common:.2f} times as long, give or take {role.scatter:.0%}"
        if not claimed:
            if general and any(each.role == role.role and each.claimed for each in self._diff.steps):
                yield _BLANK
                yield Text(
                    f"No function alone changed; {role.role} {general}, as on another or a busier machine", FAINT
                )
            return
        yield _BLANK
        yield Text.assemble(("Self time per recorded step", HEADING), (f"  {recorded}", FAINT))
        if general:
            yield Text(f"{general[0].upper()}{general[1:]}; these went their own way:", FAINT)
        columns = {head: [self._cells(each.self_ns)[at] for each in claimed] for at, head in enumerate(_HEADS)}
        yield from self._table(columns, claimed)

    def _lines(self, role: RoleDiff) -> Iterator[RenderableType]:
        claimed = [each for each in role.lines if each.claimed]
        if claimed:
            yield _BLANK
            yield Text.assemble(("Time at lines per recorded step", HEADING), (f"  {role.role}, calls included", FAINT))
            columns = {head: [self._cells(each.ns)[at] for each in claimed] for at, head in enumerate(_HEADS)}
            yield from self._table(columns, claimed)

    def _called(self, role: RoleDiff) -> Iterator[RenderableType]:
        claimed = [each for each in role.functions if each.calls_claimed]
        if not claimed:
            return
        claimed.sort(key=lambda each: abs(each.calls.change), reverse=True)
        yield _BLANK
        yield Text.assemble(("Calls per recorded step", HEADING), (f"  {role.role}", FAINT))
        columns = {
            "A": [wording.count(each.calls.a) for each in claimed],
            "B": [wording.count(each.calls.b) for each in claimed],
        }
        yield from self._table(columns, claimed)

    def _only_in(self, title: str, functions: Sequence[OnlyIn]) -> Iterator[RenderableType]:
        if functions:
            yield _BLANK
            yield Text.assemble((title, HEADING), (f"  {functions[0].role}, self time per recorded step", FAINT))
            columns = {
                "self": [wording.duration(each.self_ns) for each in functions],
                "in steps": [f"{each.steps:,} of {each.of:,}" for each in functions],
            }
            yield from self._table(columns, functions)

    def _table(
        self, columns: dict[str, list[str]], functions: Sequence[FunctionDiff | LineDiff | OnlyIn]
    ) -> Iterator[RenderableType]:
        shown = functions[: self._top]
        cells = {head: column[: self._top] for head, column in columns.items()}
        room = self._width - sum(max(len(head), *map(len, column)) + 2 for head, column in cells.items())
        names = [wording.printable(each.function.qualname, self._encoding) for each in shown]
        for_names = max(_NAME_WIDTH, min(max(map(len, names)), room - _PLACE_WIDTH - 2))
        rows = table()
        for head in cells:
            rows.add_column(head, justify="right", no_wrap=True)
        rows.add_column("function", no_wrap=True)
        rows.add_column("", no_wrap=True, style=FAINT)
        for at, each in enumerate(shown):
            function = each.function
            line = each.line if isinstance(each, LineDiff) else function.line
            place = wording.place(function.file, line, self._cwd, room - for_names - 2, self._ellipsis, self._encoding)
            name = wording.cropped(names[at], for_names, self._ellipsis)
            rows.add_row(*(Text(column[at]) for column in cells.values()), Text(name), Text(place))
        yield rows
        if len(functions) > len(shown):
            yield Text(f"{self._ellipsis} {len(functions) - len(shown):,} more (--top)", FAINT)

    def _cells(self, difference: Difference) -> list[str]:
        a, b = wording.duration(difference.a), wording.duration(difference.b)
        if not difference.a:
            return [a, b, "", ""]
        low, high = difference.low / difference.a, difference.high / difference.a
        return [a, b, f"{difference.change / difference.a:+.1%}", f"{low:+.1%} to {high:+.1%}"]

    def _verdict(self, difference: Difference, *, claimed: bool) -> Text:
        if not difference.beyond_noise:
            return Text("no difference", FAINT)
        if not claimed:
            return Text(f"less than {wording.share(self._diff.least_change)}", FAINT)
        return Text("slower", BAD) if difference.change > 0 else Text("faster", GOOD)

    def _run(self, run: Run) -> str:
        meta = run.meta
        where = wording.path(str(run.path.absolute()), self._cwd)
        return f"{where}  {wording.path(meta.script, self._cwd)}, {wording.moment(meta.started)} on {meta.host}"

    def _text(self, text: str, style: str = "") -> Text:
        return Text(wording.printable(text, self._encoding), style)


_HEADS: Final = ("A", "B", "change", "interval")


def _setting(value: Setting) -> str:
    if isinstance(value, tuple):
        return shlex.join(value)
    return "none" if value is None else str(value)


def _loss(value: float | None) -> str:
    return "" if value is None else repr(value)


def _told(diff: StateDiff, top: int) -> Iterator[tuple[str, str]]:
    """What is to say of parameters, line by line with its style."""
    if diff.inputs is not None and (diff.first is None or diff.inputs <= diff.first.n):
        yield f"The model's inputs differ first, at step {diff.inputs:,}: other data, or another order of them.", BAD
    if (first := diff.first) is not None:
        when = "already before the optimizer's step" if first.before else "after the optimizer's step, not before it"
        names = ", ".join(first.parameters[:top]) + (", ..." if len(first.parameters) > top else "")
        yield f"Parameters differ first at step {first.n:,}, {when}: {names}", BAD
        sampled = "; samples of elements were compared" if first.sampled else ""
        yield f"{len(first.parameters):,} of {first.of:,} parameters differ there{sampled}.", FAINT
    before = "" if diff.last_same is None else f", the last of them step {diff.last_same:,}"
    same = diff.compared - (diff.first is not None)
    if diff.compared:
        yield f"They are the same in {wording.counted(same, 'step')} that both runs recorded{before}.", FAINT
    if diff.first is None and diff.loss is not None:
        yield f"The loss differs first at step {diff.loss.n:,}.", BAD
