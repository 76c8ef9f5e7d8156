"""Steps and stages that the program names itself, through `tcmon.control`.

The functions of that module are empty; what is called here is their start, seen as an event, so that nothing of it is
monitored or recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType

from tcmon import control
from tcmon.analysis.loops import unplaced_loop
from tcmon.analysis.roles import Proposal, Role
from tcmon.steps.codebase import Codebase, is_own
from tcmon.steps.tracker import Tracker, WatchedLoop


class Manual:
    """Counts the steps that the program begins itself.

    `found` gives a loop its number; `retracted` is told of a loop whose place they take, with the reason.
    """

    def __init__(
        self,
        tracker: Tracker,
        codebase: Codebase,
        found: Callable[[CodeType, Proposal, str], int],
        retracted: Callable[[int, str], None],
    ) -> None:
        self._tracker = tracker
        self._codebase = codebase
        self._found = found
        self._retracted = retracted
        self._held: dict[tuple[int, Role], WatchedLoop] = {}

    def signals(self) -> Iterator[tuple[CodeType, Callable[[FrameType], None]]]:
        """The functions of `tcmon.control`, and what their start calls."""
        yield control.start_step.__code__, lambda frame: self._next(Role.TRAIN, frame, "start_step()")
        yield control.start_eval_step.__code__, lambda frame: self._next(Role.EVAL, frame, "start_eval_step()")
        yield control._Block.__enter__.__code__, lambda frame: self._next(Role.TRAIN, frame, "step()")
        yield control._Block.__exit__.__code__, lambda _: self._end(Role.TRAIN)
        yield control._stage_entered.__code__, lambda frame: self._tracker.set_stage(frame.f_locals["name"])

    def _next(self, role: Role, frame: FrameType, what: str) -> None:
        thread, now = get_ident(), perf_counter_ns()
        held = self._held.get((thread, role))
        if held is None:
            held = self._held[thread, role] = self._take_over(role, frame, what)
        if -thread in held.active:
            held.back_edge(-thread, now)
            held.start(-thread, perf_counter_ns())
            return
        held.start(-thread, now)
        if what != "step()":
            self._end_with_loop(frame, held, -thread)

    def _end(self, role: Role) -> None:
        thread = get_ident()
        if (thread, role) in self._held:
            self._held[thread, role].exit(-thread, perf_counter_ns())

    def _take_over(self, role: Role, frame: FrameType, what: str) -> WatchedLoop:
        for watched in self._tracker.take_over(role):
            self._retracted(watched.id, f"the program calls tcmon.{what}")
        caller = next(self._callers(frame), frame)
        loop = unplaced_loop(caller.f_lineno)
        proposal = Proposal(loop, role, (f"tcmon.{what}",))
        loop_id = self._found(caller.f_code, proposal, "manual")
        return self._tracker.watch_calls(caller.f_code, loop_id, loop, role)

    def _end_with_loop(self, frame: FrameType, held: WatchedLoop, key: int) -> None:
        """Let the step end when the innermost loop around it is left, if it is in one."""
        for caller in self._callers(frame):
            for loop in self._codebase.loops_at(caller):
                around = self._tracker.find(caller.f_code, loop) or self._tracker.watch_candidate(caller.f_code, loop)
                around.seen_in(id(caller), perf_counter_ns())
                around.on_exit[id(caller)] = lambda now: held.exit(key, now)
                return

    def _callers(self, frame: FrameType | None) -> Iterator[FrameType]:
        """The program's frames around a call of `tcmon.control`, innermost first."""
        while frame is not None and frame.f_code.co_filename == control.__file__:
            frame = frame.f_back
        while frame is not None and not is_own(frame.f_code.co_filename):
            if not self._codebase.is_torch(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back
