"""Finds the loops to watch as the program's code first runs.

Every code object is looked at once, at its first PY_START; the names that it uses dismiss nearly all. The rest is
analysed, and its training and evaluation loops are watched before their first iteration. Code that trains without a
loop of its own is met when it first runs: the loop is then the innermost one among its callers on the stack. What
really steps is watched by `Confirmation`, which has the last word.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tcmon.analysis.roles import Analysis, Proposal, Role, RoleFinder, is_telling, is_too_long
from tcmon.log import warn
from tcmon.monitoring.interruptions import is_interruption
from tcmon.monitoring.tool import DISABLE, Tool, events
from tcmon.steps.codebase import Codebase, is_own
from tcmon.steps.confirmation import Confirmation
from tcmon.steps.evaluation import Evaluation, computes_loss
from tcmon.steps.manual import Manual
from tcmon.steps.named import NamedLoops
from tcmon.steps.tracker import Tracker

_GRAD_MODE = "autograd/grad_mode.py"
_PATIENCE = 100
"""How often a function that trains without a loop is met outside any loop before it is no longer looked at."""


class Discovery:
    """Watches code objects as they first run and hands their loops to `tracker`.

    `found` is told of each loop that is watched, and how it was found, and answers with the loop's number.
    """

    def __init__(
        self,
        tool: Tool,
        tracker: Tracker,
        codebase: Codebase,
        confirmation: Confirmation,
        evaluation: Evaluation,
        manual: Manual,
        named: NamedLoops,
        found: Callable[[CodeType, Proposal, str], int],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._tracker = tracker
        self._codebase = codebase
        self._evaluation = evaluation
        self._named = named
        tracker.only_named(named.roles)
        self._signals: dict[str, tuple[str, Callable[[FrameType], Any]]] = {
            "Optimizer.profile_hook_step.<locals>.wrapper": ("optim/optimizer.py", confirmation.on_step),
            "backward": ("autograd/__init__.py", confirmation.on_backward),
            "Module._wrapped_call_impl": ("nn/modules/module.py", evaluation.module_starts),
            "no_grad.__enter__": (_GRAD_MODE, evaluation.gradients_off),
            "no_grad.__exit__": (_GRAD_MODE, evaluation.gradients_left),
            "inference_mode.__enter__": (_GRAD_MODE, evaluation.gradients_off),
            "inference_mode.__exit__": (_GRAD_MODE, evaluation.gradients_left),
            "set_grad_enabled.__init__": (_GRAD_MODE, evaluation.gradients_set),
            "set_grad_enabled.__exit__": (_GRAD_MODE, evaluation.gradients_left),
        }
        """Functions of torch whose start tells something: by qualified name, the file and what is called."""
        self._found = found
        self._failed = failed
        self._called: dict[int, tuple[CodeType, Callable[[FrameType], Any]]] = {}
        """What is called at every start of a code object, for the few that are looked at more than once."""
        for code, called in manual.signals():
            self._called[id(code)] = (code, called)
        self._analysed: dict[int, CodeType] = {}
        self._awaited: dict[str, list[Callable[[CodeType, FrameType], None]]] = {}
        self._odd = False
        self._analysis = Analysis()
        self._lock = threading.RLock()
        self.seen = 0
        tool.on(events.PY_START, self._on_start)

    @property
    def analysed(self) -> int:
        """How many code objects the names of which told something."""
        return len(self._analysed)

    def await_code(self, qualname: str, met: Callable[[CodeType, FrameType], None]) -> None:
        """Call `met` with each code object of that qualified name, and its frame, as it starts for the first time."""
        self._awaited.setdefault(qualname, []).append(met)

    def meet(self, frame: FrameType | None) -> None:
        """Watch the loops in the code of a frame that runs already, and of its callers."""
        while frame is not None:
            code = frame.f_code
            if not is_own(code.co_filename) and not self._codebase.is_torch(code.co_filename):
                if self._named.roles:
                    self._watch_named(code)
                if is_telling(code) or self._codebase.is_program(code.co_filename):
                    self._look_at(code, frame)
            frame = frame.f_back

    def _on_start(self, code: CodeType, _offset: int) -> Any:
        try:
            called = self._called.get(id(code))
            if called is not None:
                return called[1](sys._getframe(1))
            self.seen += 1
            if code.co_qualname in self._awaited:
                for met in self._awaited[code.co_qualname]:
                    met(code, sys._getframe(1))
            if self._named.roles:
                self._watch_named(code)
            if (
                is_telling(code)
                or code.co_qualname in self._signals
                or self._codebase.is_program(code.co_filename)
                or computes_loss(code)
            ):
                # Another thread that runs the code meanwhile waits, or its first iterations would be missed.
                try:
                    self._lock.acquire()
                    return self._look_at(code, sys._getframe(1))
                finally:
                    try:
                        self._lock.release()
                    except RuntimeError:
                        pass  # a signal's handler raised before it was acquired
        except BaseException as error:
            self._failed(error)
            return None
        return DISABLE

    def _look_at(self, code: CodeType, frame: FrameType) -> Any:
        if id(code) in self._called:
            return self._called[id(code)][1](frame)
        if self._codebase.is_torch(code.co_filename):
            return self._look_for_signal(code, frame)
        if is_own(code.co_filename) or id(code) in self._analysed:
            return DISABLE
        if is_too_long(code):
            self._analysed[id(code)] = code
            self._warn_once(
                code, "it is too long; its loops are known only once an optimizer has stepped in them", None
            )
            return DISABLE
        try:
            scope = self._codebase.scope(frame)
            finder = RoleFinder(code, lambda: self._codebase.source(code.co_filename), scope, self._analysis)
            proposals, loose_signs = finder.proposals, finder.loose_signs
        except Exception as error:
            self._not_analysed(code, error)
            # The program may be deep in a recursion now, and less deep another time.
            return None if isinstance(error, RecursionError) else DISABLE
        self._watch(code, proposals)
        self._analysed[id(code)] = code
        if not loose_signs:
            return DISABLE
        _, call = loose_signs[0]
        reason = f"calls {code.co_qualname}() -> {call} ({Path(code.co_filename).name}:{call.line})"
        return self._from_now_on(code, frame, _Loose(self._tracker, self._adopt_caller, reason))

    def _not_analysed(self, code: CodeType, error: Exception) -> None:
        """Whatever is odd about one code object, others can be analysed; the first one is told of."""
        if is_interruption(error):
            raise error
        self._warn_once(code, f"{type(error).__name__}: {error}; its steps may not be counted", error)

    def _warn_once(self, code: CodeType, why: str, error: Exception | None = None) -> None:
        if not self._odd:
            self._odd = True
            where = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
            warn(f"can't analyse the loops of {where}: {why}", error)

    def _look_for_signal(self, code: CodeType, frame: FrameType) -> Any:
        signal = self._signals.get(code.co_qualname)
        if signal is not None and code.co_filename.endswith(signal[0]):
            if signal[1] == self._evaluation.module_starts:
                self._evaluation.module_starts(frame)
                return DISABLE
            return self._from_now_on(code, frame, signal[1])
        if computes_loss(code):
            self._evaluation.loss_starts(frame)
        return DISABLE

    def _from_now_on(self, code: CodeType, frame: FrameType, called: Callable[[FrameType], Any]) -> Any:
        self._called[id(code)] = (code, called)
        return called(frame)

    def _watch_named(self, code: CodeType) -> None:
        for name, loop in self._named.in_code(code):
            proposal = Proposal(loop, name.role, (f"--{name.role}-loop {name.place}",))
            self._tracker.watch(code, [(self._found(code, proposal, "manual"), loop, name.role)], manual=True)

    def _watch(self, code: CodeType, proposals: list[Proposal]) -> None:
        chosen = [p for p in proposals if self._tracker.find(code, p.loop) is None and p.role not in self._named.roles]
        if chosen:
            self._tracker.watch(code, [(self._found(code, p, "static"), p.loop, p.role) for p in chosen])

    def _adopt_caller(self, reason: str, frame: FrameType | None) -> bool:
        """Count the loop that the first caller in a loop is in; False if there is none."""
        while frame is not None and not is_own(frame.f_code.co_filename):
            code = frame.f_code
            if not self._codebase.is_torch(code.co_filename):
                forest = self._codebase.forest(code)
                index = forest.innermost(frame.f_lasti) if forest.loops else None
                if index is not None:
                    proposal = Proposal(forest.loops[index], Role.TRAIN, (reason,))
                    if self._tracker.find(code, proposal.loop) is None:
                        found = self._found(code, proposal, "static")
                        [watched] = self._tracker.watch(code, [(found, proposal.loop, Role.TRAIN)])
                        self._tracker.adopt(watched, frame)
                    return True
            frame = frame.f_back
        return False


class _Loose:
    """Called at each start of a function that trains without a loop, until its loop is known."""

    def __init__(self, tracker: Tracker, adopt: Callable[[str, FrameType | None], bool], reason: str) -> None:
        self._tracker = tracker
        self._adopt = adopt
        self._reason = reason
        self._patience = _PATIENCE

    def __call__(self, frame: FrameType) -> Any:
        self._patience -= 1
        known = self._tracker.is_manual(Role.TRAIN) or self._tracker.is_counting(Role.TRAIN)
        return DISABLE if known or self._adopt(self._reason, frame.f_back) or self._patience <= 0 else None
