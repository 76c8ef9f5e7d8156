"""Begins to watch a process that a followed program has started."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from tcmon.cli.watch import log_to_stderr
from tcmon.follow.environment import RANKED, Settings, settings_of
from tcmon.log import warn
from tcmon.namesakes import Namesakes
from tcmon.session import Joins, Session, running_session

_FORKSERVER = "multiprocessing.forkserver import main"


def begin(text: str, started: int) -> None:
    """Watch this process, whose interpreter started as process `started`; torch is about to be imported.

    Never raises an `Exception`. Forks are silent, but for those by which multiprocessing's fork server starts children.
    """
    forked = os.getpid() != started
    serves = any(_FORKSERVER in each for each in sys.orig_argv)
    try:
        settings = settings_of(text)
        if serves and not forked:
            os.register_at_fork(after_in_child=lambda: _begin_in_fork(settings, started))
        elif serves or not forked:
            _watch(settings, by_fork=serves)
    except Exception as error:
        _not_watched(error)


def _begin_in_fork(settings: Settings, server: int) -> None:
    try:
        if os.getppid() == server:
            _watch(settings, by_fork=True)
    except Exception as error:
        _not_watched(error)


def _not_watched(error: Exception) -> None:
    warn(f"process {os.getpid()} is not watched: {' '.join(str(error).split())}", error)


def _watch(settings: Settings, *, by_fork: bool) -> None:
    if running_session() is not None:
        return
    folder = sys.path[0] if sys.path and not sys.flags.safe_path else None
    log_to_stderr(settings.level)
    rank = os.environ.get("RANK")
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    inherited = rank is not None and os.environ.get(RANKED) == f"{rank}.{restart}"
    if rank is not None:
        os.environ[RANKED] = f"{rank}.{restart}"
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    script = Path(main).name if isinstance(main, str) else "python"
    joins = Joins(settings.launch, leads=False, is_rank=not inherited)
    session = Session(settings.options, command=sys.orig_argv, script=script, origin="tcmon run", joins=joins)
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:
            session.finish(reason="exit", exit_code=None)
            session.forget_if_empty()

    atexit.unregister(session._at_exit)
    atexit.register(end)
    if by_fork:
        # Such a process ends by os._exit, after what multiprocessing itself has to do at the end; what is registered
        # for that before the process knows that it is a child is forgotten.
        from multiprocessing.util import Finalize, register_after_fork

        Finalize(None, end, exitpriority=-100)
        register_after_fork(session, lambda _: Finalize(None, end, exitpriority=-100))
    if folder is not None:
        Namesakes(folder).give_way()
    session.meet_running()
