"""The `state` of recorded steps: parameters, gradients, updates of the optimizers that stepped, modes and buffers.

Everything is measured inside callbacks at the start and the end of `optimizer.step()`, with a handful of torch's
foreach functions, and read back once at the end of the step. Parameters get their names from the modules that were
called.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from threading import get_ident
from types import FrameType
from typing import Any

from orjson import Fragment

from tcmon.capture import modules
from tcmon.capture.landmarks import Landmark, function_code
from tcmon.capture.measures import Measures, Samples, plain, real, reals, undisturbed
from tcmon.capture.modules import Names, class_name
from tcmon.capture.recorder import Equipment, Step, identity
from tcmon.capture.signs import Signs

_MOST_PARAMETERS = 10_000
"""Parameters of one step that are measured."""
_MOST_MIXED = 20
_MOST_AFTER = 4
"""Parameters whose gradient is looked at again at the end of a step."""
_MOST_ROOTS = 100
_PROBABLE = 1e-3
"""How far the sum of a row of probabilities may be from one."""


class StateRecorder:
    """Records the `state`, `modes` and `buffers` of a step."""

    def __init__(self, equipment: Equipment) -> None:
        self._landmarks = equipment.landmarks()
        self._marks: list[Landmark] | None = None
        self._open: dict[int, _OpenStep] = {}
        self._names = Names()
        self._tables = _Tables()
        self._signs = Signs()

    def start(self, step: Step) -> None:
        marks = self._find()
        if marks:
            self._open.setdefault(step.thread, _OpenStep(step, sys.modules["torch"])).active = True
            for mark in marks:
                mark.switch(True)

    def pause(self, step: Step) -> None:
        opened = self._open.get(step.thread)
        if opened is not None and opened.step is step and opened.active:
            opened.active = False
            for mark in self._marks or ():
                mark.switch(False)

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        opened = self._open.get(step.thread)
        if opened is None or opened.step is not step:
            return iter(())
        del self._open[step.thread]
        with undisturbed(opened.torch):
            return iter([*opened.records(self._names, self._tables), opened.signs(self._signs)])

    def discard(self, step: Step) -> None:
        self.pause(step)
        opened = self._open.get(step.thread)
        if opened is not None and opened.step is step:
            del self._open[step.thread]

    def _find(self) -> list[Landmark] | None:
        """The functions to watch, once torch is there."""
        if self._marks is None and "torch" in sys.modules and self._landmarks is not None:
            step = function_code("torch.optim.optimizer", "Optimizer", "profile_hook_step", "wrapper")
            call = function_code("torch.nn.modules.module", "Module", "_wrapped_call_impl")
            backward = function_code("torch.autograd", "backward")
            if step is None or call is None or backward is None:
                return None
            loss = function_code("torch.nn.functional", "cross_entropy")
            self._marks = [
                *self._signs.watched(self._landmarks),
                *([self._landmarks.add(loss, self._logits_given)] if loss is not None else []),
                self._landmarks.add(step, self._step_starts, self._step_ends),
                self._landmarks.add(call, self._module_called),
                self._landmarks.add(backward, self._backward_starts),
            ]
        return self._marks

    # Called in the program's threads

    def _module_called(self, frame: FrameType) -> None:
        opened = self._open.get(get_ident())
        if opened is not None:
            arguments = frame.f_locals
            opened.called(arguments.get("self"), arguments.get("args"))

    def _logits_given(self, frame: FrameType) -> None:
        opened = self._open.get(get_ident())
        if opened is not None:
            with undisturbed(opened.torch):
                opened.logits_given(frame.f_locals.get("input"))

    def _backward_starts(self, frame: FrameType) -> None:
        opened = self._open.get(get_ident())
        if opened is not None:
            self._signs.backward(opened.step, frame.f_locals.get("tensors"))
        if opened is not None and opened.grads_before is None:
            with undisturbed(opened.torch):
                opened.look_at_grads(self._tables.known_parameters())

    def _step_starts(self, frame: FrameType) -> None:
        opened = self._open.get(get_ident())
        optimizer = _optimizer_of(frame)
        if opened is not None and optimizer is not None:
            with undisturbed(opened.torch):
                opened.step_starts(optimizer, frame)

    def _step_ends(self, frame: FrameType) -> None:
        opened = self._open.get(get_ident())
        optimizer = _optimizer_of(frame)
        if opened is not None and optimizer is not None:
            with undisturbed(opened.torch):
                opened.step_ends(optimizer)


class _Stepped:
    """What is measured around one step of an optimizer."""

    def __init__(self, optimizer: object, groups: list[dict[str, Any]], torch: Any) -> None:
        self.optimizer = optimizer
        self.groups = [_hyperparameters(torch, group) for group in groups]  # now: a scheduler changes them afterwards
        self.scale: Any = None
        self.parameters: list[tuple[int, int, Any]] = [
            (number, index, parameter)
            for number, group in enumerate(groups)
            for index, parameter in enumerate(_list(group.get("params")))
            if issubclass(type(parameter), torch.Tensor)
        ][:_MOST_PARAMETERS]
        self.plain = [plain(torch, parameter) for _, _, parameter in self.parameters]
        self.has_grad: list[bool] = []
        self.grad_norms: list[int | None] = []
        self.before: list[Any] = []
        self.old: Samples | None = None
        self.new: Samples | None = None
        self.after: list[Any] = []
        self.grad_after: list[int | None] = []
        self.norms: list[int | None] = []


class _Root:
    """An outermost module that was called in a step, as it was then."""

    def __init__(self, module: object, with_grad: bool) -> None:
        self.module = module
        self.with_grad = with_grad
        self.inputs: list[weakref.ref[Any]] = []
        self.hashes: list[Any] = []
        self.below = list(modules.walk(module))
        self.ids = {id(each) for _, each in self.below}
        self.sensitive = sum(modules.is_sensitive(each) for _, each in self.below)
        self.training = training = modules.is_training(module)
        self.mixed = [name for name, each in self.below if modules.is_training(each) is not training]
        if len(self.mixed) > _MOST_MIXED:
            self.mixed[_MOST_MIXED:] = ["…"]

    def look_at(self, torch: Any, measures: Measures, arguments: object) -> None:
        """Remember the tensors that the module is called with."""
        given = [each for each in arguments if type(each) is torch.Tensor] if type(arguments) is tuple else []
        given = [each for each in given if each.layout is torch.strided and each.device.type != "meta"]
        self.inputs = [weakref.ref(each) for each in given]
        self.hashes = measures.hashes(given)

    def learns(self) -> bool:
        """Whether any of its parameters requires a gradient."""
        each = (tensor for _, module in self.below for _, tensor in modules.tensors(module, "_parameters"))
        return any(tensor.requires_grad for tensor in each)

    @cached_property
    def parameters(self) -> dict[int, int]:
        """For each parameter (by identity) the module that holds it."""
        return {
            id(tensor): id(module)
            for _, module in reversed(self.below)
            for _, tensor in modules.tensors(module, "_parameters")
        }


class _OpenStep:
    """Everything that is known of a step while it is recorded."""

    def __init__(self, step: Step, torch: Any) -> None:
        self.step = step
        self.torch = torch
        self.active = False
        self.measures = Measures(torch)
        self.stepped: dict[int, _Stepped] = {}
        self.roots: list[_Root] = []
        self.known: set[int] = set()
        self.ran: set[int] = set()
        self.logits: list[tuple[int, int]] = []
        self.grads_before: dict[int, int | None] | None = None
        """Norms of the gradients that were there as the step's first backward pass began, by parameter."""

    def called(self, module: object, arguments: object) -> None:
        """A module is called: an outermost one unless it belongs to one that was called before."""
        self.ran.add(id(module))
        if module is None or id(module) in self.known or len(self.roots) >= _MOST_ROOTS:
            return
        root = _Root(module, self.torch.is_grad_enabled())
        with undisturbed(self.torch):
            root.look_at(self.torch, self.measures, arguments)
        self.known.update(root.ids)
        self.roots.append(root)

    def signs(self, signs: Signs) -> dict[str, Any]:
        """What else was seen in the step."""
        able = [root for root in self.roots if root.parameters and root.learns()]
        return signs.record(self.step, bool(self.stepped), sum(root.with_grad for root in able), len(able))

    def logits_given(self, logits: Any) -> None:
        """What cross_entropy is asked about: its smallest element, and how far its rows' sums are from one."""
        tensor = plain(self.torch, logits) if issubclass(type(logits), self.torch.Tensor) else None
        if tensor is not None and tensor.dim() >= 2 and tensor.numel() and len(self.logits) < _MOST_ROOTS:
            off = (tensor.sum(1) - 1).abs().max()
            self.logits.append((self.measures.add(tensor.min()), self.measures.add(off)))

    def look_at_grads(self, parameters: Sequence[Any]) -> None:
        """Gradients that are there before the step has computed any."""
        present = [each for each in parameters if _grad(self.torch, each) is not None]
        norms = self.measures.norms([plain(self.torch, _grad(self.torch, each)) for each in present])
        self.grads_before = {id(each): norm for each, norm in zip(present, norms, strict=True)}

    def step_starts(self, optimizer: object, frame: FrameType) -> None:
        torch = self.torch
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return  # what runs now would become a part of the program's graph
        groups = [group for group in _list(modules.fields(optimizer).get("param_groups")) if isinstance(group, dict)]
        stepped = self.stepped[id(optimizer)] = _Stepped(optimizer, groups, torch)
        grads = [_grad(torch, parameter) for _, _, parameter in stepped.parameters]
        stepped.has_grad = [grad is not None for grad in grads]
        stepped.grad_norms = self.measures.norms([plain(torch, grad) for grad in grads])
        stepped.before = self.measures.hashes(stepped.plain)
        stepped.old = Samples(torch, stepped.plain)
        stepped.scale = _scale(frame, torch)

    def step_ends(self, optimizer: object) -> None:
        stepped = self.stepped.get(id(optimizer))
        if stepped is None or stepped.optimizer is not optimizer:
            return
        measures = self.measures
        stepped.after = measures.hashes(stepped.plain)
        stepped.norms = measures.norms(stepped.plain)
        stepped.new = Samples(self.torch, stepped.plain)

    # At the end of the step

    def records(self, names: Names, tables: _Tables) -> list[dict[str, Any]]:
        measures, torch = self.measures, self.torch
        for stepped in self.stepped.values():
            grads = [_grad(torch, parameter) for _, _, parameter in stepped.parameters[:_MOST_AFTER]]
            stepped.grad_after = measures.norms([plain(torch, grad) if grad is not None else None for grad in grads])
        measured = [(each, self._state_norms(each)) for each in self.stepped.values() if each.new is not None]
        if any(names.get(parameter) is None for stepped, _ in measured for _, _, parameter in stepped.parameters):
            for root in self.roots:
                names.learn(root.below)
        loose = self._loose_parameters(tables)
        loose_grads = [_grad(torch, parameter) for parameter in loose]
        loose_norms = measures.norms([plain(torch, parameter) for parameter in loose])
        loose_grad_norms = measures.norms([plain(torch, grad) for grad in loose_grads])
        buffers = self._buffers()
        buffer_tensors = [plain(torch, tensor) for _, tensor in buffers]
        buffer_norms = measures.norms(buffer_tensors)
        buffer_hashes = measures.hashes(buffer_tensors)
        measures.read()
        records = [self._state(stepped, norms, names, tables) for stepped, norms in measured]
        if loose:
            for root in self.roots:
                names.learn(root.below)
            records.append(self._loose_state(loose, loose_grads, loose_norms, loose_grad_norms, names, tables))
        if buffers:
            columns: dict[str, Any] = {
                "name": [name for name, _ in buffers],
                "norm": measures.reals(buffer_norms),
                "nonfinite": self._nonfinites(buffer_tensors, buffer_norms),
                "hash": [measures.hash_text(found) for found in buffer_hashes],
            }
            records.append({"kind": "buffers", **identity(self.step), **columns})
        if self.roots:
            held = {id(parameter) for stepped, _ in measured for _, _, parameter in stepped.parameters}
            columns = {
                "sensitive": [root.sensitive for root in self.roots],
                "stepped": [not held.isdisjoint(root.parameters) for root in self.roots],
                "module": [class_name(root.module) for root in self.roots],
                "training": [root.training for root in self.roots],
                "mixed": [root.mixed for root in self.roots],
            }
            records.append({"kind": "modes", **identity(self.step), **columns})
            records.append(self._inputs(tables))
        return [*tables.take_new(), *records]

    def _state(
        self, stepped: _Stepped, own: dict[str, list[int | None]], names: Names, tables: _Tables
    ) -> dict[str, Any]:
        measures, torch = self.measures, self.torch
        number = tables.optimizer(stepped.optimizer, [parameter for _, _, parameter in stepped.parameters])
        ids = [
            tables.parameter(torch, parameter, names.get(parameter), number, group, index)
            for group, index, parameter in stepped.parameters
        ]
        before = self.grads_before or {}
        return {
            "kind": "state",
            **identity(self.step),
            "optimizer": number,
            "groups": stepped.groups,
            "scale": _number(torch, stepped.scale),
            "parameter": ids,
            "requires_grad": [bool(parameter.requires_grad) for _, _, parameter in stepped.parameters],
            "ran": [self._has_run(parameter) for _, _, parameter in stepped.parameters],
            "has_grad": stepped.has_grad,
            "norm": measures.reals(stepped.norms),
            "grad_norm": measures.reals(stepped.grad_norms),
            "grad_before": measures.reals([before.get(id(parameter)) for _, _, parameter in stepped.parameters]),
            "grad_after": measures.reals(
                [*stepped.grad_after, *[None] * (len(stepped.parameters) - len(stepped.grad_after))]
            ),
            "update": self._updates(stepped),
            "nonfinite": self._nonfinites(stepped.plain, stepped.norms),
            "grad_nonfinite": self._nonfinites(
                [_grad(torch, parameter) for _, _, parameter in stepped.parameters], stepped.grad_norms
            ),
            "before": [measures.hash_text(found) for found in stepped.before],
            "after": [measures.hash_text(found) for found in stepped.after],
            "state": {name: measures.reals(norms) for name, norms in own.items()},
        }

    def _inputs(self, tables: _Tables) -> dict[str, Any]:
        measures = self.measures
        hashes = [[measures.hash_text(each) for each in root.hashes] for root in self.roots]
        sums = [tuple(measures.values[handle] for handle in handles) for handles in self.logits]
        return {
            "kind": "inputs",
            **identity(self.step),
            "module": [class_name(root.module) for root in self.roots],
            "hash": [" ".join(filter(None, each)) or None for each in hashes],
            "reused": [tables.gets_again(root.module, root.inputs) for root in self.roots],
            "logits": len(sums),
            "probabilities": sum(
                least is not None and off is not None and least >= 0 and off < _PROBABLE for least, off in sums
            ),
        }

    def _loose_parameters(self, tables: _Tables) -> list[Any]:
        """Trainable parameters of the modules that were called which no optimizer has ever stepped."""
        held = tables.held()
        held.update(id(p) for stepped in self.stepped.values() for _, _, p in stepped.parameters)
        found: dict[int, Any] = {}
        for root in self.roots:
            for _, module in root.below:
                for _, tensor in modules.tensors(module, "_parameters"):
                    if id(tensor) not in held and issubclass(type(tensor), self.torch.Tensor) and tensor.requires_grad:
                        found[id(tensor)] = tensor
        return list(found.values())[:_MOST_PARAMETERS]

    def _loose_state(
        self,
        loose: list[Any],
        grads: list[Any],
        norms: list[int | None],
        grad_norms: list[int | None],
        names: Names,
        tables: _Tables,
    ) -> dict[str, Any]:
        measures, torch = self.measures, self.torch
        nothing = [None] * len(loose)
        return {
            "kind": "state",
            **identity(self.step),
            "optimizer": 0,
            "groups": [],
            "scale": None,
            "parameter": [
                tables.parameter(torch, parameter, names.get(parameter), None, None, None) for parameter in loose
            ],
            "requires_grad": [True] * len(loose),
            "ran": [self._has_run(parameter) for parameter in loose],
            "has_grad": [grad is not None for grad in grads],
            "norm": measures.reals(norms),
            "grad_norm": measures.reals(grad_norms),
            "grad_before": nothing,
            "grad_after": nothing,
            "update": nothing,
            "nonfinite": self._nonfinites(loose, norms),
            "grad_nonfinite": self._nonfinites(grads, grad_norms),
            "before": nothing,
            "after": nothing,
            "state": {},
        }

    def _state_norms(self, stepped: _Stepped) -> dict[str, list[int | None]]:
        """Norms of the optimizer's own tensors by name (momentum, averages)."""
        state = modules.fields(stepped.optimizer).get("state")
        if not isinstance(state, dict):
            return {}
        by_name: dict[str, list[Any]] = {}
        for i, (_, _, parameter) in enumerate(stepped.parameters):
            own = dict.get(state, parameter)
            for name, value in list(dict.items(own)) if isinstance(own, dict) else ():
                if type(name) is str and issubclass(type(value), self.torch.Tensor) and value.dim():
                    by_name.setdefault(name, [None] * len(stepped.parameters))[i] = plain(self.torch, value)
        return {name: self.measures.norms(tensors) for name, tensors in by_name.items()}

    def _has_run(self, parameter: Any) -> bool:
        """Whether a module that holds a parameter was called in the step."""
        return any(root.parameters.get(id(parameter)) in self.ran for root in self.roots)

    def _buffers(self) -> list[tuple[str, Any]]:
        found: dict[int, tuple[str, Any]] = {}
        for root in self.roots:
            for module_name, module in root.below:
                for name, tensor in modules.tensors(module, "_buffers"):
                    if issubclass(type(tensor), self.torch.Tensor):
                        found.setdefault(id(tensor), (f"{module_name}.{name}" if module_name else name, tensor))
        return list(found.values())[:_MOST_PARAMETERS]

    def _updates(self, stepped: _Stepped) -> Fragment:
        """How far each parameter has moved, relative to its norm."""
        assert stepped.old is not None
        assert stepped.new is not None
        sizes = [None if norm is None else self.measures.values[norm] for norm in stepped.norms]
        moves = stepped.old.distances(stepped.new)
        return reals(
            [
                None if moved is None or size is None else moved / size if size else math.inf if moved else 0.0
                for moved, size in zip(moves, sizes, strict=True)
            ]
        )

    def _nonfinites(self, tensors: Sequence[Any], norms: Sequence[int | None]) -> list[int | None]:
        """How many elements of each tensor are NaN or infinite. A finite norm says none; else they are counted."""
        values = self.measures.values
        counts: list[int | None] = []
        for tensor, handle in zip(tensors, norms, strict=True):
            value = None if handle is None else values[handle]
            if value is None:
                counts.append(None)
            elif value - value == 0:
                counts.append(0)
            else:
                known = plain(self.torch, tensor) if tensor is not None else None
                counts.append(None if known is None else int((~self.torch.isfinite(known)).sum().item()))
        return counts


