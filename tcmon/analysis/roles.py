"""Which loops of a code object are training or evaluation loops, and why.

A loop trains when its own body, inner loops aside, or a function of the program that it calls, steps an optimizer or,
with no step anywhere, computes gradients. Where such loops are nested, the outermost that both computes gradients and
steps is the training loop (the inner ones accumulate, or are the critic's turns); a further step around a loop that
does both (the flush of a last accumulation) does not make a training loop of the outer one. A loop around a function
that has a training loop of its own is none.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import CodeType

from tcmon.analysis import evidence
from tcmon.analysis.evaluating import Evaluation
from tcmon.analysis.evidence import Sign
from tcmon.analysis.loops import Loop, LoopForest
from tcmon.analysis.scopes import Program, Scope
from tcmon.analysis.training import Trace, Training

LONGEST = 40_000
"""Bytes of bytecode in one code object from which it is not analysed: twice the longest seen in programs that people
write. The analysis takes some 50 ms then, in time proportional to the bytes; a number, so that what is found does not
depend on how busy the machine is."""
_REASONS = 6
"""How many reasons are given for a role."""


class Role(StrEnum):
    """What the iterations of a loop are."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A loop with the role that the code suggests, and the reasons in words."""

    loop: Loop
    role: Role
    evidence: tuple[str, ...]


def is_telling(code: CodeType) -> bool:
    """Whether `code` may hold or belong to a training or evaluation loop: a quick look that dismisses most code."""
    if not evidence.TELLING.isdisjoint(code.co_names):
        return True
    name = code.co_name
    # Each of an evaluation's words has one of these, whatever its case; thousands of names are asked about.
    return ("al" in name or "est" in name or "ev" in name) and evidence.names_evaluation(name)


def is_too_long(code: CodeType) -> bool:
    """Whether the analysis of `code` would take too long, as that of generated code may."""
    return len(code.co_code) > LONGEST


class Analysis:
    """What is known of the functions that one analysis has come across, each looked at once."""

    def __init__(self) -> None:
        self._training: dict[int, Training | None] = {}
        self._evaluation: dict[int, Evaluation | None] = {}

    def training(self, scope: Scope, forest: LoopForest | None = None) -> Training | None:
        """The signs of training in a function; None while they are being looked for (recursion)."""
        key = id(scope.code)
        if key not in self._training:
            self._training[key] = None
            if is_too_long(scope.code):
                return None
            training = Training(forest or LoopForest(scope.code, graph=scope.reading.graph), scope, self.training)
            _ = training.signs
            self._training[key] = training
        return self._training[key]

    def evaluation(self, scope: Scope) -> Evaluation | None:
        """The evidence for evaluation in a function; None while it is being looked for."""
        key = id(scope.code)
        if key not in self._evaluation:
            self._evaluation[key] = None
            training = self.training(scope)
            if training is not None:
                evaluation = Evaluation(training, training.stepping | training.accumulating, self.evaluation)
                _ = evaluation.loops, evaluation.asking
                self._evaluation[key] = evaluation
        return self._evaluation[key]


