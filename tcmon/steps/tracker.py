"""Activations of watched loops, their iterations counted as steps.

Everything is told by three kinds of local events on the code objects that hold a watched loop: INSTRUCTION at the few
offsets of a loop where an iteration begins or ends (every other instruction is silenced at its first event),
PY_RETURN, and PY_YIELD/PY_RESUME for generators; and by the global PY_UNWIND, which is the only event that tells of an
exception leaving a frame.

An iteration runs from one back edge to the next: first it waits for data (the iterator's `next`), then its body runs.
The decision to record it is made before the wait, so that a recorded step holds the loading of its batch as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any, Protocol

from tcmon.analysis.loops import Loop
from tcmon.analysis.roles import Proposal, Role
from tcmon.control import STAGES
from tcmon.monitoring.tool import DISABLE, Tool, events
from tcmon.steps.candidates import Candidate
from tcmon.steps.phases import EVALUATION, NOTHING, Clock
from tcmon.steps.sampler import Sampler

_LOCAL_EVENTS = events.INSTRUCTION | events.PY_RETURN | events.PY_YIELD | events.PY_RESUME


class RecordedStep:
    """A step that the sampler picked, from the decision until its end. Times are `perf_counter_ns`."""

    __slots__ = ("begin", "body", "code", "end", "frame", "line", "loop", "n", "reason", "role", "stage", "thread")

    def __init__(self, role: str, n: int, loop: int, reason: str, stage: str, begin: int, thread: int) -> None:
        self.role = role
        self.n = n
        self.loop = loop
        self.reason = reason
        self.stage = stage
        self.begin = begin
        self.body = begin
        self.end = begin
        self.thread = thread
        self.code: CodeType | None = None
        """The code of the loop, where the loop has a place in it; `frame` is the frame's id, `line` the loop's line."""
        self.frame = 0
        self.line = 0


def stage_of(role: Role, code: CodeType) -> str:
    """The stage that entering a loop of `code` begins."""
    if role is Role.TRAIN:
        return "training"
    return "testing" if "test" in code.co_name.lower().split("_") else "evaluation"


def step_code(role: Role, stage: str) -> int:
    """Role and stage of a step as one number, for the journal."""
    return _ROLES.index(role) + len(_ROLES) * STAGES.index(stage)


_ROLES = tuple(Role)


class StepSink(Protocol):
    """What the tracker tells about steps. Called from inside monitoring callbacks, in the loop's thread."""

    def step_times(self, loop: int, code: int, n: int, begin: int, body: int, end: int, phases: Sequence[int]) -> None:
        """Step `n` of a role and stage (`step_code`) is over. Called for every step: the hot one."""

    def start(self, step: RecordedStep) -> None:
        """Recording of `step` begins, or goes on after `pause`."""

    def pause(self, step: RecordedStep) -> None:
        """Another loop's steps, or code outside the loop, run for a while."""

    def finish_recorded(self, step: RecordedStep) -> None:
        """The step is over; its times are set. Comes after `pause`."""

    def discard(self, step: RecordedStep) -> None:
        """The iteration never began: its loop was exhausted. Comes after `pause`."""

    def decided(self, role: Role, n: int, reason: str | None) -> None:
        """Step `n` has begun and is recorded for `reason`, or not (None). Only called if `tells_decisions`."""


class _Counter:
    """The steps of one role in this process."""

    __slots__ = ("count", "next", "role", "sampler")

    def __init__(self, role: Role, sampler: Sampler) -> None:
        self.role = role
        self.sampler = sampler
        self.count = 0
        self.next = sampler.next_after(0)


class _Activation:
    """One run of a watched loop in one frame."""

    __slots__ = (
        "begin",
        "body",
        "called",
        "clock",
        "code",
        "evaluates",
        "frame",
        "fresh",
        "modules",
        "n",
        "passive",
        "recorded",
        "seen",
        "stage",
        "thread",
        "trained",
        "trained_in",
        "waiting",
        "watched",
    )

    def __init__(self, watched: WatchedLoop, frame: int, thread: int, begin: int) -> None:
        self.watched = watched
        # The frame's id, not the frame: the activation ends with the frame at the latest.
        self.frame = frame
        self.thread = thread
        self.begin = begin
        self.body = begin
        self.n = 0
        self.waiting = True
        self.passive = False
        self.recorded: RecordedStep | None = None
        self.clock: Clock | None = None
        """The phases of a training loop's steps."""
        self.evaluates: Clock | None = None
        """That of the training step in which this is a run of an evaluation loop."""
        self.enter_stage(watched.stage)
        self.seen: set[int] = set()
        self.modules: dict[int, int] = {}
        # What is known of a run of a training loop that may evaluate by a flag.
        self.fresh = watched.role is Role.TRAIN and watched.stepped and not watched.manual
        self.trained = False
        self.trained_in = 0
        """The step in which it trained last."""
        self.called = False

    def enter_stage(self, stage: str) -> None:
        self.stage = stage
        self.code = step_code(self.watched.role, stage)


