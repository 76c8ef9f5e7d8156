"""`tcmon.attach()`: watching a process from inside it, for as long as one likes."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from tcmon.errors import TcmonError
from tcmon.options import Options
from tcmon.session import Session, running_session


class StepColumns(NamedTuple):
    """Times of all steps of one role, in nanoseconds: `begin` on the session's clock, `wait` and `end` from there."""

    n: array[int]
    begin: array[int]
    wait: array[int]
    end: array[int]


class Attached:
    """A process that is watched, from `tcmon.attach()` until `detach()`; also a context manager."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._summary: RunSummary | None = None

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self._session.run_dir

    @property
    def attached(self) -> bool:
        """Whether the process is still being watched."""
        return self._session.is_running

    @property
    def loops(self) -> list[dict[str, Any]]:
        """The loops found so far: `file`, `qualname`, `line`, `role`, `found`, `evidence`."""
        return self._session.loops

    @property
    def steps(self) -> dict[str, StepColumns]:
        """The times of all steps so far by role ("train", "eval"); read from the run directory."""
        from tcmon.trace.everystep import OUTSIDE, every_step
        from tcmon.trace.reader import open_run

        columns: dict[str, StepColumns] = {}
        own = self._session.trace.name
        [process] = [each for each in open_run(self.run_dir).processes if each.trace.name == own]
        for step in every_step(process):
            times = step.times
            if times.role != OUTSIDE:
                of_role = columns.setdefault(times.role, StepColumns(*(array("q") for _ in range(4))))
                for column, value in zip(of_role, (times.n, times.begin, times.wait, times.end), strict=True):
                    column.append(value)
        return columns

    def summary(self) -> RunSummary:
        """The summary of the run so far: `str()` is the report, a notebook shows it as HTML, `data` is its JSON."""
        return self._summary or RunSummary(self.run_dir)

    def pause(self) -> None:
        """Record no further step, until `resume`; steps are counted and timed all the same."""
        self._session.pause()

    def resume(self) -> None:
        """Record again as the sampler says."""
        self._session.resume()

    def record_next(self, count: int) -> None:
        """Record the next `count` training steps, whatever the sampler says; raises `ValueError`, `TypeError`."""
        self._session.record_next(count)

    def detach(self) -> RunSummary:
        """Stop watching, complete the trace, and return the summary; a second call returns the same one."""
        with self._lock:
            if self._summary is None:
                self._session.finish(reason="detached", exit_code=None)
                self._summary = RunSummary(self.run_dir)
        return self._summary

    def __enter__(self) -> Attached:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception | KeyboardInterrupt):
            self._session.raised()
        self.detach()

    def __repr__(self) -> str:
        return f"<tcmon {'attached' if self.attached else 'detached'}, {self.run_dir}>"


class RunSummary:
    """What a run directory holds, for people and for programs. It is read once, when it is first looked at."""

    def __init__(self, run_dir: Path) -> None:
        from tcmon.checks.run import check
        from tcmon.report.summary import summarise
        from tcmon.trace.reader import open_run

        self.run_dir = run_dir
        run = open_run(run_dir)
        self._summary = summarise(run)
        self._checked = check(run)

    @property
    def data(self) -> dict[str, Any]:
        """As `tcmon report --json` prints it."""
        from tcmon.report.as_json import as_json

        return as_json(self._summary, findings=self._checked.findings)

    def __str__(self) -> str:
        return self._rendered(html=False)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._rendered(html=True)

    def _rendered(self, *, html: bool) -> str:
        import io

        from rich.console import Console

        from tcmon.checks.text import brief
        from tcmon.report.text import render

        text = io.StringIO()
        console = Console(
            file=text, record=html, width=100, force_terminal=html, color_system="truecolor" if html else None
        )
        render(self._summary, console)
        brief(self._checked, str(self.run_dir), console)
        if html:
            return console.export_html(inline_styles=True, code_format='<pre style="line-height:1.25">{code}</pre>')
        return text.getvalue().rstrip()


def attach(options: dict[str, Any], caller: FrameType) -> Attached:
    """Watch this process from now on; `caller` is the frame that asks for it.

    Raises `TypeError` and `ValueError` for bad options, before anything is done, and `TcmonError` if the process is
    watched already, the run directory can't be made, or no tool id is left.
    """
    known = Options.__dataclass_fields__
    for name in options:
        if name not in known:
            raise TypeError(f"attach() has no option {name!r}; there are {', '.join(known)}")
    if isinstance(options.get("out"), str):
        options["out"] = Path(options["out"])
    if isinstance(record := options.get("record"), str):
        options["record"] = tuple(part.strip() for part in record.split(","))
    elif isinstance(record, Iterable):
        options["record"] = tuple(record)
    chosen = Options(**options)
    where = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    if (running := running_session()) is not None:
        raise TcmonError(f"this process is watched already, since {running.origin}; detach() that session first")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    session = Session(chosen, command=sys.orig_argv, script=main or "python", origin=where)
    session.meet_running()
    return Attached(session)
