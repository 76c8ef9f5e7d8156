"""Listeners to some of the calls that are logged: what they are asked and told, and how frames are looked into."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, Protocol

_OPTIMIZED = 0x1  # CO_OPTIMIZED: the code of a function, whose variables are no dictionary of the program
_RESUMED = 0x20 | 0x80 | 0x200  # generators, coroutines, asynchronous generators


class Listener(Protocol):
    """Is told, inside monitoring callbacks, of the calls that it wants to hear of."""

    def wants(self, code: CodeType, arguments: Mapping[str, Any]) -> bool:
        """Whether to hear of calls of `code`; asked once, with the arguments of its first call."""

    def started(self, code: CodeType, arguments: Mapping[str, Any], event: int, thread: int) -> None:
        """A call of such a code starts, with the log's `event` (a number from 0)."""

    def ended(self, code: CodeType, thread: int, value: object, raised: bool) -> None:
        """A call of such a code is over, with the value that it returned, or None where it raised."""

    def take(self) -> Any:
        """What was heard since the last `take`, for the segment of the log that ends here."""


def can_be_heard(code: CodeType) -> bool:
    """Whether calls of `code` have arguments: it is a function's, and no generator's."""
    return bool(code.co_flags & _OPTIMIZED) and not code.co_flags & _RESUMED


def arguments_of(frame: FrameType) -> Mapping[str, Any]:
    """The variables of a function that has just started, to be given back with `let_go`."""
    return frame.f_locals


def let_go(arguments: Mapping[str, Any]) -> None:
    """Keep nothing alive: up to Python 3.12 a frame holds on to the dictionary that `arguments_of` made."""
    if sys.version_info < (3, 13):
        arguments.clear()  # type: ignore[attr-defined]


def parameter_names(code: CodeType) -> tuple[str, ...]:
    """The names of a function's parameters in the order of its signature, that of *args after those with positions."""
    names = code.co_varnames
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    at = positional + keyword
    star = names[at : at + 1] if code.co_flags & 0x4 else ()
    at += len(star)
    stars = names[at : at + 1] if code.co_flags & 0x8 else ()
    return (*names[:positional], *star, *names[positional : positional + keyword], *stars)
