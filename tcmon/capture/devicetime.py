"""How long a CUDA device was at work on a step, by events at the step's begin and end, without waiting for it."""

from __future__ import annotations

import sys
from typing import Any

from tcmon.capture.recorder import Step, identity


class DeviceClock:
    """Leaves events in the current stream of the step's thread, once the program has initialised CUDA.

    A step's time is known where the device has come to its end by the time its records are written, as it has where
    `state` is recorded, which reads numbers back; else nothing is told of it.
    """

    def __init__(self) -> None:
        self._events: dict[int, tuple[int, Any, Any]] = {}
        """By the id of a step: the device, the event at its begin, and the latest one at an end."""
        self._works = True

    def start(self, step: Step) -> None:
        """The step begins, or goes on."""
        if id(step) not in self._events:
            event = self._mark()
            if event is not None:
                self._events[id(step)] = *event, None

    def pause(self, step: Step) -> None:
        """The step ends, or pauses."""
        begun = self._events.get(id(step))
        if begun is not None:
            event = self._mark()
            if event is None or event[0] != begun[0]:
                del self._events[id(step)]  # another device: no one clock for both
            else:
                self._events[id(step)] = begun[0], begun[1], event[1]

    def take(self, step: Step) -> list[dict[str, Any]]:
        """The record of a step that is over, if its time is known."""
        device, begin, end = self._events.pop(id(step), (0, None, None))
        if begin is None or end is None:
            return []
        try:
            if not end.query():
                return []
            ns = round(begin.elapsed_time(end) * 1e6)
        except Exception:  # an error of the device that is the program's to hear of
            self._works = False
            return []
        return [{"kind": "device", **identity(step), "device": f"cuda:{device}", "ns": max(0, ns)}]

    def forget(self, step: Step) -> None:
        """Keep nothing of a step."""
        self._events.pop(id(step), None)

    def _mark(self) -> tuple[int, Any] | None:
        """The current device, and an event in its current stream; None where there is none to be had."""
        torch: Any = sys.modules.get("torch")
        if not self._works or torch is None:
            return None
        try:
            cuda = vars(torch).get("cuda")
            if cuda is None or not cuda.is_initialized() or cuda.is_current_stream_capturing():
                return None
            event = cuda.Event(enable_timing=True)
            event.record()
            return cuda.current_device(), event
        except Exception:  # an error of the device that is the program's to hear of
            self._works = False
            return None