class _Tables:
    """Ids of optimizers and parameters, and the records that say what they are."""

    def __init__(self) -> None:
        self._optimizers: dict[int, tuple[weakref.ref[Any], int, list[weakref.ref[Any]]]] = {}
        self._parameters: dict[int, tuple[weakref.ref[Any], int, tuple[Any, ...]]] = {}
        self._inputs: dict[int, list[weakref.ref[Any]]] = {}
        self._count = 0
        self._count_optimizers = 0
        self._new: list[dict[str, Any]] = []

    def optimizer(self, optimizer: object, parameters: list[Any]) -> int:
        """The id of an optimizer."""
        known = self._optimizers.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._count_optimizers += 1
            self._new.append({"kind": "optimizer", "id": self._count_optimizers, "name": class_name(optimizer)})
            known = (weakref.ref(optimizer), self._count_optimizers, [])
        if len(known[2]) != len(parameters) or any(r() is not p for r, p in zip(known[2], parameters, strict=True)):
            known = (known[0], known[1], [weakref.ref(parameter) for parameter in parameters])
        self._optimizers[id(optimizer)] = known
        return known[1]

    def parameter(
        self, torch: Any, tensor: Any, name: str | None, optimizer: int | None, group: int | None, index: int | None
    ) -> int:
        """The id of a parameter."""
        known = self._parameters.get(id(tensor))
        fact = (name, optimizer, group, index)
        if known is not None and known[0]() is tensor and known[2] == fact:
            return known[1]
        if known is None or known[0]() is not tensor:
            self._count += 1
            known = (weakref.ref(tensor), self._count, fact)
        self._parameters[id(tensor)] = (known[0], known[1], fact)
        self._new.append(
            {
                "kind": "parameter",
                "id": known[1],
                "name": name if name is not None else f"group {group} [{index}]",
                "shape": list(torch.Tensor.size(tensor)),
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "device": str(tensor.device),
                "optimizer": optimizer,
                "group": group,
                "index": index,
            }
        )
        return known[1]

    def gets_again(self, module: object, inputs: list[weakref.ref[Any]]) -> bool:
        """Whether a module gets the very tensors that it got in the recorded step before."""
        before, self._inputs[id(module)] = self._inputs.get(id(module), []), inputs
        same = len(before) == len(inputs) > 0
        return same and all(a() is not None and a() is b() for a, b in zip(before, inputs, strict=True))

    def known_parameters(self) -> list[Any]:
        """The parameters of all optimizers that have stepped in a recorded step and still exist."""
        alive = [known for known in self._optimizers.values() if known[0]() is not None]
        return [parameter for known in alive for each in known[2] if (parameter := each()) is not None]

    def held(self) -> set[int]:
        """Identities of these parameters."""
        return set(map(id, self.known_parameters()))

    def take_new(self) -> list[dict[str, Any]]:
        """The records of ids that are new or mean something else since the last call."""
        new, self._new = self._new, []
        return new


