"""The page: words and tables as HTML, and beside them the data for charts, the script and the library that draw them.

The page loads nothing: a content security policy forbids it to. The library and the data are compressed, which browsers
undo themselves; so nothing of the program's is ever read as HTML or as a script.
"""

from __future__ import annotations

import gzip
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path, PurePath
from typing import Final

import orjson

from tcmon import __version__
from tcmon.checks.run import Checked, check
from tcmon.errors import TcmonError
from tcmon.report import sentences, wording
from tcmon.report.summary import FunctionSummary, ProcessSummary, StepSummary, Summary, summarise
from tcmon.trace.details import Finding
from tcmon.trace.everystep import every_step
from tcmon.trace.reader import Process, Run
from tcmon.view.course import Course
from tcmon.view.data import RankTimes, page_data
from tcmon.view.gather import Recorded, TimesByRole
from tcmon.view.html import Html, element, joined, table
from tcmon.view.source import source_lines

GENERATOR: Final = "tcmon view"
"""By this, in its first bytes, a file is known to be such a page."""

FUNCTIONS: Final = 40
_RANKS_DRAWN: Final = 16
_NOTES_SHOWN: Final = 20
_RANK_BUCKETS: Final = 300

_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)

type Advance = Callable[[int], object]


def charts_library() -> str:
    """The source of plotly.js. Raises TcmonError when the package that brings it is missing."""
    try:
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise TcmonError("the view needs plotly: pip install 'tcmon[view]'") from None
    return str(get_plotlyjs())


def is_view(path: Path) -> bool:
    """Whether the file at `path` is a page that was made here."""
    try:
        with path.open("rb") as file:
            return GENERATOR.encode() in file.read(100)
    except OSError:
        return False


def total_bytes(run: Run) -> int:
    """About what `page` tells its `advance` of in the end."""
    read = [*run.processes, *run.processes[:1], *run.processes[:1], *_drawn_ranks(run)]
    return sum(each.trace.stat().st_size for each in read)


def page(run: Run, library: str, advance: Advance = lambda _: None) -> bytes:
    """The page of `run`, drawn with `library`. Raises TcmonError when a trace can't be read."""
    summary = summarise(run, top=FUNCTIONS, advance=advance)
    checked = check(run)
    cwd = PurePath(run.meta.cwd or ".")
    process = run.processes[0] if run.processes else None
    times = TimesByRole(process, advance)
    recorded = Recorded(process, times, advance)
    ranks = [RankTimes(f"rank {each.rank}", _course(each, advance)) for each in _drawn_ranks(run)]
    data = page_data(summary, times, recorded, ranks, cwd)
    body = _Body(summary, checked, recorded, cwd, ranks=len(ranks)).html()
    return _document(f"{run.meta.script} - tcmon", body, data, library).encode()


def _document(title: str, body: Html, data: object, library: str) -> Html:
    room = files("tcmon.view")
    return joined(
        (
            Html("<!DOCTYPE html>\n"),
            Html(f"<!-- {GENERATOR}; the charts are drawn by plotly.js (MIT), which is in this file -->\n"),
            Html('<html lang="en"><head>'),
            element("meta", charset="utf-8"),
            element("meta", name="generator", content=GENERATOR),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", title),
            element("style", Html((room / "page.css").read_text("utf-8"))),
            Html("</head><body>"),
            body,
            _packed("library", library.encode()),
            _packed("data", orjson.dumps(data)),
            element("script", Html((room / "page.js").read_text("utf-8"))),
            Html("</body></html>\n"),
        )
    )


def _packed(name: str, content: bytes) -> Html:
    text = b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")
    return element("script", Html(text), id=name, type="application/gzip+base64")


def _drawn_ranks(run: Run) -> list[Process]:
    latest: dict[int, Process] = {}
    for each in run.processes:
        if each.rank is not None:
            latest.setdefault(each.rank, each)
    return [latest[rank] for rank in sorted(latest)][:_RANKS_DRAWN] if len(latest) > 1 else []


def _course(process: Process, advance: Advance) -> Course:
    course = Course(buckets=_RANK_BUCKETS)
    for each in every_step(process, advance):
        if each.times.role == "train":
            course.add(each.times.n, each.times.end)
    return course


