"""Which loops of a code object are training or evaluation loops, and why.

A loop trains when its own body, inner loops aside, steps an optimizer or, with no step anywhere in the code, computes
gradients. Where such loops are nested, the outermost that both computes gradients and steps is the training loop
(the inner ones accumulate, or are the critic's turns); a step without a gradient of its own around a loop that has
both (the flush of a last accumulation) does not make a training loop of the outer one.

A loop evaluates when nothing in it trains, it asks a model or walks over batches, and the code around says that it
evaluates: the function's name, the iterator's name, `no_grad` or `eval()`. There is no fallback.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import CodeType

from tcmon.analysis import evidence
from tcmon.analysis.calls import Call, calls, loads, stored_at
from tcmon.analysis.evidence import Sign
from tcmon.analysis.flowgraph import Block
from tcmon.analysis.loops import Loop, LoopForest, LoopKind


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
    return not evidence.TELLING.isdisjoint(code.co_names) or evidence.names_evaluation(code.co_name)


class RoleFinder:
    """The roles of one code object's loops.

    `source` gives the parsed source of the code's file, or None; it is asked only where a loop plays a role, to tell
    the test of a `while` from its body and to find the line of a keyword.
    """

    def __init__(self, code: CodeType, source: Callable[[], ast.AST | None] = lambda: None) -> None:
        self.code = code
        self._source = source
        self.forest = LoopForest(code)
        if self.forest.loops and (self._training or self._evaluation):
            tree = source()
            if tree is not None:
                self.forest = LoopForest(code, tree)
                for name in ("_calls", "_signs", "_training", "_evaluation"):
                    self.__dict__.pop(name, None)

    @property
    def proposals(self) -> list[Proposal]:
        """Loops that play a role, outermost first."""
        found = {**self._evaluation, **self._training}
        loops = self.forest.loops
        return [
            Proposal(loops[i], Role.TRAIN if i in self._training else Role.EVAL, reasons)
            for i, reasons in sorted(found.items())
        ]

    @property
    def loose_signs(self) -> list[tuple[Sign, Call]]:
        """Signs of training that stand in no loop of this code: its caller's loop may be the training loop."""
        loose = self._signs.get(None, [])
        steps = [sign for signs in self._signs.values() for sign, _ in signs if sign is Sign.STEP]
        return [(sign, call) for sign, call in loose if sign is Sign.STEP or not steps]

    # Training

    @cached_property
    def _calls(self) -> list[Call]:
        return list(calls(self.forest.graph))

    @cached_property
    def _signs(self) -> dict[int | None, list[tuple[Sign, Call]]]:
        """Signs of training by the loop in whose own body they stand (None: in no loop)."""
        found: dict[int | None, list[tuple[Sign, Call]]] = {}
        for call in self._calls:
            sign = evidence.training_sign(call)
            if sign is not None:
                found.setdefault(self._owner(call), []).append((sign, call))
        # A step of an unknown thing is one of an optimizer where gradients are computed beside it.
        for owner, signs in found.items():
            backward = any(sign is Sign.BACKWARD for sign, _ in signs)
            found[owner] = [
                (Sign.STEP if sign is Sign.MAYBE_STEP else sign, call)
                for sign, call in signs
                if sign is not Sign.MAYBE_STEP or backward
            ]
        return {owner: signs for owner, signs in found.items() if signs}

    def _owner(self, call: Call) -> int | None:
        """The loop that a call is evidence for: not one that only walks over what is stepped."""
        index = self.forest.innermost(call.offset)
        while index is not None:
            targets = stored_at(self.forest.graph, self.forest.loops[index].start)
            if call.path[0] not in targets and call.index not in targets:
                break
            index = self.forest.loops[index].parent
        return index

    @cached_property
    def _training(self) -> dict[int, tuple[str, ...]]:
        signs = {index: found for index, found in self._signs.items() if index is not None}
        steps = {i for i, found in signs.items() if any(sign is Sign.STEP for sign, _ in found)}
        backward = {i for i, found in signs.items() if any(sign is Sign.BACKWARD for sign, _ in found)}
        loose_step = any(sign is Sign.STEP for sign, _ in self._signs.get(None, []))
        if steps:
            complete = steps & backward
            candidates = {
                i for i in steps if i in complete or not any(i in self.forest.around(other)[1:] for other in complete)
            }
        elif loose_step:
            candidates = set()  # loops that only accumulate within one step of the caller
        else:
            candidates = backward
        return {
            i: tuple(f"{call} ({self._place(call)})" for _, call in signs[i])
            for i in candidates
            if not any(outer in candidates for outer in self.forest.around(i)[1:])
        }

    def _place(self, call: Call) -> str:
        return f"{self.code.co_filename.rpartition('/')[2]}:{call.line}"

    # Evaluation

    @cached_property
    def _evaluation(self) -> dict[int, tuple[str, ...]]:
        trained = {
            outer
            for index in (*self._signs, *self._training)
            if index is not None
            for outer in self.forest.around(index)
        }
        if self._signs.get(None) and not self._training:
            return {}  # a function that trains without a loop
        found: dict[int, tuple[str, ...]] = {}
        for index, loop in enumerate(self.forest.loops):
            around = self.forest.around(index)[1:]
            if index in trained or any(outer in found for outer in around):
                continue
            reasons = self._evaluation_reasons(index, loop)
            if reasons:
                found[index] = reasons
        return found

    def _evaluation_reasons(self, index: int, loop: Loop) -> tuple[str, ...]:
        inside = [call for call in self._calls if call.offset in loop.body]
        iterated = self._iterated(loop)
        model = next((c for c in inside if evidence.names_model(c.name) or c.name in ("forward", "generate")), None)
        batches = next((name for name in iterated if evidence.names_batches(name)), None)
        named = next((name for name in iterated if evidence.names_evaluation(name) and name != "test"), None)
        # Own body only: an epoch loop around an evaluation loop does not evaluate.
        own = [call for call in inside if self.forest.innermost(call.offset) == index]
        if model is None and not (batches and own):
            return ()
        if model is not None and self.forest.innermost(model.offset) != index and not batches:
            return ()
        reasons: list[str] = []
        if evidence.names_evaluation(self.code.co_name):
            reasons.append(f"in {self.code.co_name}()")
        if named is not None:
            reasons.append(f"over {named}")
        quiet = self._without_gradients(loop)
        if quiet is not None:
            reasons.append(f"{quiet} (line {quiet.line})")
        if not reasons or (model is None and not named and not evidence.names_evaluation(self.code.co_name)):
            return ()
        if not batches and not named and not (quiet is not None and evidence.names_evaluation(self.code.co_name)):
            return ()  # token by token generation, statistics, teacher forwards
        if model is not None:
            reasons.append(f"{model} (line {model.line})")
        return tuple(reasons)

    def _iterated(self, loop: Loop) -> tuple[str, ...]:
        """Names that what a `for` loop iterates over is made of."""
        if loop.kind is LoopKind.WHILE:
            return ()
        return tuple(name for entry in loop.entries for name in loads(self.forest.graph, entry))

    def _without_gradients(self, loop: Loop) -> Call | None:
        """The `no_grad()`, `inference_mode()` or `eval()` in or around a loop, or None."""
        inside = [c for c in self._calls if c.offset in loop.body and c.name in evidence.NO_GRAD]
        if inside:
            return inside[0]
        for call in self._calls:
            if call.name in evidence.NO_GRAD and self._with_holds(call, loop):
                return call
        modes = [
            call
            for call in self._calls
            if call.name in ("eval", "train")
            and call.receiver is not None
            and call.offset < loop.start
            and self._precedes(call, loop)
        ]
        return modes[-1] if modes and modes[-1].name == "eval" else None

    def _with_holds(self, call: Call, loop: Loop) -> bool:
        """Whether `call` is the context expression of a `with` statement around the loop."""
        graph = self.forest.graph
        line = call.line
        pending = list(self._block_of(loop.start).handlers)
        seen: set[int] = set()
        while pending:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            block = graph.blocks[index]
            if any(i.name == "WITH_EXCEPT_START" and i.line == line for i in block.instructions):
                return True
            pending += block.handlers
        return False

    def _precedes(self, call: Call, loop: Loop) -> bool:
        """Whether every way to the loop passes `call`."""
        graph = self.forest.graph
        caller = next(b.index for b in graph.blocks if any(i.offset == call.offset for i in b.instructions))
        return self.forest.dominators.dominates(caller, self._block_of(loop.start).index)

    def _block_of(self, offset: int) -> Block:
        return next(b for b in self.forest.graph.blocks if any(i.offset == offset for i in b.instructions))