class WatchedLoop:
    """A loop whose iterations are counted as steps of its role."""

    __slots__ = (
        "active",
        "alternate",
        "code",
        "counted",
        "counter",
        "id",
        "inside",
        "loop",
        "manual",
        "on_exit",
        "role",
        "stage",
        "step_times",
        "stepped",
        "tracker",
    )

    def __init__(self, tracker: Tracker, id: int, code: CodeType, loop: Loop, role: Role) -> None:
        self.tracker = tracker
        self.id = id
        self.code = code
        self.loop = loop
        self.role = role
        self.counter = tracker.counters[role]
        self.step_times = tracker.sink.step_times
        self.stage = stage_of(role, code)
        self.manual = False
        self.on_exit: dict[int, Callable[[int], None]] = {}
        """Called with the time when the run in a frame is over."""
        self.counted = 0
        self.inside: set[tuple[int, int]] = set()
        """Loops, by code and start, that were seen around this one."""
        self.stepped = False
        """Whether an optimizer was seen to step in it."""
        self.active: dict[int, _Activation] = {}
        self.alternate: _Alternate | None = None
        """Counts the runs of this training loop that evaluate."""

    # Called for each event at one of the loop's places, with the id of the frame and the time: the hot paths.

    def back_edge(self, frame: int, now: int) -> None:
        activation = self.active.get(frame)
        if activation is None or activation.waiting or activation.passive:
            return
        if activation.fresh and self.tracker.evaluates(activation):
            self.alternate_of(activation).back_edge(frame, now)
            return
        clock = activation.clock
        phases = NOTHING if clock is None else clock.take(now)
        self.step_times(self.id, activation.code, activation.n, activation.begin, activation.body, now, phases)
        activation.waiting = True  # at once: a signal's handler may raise while the step is being written
        if activation.recorded is not None:
            self.tracker.end_recorded(activation, now)
            now = perf_counter_ns()
        activation.begin = now
        if self.counter.count + 1 >= self.counter.next:
            self.tracker.decide(activation)

    def start(self, frame: int, now: int) -> None:
        activation = self.active.get(frame)
        if activation is None:
            if self.alternate is not None and frame in self.alternate.active:
                return
            activation = self.tracker.enter(self, frame, now)
        if not activation.waiting:
            return
        activation.waiting = False
        activation.body = now
        counter = self.counter
        n = counter.count + 1
        counter.count = n
        self.counted += 1
        activation.n = n
        # After all that says which step this is: a signal's handler may raise in any call.
        if activation.clock is not None:
            activation.clock.begin(now)
        if activation.recorded is not None or n >= counter.next or self.tracker.tells_decisions:
            self.tracker.begin(activation)

    # Once for each activation

    def fruitless(self, frame: int, _now: int) -> None:
        """The iteration only found the end of its data: it is no step, as with a `for` that is exhausted."""
        activation = self.active.get(frame)
        if activation is None or activation.waiting or activation.passive:
            return
        if activation.trained_in != activation.n:
            self.tracker.take_back(activation)

    def entry(self, frame: int, now: int) -> None:
        if frame in self.active:
            self.tracker.leave(self.active.pop(frame), now)
        self.tracker.enter(self, frame, now)

    def exit(self, frame: int, now: int) -> None:
        if frame in self.on_exit:
            self.on_exit.pop(frame)(now)
        activation = self.active.get(frame)
        if activation is None:
            return
        if activation.fresh and not activation.waiting and self.tracker.evaluates(activation):
            self.alternate_of(activation).exit(frame, now)
            return
        del self.active[frame]
        self.tracker.leave(activation, now)

    def alternate_of(self, activation: _Activation) -> _Alternate:
        """Move a run that turned out to evaluate to the loop that counts such runs, with the iteration in progress."""
        if self.alternate is None:
            self.alternate = self.tracker.add_alternate(self)
        self.tracker.take_back(activation)
        self.alternate.adopt(activation)
        return self.alternate

    def called_in(self, frame: int, now: int) -> dict[int, int]:
        """The modules that were called without gradients in the activation that `frame` is in."""
        if frame not in self.active:
            self.start(frame, now)
        return self.active[frame].modules if frame in self.active else {}

    def seen_in(self, frame: int, now: int) -> set[int]:
        """The optimizers that were stepped in the activation that `frame` is in."""
        if frame not in self.active:
            self.start(frame, now)
        return self.active[frame].seen if frame in self.active else set()