class _Body:
    """The sections, from top to bottom."""

    def __init__(self, summary: Summary, checked: Checked, recorded: Recorded, cwd: PurePath, *, ranks: int) -> None:
        self._summary = summary
        self._main = summary.main
        self._checked = checked
        self._recorded = recorded
        self._cwd = cwd
        self._ranks = ranks

    def html(self) -> Html:
        sections = [
            self._section("findings", "Findings", self._findings()),
            self._section("steps", "Step times", self._steps()),
            self._section("recorded", "Recorded steps", self._recorded_steps()),
            self._section("training", "Loss, gradients, parameters", self._training()),
            self._section("ranks", "Ranks", self._of_ranks()),
            self._section("functions", "Functions", self._functions()),
            self._section("run", "The run", self._run()),
        ]
        shown = [each for each in sections if each]
        return joined((self._header([each for each in sections if each]), element("main", *shown), _NO_SCRIPT))

    def _section(self, name: str, title: str, content: Iterable[Html]) -> Html:
        parts = list(content)
        if not parts:
            return Html("")
        return element("section", element("h2", title), *parts, id=name, aria_label=title)

    def _header(self, sections: Sequence[Html]) -> Html:
        meta = self._summary.meta
        titles = {"findings": "Findings", "steps": "Step times", "recorded": "Recorded steps", "training": "Training"}
        titles |= {"ranks": "Ranks", "functions": "Functions", "run": "The run"}
        links = [
            element("a", title, href=f"#{name}")
            for name, title in titles.items()
            if any(each.startswith(f'<section id="{name}"') for each in sections)
        ]
        state, tone = sentences.state(self._summary)
        torch = f", torch {meta.torch}" if meta.torch else ""
        return element(
            "header",
            element("h1", wording.path(meta.script, self._cwd)),
            element("p", element("span", state, class_=tone), class_="state"),
            element("p", element("code", shlex.join(meta.command)), class_="faint"),
            element(
                "p", f"Python {meta.python}{torch}, on {meta.host}, {wording.moment(meta.started)}", class_="faint"
            ),
            element("nav", *links, aria_label="Sections"),
        )

    def _findings(self) -> Iterator[Html]:
        if not self._checked.steps:
            yield element("p", "No recorded step holds state, so nothing could be checked.", class_="faint")
            return
        if not self._checked.findings:
            yield element("p", f"Nothing wrong was found in {wording.counted(self._checked.steps, 'recorded step')}.")
        for finding in self._checked.findings:
            yield self._finding(finding)

    def _finding(self, finding: Finding) -> Html:
        of = "evaluation step" if finding.role == "eval" else "step"
        parameters = f"Parameters: {', '.join(finding.parameters)}" if finding.parameters else None
        return element(
            "article",
            element(
                "h3",
                element("span", finding.severity, class_=f"tag {finding.severity}"),
                f" {finding.rule} ",
                element("a", f"{of} {finding.n}", href=f"#{finding.role}-{finding.n}"),
            ),
            element("p", finding.observed),
            element("p", f"Why it matters: {finding.why}"),
            element("p", f"Look {finding.look}"),
            *([element("p", parameters, class_="faint")] if parameters else []),
        )

    def _steps(self) -> Iterator[Html]:
        shown = [each for each in self._main.shown_steps(all_loops=False) if each.count]
        if not shown:
            yield element("p", "No step is known.")
            return
        yield table(
            ("", "counted", "recorded", "p50", "p95", "longest", "waiting for data"),
            _step_rows(shown),
            left=(0,),
        )
        for each in shown:
            name = "Training steps" if each.role == "train" else "Evaluation steps"
            yield _chart(f"times-{each.role}", f"{name}: time of each", "Times")
            if each.role == "train":
                yield _chart("shares-train", "Where the time of training steps goes", "Shares")

    def _recorded_steps(self) -> Iterator[Html]:
        roles = [role for role in ("train", "eval") if self._recorded.steps[role]]
        if not roles:
            return
        yield Html(
            '<form class="controls" id="choose" aria-label="Choose recorded steps">'
            '<label>Kind <select id="role"></select></label> '
            '<label>Step <select id="step"></select></label> '
            '<button type="button" id="earlier">Earlier</button> '
            '<button type="button" id="later">Later</button> '
            '<button type="button" id="slowest">Slowest</button> '
            '<button type="button" id="merged">All together</button> '
            '<label id="threads">Threads <select id="thread"><option value="0">the step\'s own</option>'
            '<option value="1">others</option></select></label></form>'
        )
        yield Html('<p id="chosen" role="status" aria-live="polite"></p>')
        yield _chart("calls", "Calls of the chosen steps by path: which function called which", "Calls")
        kinds = [("flame0", "the program"), ("flame1", "torch"), ("flame2", "other libraries")]
        keys = [
            joined((element("span", class_="key", style=f"background:var(--{key})"), f" {text} "))
            for key, text in kinds
        ]
        yield element("p", *keys, class_="faint")
        yield element("p", id="focus", role="status", aria_live="polite", class_="faint")
        yield element(
            "details",
            element("summary", "The calls as a table"),
            element("div", id="calls-table", class_="wide", tabindex=0),
        )
        for role in roles:
            yield from self._anatomy(role)

    def _anatomy(self, role: str) -> Iterator[Html]:
        recorded = self._recorded
        places = {(function, line): at for (of, function, line), at in recorded.line_at.items() if of == role}
        whole = sum(recorded.line_ns[at] for at in places.values())
        steps = recorded.lines_steps[role]
        if not whole:
            return
        rows: list[Html] = []
        for function in dict.fromkeys(function for function, _ in places):
            known = recorded.functions.get(function)
            lines = [line for of, line in places if of == function]
            source = source_lines(known.file, lines, self._summary.meta.start_unix_ns / 1e9) if known else None
            if known:
                place = f"{wording.path(known.file, self._cwd)}, {known.qualname}"
                gone = "" if source else " (its source is gone, or was changed since the run began)"
                rows.append(element("tr", element("th", place + gone, colspan=4, class_="text", scope="rowgroup")))
            for line in sorted({*lines, *(source or ())}):
                at = places.get((function, line))
                took = recorded.line_ns[at] if at is not None else 0
                share = took / whole
                times: list[Html] = [Html("<td></td><td></td>")]
                if at is not None:
                    times = [
                        element("td", _duration(took / steps), class_="took"),
                        element("td", wording.share(share), class_="share"),
                    ]
                rows.append(
                    element(
                        "tr",
                        *times,
                        element("td", str(line), class_="number"),
                        element("td", element("code", (source or {}).get(line, "")), class_="text code"),
                        data_at=at,
                        data_took=None if at is None else round(took / steps / 1000, 1),
                        style=f"--share:{share * 100:.2f}%" if at is not None else None,
                    )
                )
        head = Html('<tr><th>time</th><th>share</th><th>line</th><th class="text">source</th></tr>')
        yield element(
            "div",
            element("h3", "Lines of the loop"),
            element(
                "p",
                f"Per recorded step, calls from a line included; over {wording.counted(steps, 'step')}.",
                class_="faint lines-of",
            ),
            element(
                "div",
                element("table", element("thead", head), element("tbody", *rows), class_="lines"),
                class_="wide",
                tabindex=0,
            ),
            id=f"lines-{role}",
            data_steps=steps,
            hidden=role != "train" and self._recorded.steps["train"] > 0,
        )

    def _training(self) -> Iterator[Html]:
        recorded = self._recorded
        if any(len(each) or each.nonfinite for each in recorded.losses.values()):
            yield _chart("loss", "Loss, as backward() was called on it", "Loss")
        if len(recorded.norms.norm) or recorded.norms.spoilt:
            yield Html('<p class="controls"><label>Show <select id="parameter"></select></label></p>')
            yield _chart("norms", "Norms of gradients and parameters", "Norms")
            yield _chart("updates", "Size of updates, relative to the parameters", "Updates")
            yield Html(
                '<p class="controls"><label>Of each parameter <select id="figure">'
                '<option value="grad">gradient norm</option><option value="update">relative update</option>'
                '<option value="norm">norm</option></select></label></p>'
            )
            yield _chart("grid", "Each parameter over time", "Grid")
            if recorded.norms.spoilt:
                yield table(
                    ("step", "NaN or infinite in gradients", "in parameters"),
                    ([wording.count(each) for each in row] for row in recorded.norms.spoilt[:10]),
                )

    def _of_ranks(self) -> Iterator[Html]:
        summary = self._summary
        processes = [each for each in summary.processes if each.rank is not None]
        if len(processes) < 2 and not summary.missing:
            return
        rows = [_rank_row(each) for each in sorted(processes, key=lambda each: (each.rank or 0, each.restart))]
        yield table(("rank", "steps", "recorded", "p50", "p95", "longest", "waiting for data"), rows)
        for text in summary.missing:
            yield element("p", text, class_="bad")
        frontier = summary.frontier
        if frontier is not None:
            yield from map(_sentence, sentences.held_up(frontier))
            yield _chart("phases", "Phases of a step on each rank (p50)", "Phases")
        if self._ranks > 1:
            yield _chart("rank-times", "Training steps of each rank", "RankTimes")

    def _functions(self) -> Iterator[Html]:
        functions = sorted(self._main.functions, key=lambda each: each.self_ns / max(1, each.steps), reverse=True)
        if not functions:
            return
        yield element("p", "By self time, per recorded step.", class_="faint")
        heads = ("self", "share", "total", "calls", "in", "function", "place")
        yield table(heads, map(self._function, functions), left=(4, 5, 6))

    def _function(self, each: FunctionSummary) -> list[str]:
        steps = max(1, each.steps)
        function = each.function
        place = f"{wording.path(function.file, self._cwd)}:{function.line}" if function.file else ""
        return [
            _duration(each.self_ns / steps),
            wording.share(each.self_ns / each.steps_ns if each.steps_ns else None),
            _duration(each.total_ns / steps),
            wording.count(each.calls / steps),
            each.role,
            element("code", function.qualname),
            place,
        ]

    def _run(self) -> Iterator[Html]:
        meta, main = self._summary.meta, self._main
        for each in main.shown_loops(all_loops=False):
            loop = each.loop
            yield element(
                "p",
                element("span", loop.role, class_="tag"),
                f" {wording.path(loop.file, self._cwd)}:{loop.line} in ",
                element("code", loop.qualname),
                f": {wording.counted(each.steps, 'step')}, {each.recorded:,} recorded. "
                f"{sentences.HOW_FOUND[loop.found]}: {'; '.join(loop.evidence)}",
            )
        if not self._summary.training_loop_found:
            hint = f" {main.end.hint}" if main.end and main.end.hint else ""
            yield element("p", f"No training loop was found.{hint}", class_="bad")
        options = {
            key: ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for key, value in meta.options.items()
        }
        facts = {
            "directory": str(self._summary.directory.absolute()),
            "command": shlex.join(meta.command),
            "started in": meta.cwd or "-",
            "started": meta.started,
            "tcmon": meta.tcmon,
            "python": f"{meta.python} ({meta.implementation})",
            "torch": meta.torch or "-",
            "platform": meta.platform,
            "host": meta.host,
            "process": str(meta.pid),
            "trace": wording.size(sum(each.trace_bytes for each in self._summary.processes)),
            "overhead": sentences.overhead(self._main),
            "this page": f"made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by tcmon {__version__}",
            "dropped": sentences.dropped(self._main)[0],
            **{f"option {key}": value for key, value in options.items()},
        }
        pairs = (joined((element("dt", key), element("dd", value))) for key, value in facts.items())
        yield element("dl", *pairs)
        hang = self._summary.hang
        if hang is not None:
            yield element("h3", f"Hang: {sentences.longest_hang(hang)}")
            yield from map(_sentence, sentences.hang(hang))
        for note in [each for each in main.notes if each.hang is None][:_NOTES_SHOWN]:
            yield element("p", f"{note.level}: {note.text}", class_="faint")


