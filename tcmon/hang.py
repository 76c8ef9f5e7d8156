"""Notices when a run hangs, from a thread of its own, and tells where every thread of the process stands."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_DEEPEST = 100
_CHECKS = 4
"""How often within the time of a hang it is looked whether there was a step."""


class HangWatch:
    """Calls `hung` with a note when `progress` has not changed for `seconds`, once for each standstill.

    `progress` is any number that changes with each step; nothing is told before the first one. Runs until `stop`.
    """

    def __init__(self, seconds: float, progress: Callable[[], int], hung: Callable[[dict[str, Any]], None]) -> None:
        self._seconds = seconds
        self._progress = progress
        self._hung = hung
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tcmon hang watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        last, still, told = self._progress(), 0, False
        while not self._stopped.wait(self._seconds / _CHECKS):
            now = self._progress()
            if now != last:
                last, still, told = now, 0, False
                continue
            still += 1
            if now and still >= _CHECKS and not told:
                told = True
                self._hung(self._note())

    def _note(self) -> dict[str, Any]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = {
            f"{names.get(ident, 'a thread of C')} ({ident})": _stack(frame)
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        }
        where = "; ".join(f"{name} at {stack[-1]}" for name, stack in stacks.items() if stack)
        rank = os.environ.get("RANK")
        of_rank = f" of rank {rank}" if rank is not None else ""
        text = f"no step for {self._seconds:g} s{of_rank}: {where}"
        return {"kind": "note", "level": "warning", "text": text[:2000], "stacks": stacks}


def _stack(frame: FrameType | None) -> list[str]:
    """The calls of a thread, outermost first; the innermost ones if there are too many."""
    found: list[str] = []
    while frame is not None and len(found) < _DEEPEST:
        code = frame.f_code
        found.append(f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})")
        frame = frame.f_back
    return found[::-1]
