"""`tcmon.attach()`: watching a process from inside it, for as long as one likes."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from tcmon.errors import TcmonError
from tcmon.log import warn
from tcmon.options import Options
from tcmon.session import Session, running_session
from tcmon.steps.sampler import Steps


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
        self._lock = threading.RLock()  # on_done may ask for the summary
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

    def finish(self) -> None:
        """Stop watching and complete the trace, without a summary."""
        with self._lock:
            self._session.finish(reason="detached", exit_code=None)

    def detach(self) -> RunSummary:
        """Stop watching, complete the trace, and return the summary; a second call returns the same one."""
        with self._lock:
            self._session.finish(reason="detached", exit_code=None)
            if self._summary is None:
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


class Profile(Attached):
    """A process that is watched until a number of training steps has been recorded, or until `detach()`."""

    def __init__(self, session: Session, last: int, on_done: Callable[[Profile], object] | None) -> None:
        super().__init__(session)
        self._on_done = on_done
        self._finisher: threading.Thread | None = None
        self._complete = False
        session.when_written(last, self._finish_soon)

    @property
    def done(self) -> bool:
        """Whether all steps have been recorded and the process is no longer watched."""
        return self._complete

    def detach(self) -> RunSummary:
        """Stop watching if that has not happened yet, and return the summary."""
        with self._lock:
            finisher = self._finisher
            self._finish()
        if finisher is not None and finisher is not threading.current_thread():
            finisher.join()
        return super().detach()

    def _finish_soon(self) -> None:
        # In a thread: this is called in the midst of counting a step. A thread that the interpreter waits for at its
        # end, so that what is left of the work is done.
        if self._finisher is None:
            self._finisher = threading.Thread(target=self._finish_by_itself, name="tcmon", daemon=False)
            self._finisher.start()

    def _finish_by_itself(self) -> None:
        with self._lock:
            if not self._session.is_running:
                return
            self._finish(complete=True)

    def _finish(self, *, complete: bool = False) -> None:
        self._session.finish(reason="detached", exit_code=None)
        self._complete = self._complete or complete
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            try:
                on_done(self)
            except Exception as error:
                warn(f"on_done failed: {' '.join(f'{type(error).__name__}: {error}'.split())}", error)


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
            file=text,
            record=html,
            width=100,
            force_terminal=html,
            force_jupyter=False,  # it would show the text by itself
            color_system="truecolor" if html else None,
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
    return watch(_checked(options, "attach", frozenset()), _place(caller))


def watch(options: Options, origin: str) -> Attached:
    """Watch this process from now on; `origin` says who asks for it. Raises `TcmonError` as `attach`."""
    session = _begin(options, origin)
    attached = Attached(session)
    session.meet_running()
    return attached


def profile(
    steps: int, warmup: int, on_done: Callable[[Profile], object] | None, options: dict[str, Any], caller: FrameType
) -> Profile:
    """Record `steps` training steps after `warmup` others from now on, and then stop watching. Raises as `attach`."""
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if type(value) is not int:
            raise TypeError(f"{name} must be a whole number, not {value!r}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
    if on_done is not None and not callable(on_done):
        raise TypeError(f"on_done must be a function of one argument, not {on_done!r}")
    for name in ("sampler", "interval"):
        if name in options:
            raise TypeError(f"session() has no option {name!r}: it records the steps that steps and warmup say")
    options["sampler"] = Steps(f"{warmup + 1}:{warmup + steps}")
    session = _begin(_checked(options, "session", _OF_A_PROFILE), _place(caller))
    profile = Profile(session, warmup + steps, on_done)
    session.meet_running()
    return profile


_OF_A_PROFILE = frozenset(("sampler", "interval", "warmup"))


def _checked(options: dict[str, Any], function: str, taken: frozenset[str]) -> Options:
    known = [name for name in Options.__dataclass_fields__ if name not in taken]
    for name in options:
        if name not in Options.__dataclass_fields__:
            raise TypeError(f"{function}() has no option {name!r}; there are {', '.join(known)}")
    if isinstance(options.get("out"), str):
        options["out"] = Path(options["out"])
    if isinstance(record := options.get("record"), str):
        options["record"] = tuple(part.strip() for part in record.split(","))
    elif isinstance(record, Iterable):
        options["record"] = tuple(record)
    for name in ("include", "exclude"):
        if isinstance(patterns := options.get(name), str):
            options[name] = tuple(part.strip() for part in patterns.split(","))
    return Options(**options)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _begin(options: Options, origin: str) -> Session:
    if (running := running_session()) is not None:
        raise TcmonError(f"this process is watched already, since {running.origin}; detach() that session first")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return Session(options, command=sys.orig_argv, script=main or "python", origin=origin)
