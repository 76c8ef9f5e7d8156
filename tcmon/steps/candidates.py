"""Loops that may turn out to be the training loop: their iterations are remembered, not yet counted."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from types import CodeType

from tcmon.analysis.loops import Loop

_REMEMBERED = 100_000
"""Iterations of one candidate that are kept, 24 bytes each."""


class CandidateRun:
    """One activation of a candidate."""

    __slots__ = ("begin", "body", "called", "entered", "seen", "waiting")

    def __init__(self, begin: int) -> None:
        self.entered = begin
        self.begin = begin
        self.body = begin
        self.waiting = True
        self.seen: set[int] = set()
        self.called: dict[int, int] = {}


class Candidate:
    """A loop around what tells of training or evaluation, watched until it is known which loop it is of."""

    __slots__ = ("_times", "active", "code", "loop", "may_train", "on_exit", "on_start")

    def __init__(self, code: CodeType, loop: Loop, *, may_train: bool) -> None:
        self.code = code
        self.loop = loop
        self.may_train = may_train
        """Whether it stands around an optimizer's step or a backward pass, and not only around an evaluation."""
        self.active: dict[int, CandidateRun] = {}
        self._times = array("q")
        self.on_start: Callable[[], None] | None = None
        self.on_exit: dict[int, Callable[[int], None]] = {}
        """Called with the time when the run in a frame is over."""

    def entry(self, frame: int, now: int) -> None:
        self.exit(frame, now)
        self.active[frame] = CandidateRun(now)

    def start(self, frame: int, now: int) -> None:
        run = self.active.get(frame)
        if run is None:
            run = self.active[frame] = CandidateRun(now)
        if run.waiting:
            run.waiting = False
            run.body = now
            if self.on_start is not None:
                self.on_start()

    def back_edge(self, frame: int, now: int) -> None:
        run = self.active.get(frame)
        if run is not None and not run.waiting:
            self._ended(run, now)
            run.begin = now
            run.waiting = True

    def fruitless(self, frame: int, _now: int) -> None:
        """The iteration only found the end of its data."""
        run = self.active.get(frame)
        if run is not None:
            run.waiting = True

    def exit(self, frame: int, now: int) -> None:
        run = self.active.pop(frame, None)
        if run is not None and not run.waiting:
            self._ended(run, now)
        if frame in self.on_exit:
            self.on_exit.pop(frame)(now)

    def seen_in(self, frame: int, now: int) -> set[int]:
        """The optimizers that were stepped in the activation that `frame` is in."""
        self.start(frame, now)
        return self.active[frame].seen

    def called_in(self, frame: int, now: int) -> dict[int, int]:
        """The modules that were called without gradients in the activation that `frame` is in."""
        self.start(frame, now)
        return self.active[frame].called

    def history(self) -> list[tuple[int, int, int]]:
        """Iterations that are over: begin, body, end."""
        return list(zip(self._times[0::3], self._times[1::3], self._times[2::3], strict=True))

    def _ended(self, run: CandidateRun, now: int) -> None:
        if len(self._times) < 3 * _REMEMBERED:
            self._times.extend((run.begin, run.body, now))
