"""Which loops of one code object evaluate.

A loop evaluates when nothing in it trains, it asks a model about batches, and the code around says that it evaluates:
the function's name, the iterator's name, or `no_grad()`, `inference_mode()` or `eval()` with a measure of quality
beside. There is no fallback: a loop of which less is known plays no role.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from tcmon.analysis import evidence
from tcmon.analysis.evidence import Thing
from tcmon.analysis.expressions import Attribute, Call, Element, Expr, Name, ends_in, path
from tcmon.analysis.loops import Loop, LoopKind
from tcmon.analysis.scopes import Scope
from tcmon.analysis.training import Training

_ASKING = ("forward", "generate", "predict", "validation_step", "test_step", "eval_step")
_WRAPPERS = frozenset({"enumerate", "tqdm", "zip", "iter", "range", "len", "islice", "list", "reversed", "track"})
_DEPTH = 3


class Evaluation:
    """The evidence for evaluation in one code object, whose signs of training are `training`."""

    def __init__(
        self, training: Training, trained: frozenset[int], evaluation_of: Callable[[Scope], Evaluation | None]
    ) -> None:
        self._training = training
        self._trained = trained
        self._evaluation_of = evaluation_of
        self._forest = training.forest
        self._scope = training.scope
        self._reading = training.scope.reading

    @cached_property
    def loops(self) -> dict[int, tuple[str, ...]]:
        """The loops that evaluate, with the reasons in words."""
        trained = {outer for index in self._trained for outer in self._forest.around(index)}
        found: dict[int, tuple[str, ...]] = {}
        if self._scope.is_foreign:
            return found
        for index, loop in enumerate(self._forest.loops):
            if index in trained or any(outer in found for outer in self._forest.around(index)[1:]):
                continue
            if self._is_comprehension(index):
                continue
            reasons = self._reasons(index, loop)
            if reasons:
                found[index] = reasons
        return found

    def _reasons(self, index: int, loop: Loop) -> tuple[str, ...]:
        inside = [call for call in self._reading.calls if call.offset in loop.body]
        signs = self._signs_in(loop)
        if signs.intersection((evidence.Sign.STEP,)):
            return ()
        own = [call for call in inside if self._belongs(call.offset, index)]
        asked = next((reason for call in own if (reason := self._asks(call, index))), None)
        if asked is None:
            return ()
        function = self._scope.code.co_name
        by_function = self._name_of_evaluation
        iterated = list(self._iterated(index, loop))
        over = next(
            (n for n in iterated if evidence.names_evaluation(n) and n.lower() != "test" and "size" not in n), None
        )
        batches = any(evidence.names_batches(n) for n in iterated) or any(
            evidence.draws_batch(call.name) or self._draws_next(call) for call in own
        )
        quiet = self._without_gradients(loop, function)
        if evidence.names_sampling(function) or (evidence.names_other_use(function) and not by_function):
            return ()
        if evidence.Sign.BACKWARD in signs and not (by_function and (over or quiet) and batches):
            return ()
        within_training = any(outer in self._trained for outer in self._forest.around(index))
        measured = self._measures(own, loop, index)
        counted = (
            self._is_over_numbers(index) and not batches and over is not None and not evidence.counts_evaluation(over)
        )
        named = over is not None and not counted and bool(by_function or quiet or batches or measured)
        confirmed = bool(quiet or measured) or not (by_function or "").startswith("test_")
        called = (
            by_function is not None
            and confirmed
            and (batches or self._goes_over_argument(index) or self._steps_environment(own))
        )
        for_training = any(evidence.names_training(name) for name in iterated)
        over_batches = any(evidence.names_batches(name) for name in iterated)
        unnamed = quiet is not None and over_batches and measured and not within_training and not for_training
        if not (named or called or unnamed):
            return ()
        reasons = [f"in {by_function}()"] if by_function else []
        if over is not None:
            reasons.append(f"over {over}")
        return (*reasons, *([quiet] if quiet else []), asked)

    def _is_over_numbers(self, index: int) -> bool:
        at = self._training.iterator_at(index)
        expr = self._reading.iterators[at] if at is not None else None
        while isinstance(expr, Call) and expr.args and expr.name in _WRAPPERS - {"range"}:
            expr = expr.args[0]
        return isinstance(expr, Call) and expr.path == ("range",)

    def _signs_in(self, loop: Loop) -> set[evidence.Sign]:
        return {t.sign for traces in self._training.signs.values() for t in traces if t.offset in loop.body}

    def _belongs(self, offset: int, index: int) -> bool:
        """Whether an instruction stands in a loop itself or in an inner one that is not over batches."""
        inner = self._forest.innermost(offset)
        while inner is not None and inner != index:
            if any(evidence.names_batches(name) for name in self._iterated(inner, self._forest.loops[inner])):
                return False
            if self._forest.loops[index].kind is LoopKind.FOR and not self._is_over_batches(index):
                return False
            inner = self._forest.loops[inner].parent
        return inner == index

    def _is_over_batches(self, index: int) -> bool:
        names = list(self._iterated(index, self._forest.loops[index]))
        return any(evidence.names_batches(n) or evidence.names_evaluation(n) for n in names)

    # Names

    @cached_property
    def _name_of_evaluation(self) -> str | None:
        """The name of this function if it is an evaluation's, or of one around it."""
        for name in reversed(self._scope.code.co_qualname.split(".")):
            if evidence.names_evaluation(name) and not (evidence.names_training(name) or name.endswith("Error")):
                return name
        return None

    def _iterated(self, index: int, loop: Loop) -> Iterator[str]:
        """Names that say what a loop goes over."""
        at = self._training.iterator_at(index)
        if at is not None:
            yield from self._names_behind(self._reading.iterators[at])
        for call in self._reading.calls:
            if call.offset in loop.body and self._forest.innermost(call.offset) == index and self._draws_next(call):
                for arg in call.args[:1]:
                    yield from self._names_behind(arg)
        if loop.kind is LoopKind.WHILE:
            yield from self._limits(loop)

    def _limits(self, loop: Loop) -> Iterator[str]:
        """Names in the test of a `while`: what is loaded on its line."""
        names = set(self._scope.code.co_names) | set(self._scope.code.co_varnames)
        yield from (name for name in sorted(names) if evidence.names_evaluation(name) and self._loads(name, loop))

    def _loads(self, name: str, loop: Loop) -> bool:
        code = self._scope.code
        for block in self._forest.graph.blocks:
            for i in block.instructions:
                if i.line == loop.line and i.name.startswith("LOAD") and i.name != "LOAD_CONST":
                    if i.name in ("LOAD_ATTR", "LOAD_GLOBAL") and code.co_names[i.arg >> 1] == name:
                        return True
                    if i.name == "LOAD_NAME" and code.co_names[i.arg] == name:
                        return True
                    if (
                        i.name.startswith("LOAD_FAST")
                        and i.arg < len(code.co_varnames)
                        and code.co_varnames[i.arg] == name
                    ):
                        return True
        return False

    def _names_behind(self, expr: Expr, depth: int = _DEPTH) -> Iterator[str]:
        """The names in an expression, and those from which its variables were taken."""
        yield from (name for name in ends_in(expr) if name not in _WRAPPERS)
        if depth:
            variable = self._variable(expr)
            if variable is not None:
                for store in self._reading.stores:
                    if path(store.target) == (variable,) and not isinstance(store.value, Name):
                        value = store.value
                        while isinstance(value, Element):
                            value = value.of
                        if isinstance(value, Call):
                            yield from self._names_behind(value, 0)
                        elif value is not store.value:
                            yield from self._names_behind(value, depth - 1)

    def _variable(self, expr: Expr) -> str | None:
        while isinstance(expr, Call) and expr.args and expr.name in _WRAPPERS:
            expr = expr.args[0]
        return expr.id if isinstance(expr, Name) else None

    @staticmethod
    def _draws_next(call: Call) -> bool:
        return call.path == ("next",)

    def _goes_over_argument(self, index: int) -> bool:
        """Whether a `for` loop goes over something that is no range of numbers."""
        at = self._training.iterator_at(index)
        if at is None:
            return False
        expr = self._reading.iterators[at]
        while isinstance(expr, Call) and expr.args and expr.name in _WRAPPERS - {"range"}:
            expr = expr.args[0]
        goes_over = isinstance(expr, Name | Attribute) and not evidence.names_steps(path(expr)[-1])
        return goes_over and not self._forest.around(index)[1:]

    @staticmethod
    def _steps_environment(own: list[Call]) -> bool:
        return any(call.name == "step" and "env" in evidence.words(call.receiver or "") for call in own)

    # What is asked

    def _asks(self, call: Call, index: int) -> str | None:
        """How `call` asks a model, in words."""
        if self._is_model(call):
            return f"{call} (line {call.line})"
        for callee in self._scope.callees(call):
            inner = self._evaluation_of(callee)
            if inner is not None and not inner.loops and (leaf := inner.asking) is not None:
                return f"calls {callee.code.co_name}() -> {leaf}"
        return None

    def _is_model(self, call: Call) -> bool:
        if call.name in _ASKING:
            return True
        if not call.path or isinstance(call.function, Call):
            return False
        if evidence.names_model(call.name) or call.path in self._modules:
            return True
        if self._scope.thing(call.function) is Thing.MODEL:
            return True
        if call.name in ("act", "get_action", "get_value", "encode", "select_action", "compute_loss", "loss"):
            return call.receiver is not None and evidence.names_model(call.receiver)
        return call.path == ("self",)

    @cached_property
    def _modules(self) -> frozenset[tuple[str, ...]]:
        """Dotted names of what is switched to evaluation, or has parameters: modules, whatever their names."""
        return frozenset(call.path[:-1] for call in self._reading.calls if call.name in ("eval", "parameters"))

    @cached_property
    def asking(self) -> str | None:
        """How this code asks a model outside any loop, or None."""
        file = self._scope.code.co_filename.rpartition("/")[2]
        for call in self._reading.calls:
            if self._forest.innermost(call.offset) is None:
                if self._is_model(call):
                    return f"{call} ({file}:{call.line})"
                for callee in self._scope.callees(call):
                    inner = self._evaluation_of(callee)
                    if inner is not None and not inner.loops and inner.asking is not None:
                        return f"{callee.code.co_name}() -> {inner.asking}"
        return None

    def _measures(self, own: list[Call], loop: Loop, index: int) -> bool:
        """Whether the loop computes a measure of quality."""
        if any(evidence.names_metric(call.name) or evidence.names_metric(call.receiver or "") for call in own):
            return True
        stores = [s for s in self._reading.stores if s.offset in loop.body and self._belongs(s.offset, index)]
        return any(evidence.names_metric(name) for s in stores for name in path(s.target)[-1:])

    # Gradients switched off

    def _without_gradients(self, loop: Loop, function: str) -> str | None:
        """The `no_grad()`, `inference_mode()` or `eval()` in or around a loop, in words."""
        if self._scope.is_quiet():
            return f"{function}() is decorated with no_grad"
        calls = self._reading.calls
        modes = [
            call for call in calls if self._switches(call) and call.offset < loop.start and self._precedes(call, loop)
        ]
        quiet = (
            next((call for call in calls if call.offset in loop.body and call.name in evidence.NO_GRAD), None)
            or next((call for call in calls if call.name in evidence.NO_GRAD and self._with_holds(call, loop)), None)
            or (modes[-1] if modes and self._is_off(modes[-1]) else None)
            or next(
                (call for call in calls if call.offset in loop.body and call.name == "eval" and call.receiver), None
            )
        )
        return f"{quiet} (line {quiet.line})" if quiet is not None else None

    @staticmethod
    def _switches(call: Call) -> bool:
        return (call.name in ("eval", "train") and call.receiver is not None) or call.name == "set_grad_enabled"

    @staticmethod
    def _is_off(call: Call) -> bool:
        return call.name == "eval" or (bool(call.args) and str(call.args[0]) == "False")

    def _with_holds(self, call: Call, loop: Loop) -> bool:
        """Whether `call` is the context expression of a `with` statement around the loop."""
        line = next((w.line for w in self._reading.withs if call.offset <= w.offset and w.value is call), None)
        if line is None:
            return False
        blocks = self._forest.graph.blocks
        pending = list(blocks[self._block_of(loop.start)].handlers)
        seen: set[int] = set()
        while pending:
            index = pending.pop()
            if index not in seen:
                seen.add(index)
                if any(i.name == "WITH_EXCEPT_START" and i.line == line for i in blocks[index].instructions):
                    return True
                pending += blocks[index].handlers
        return False

    def _precedes(self, call: Call, loop: Loop) -> bool:
        """Whether every way to the loop passes `call`."""
        return self._forest.dominators.dominates(self._block_of(call.offset), self._block_of(loop.start))

    def _block_of(self, offset: int) -> int:
        return self._blocks[offset]

    @cached_property
    def _blocks(self) -> dict[int, int]:
        return {i.offset: block.index for block in self._forest.graph.blocks for i in block.instructions}

    def _is_comprehension(self, index: int) -> bool:
        return any(self._forest.innermost(at) == index for at in self._reading.collects)
