"""Exceptions that turn up in a callback but are the program's: raised by its signal handlers, or sent to its thread.

A handler runs wherever the main thread happens to be, in a callback too. What it raises is meant for the program.
"""

from __future__ import annotations

import _thread
import functools
import signal
from pathlib import Path
from types import CodeType, FunctionType, MethodType, TracebackType

_OWN_FOLDER = str(Path(__file__).parents[1])
_OWN_EXCEPTIONS = frozenset({"builtins", "struct", "json", "orjson", "tcmon.errors"})
"""Modules of the exception classes that the work of a callback can raise by itself."""


def is_interruption(error: BaseException) -> bool:
    """Whether `error`, caught in a callback, is the program's and no error of tcmon."""
    if not isinstance(error, Exception) or _of_handler(error) is not None:
        return True
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    # Sent to the thread (PyThreadState_SetAsyncExc): it comes up in tcmon's own code, but is nothing that this raises.
    module = vars(type)["__module__"].__get__(type(error))
    own = type(module) is str and module in _OWN_EXCEPTIONS
    return not own and last is not None and last.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER)


def hand_on(error: BaseException) -> None:
    """Let the program have `error`: raises it, without the frames of tcmon around the handler.

    The KeyboardInterrupt of Python's own handler is not raised but asked for again: so it comes up in the program's own
    frame, provided that the callers do nothing any more but return.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # One instruction: after a call, the handler would run here again.
        [*map(_thread.interrupt_main, (signal.SIGINT,))]
        return
    raise error.with_traceback(_of_handler(error) or error.__traceback__)


def _of_handler(error: BaseException) -> TracebackType | None:
    """The part of the traceback that begins in a signal's handler."""
    handlers = {code for code in map(_code_of, map(signal.getsignal, signal.valid_signals())) if code is not None}
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in handlers:
        traceback = traceback.tb_next
    return traceback


def _code_of(handler: object) -> CodeType | None:
    # By exact types: the handler may be any object of the program, and must not be asked.
    while type(handler) in (functools.partial, MethodType):
        handler = handler.func if type(handler) is functools.partial else handler.__func__  # type: ignore[attr-defined]
    if type(handler) is not FunctionType:
        handler = vars(type(handler)).get("__call__")
    return handler.__code__ if type(handler) is FunctionType else None
