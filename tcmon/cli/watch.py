"""Runs a program with a session around it: what `tcmon run` and `tcmon demo` share."""

import atexit
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from tcmon.log import log, warn
from tcmon.program import Outcome, Program

if TYPE_CHECKING:
    from tcmon.options import Options
    from tcmon.session import Session


def log_to_stderr(level: str) -> None:
    """Show tcmon's own log from `level` up, apart from the program's logging."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Line())
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"tcmon: {level}{super().format(record)}"


def watch(
    program: Program,
    options: "Options",
    *,
    command: Sequence[str],
    quiet: bool = False,
    follow: str | None = None,
    afterwards: "Callable[[Session], str] | None" = None,
) -> NoReturn:
    """Run the program under a session, then end the process as the program ended.

    With `follow`, a level of the log, the Pythons that it starts are watched too. Unless `quiet`, the summary goes to
    stderr when all of the program has ended, and then what `afterwards` says. TcmonError comes before anything of
    the program has run.
    """
    from tcmon.follow.environment import follow_from, new_launch
    from tcmon.session import Joins, start

    ended = program.prepare()
    if ended is None:
        joins = None if follow is None else Joins(new_launch(), leads=True)
        session = start(options, command=command, script=program.label, joins=joins)
        if joins is not None and follow is not None:
            follow_from(session, joins, list(command), follow)
        end = _End(program, session, quiet, afterwards)
        # Registered before anything of the program, so called after all of it, its threads included.
        atexit.register(end)
        ended = end.outcome = program.run()
    ended.leave()


class _End:
    """What tcmon does when the program has ended. Whatever fails here, the program ends as it did."""

    def __init__(
        self,
        program: Program,
        session: "Session",
        quiet: bool,
        afterwards: "Callable[[Session], str] | None",
    ) -> None:
        self.outcome = Outcome("exit", None)
        self._program = program
        self._session = session
        self._quiet = quiet
        self._afterwards = afterwards
        self._pid = os.getpid()
        self._stderr = sys.stderr  # the program may put another in its place

    def __call__(self) -> None:
        if os.getpid() != self._pid:
            return  # a fork: the session is its parent's
        # Each by itself: what keeps tcmon's own modules from being put back doesn't keep the trace from its end.
        self._attempt(self._finish, "the trace may lack its end")
        if not self._quiet and (self._session.rank is None or self._session.rank.rank == 0):
            self._attempt(self._summarise, "there is no summary")

    def _attempt(self, action: Callable[[], None], without: str) -> None:
        try:
            with self._program.aside():
                action()
        except (Exception, KeyboardInterrupt) as error:
            why = " ".join(f"{type(error).__name__} {error}".split())
            warn(f"{without}: {why} (trace: {self._session.run_dir})", error)

    def _finish(self) -> None:
        self._session.finish(reason=self.outcome.reason, exit_code=self.outcome.exit_code)
        self._session.forget_if_empty()

    def _summarise(self) -> None:
        from rich.console import Console

        from tcmon.checks.run import check
        from tcmon.checks.text import brief
        from tcmon.report.summary import summarise
        from tcmon.report.text import render
        from tcmon.trace.reader import open_run

        try:
            sys.stdout.flush()  # so that the summary comes last where both go to one place
        except Exception:
            pass  # the interpreter, which flushes next, fails too and says so
        run, console = open_run(self._session.run_dir), Console(file=self._stderr)
        render(summarise(run), console)
        options = self._session.options
        if options.check:
            brief(check(run, ignored=options.ignore), str(self._session.run_dir), console)
        if self._afterwards is not None:
            self._stderr.write(self._afterwards(self._session))
        self._stderr.flush()
