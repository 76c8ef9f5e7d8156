"""Which loops of one code object train: signs of training by loop, and what they make of the loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from tcmon.analysis import evidence
from tcmon.analysis.evidence import Sign, Thing
from tcmon.analysis.expressions import Attribute, Call, Element, Expr, Item, Name, names_in, path, within
from tcmon.analysis.loops import LoopForest, LoopKind
from tcmon.analysis.reading import Reading
from tcmon.analysis.scopes import Scope


@dataclass(frozen=True, slots=True)
class Trace:
    """A sign of training and the way to it; `str()` is like `train_step() -> loss.backward()`."""

    sign: Sign
    what: str
    file: str
    line: int | None
    offset: int
    """Where it stands in the code that is looked at: the sign itself, or the call of a function that leads to it."""
    stepped: str = ""
    """The name of what is stepped."""
    via: tuple[str, ...] = ()
    """The functions that are called on the way."""
    in_loop: bool = False
    """Whether it stands in a loop of a function on the way, which accumulates gradients."""

    def __str__(self) -> str:
        return " -> ".join((*(f"{name}()" for name in self.via), self.what))

    @property
    def reason(self) -> str:
        """In words, with the place."""
        return f"{'calls ' if self.via else ''}{self} ({self.file}:{self.line})"


class Training:
    """The signs of training in one code object.

    `training_of` gives the `Training` of another function of the program, or None where the calls go in circles.
    """

    def __init__(self, forest: LoopForest, scope: Scope, training_of: Callable[[Scope], Training | None]) -> None:
        self.forest = forest
        self.scope = scope
        self._training_of = training_of
        self.no_evidence: list[Call] = []
        """Calls of `step` that are no sign of training."""
        self.handed_on: list[tuple[Call, str]] = []
        """Calls of functions that have a training loop of their own, and their names."""

    @property
    def _reading(self) -> Reading:
        return self.scope.reading

    # Signs

    @cached_property
    def signs(self) -> dict[int | None, list[Trace]]:
        """Signs by the loop in whose own body they stand, inner loops aside (None: in no loop)."""
        found: dict[int | None, list[Trace]] = {}
        if not self.scope.is_foreign:
            for trace, names in self._traces():
                found.setdefault(self._owner(trace.offset, names), []).append(trace)
        return {owner: settled for owner, traces in found.items() if (settled := self._settle(owner, traces, found))}

    def _traces(self) -> Iterator[tuple[Trace, frozenset[str]]]:
        """Signs, each with the names that say which loops only walk over what it is about."""
        for call in self._reading.calls:
            yield from self._traces_of_call(call)
        grads = self._grads
        for operation in self._reading.operations:
            if evidence.is_update_operation(operation, grads):
                yield self._update(str(operation), operation.offset, operation.line, operation.left)
        for store in self._reading.stores:
            if evidence.is_update_store(store, grads):
                yield self._update(f"{store.target} = {store.value}", store.offset, store.line, store.target)

    def _traces_of_call(self, call: Call) -> Iterator[tuple[Trace, frozenset[str]]]:
        if isinstance(call.function, Name):
            origin = self.scope.origin(call.function)
            if isinstance(origin, Attribute) and origin.name in ("step", "backward"):
                call = Call(origin, call.args, call.keywords, call.offset, call.line)
        target = call.target
        thing = self.scope.thing(target) if target is not None and call.name == "step" else None
        signs = evidence.call_signs(call, thing)
        if evidence.is_update_call(call, self._grads) and target is not None:
            yield self._update(str(call), call.offset, call.line, target)
            return
        if not signs and evidence.is_no_evidence(call, thing) and thing is not Thing.MODEL:
            self.no_evidence.append(call)
            return
        closure = call.name == "step" and (call.args or call.keywords)
        handed = bool(signs) and evidence.is_by_handed_optimizer(call)
        if not signs or Sign.MAYBE_STEP in signs or closure or handed:
            followed = list(self._followed(call))
            for trace in followed:
                yield trace, frozenset(_walked(call))
            if (followed and not closure) or (handed and self.scope.callees(call)):
                return
        stepped = _stepped(call)
        for sign in signs:
            yield self._trace(sign, str(call), call.offset, call.line, stepped), frozenset(_walked(call))

    def _followed(self, call: Call) -> Iterator[Trace]:
        """Signs in the functions that `call` runs."""
        for callee in self.scope.callees(call):
            training = self._training_of(callee)
            if training is None:
                continue
            name = callee.code.co_name
            if training.is_complete_in_itself:
                self.handed_on.append((call, name))
            for trace in training.for_caller:
                yield replace(trace, offset=call.offset, via=(name, *trace.via))
            self.handed_on += [(call, inner) for _, inner in training.handed_on[:1] if not training.for_caller]

    def _trace(self, sign: Sign, what: str, offset: int, line: int | None, stepped: str = "") -> Trace:
        return Trace(sign, what, self.scope.code.co_filename.rpartition("/")[2], line, offset, stepped)

    def _update(self, what: str, offset: int, line: int | None, target: Expr) -> tuple[Trace, frozenset[str]]:
        return self._trace(Sign.STEP, what, offset, line, "parameters"), frozenset(path(target)[:1])

    @cached_property
    def _grads(self) -> frozenset[str]:
        """Variables that hold what `torch.autograd.grad()` returned, or an element of it."""
        grads: set[str] = set()
        for store in self._reading.stores:
            value = store.value
            from_grads = isinstance(value, Element) and not grads.isdisjoint(names_in(value))
            if isinstance(store.target, Name) and (evidence.holds_gradients(value) or from_grads):
                grads.add(store.target.id)
        return frozenset(grads)

    def _settle(self, owner: int | None, traces: list[Trace], found: dict[int | None, list[Trace]]) -> list[Trace]:
        """A step of an unknown thing is one of an optimizer where gradients are computed or cleared beside it."""
        inside = [
            trace
            for index, others in found.items()
            if owner is None or (index is not None and owner in self.forest.around(index))
            for trace in others
        ]
        backward = any(t.sign is Sign.BACKWARD for t in (inside if owner is not None else traces))
        cleared = {t.stepped for others in found.values() for t in others if t.sign in (Sign.CLEAR, Sign.BACKWARD)}
        return [
            replace(t, sign=Sign.STEP) if t.sign is Sign.MAYBE_STEP else t
            for t in traces
            if t.sign is not Sign.MAYBE_STEP or backward or t.stepped in cleared
        ]

    # Owners

    def _owner(self, offset: int, names: frozenset[str]) -> int | None:
        """The loop that a sign is evidence for: not one that only walks over optimizers or parameters."""
        index = self.forest.innermost(offset)
        while index is not None and not names.isdisjoint(self._targets(index)):
            index = self.forest.loops[index].parent
        return index

    def _targets(self, index: int) -> frozenset[str]:
        """Variables that a `for` loop assigns each item to, and those that are taken from them at once."""
        if index not in self._targets_of:
            at, body = self.iterator_at(index), self.forest.loops[index].body
            stores = [
                store for store in self._reading.stores if store.offset in body and isinstance(store.target, Name)
            ]
            names = {
                name for s in stores if isinstance(s.value, Element) and s.value.at == at for name in path(s.target)
            }
            for store in stores:
                value = store.value
                keys = {part.id for part in within(value) if isinstance(part, Name)}
                if isinstance(value, Item | Attribute | Element) and not _has_call(value) and names & keys:
                    names.update(path(store.target))
            self._targets_of[index] = frozenset(names)
        return self._targets_of[index]

    @cached_property
    def _targets_of(self) -> dict[int, frozenset[str]]:
        return {}

    def iterator_at(self, index: int) -> int | None:
        """The offset of the instruction that asks the iterator of a `for` loop."""
        loop = self.forest.loops[index]
        if loop.kind is LoopKind.WHILE:
            return None
        asking = [at for at in self._reading.iterators if at in loop.body and at < loop.start]
        return max(asking, default=None)

    # Roles

    def _with(self, sign: Sign) -> set[int]:
        return {i for i, traces in self.signs.items() if i is not None and any(t.sign is sign for t in traces)}

    def _loose(self, sign: Sign) -> list[Trace]:
        return [trace for trace in self.signs.get(None, []) if trace.sign is sign]

    def inside(self, index: int) -> Iterator[int]:
        """Loops within a loop."""
        for other in range(len(self.forest.loops)):
            if other != index and index in self.forest.around(other):
                yield other

    def _steps_of(self, index: int | None) -> set[str]:
        return {t.stepped for t in self.signs.get(index, []) if t.sign is Sign.STEP}

    @cached_property
    def stepping(self) -> frozenset[int]:
        """Loops that step, the outermost where several are nested."""
        steps, backward = self._with(Sign.STEP), self._with(Sign.BACKWARD)
        found: set[int] = set()
        for index in sorted(steps):
            inner = [other for other in self.inside(index) if other in steps]
            stepped_inside = {name for other in inner for name in self._steps_of(other)}
            if inner and self._steps_of(index) <= stepped_inside:
                continue  # the flush of a last accumulation, or a further step an epoch
            accumulated = any(other in backward and other not in steps for other in self.inside(index))
            if inner and index not in backward and not accumulated:
                continue  # what is stepped beside a loop that trains
            found.add(index)
        return frozenset(i for i in found if not any(outer in found for outer in self.forest.around(i)[1:]))

    @cached_property
    def accumulating(self) -> frozenset[int]:
        """Loops that compute gradients and step nothing, where none of this code steps: the outermost."""
        if self._with(Sign.STEP) or self._loose(Sign.STEP):
            return frozenset()
        own = {i: [t for t in traces if t.sign is Sign.BACKWARD and not t.in_loop] for i, traces in self.signs.items()}
        backward = {i for i, traces in own.items() if i is not None and traces}
        return frozenset(i for i in backward if not any(outer in backward for outer in self.forest.around(i)[1:]))

    @cached_property
    def steps_outside_loops(self) -> bool:
        """Whether the code trains outside its loops too, so that these may be inner loops of a caller's step."""
        stepped = self._steps_of(None)
        inside = {name for index in self.stepping for name in self._steps_of(index)}
        backward = self._loose(Sign.BACKWARD) or self._with(Sign.BACKWARD) - self.stepping
        return bool(stepped) and bool(backward) and not stepped <= inside

    @property
    def is_complete_in_itself(self) -> bool:
        """Whether the code has a loop that trains, so that a loop around its call need not."""
        return bool(self.stepping) and not self.steps_outside_loops

    @cached_property
    def for_caller(self) -> list[Trace]:
        """Signs that count for a loop around a call of this code."""
        if self.is_complete_in_itself or self._only_looks:
            return []
        traces = list(self.signs.get(None, []))
        seen = {trace.sign for trace in traces}
        for index in sorted(self._with(Sign.BACKWARD) - self.stepping):
            within_loop = [replace(t, in_loop=True) for t in self.signs[index] if t.sign is Sign.BACKWARD]
            traces += [t for t in within_loop if t.sign not in seen]
        return traces

    @property
    def _only_looks(self) -> bool:
        """Whether gradients are computed here for something else than a step: to attack, to measure."""
        if self._with(Sign.STEP) or self._loose(Sign.STEP):
            return False
        moved = any(evidence.moves_by_sign(call) for call in self._reading.calls)
        return moved or evidence.names_passing_look(self.scope.code.co_name)

    def comes_through_test(self, index: int) -> bool:
        """Whether all that a loop has of training stands in functions that test or measure."""
        return all(
            any(evidence.names_evaluation(name) or evidence.names_passing_look(name) for name in trace.via)
            for trace in self.signs.get(index, [])
        )

    def goes_over_parts(self, index: int) -> bool:
        """Whether a loop goes over the parts of one batch, by the names of what it iterates over."""
        at = self.iterator_at(index)
        return at is not None and any(evidence.names_accumulation(n) for n in names_in(self._reading.iterators[at]))

    def reads_gradients(self, index: int) -> bool:
        """Whether gradients are computed in a loop to be looked at: for an attack, for the importance of weights."""
        body = self.forest.loops[index].body
        moved = any(evidence.moves_by_sign(call) for call in self._reading.calls)
        return moved or any(grad in body for grad in self._reading.grads)


def _has_call(expr: Expr) -> bool:
    return any(isinstance(part, Call) for part in within(expr))


def _stepped(call: Call) -> str:
    """The name of the optimizer that a call is about."""
    for arg in call.arguments():
        if evidence.names_stepper(arg):
            return ".".join(path(arg))
    return ".".join(call.path[:-1])


def _walked(call: Call) -> Iterator[str]:
    """Variables that say what a call is about: a loop over them only walks over optimizers."""
    yield from call.path[:1]
    for part in within(call.function):
        if isinstance(part, Item) and isinstance(part.key, Name):
            yield part.key.id
    for arg in call.arguments():
        if evidence.names_stepper(arg):
            yield from path(arg)[:1]
