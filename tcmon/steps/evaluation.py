"""Evaluation loops that names don't tell of, and training loops that evaluate by a flag, found as they run.

An evaluation loop is the innermost loop that, in one activation, sees the same outermost module called twice with
gradients disabled, with no backward pass or optimizer step between. That alone would hold for text generation, image
sampling and the extraction of features, too; so a loss must be computed in it, or a function around it be named like an
evaluation.

Modules are watched only from the moment in which gradients go off until one call was seen, and then again from the
loop's next iteration on: a training step's modules cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from types import CodeType, FrameType

from tcmon.analysis.evidence import names_evaluation, names_quality
from tcmon.analysis.roles import Proposal, Role
from tcmon.monitoring.tool import Tool, events
from tcmon.steps.candidates import Candidate
from tcmon.steps.codebase import Codebase, is_own
from tcmon.steps.tracker import Tracker

_LOOKS = 16
"""Calls of modules that are looked at in one stretch without gradients before it is no evaluation."""
_STRETCHES = 20
"""Stretches without gradients, begun at one place of the program, that are looked at: a teacher's forward passes and an
actor's choices come in every training step, and must not cost a look each time."""

_LOSSES = frozenset({"cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div"})


def computes_loss(code: CodeType) -> bool:
    """Whether `code` is named like a loss function of `torch.nn.functional`, and stands in such a file."""
    name = code.co_name
    return (name in _LOSSES or name.endswith("_loss")) and code.co_filename.endswith("functional.py")