_NO_SCRIPT: Final = Html("<noscript><p>The charts need JavaScript.</p></noscript>")


def _duration(nanoseconds: float | None) -> str:
    # A terminal may lack the letter, a page doesn't.
    return wording.duration(nanoseconds).replace(" us", " \u00b5s")


def _chart(name: str, title: str, kind: str) -> Html:
    return element(
        "figure",
        element("figcaption", title),
        element("div", id=name, class_="chart", data_kind=kind, tabindex=0, role="group", aria_label=title),
    )


def _sentence(sentence: sentences.Sentence) -> Html:
    text, tone = sentence
    return element("p", text, class_=tone)


def _step_rows(shown: Iterable[StepSummary]) -> Iterator[list[str]]:
    for each in shown:
        yield [each.role, wording.count(each.count), wording.count(each.recorded), *_figures(each)]
        own = each.without_evaluation
        if own is not None:
            yield [
                "less evaluation",
                "",
                "",
                *(_duration(time) for time in (own.p50_ns, own.p95_ns, own.max_ns)),
                "",
            ]


def _rank_row(process: ProcessSummary) -> list[str]:
    steps = process.steps["train"]
    label = f"{process.rank} (restart {process.restart})" if process.restart else str(process.rank)
    return [label, wording.count(steps.count), wording.count(steps.recorded), *_figures(steps)]


def _figures(steps: StepSummary) -> list[str]:
    times = (_duration(each) for each in (steps.p50_ns, steps.p95_ns, steps.max_ns))
    return [*times, wording.share(steps.data_wait_share)]