def _optimizer_of(frame: FrameType) -> object | None:
    arguments = frame.f_locals.get("args")
    return arguments[0] if type(arguments) is tuple and arguments else None


def _list(value: object) -> list[Any]:
    return list.copy(value) if isinstance(value, list) else []


def _grad(torch: Any, tensor: Any) -> Any | None:
    """A parameter's gradient, past what a subclass makes of the attribute."""
    return torch.Tensor.grad.__get__(tensor)


def _scale(frame: FrameType | None, torch: Any) -> Any | None:
    """The scale of the gradient scaler that steps the optimizer, a few frames up, as a tensor of one element."""
    for _ in range(6):
        frame = frame.f_back if frame is not None else None
        if frame is None:
            return None
        if frame.f_code.co_qualname.startswith("GradScaler."):
            scale: Any = modules.fields(frame.f_locals.get("self")).get("_scale")
            return scale.detach().clone() if type(scale) is torch.Tensor else None
    return None


def _hyperparameters(torch: Any, group: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in list(dict.items(group)):
        if type(name) is str and name != "params":
            if value is None or type(value) in (bool, int, str):
                found[name] = value
            elif type(value) is float:
                found[name] = real(value)
            elif type(value) in (tuple, list) and all(type(each) in (bool, int, float) for each in value):
                found[name] = list(map(real, value))
            elif type(value) is torch.Tensor and value.numel() == 1 and value.device.type == "cpu":
                found[name] = real(value.item())  # one on a device would have to be waited for
    return found


def _number(torch: Any, value: Any) -> float | str | None:
    """A tensor of one element as a number."""
    return real(value.item()) if type(value) is torch.Tensor and value.device.type != "meta" else None