class Evaluation:
    """Watches modules and losses while gradients are off."""

    def __init__(
        self,
        tool: Tool,
        tracker: Tracker,
        codebase: Codebase,
        found: Callable[[CodeType, Proposal, str], int],
    ) -> None:
        self._tool = tool
        self._tracker = tracker
        self._codebase = codebase
        self._found = found
        self._modules: CodeType | None = None
        self._losses: list[CodeType] = []
        self._holder = 0
        """The frame that switched gradients off."""
        self._looks = 0
        self._stretches: dict[tuple[int, int], tuple[CodeType, int]] = {}
        """How often gradients were switched off at a place, by code object (kept, so that its id stays its own)."""
        self._torch_switches: dict[int, CodeType] = {}
        """Functions of torch that switch gradients for themselves, by identity."""
        self._last_loss = 0
        tracker.entered = self.training_entered

    # What torch's code tells: each is called at the start of a function of torch, with its frame

    def module_starts(self, frame: FrameType) -> None:
        """The first call of any module in the process."""
        self._modules = frame.f_code
        self._tracker.returns[id(frame.f_code)] = self._module_returned
        if self._holder:
            self._watch(True)

    def loss_starts(self, frame: FrameType) -> None:
        """The first call of a loss function."""
        if not any(code is frame.f_code for code in self._losses):
            self._losses.append(frame.f_code)
            self._tracker.returns[id(frame.f_code)] = self._loss_returned
        self._last_loss = perf_counter_ns()

    def gradients_off(self, frame: FrameType) -> None:
        """`no_grad` or `inference_mode` is entered."""
        holder = frame.f_back
        user = holder.f_back if holder is not None and _decorates(holder) else holder
        if holder is None or user is None or self._codebase.is_torch(user.f_code.co_filename):
            return  # an optimizer's step, clipping: gradients are off for what is no evaluation
        if self._tracker.is_counting(Role.EVAL) or self._tracker.is_manual(Role.EVAL):
            return
        if self._holder and _is_called_by(user, self._holder):
            return  # they are off already: a metric that makes sure of it
        place = (id(user.f_code), user.f_lasti)
        _, stretches = self._stretches.get(place, (user.f_code, 0))
        if stretches == _STRETCHES:
            return
        self._stretches[place] = (user.f_code, stretches + 1)
        if stretches + 1 == _STRETCHES:
            self._tracker.forget_candidates(may_train=False)
        self._holder = id(holder)
        self._looks = 0
        self._watch(True)

    def gradients_set(self, frame: FrameType) -> None:
        """`set_grad_enabled(mode)` is called."""
        caller = frame.f_back
        if caller is not None and id(caller.f_code) in self._torch_switches:
            return
        if caller is not None and self._codebase.is_torch(caller.f_code.co_filename):
            # An optimizer's step does so twice: to read the frame's variables each time would be what costs most there.
            self._torch_switches[id(caller.f_code)] = caller.f_code
            return
        if frame.f_locals.get("mode") is False:
            self.gradients_off(frame)
        else:
            self._gradients_on()

    def gradients_left(self, frame: FrameType) -> None:
        """The `__exit__` of what switched gradients; they stay off where they were off before (in a metric's own)."""
        if self._holder and _were_on(frame, self._holder):
            self._gradients_on()

    def _gradients_on(self) -> None:
        if self._holder:
            self._holder = 0
            self._watch(False)

    def training_entered(self) -> None:
        """A loop that has trained before is entered again: a call of a module in it tells that it does its work."""
        self._watch(True)

    # Events that are on only when asked for

    def _watch(self, on: bool) -> None:
        for code in (self._modules, *self._losses):
            if code is not None:
                self._tool.watch(code, events.PY_RETURN if on else 0)

    def _loss_returned(self, _frame: FrameType) -> None:
        self._last_loss = perf_counter_ns()

    def _module_returned(self, frame: FrameType) -> None:
        self._tracker.mark_called()
        if not self._holder:
            self._watch(False)
            return
        outermost, around = self._outermost(frame)
        if outermost is None:
            return
        self._looks += 1
        if self._modules is not None:
            self._tool.watch(self._modules, 0)
        if self._looks <= _LOOKS and not self._tracker.is_counting(Role.EVAL):
            self._look(id(outermost.f_locals.get("self")), around)

    def _outermost(self, frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
        """The outermost call of a module since gradients went off, and the frame that calls it."""
        outermost: FrameType | None = None
        while frame is not None and id(frame) != self._holder:
            if frame.f_code is self._modules:
                outermost = frame
            frame = frame.f_back
        inside = frame  # gradients went off within a module's own forward: that is no evaluation
        while inside is not None and not is_own(inside.f_code.co_filename):
            if inside.f_code is self._modules:
                return None, None
            inside = inside.f_back
        return outermost, None if outermost is None else outermost.f_back

    def _look(self, module: int, frame: FrameType | None) -> None:
        now = perf_counter_ns()
        trained = self._tracker.trained
        names: list[str] = []
        confirmed = False
        while frame is not None and not is_own(frame.f_code.co_filename):
            code = frame.f_code
            if not self._codebase.is_torch(code.co_filename):
                names.append(code.co_qualname)
                for loop in self._codebase.loops_at(frame):
                    watched = self._tracker.find(code, loop) or self._tracker.watch_candidate(
                        code, loop, may_train=False
                    )
                    called = watched.called_in(id(frame), now)
                    if isinstance(watched, Candidate):
                        watched.on_start = self._next_iteration
                        begin = watched.active[id(frame)].entered
                        if not confirmed and called.get(module) == trained and self._is_evaluation(names, begin):
                            self._promote(watched, names)
                            confirmed = True
                    called[module] = trained
            frame = frame.f_back

    def _next_iteration(self) -> None:
        if self._holder and self._looks <= _LOOKS and self._modules is not None:
            self._tool.watch(self._modules, events.PY_RETURN)

    def _is_evaluation(self, names: list[str], begin: int) -> bool:
        """Whether a loss was computed since the loop was entered, or a function from the loop on says so."""
        return self._last_loss > begin or any(map(_tells_evaluation, names))

    def _promote(self, candidate: Candidate, names: list[str]) -> None:
        reason = "the same module was called twice without gradients in one run of the loop"
        named = list(filter(_tells_evaluation, names))
        what = f"in {named[0]}()" if named else "and a loss computed"
        proposal = Proposal(candidate.loop, Role.EVAL, (f"{reason}, {what}",))
        self._tracker.promote(candidate, self._found(candidate.code, proposal, "dynamic"), Role.EVAL)


def _tells_evaluation(name: str) -> bool:
    """Whether a function's qualified name says that it evaluates, or measures how well a model does."""
    return any(names_evaluation(part) or names_quality(part) for part in name.split("."))


def _were_on(frame: FrameType, holder: int) -> bool:
    """Whether gradients were on before the `with` that `frame` ends; `holder` is the frame that they went off in."""
    switch = frame.f_locals.get("self")
    before = object.__getattribute__(switch, "__dict__").get("prev")  # inference_mode doesn't keep it
    return before is not False if before is not None else id(frame.f_back) == holder


def _is_called_by(frame: FrameType | None, caller: int) -> bool:
    """Whether `frame` is the frame with the id `caller`, or called by it."""
    while frame is not None and id(frame) != caller:
        frame = frame.f_back
    return frame is not None


def _decorates(frame: FrameType) -> bool:
    """Whether `frame` is torch's wrapper around a decorated function, as with `@torch.no_grad()`."""
    return frame.f_code.co_filename.endswith("utils/_contextlib.py")