class _Alternate(WatchedLoop):
    """The evaluation steps of a loop that trains in some of its runs and evaluates in others, by a flag."""

    __slots__ = ()

    def entry(self, frame: int, now: int) -> None:
        self.exit(frame, now)

    def start(self, frame: int, now: int) -> None:
        if frame in self.active:
            super().start(frame, now)

    def adopt(self, activation: _Activation) -> None:
        self.tracker.enter(self, activation.frame, activation.begin)
        super().start(activation.frame, activation.body)


_SAMPLED_EVERY = 61
"""Of so many callbacks, one is timed; a prime, since the events of a step come in turn."""

type _Place = Callable[[int, int], None]


class Tracker:
    """Counts the steps of watched loops and tells a sink of them.

    `found` gives a loop its number, with the code, role and reasons and how it was found. `failed` is called once with
    an exception that a callback caught; the tracker is silent from then on.
    """

    def __init__(
        self,
        tool: Tool,
        other_tool: Tool,
        samplers: dict[Role, Sampler],
        sink: StepSink,
        *,
        tells_decisions: bool,
        found: Callable[[CodeType, Proposal, str], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        self.sink = sink
        self.found = found
        self.tells_decisions = tells_decisions
        self.counters = {role: _Counter(role, sampler) for role, sampler in samplers.items()}
        self._samples = self._sampled_ns = self._rare = self._rare_at_sample = 0
        self._tool = tool
        self._other_tool = other_tool
        self._failed = failed
        self._places: dict[int, dict[int, _Place]] = {}
        self._loops: dict[int, list[WatchedLoop | Candidate]] = {}
        self._stacks: dict[int, list[_Activation]] = {}
        self._suspended: dict[int, list[_Activation]] = {}
        self.returns: dict[int, Callable[[FrameType], None]] = {}
        """Called when a code object's call returns, where its PY_RETURN is on; by the id of the code object."""
        self.entered: Callable[[], None] = lambda: None
        """Called when a training loop is entered that has trained before, and may evaluate this time."""
        self._manual: set[tuple[int, Role]] = set()
        self._named: frozenset[Role] = frozenset()
        self._stages: dict[int, str] = {}
        self._stage_recordings: dict[int, RecordedStep] = {}
        self._stage_count = 0
        self.trained = 0
        """How often gradients were computed or an optimizer stepped."""
        self.clocks: dict[int, Clock] | None = None
        """By thread, the phases of the training step that it is in; None: they are not told apart."""
        on_instruction, self._count = self._instruction_callback()
        tool.on(events.INSTRUCTION, on_instruction)
        tool.on(events.PY_RETURN, self._on_frame_end)
        tool.on(events.PY_UNWIND, self._on_frame_end)
        tool.on(events.PY_YIELD, self._on_yield)
        tool.on(events.PY_RESUME, self._on_resume)

    # Watching

    def watch(
        self, code: CodeType, loops: Iterable[tuple[int, Loop, Role]], *, manual: bool = False
    ) -> list[WatchedLoop]:
        """Count the iterations of loops of `code`, given with their ids, from now on; `manual`: whatever is found."""
        added = [WatchedLoop(self, loop_id, code, loop, role) for loop_id, loop, role in loops]
        for watched in added:
            watched.manual = watched.stepped = manual
        self._loops.setdefault(id(code), []).extend(added)
        self._place(code)
        return added

    def watch_candidate(self, code: CodeType, loop: Loop, *, may_train: bool = True) -> Candidate:
        """Remember the iterations of a loop of `code` from now on."""
        candidate = Candidate(code, loop, may_train=may_train)
        self._loops.setdefault(id(code), []).append(candidate)
        self._place(code)
        return candidate

    def watch_calls(self, code: CodeType, loop_id: int, loop: Loop, role: Role) -> WatchedLoop:
        """Count steps that are begun by calls of the program, not by events of a loop."""
        watched = WatchedLoop(self, loop_id, code, loop, role)
        watched.manual = watched.stepped = True
        self._loops.setdefault(id(watched), []).append(watched)
        return watched

    def take_over(self, role: Role) -> list[WatchedLoop]:
        """Count no loop of `role` in the current thread any more, and take back those that it is in."""
        stack = self._stacks.get(get_ident(), ())
        taken = list(dict.fromkeys(a.watched for a in stack if a.watched.role is role))
        for watched in taken:
            self.retract(watched)
        self._manual.add((get_ident(), role))
        return taken

    def is_manual(self, role: Role) -> bool:
        """Whether the steps of `role` in the current thread are those that the user or the program says."""
        return role in self._named or (bool(self._manual) and (get_ident(), role) in self._manual)

    def only_named(self, roles: frozenset[Role]) -> None:
        """Count no loops of `roles` but those that are watched as `manual`."""
        self._named = roles

    def set_stage(self, stage: str) -> None:
        """The current thread enters a stage."""
        thread = get_ident()
        stack = self._stacks.get(thread)
        if not stack:
            if self._stages.get(thread, STAGES[0]) != stage:
                self._stages[thread] = stage
                self._record_stage(thread, stage)
            return
        activation = stack[-1]
        if activation.stage != stage:
            activation.enter_stage(stage)
            if activation.recorded is not None:
                activation.recorded.stage = stage
            elif not activation.waiting:
                self._record(activation, activation.n, "stage")

    def _record_stage(self, thread: int, stage: str) -> None:
        """Record from here, outside of all steps, until the thread's next step decides."""
        self._end_stage_recording(thread)
        self._stage_count += 1
        step = RecordedStep("other", self._stage_count, 0, "stage", stage, perf_counter_ns(), thread)
        self._stage_recordings[thread] = step
        self.sink.start(step)

    def _end_stage_recording(self, thread: int) -> None:
        step = self._stage_recordings.pop(thread, None)
        if step is not None:
            step.end = perf_counter_ns()
            self.sink.pause(step)
            self.sink.finish_recorded(step)

    def find(self, code: CodeType, loop: Loop) -> WatchedLoop | Candidate | None:
        """What watches a loop of `code`, if anything does."""
        return next((each for each in self._loops.get(id(code), ()) if each.loop.start == loop.start), None)

    def forget_candidates(self, *, may_train: bool) -> None:
        """Watch loops that are only candidates no longer: all, or those that are no candidates for training."""
        for loops in self._loops.values():
            candidates = [
                each
                for each in loops
                if isinstance(each, Candidate) and not each.on_exit and (may_train or not each.may_train)
            ]
            if candidates:
                loops[:] = [each for each in loops if each not in candidates]
                self._place(candidates[0].code)

    def _place(self, code: CodeType) -> None:
        """Make the table of what is called at which instruction of `code`, and switch its events on."""
        loops = self._loops[id(code)]
        # Where loops meet in one instruction, inner ones are left before outer ones end their iteration, and outer
        # ones begin theirs before inner ones are entered.
        loops.sort(key=lambda each: len(each.loop.body))
        places: dict[int, list[_Place]] = {}
        for kind in ("fruitless", "exit", "back_edge", "entry", "start"):
            for watched in loops if kind in ("fruitless", "exit", "back_edge") else reversed(loops):
                for offset in _offsets(watched.loop, kind):
                    places.setdefault(offset, []).append(getattr(watched, kind))
        self._places[id(code)] = {offset: _together(found) for offset, found in places.items()}
        self._tool.watch_instructions(code, _LOCAL_EVENTS if loops else 0, self._other_tool)

    def adopt(self, watched: WatchedLoop, frame: FrameType) -> None:
        """Count the iteration that `frame` is in the middle of."""
        watched.start(id(frame), perf_counter_ns())

    def counting(self, role: Role) -> WatchedLoop | None:
        """The loop of `role` that the current thread is in."""
        return next((a.watched for a in self._stacks.get(get_ident(), ()) if a.watched.role is role), None)

    def counted(self, role: Role) -> list[WatchedLoop]:
        """All loops that are watched for a role."""
        return [w for loops in self._loops.values() for w in loops if isinstance(w, WatchedLoop) and w.role is role]

    def in_progress(self) -> tuple[int, str, int] | None:
        """The thread, role and number of a step that some thread is in, or waits for; asked from another thread."""
        for thread, stack in list(self._stacks.items()):
            for activation in stack[:1]:
                n = activation.watched.counter.count + 1 if activation.waiting else activation.n
                return thread, activation.watched.role, n
        return None

    def is_counting(self, role: Role) -> bool:
        """Whether the current thread is in a loop of `role`."""
        return any(a.watched.role is role for a in self._stacks.get(get_ident(), ()))

    def is_idle(self) -> bool:
        """Whether no thread is in a loop of any role."""
        return not self._stacks

    # Moving the step loop

    def promote(self, candidate: Candidate, loop_id: int, role: Role) -> WatchedLoop:
        """Count a candidate's iterations as steps: those that it remembers, and the one in progress."""
        loops = self._loops[id(candidate.code)]
        watched = WatchedLoop(self, loop_id, candidate.code, candidate.loop, role)
        loops[loops.index(candidate)] = watched
        watched.on_exit = candidate.on_exit
        counter = watched.counter
        for begin, body, end in candidate.history():
            counter.count += 1
            watched.counted += 1
            self.sink.step_times(loop_id, step_code(role, watched.stage), counter.count, begin, body, end, NOTHING)
            if self.tells_decisions:
                self.sink.decided(role, counter.count, None)
        counter.next = counter.sampler.next_after(counter.count)
        for frame, run in candidate.active.items():
            activation = self.enter(watched, frame, run.begin)
            activation.seen = run.seen
            if not run.waiting:
                watched.start(frame, run.body)
        self._place(candidate.code)
        return watched

    def mark_trained(self) -> WatchedLoop | None:
        """Gradients are computed or an optimizer steps in the current thread; the training loop that it is in."""
        self.trained += 1
        for activation in self._stacks.get(get_ident(), ()):
            if activation.watched.role is Role.TRAIN:
                activation.trained = True
                activation.trained_in = activation.n
                return activation.watched
        return None

    def mark_called(self) -> None:
        """A module was called in the current thread."""
        for activation in self._stacks.get(get_ident(), ()):
            activation.called = True

    def evaluates(self, activation: _Activation) -> bool:
        """Whether the first iteration with a call of a module, just over, was none of training."""
        if activation.trained:
            activation.fresh = False
            return False
        return activation.called

    def add_alternate(self, watched: WatchedLoop) -> _Alternate:
        """The counter of those runs of a training loop that evaluate."""
        reasons = ("a run of this training loop in which nothing trains",)
        loop_id = self.found(watched.code, Proposal(watched.loop, Role.EVAL, reasons), "dynamic")
        alternate = _Alternate(self, loop_id, watched.code, watched.loop, Role.EVAL)
        self._loops[id(watched.code)].append(alternate)
        self._place(watched.code)
        return alternate

    def take_back(self, activation: _Activation) -> None:
        """Undo the step that `activation` is in, and the activation itself."""
        watched = activation.watched
        del watched.active[activation.frame]
        self._remove([activation])
        if activation.recorded is not None:
            self.sink.discard(activation.recorded)
            activation.recorded = None
        watched.counted -= 1
        watched.counter.count -= 1
        watched.counter.next = watched.counter.sampler.next_after(watched.counter.count)

    def revive(self, watched: WatchedLoop) -> None:
        """Count the iterations of a training loop that stood inside another one which has been retracted."""
        now = perf_counter_ns()
        for frame, activation in list(watched.active.items()):
            if activation.passive:
                del watched.active[frame]
                watched.start(frame, now)

    def retract(self, watched: WatchedLoop) -> None:
        """Take back the steps that `watched` counted, and watch it no longer."""
        for activation in list(watched.active.values()):
            if activation.passive:
                continue
            self._remove([activation])
            if activation.recorded is not None:
                self.sink.discard(activation.recorded)
        watched.active.clear()
        counter = watched.counter
        counter.count -= watched.counted
        for stack in self._stacks.values():
            for activation in stack:
                if activation.watched.counter is counter:  # its step is in progress, and moves up
                    activation.n -= watched.counted
                    if activation.recorded is not None:
                        activation.recorded.n -= watched.counted
        counter.next = counter.sampler.next_after(counter.count)
        if not watched.manual:
            self._loops[id(watched.code)].remove(watched)
            self._place(watched.code)

    def close(self) -> None:
        """End what is open, as if every loop were left now."""
        for thread in list(self._stage_recordings):
            self._end_stage_recording(thread)
        now = perf_counter_ns()
        for loops in list(self._loops.values()):
            for each in list(loops):
                for frame in list(each.active):
                    each.exit(frame, now)

    # Events

    def _instruction_callback(self) -> tuple[Callable[[CodeType, int], Any], Callable[[], int]]:
        """The callback of INSTRUCTION events, and how often one of them was at a place of a loop."""
        places_of = self._places
        now = perf_counter_ns
        frame_of = sys._getframe
        count = 0
        next_sample = _SAMPLED_EVERY

        def on_instruction(code: CodeType, offset: int) -> Any:
            nonlocal count, next_sample
            begin = now()
            try:
                place = places_of[id(code)].get(offset)
                if place is None:
                    return DISABLE
                place(id(frame_of(1)), begin)
                count += 1
                if count >= next_sample:
                    next_sample = count + _SAMPLED_EVERY
                    if self._rare == self._rare_at_sample:
                        self._sampled_ns += now() - begin
                        self._samples += 1
                    self._rare_at_sample = self._rare
            except BaseException as error:
                self._failed(error)
            return None

        return on_instruction, lambda: count

    @property
    def callbacks(self) -> int:
        """How often an iteration began or ended."""
        return self._count()

    @property
    def callback_ns(self) -> int:
        """Time spent in the callbacks of steps that are not recorded, from the samples of their time."""
        return self._sampled_ns * self.callbacks // self._samples if self._samples else 0

    def _on_frame_end(self, code: CodeType, _offset: int, _value: object) -> None:
        loops = self._loops.get(id(code))
        if loops is None:
            self._on_other_return(code)
            return
        try:
            frame = id(sys._getframe(1))
            now = perf_counter_ns()
            self._suspended.pop(frame, None)
            for each in list(loops):  # inner ones first; one that evaluates by a flag adds another
                each.exit(frame, now)
        except BaseException as error:
            self._failed(error)

    def _on_other_return(self, code: CodeType) -> None:
        try:
            called = self.returns.get(id(code))
            if called is not None:
                called(sys._getframe(2))
        except BaseException as error:
            self._failed(error)

    def _on_yield(self, code: CodeType, _offset: int, _value: object) -> None:
        try:
            frame = id(sys._getframe(1))
            held = [
                activation
                for each in self._loops.get(id(code), ())
                if isinstance(each, WatchedLoop) and (activation := each.active.get(frame)) is not None
            ]
            if held:
                self._suspended[frame] = held[::-1]
                self._remove(held)
        except BaseException as error:
            self._failed(error)

    def _on_resume(self, _code: CodeType, _offset: int) -> None:
        try:
            held = self._suspended.pop(id(sys._getframe(1)), None)
            for activation in held or ():
                activation.thread = get_ident()
                if not activation.passive:
                    self._push(activation)
        except BaseException as error:
            self._failed(error)

    # Entering and leaving

    def enter(self, watched: WatchedLoop, frame: int, now: int) -> _Activation:
        self._rare += 1
        activation = _Activation(watched, frame, get_ident(), now)
        watched.active[frame] = activation
        if not watched.manual and (
            self.is_manual(watched.role) or (watched.role is Role.TRAIN and self.is_counting(Role.TRAIN))
        ):
            # The program begins its steps itself, or the outermost training loop is the one that is counted.
            activation.passive = True
            activation.waiting = False
            return activation
        if self._stage_recordings:
            self._end_stage_recording(activation.thread)
        self._push(activation)
        if activation.fresh:
            self.entered()
        if watched.counter.count + 1 >= watched.counter.next:
            self.decide(activation)
        return activation

    def leave(self, activation: _Activation, now: int) -> None:
        self._rare += 1
        if activation.passive:
            return
        try:
            if not activation.waiting:
                watched = activation.watched
                phases = NOTHING if activation.clock is None else activation.clock.take(now)
                self.sink.step_times(
                    watched.id, activation.code, activation.n, activation.begin, activation.body, now, phases
                )
                if activation.recorded is not None:
                    self.end_recorded(activation, now)
        finally:
            self._remove([activation])
        if activation.recorded is not None:
            self.sink.discard(activation.recorded)
            activation.recorded = None

    def _push(self, activation: _Activation) -> None:
        stack = self._stacks.setdefault(activation.thread, [])
        if stack and stack[-1].recorded is not None:
            self.sink.pause(stack[-1].recorded)
        stack.append(activation)
        self._enter_phases(activation)
        if activation.recorded is not None:
            self.sink.start(activation.recorded)

    def _remove(self, activations: list[_Activation]) -> None:
        """Take activations off their threads' stacks; the recording below them goes on."""
        for activation in activations:
            stack = self._stacks.get(activation.thread, [])
            if activation not in stack:
                continue
            was_top = stack[-1] is activation
            stack.remove(activation)
            self._leave_phases(activation)
            if was_top and activation.recorded is not None:
                self.sink.pause(activation.recorded)
            if not stack:
                del self._stacks[activation.thread]
            elif was_top and stack[-1].recorded is not None:
                self.sink.start(stack[-1].recorded)

    def _enter_phases(self, activation: _Activation) -> None:
        """The steps of a training loop have phases; a run of an evaluation loop within one of them is one."""
        if self.clocks is None or activation.thread != get_ident():
            return
        around = self.clocks.get(activation.thread)
        if activation.watched.role is Role.TRAIN:
            if activation.clock is None:
                activation.clock = Clock()
            self.clocks[activation.thread] = activation.clock
        elif around is not None and around.running:
            around.enter(EVALUATION, perf_counter_ns())
            activation.evaluates = around

    def _leave_phases(self, activation: _Activation) -> None:
        if activation.evaluates is not None:
            activation.evaluates.leave(perf_counter_ns())
            activation.evaluates = None
        elif self.clocks is not None and self.clocks.get(activation.thread) is activation.clock is not None:
            del self.clocks[activation.thread]

    # Decisions

    def decide(self, activation: _Activation) -> None:
        """Ask the sampler about the step that may begin now."""
        self._rare += 1
        counter = activation.watched.counter
        n = counter.count + 1
        reason = counter.sampler.reason(n)
        counter.next = n if reason is not None else counter.sampler.next_after(n)
        if reason is not None:
            self._record(activation, n, reason)

    def begin(self, activation: _Activation) -> None:
        """The body of a step begins that is recorded, or whose decision is to be told."""
        self._rare += 1
        counter = activation.watched.counter
        n, step = activation.n, activation.recorded
        if step is None or step.n != n:
            # Nothing was decided, or it was for the number that another thread's step has taken since.
            reason = counter.sampler.reason(n)
            if step is None and reason is not None:
                self._record(activation, n, reason)
            elif step is not None and reason is None:
                activation.recorded = None
                self.sink.pause(step)
                self.sink.discard(step)
            elif step is not None and reason is not None:
                step.n, step.reason = n, reason
            step = activation.recorded
        if step is not None:
            step.body = activation.body
        if n >= counter.next:
            counter.next = counter.sampler.next_after(n)
        if self.tells_decisions:
            self.sink.decided(counter.role, n, None if step is None else step.reason)

    def _record(self, activation: _Activation, n: int, reason: str) -> None:
        watched = activation.watched
        step = RecordedStep(watched.role, n, watched.id, reason, activation.stage, activation.begin, activation.thread)
        step.body = activation.body
        if watched.loop.start >= 0:
            step.code, step.frame, step.line = watched.code, activation.frame, watched.loop.line
        activation.recorded = step
        self.sink.start(step)

    def end_recorded(self, activation: _Activation, now: int) -> None:
        self._rare += 1
        step = activation.recorded
        if step is not None:
            activation.recorded = None
            step.end = now
            stack = self._stacks.get(activation.thread)
            if stack and stack[-1] is activation:
                self.sink.pause(step)
            self.sink.finish_recorded(step)


def _together(places: list[_Place]) -> _Place:
    """One callable for the loops that meet in one instruction."""
    if len(places) == 1:
        return places[0]

    def all_of_them(frame: int, now: int) -> None:
        for place in places:
            place(frame, now)

    return all_of_them


def _offsets(loop: Loop, kind: str) -> Iterable[int]:
    if kind == "fruitless":
        return loop.fruitless
    if kind == "exit":
        return loop.exits
    if kind == "back_edge":
        return loop.back_edges
    if kind == "entry":
        return loop.entries
    return (loop.start,)
