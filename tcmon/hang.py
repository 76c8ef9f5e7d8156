"""Notices when a run hangs, from a thread of its own, and tells where every thread of the process stands."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_DEEPEST = 100
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_CHECKS = 4
"""How often within the time of a hang it is looked whether there was a step."""


class HangWatch:
    """Calls `hung` with a note when `progress` has not changed for `seconds`, once for each standstill.

    `progress` is any number that changes with each step; nothing is told before the first one. `step` gives the thread,
    role and number of the step in progress, and `is_program` tells the program's files from others. Runs until `stop`.
    """

    def __init__(
        self,
        seconds: float,
        progress: Callable[[], int],
        step: Callable[[], tuple[int, str, int] | None],
        is_program: Callable[[str], bool],
        hung: Callable[[dict[str, Any]], None],
    ) -> None:
        self._seconds = seconds
        self._step = step
        self._is_program = is_program
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
        frames = {ident: frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()}
        stacks = {
            f"{names.get(ident, 'a thread of C')} ({ident})": list(map(_place, _calls(frame)))[::-1]
            for ident, frame in frames.items()
        }
        step = self._step()
        thread = step[0] if step is not None else threading.main_thread().ident
        calls = _calls(frames.get(thread or 0))
        of_program = next((frame for frame in calls if self._is_program(frame.f_code.co_filename)), None)
        collectives = (f.f_code.co_name for f in calls[::-1] if f.f_code.co_filename.endswith(_COLLECTIVES))
        hang = {
            "ns": round(self._seconds * 1e9),
            "role": step[1] if step is not None else None,
            "n": step[2] if step is not None else None,
            "at": _place(calls[0]) if calls else None,
            "program": _place(of_program) if of_program is not None else None,
            # The outermost one is what the program, or DDP, has called; a wrapper around all of them is none.
            "collective": next((name for name in collectives if name != "wrapper"), None),
        }
        where = "; ".join(f"{name} at {stack[-1]}" for name, stack in stacks.items() if stack)
        rank = os.environ.get("RANK")
        of_rank = f" of rank {rank}" if rank is not None else ""
        text = f"no step for {self._seconds:g} s{of_rank}: {where}"
        return {"kind": "note", "level": "warning", "text": text[:2000], "stacks": stacks, "hang": hang}


def _calls(frame: FrameType | None) -> list[FrameType]:
    """The frames of a thread, innermost first, those deepest down left out if there are too many."""
    found: list[FrameType] = []
    while frame is not None and len(found) < _DEEPEST:
        found.append(frame)
        frame = frame.f_back
    return found


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
