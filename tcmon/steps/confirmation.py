"""The running program decides: which loop is the training loop, from the real `optimizer.step()`s.

The training loop is the innermost loop that, within one activation, sees the same optimizer stepped twice. Loops
confirmed for different optimizers and nested: the outermost of them is the step loop. Until an optimizer is stepped,
`backward()` takes its place, so that training by hand is found as well.

Nothing of torch is patched: all optimizers' steps run through one wrapper, and all backward passes through one
function, whose code objects are watched for their start.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from types import CodeType, FrameType

from tcmon.analysis.loops import Loop, unplaced_loop
from tcmon.analysis.roles import Proposal, Role
from tcmon.steps.candidates import Candidate
from tcmon.steps.codebase import Codebase, is_own
from tcmon.steps.tracker import Tracker, WatchedLoop

_BACKWARD = 0
_PATIENCE = 3
"""Iterations of a proposed loop in which it may still be confirmed, once a loop inside it is."""
_LOOKS = 100
"""How often the stack is walked before only steps outside of all training loops are looked at."""
_MOST_LOOKS = 2000
"""How often it is walked for gradients outside of all training loops."""
_LOOSE_STEPS = 2
_NO_FRAME = 0
_DEEPEST_SUPER = 12
"""How far up the stack a step is looked for that calls the one of a base class."""


class Confirmation:
    """Watches real optimizer steps and moves the step loop to where they say.

    `found` gives a loop its number and tells how it was found; `retracted` is told of a loop that was counted and is
    the training loop no longer, with the reason.
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
        self._looks = 0
        self._stepped = False
        self._confirmed: dict[tuple[int, int], set[int]] = {}
        self._loose: dict[int, int] = {}
        self._ticks: WatchedLoop | None = None
        self._ticking = 0

    # Events, once for each call of the program

    def on_step(self, frame: FrameType) -> None:
        """An optimizer steps; `frame` is that of torch's wrapper around its `step`."""
        counting = self._tracker.mark_trained()
        known = counting is not None and counting.stepped and counting is not self._ticks
        if self._tracker.is_manual(Role.TRAIN) or (self._looks >= _LOOKS and known):
            return
        self._stepped = True
        optimizer = _stepping(frame)
        if _is_within_step_of(optimizer, frame):
            return
        name = type.__getattribute__(type(optimizer), "__name__")  # asks no metaclass of the program
        self._look(id(optimizer), f"{name}.step()", frame)

    def on_backward(self, frame: FrameType) -> None:
        """Gradients are computed; `frame` is that of torch's function."""
        counting = self._tracker.mark_trained()
        most = _LOOKS if counting is not None else _MOST_LOOKS
        if self._looks < most and not self._tracker.is_manual(Role.TRAIN):
            self._look(_BACKWARD, "backward()", frame)

    def sweep(self) -> None:
        """Take back loops that were counted without a step, once optimizers are known to step elsewhere."""
        if self._stepped:
            for watched in self._tracker.counted(Role.TRAIN):
                if watched.counted and not watched.stepped and not watched.active:
                    self._retract(watched, "no optimizer was stepped in it, but elsewhere")

    # Deciding

    def _look(self, key: int, what: str, frame: FrameType) -> None:
        self._looks += 1
        if self._looks == _LOOKS:
            self._tracker.forget_candidates(may_train=True)
        now = perf_counter_ns()
        chain = self._chain(frame)
        if not chain:
            self._without_a_loop(key, what, frame, now)
            return
        confirmed: int | None = None
        for depth, (holder, loop) in enumerate(chain):
            watched = self._tracker.find(holder.f_code, loop) or self._tracker.watch_candidate(holder.f_code, loop)
            seen = watched.seen_in(id(holder), now)
            if isinstance(watched, Candidate):
                watched.may_train = True
            else:
                watched.inside.update((id(outer.f_code), around.start) for outer, around in chain[depth + 1 :])
                watched.stepped |= key != _BACKWARD
            if confirmed is None and (key in seen or key in self._known(holder.f_code, loop)):
                confirmed = depth
            seen.add(key)
        self.sweep()
        if confirmed is not None and (key != _BACKWARD or not self._stepped):
            self._confirm(key, what, confirmed, chain)

    def _chain(self, frame: FrameType | None) -> list[tuple[FrameType, Loop]]:
        """The loops around `frame`, innermost first, with the frames that they run in."""
        chain: list[tuple[FrameType, Loop]] = []
        while frame is not None and not is_own(frame.f_code.co_filename):
            if not self._codebase.is_torch(frame.f_code.co_filename):
                chain += [(frame, loop) for loop in self._codebase.loops_at(frame)]
            frame = frame.f_back
        return chain

    def _known(self, code: CodeType, loop: Loop) -> set[int]:
        """The optimizers for which a loop was confirmed, in any of its runs."""
        return self._confirmed.setdefault((id(code), loop.start), set())

    def _confirm(self, key: int, what: str, depth: int, chain: list[tuple[FrameType, Loop]]) -> None:
        """The loop at `depth` of `chain` has seen `key` twice in one run, and none inside it has."""
        holder, loop = chain[depth]
        self._known(holder.f_code, loop).add(key)
        counting = self._tracker.counting(Role.TRAIN)
        watched = self._tracker.find(holder.f_code, loop)
        if watched is None or watched is counting:
            return
        if isinstance(watched, WatchedLoop) and watched.role is Role.EVAL:
            return  # adversarial examples, test-time adaptation
        if counting is not None:
            others = self._known(counting.code, counting.loop) - {_BACKWARD}
            if any(
                outer.f_code is counting.code and around.start == counting.loop.start
                for outer, around in chain[depth + 1 :]
            ):
                # A loop around this one is counted: it may be confirmed for another optimizer yet (n_critic).
                if others or counting.counted < _PATIENCE:
                    return
                where = "inside"
            elif key in others:
                return
            else:
                where = "around"
            self._retract(counting, f"{what} comes twice in one run of the loop of line {loop.line} {where} it")
        for inner in self._tracker.counted(Role.TRAIN):
            if (id(holder.f_code), loop.start) in inner.inside:
                self._retract(inner, f"{what} comes twice in one run of the loop of line {loop.line} around it")
        if isinstance(watched, Candidate):
            self._promote(watched, what)
        else:
            self._tracker.revive(watched)

    def _retract(self, watched: WatchedLoop, reason: str) -> None:
        self._tracker.retract(watched)
        self._retracted(watched.id, reason)

    def _promote(self, candidate: Candidate, what: str) -> None:
        reasons = [f"{what} came twice with the same optimizer in one run of the loop"]
        if over := len(candidate.history()):
            reasons.append(f"the first {over} iterations were over when that was seen")
        proposal = Proposal(candidate.loop, Role.TRAIN, tuple(reasons))
        self._tracker.promote(candidate, self._found(candidate.code, proposal, "dynamic"), Role.TRAIN)

    def _without_a_loop(self, key: int, what: str, frame: FrameType, now: int) -> None:
        """No loop of Python holds a step (a loop in C, recursion): after two, each of them ends a step itself."""
        if self._ticks is not None:
            if key == self._ticking:
                self._ticks.back_edge(_NO_FRAME, now)
                self._ticks.start(_NO_FRAME, perf_counter_ns())
            return
        # An optimizer that is stepped in autograd's own thread has its loop in another one.
        if key == _BACKWARD or not self._tracker.is_idle():
            return
        self._loose[key] = self._loose.get(key, 0) + 1
        caller = self._caller(frame)
        if self._loose[key] > _LOOSE_STEPS and caller is not None:
            loop = unplaced_loop(caller.f_lineno)
            proposal = Proposal(loop, Role.TRAIN, (f"no loop of Python holds {what}: each of them ends a step",))
            loop_id = self._found(caller.f_code, proposal, "dynamic")
            self._ticking = key
            [self._ticks] = self._tracker.watch(caller.f_code, [(loop_id, loop, Role.TRAIN)])
            self._ticks.stepped = True
            self._ticks.start(_NO_FRAME, now)

    def _caller(self, frame: FrameType | None) -> FrameType | None:
        while frame is not None and self._codebase.is_foreign(frame.f_code.co_filename):
            frame = frame.f_back
        return frame


def _stepping(frame: FrameType) -> object:
    """The optimizer that a call of torch's wrapper steps."""
    arguments = frame.f_locals.get("args")
    return arguments[0] if arguments else None


def _is_within_step_of(optimizer: object, frame: FrameType) -> bool:
    """Whether this is the step of a base class, called by the step of a derived one: both are wrapped, and one step."""
    around = frame.f_back
    for _ in range(_DEEPEST_SUPER):
        if around is None:
            return False
        if around.f_code is frame.f_code:
            return _stepping(around) is optimizer
        around = around.f_back
    return False
