"""tcmon's log, and the way of its warnings, which arrive whatever the program does to logging."""

from __future__ import annotations

import logging

log = logging.getLogger("tcmon")


def warn(text: str, error: BaseException | None = None) -> None:
    """Tell of a loss, in one line; with `error`'s traceback if the log's level is DEBUG. Never raises an `Exception`.

    Only the logger's own level silences it: programs configure logging in ways that disable loggers they don't know,
    and replace what makes records.
    """
    level = logging.WARNING
    if log.getEffectiveLevel() > level:
        return
    with_traceback = error is not None and log.getEffectiveLevel() <= logging.DEBUG
    about = (type(error), error, error.__traceback__) if with_traceback and error is not None else None
    try:
        log.callHandlers(logging.LogRecord(log.name, level, __file__, 0, "%s", (text,), about))
    except Exception:
        pass  # there is nowhere to tell it