class RoleFinder:
    """The roles of one code object's loops.

    `source` gives the parsed source of the code's file, or None; it is asked only where a loop plays a role, to tell
    the test of a `while` from its body and to find the line of a keyword. `scope` says what names in the code mean;
    without one, only the functions within the code are known. `analysis` is shared by the finders of one program.
    Who has the loops already, with the source, hands them over as `forest`.
    """

    def __init__(
        self,
        code: CodeType,
        source: Callable[[], ast.AST | None] = lambda: None,
        scope: Scope | None = None,
        analysis: Analysis | None = None,
        forest: LoopForest | None = None,
    ) -> None:
        self.code = code
        self._scope = scope or Program(code).scope(code)
        self._analysis = analysis or Analysis()
        self.forest = forest or LoopForest(code, graph=self._scope.reading.graph)
        self._look()
        if forest is None and self.forest.loops and (self._trained or self._evaluation.loops):
            tree = source()
            if tree is not None:
                self.forest = LoopForest(code, tree, self.forest.graph, self.forest.dominators)
                self._look()

    def _look(self) -> None:
        self._training = Training(self.forest, self._scope, self._analysis.training)
        self._trained = self._train()
        self._evaluation = Evaluation(self._training, frozenset(self._trained), self._analysis.evaluation)

    @cached_property
    def proposals(self) -> list[Proposal]:
        """Loops that play a role, outermost first."""
        loops = self.forest.loops
        found = {
            **{i: Proposal(loops[i], Role.EVAL, reasons) for i, reasons in self._evaluation.loops.items()},
            **{i: Proposal(loops[i], Role.TRAIN, reasons) for i, reasons in self._trained.items()},
        }
        return [found[index] for index in sorted(found)]

    @property
    def loose_signs(self) -> list[tuple[Sign, Trace]]:
        """Signs of training that stand in no loop of this code: its caller's loop may be the training loop."""
        return [(trace.sign, trace) for trace in self._training.for_caller if trace.sign in (Sign.STEP, Sign.BACKWARD)]

    @cached_property
    def rejected(self) -> list[tuple[Loop, str]]:
        """The loops that play no role, outermost first, and why."""
        used = {*self._trained, *self._evaluation.loops}
        made = {self.forest.innermost(at) for at in self._scope.reading.collects}  # by comprehensions
        rest = (i for i in range(len(self.forest.loops)) if i not in used and i not in made)
        return [(self.forest.loops[i], self._why_not(i)) for i in rest]

    # Training

    def _train(self) -> dict[int, tuple[str, ...]]:
        training = self._training
        self._inner: dict[int, str] = {}
        if training.stepping:
            if training.steps_outside_loops and (place := self._loop_of_caller()):
                self._inner = dict.fromkeys(training.stepping, f"runs within one step of {place}")
                return {}
            return {i: self._evidence(i) for i in training.stepping}
        found: dict[int, tuple[str, ...]] = {}
        for index in training.accumulating:
            name = self.code.co_name
            if training.reads_gradients(index) or evidence.names_passing_look(name):
                self._inner[index] = "computes gradients only to look at them"
            elif training.comes_through_test(index):
                self._inner[index] = "computes gradients in tests and measurements"
            elif training.goes_over_parts(index) or evidence.names_part_of_step(name):
                self._inner[index] = "accumulates gradients for a step that is made elsewhere"
            elif evidence.names_evaluation(name):
                self._inner[index] = f"computes gradients, but in {name}() and without a step"
            elif place := self._step_of_caller():
                self._inner[index] = f"accumulates gradients for the step {place}"
            else:
                found[index] = self._evidence(index)
        return found

    def _evidence(self, index: int) -> tuple[str, ...]:
        """The signs of a training loop in words, steps first; those of inner loops where gradients accumulate there."""
        training = self._training
        traces = list(training.signs[index])
        if not any(trace.sign is Sign.BACKWARD for trace in traces):
            traces += [t for inner in training.inside(index) for t in training.signs.get(inner, [])]
        order = (Sign.STEP, Sign.BACKWARD)
        reasons = [trace.reason for sign in order for trace in traces if trace.sign is sign]
        return tuple(list(dict.fromkeys(reasons))[:_REASONS])

    def _loop_of_caller(self) -> str | None:
        """The place of a loop that calls this code, if any does."""
        for scope, call in self._scope.callers():
            training = self._analysis.training(scope)
            index = training.forest.innermost(call.offset) if training is not None else None
            if training is not None and index is not None:
                return f"the loop of line {training.forest.loops[index].line}"
        return None

    def _step_of_caller(self) -> str | None:
        """The step, in words, that a caller makes with the gradients of this code."""
        for scope, call in self._scope.callers():
            training = self._analysis.training(scope)
            if training is None:
                continue
            index = training.forest.innermost(call.offset)
            for around in (*training.forest.around(index), None):
                for trace in training.signs.get(around, []):
                    if trace.sign is Sign.STEP and trace.offset != call.offset:
                        return f"{trace.what} (line {trace.line})"
        return None

    # Why not

    def _why_not(self, index: int) -> str:
        training, forest = self._training, self.forest
        loop = forest.loops[index]
        if index in self._inner:
            return self._inner[index]
        own = training.signs.get(index, [])
        outer = next((i for i in forest.around(index)[1:] if i in self._trained), None)
        if own and outer is not None:
            steps = any(trace.sign is Sign.STEP for trace in own)
            what = "steps" if steps else "accumulates gradients"
            return f"{what} inside the loop of line {forest.loops[outer].line}"
        if own and (inner := [i for i in training.inside(index) if i in self._trained]):
            return f"{own[0].what} (line {own[0].line}) comes after the loop of line {forest.loops[inner[0]].line}"
        walked = [t for traces in training.signs.values() for t in traces if forest.innermost(t.offset) == index]
        if not own and walked:
            what = "parameters" if all(t.stepped == "parameters" for t in walked) else "optimizers"
            return f"only walks over {what}"
        inner = [i for i in training.inside(index) if i in self._trained or i in self._evaluation.loops]
        if inner:
            return f"only holds the loop of line {forest.loops[inner[0]].line}"
        for call, name in training.handed_on:
            if call.offset in loop.body:
                return f"calls {name}(), which has a training loop of its own"
        for call in training.no_evidence:
            if forest.innermost(call.offset) == index:
                return f"calls {call.function}(), which is no evidence"
        if self._scope.is_foreign:
            return "belongs to a program that does not use torch"
        if own:
            return f"{own[0].what} (line {own[0].line}) alone is no evidence"
        return "no sign of training or evaluation"
