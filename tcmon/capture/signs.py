"""Signs of silent errors that no number about parameters shows: what is kept alive, how losses are used.

Nothing is kept alive here: of graphs and of tensors there are weak references only.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any

from tcmon.capture.landmarks import Landmark, Landmarks, function_code
from tcmon.capture.measures import undisturbed
from tcmon.capture.recorder import Step, identity

_KEY = "tcmon"
_MOST = 64
"""Graphs, and state dicts, that are followed."""
_OLD = 10
"""A graph is kept if it is alive so many steps later: those of the last few steps may still be in use."""
_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


class _Mark:
    """Held by a node of a graph: gone with the graph."""

    __slots__ = ("__weakref__",)


class Signs:
    """Follows graphs of losses and state dicts, from the first recorded step on, and looks at losses' shapes."""

    def __init__(self) -> None:
        self._graphs: list[tuple[int, weakref.ref[_Mark]]] = []
        self._dicts: list[tuple[int, weakref.ref[Any]]] = []
        self._trained = 0
        self._losses = 0
        self._broadcast = 0
        self._differentiated = False

    def watched(self, landmarks: Landmarks) -> Iterator[Landmark]:
        """Landmarks that are on while a step is recorded; some more are on from now on."""
        for module, path, started, returned in (
            ("torch.nn.modules.module", ("Module", "state_dict"), None, self._state_taken),
            ("torch.nn.modules.module", ("Module", "load_state_dict"), self._state_used, None),
            ("torch.serialization", ("save",), self._state_used, None),
            ("safetensors.torch", ("save_file",), self._state_used, None),
        ):
            code = function_code(module, *path)
            if code is not None:
                landmarks.add(code, started, returned).switch(True)
        for name in _LOSSES:
            code = function_code("torch.nn.functional", name)
            if code is not None:
                yield landmarks.add(code, self._loss_called)
        code = function_code("torch.autograd", "grad")
        if code is not None:
            yield landmarks.add(code, self._grad_asked)

    # Called in the program's threads

    def _state_taken(self, frame: FrameType) -> None:
        """A module gives its state: follow one of the tensors that share memory with its parameters."""
        arguments = frame.f_locals
        state = arguments.get("destination")
        if arguments.get("prefix") != "" or arguments.get("keep_vars") or not isinstance(state, dict):
            return
        torch = sys.modules["torch"]
        self._dicts = [each for each in self._dicts if each[1]() is not None][-_MOST:]
        with undisturbed(torch):
            for value in list(dict.values(state)):
                if type(value) is torch.Tensor and value.dim() >= 2 and value.is_floating_point():
                    self._dicts.append((self._trained, weakref.ref(value)))
                    return

    def _state_used(self, frame: FrameType) -> None:
        """Tensors that are saved, or loaded into a module, have served their purpose."""
        arguments = frame.f_locals
        given = next((arguments[name] for name in ("state_dict", "obj", "tensors") if name in arguments), None)
        if self._dicts and isinstance(given, dict):
            inner = [given, *(each for each in dict.values(given) if isinstance(each, dict))]
            used = {id(value) for each in inner for value in dict.values(each)}
            self._dicts = [each for each in self._dicts if id(each[1]()) not in used]

    def _loss_called(self, frame: FrameType) -> None:
        """An elementwise loss: whether its arguments' shapes give something larger than either."""
        torch = sys.modules["torch"]
        one, other = (frame.f_locals.get(name) for name in ("input", "target"))
        if issubclass(type(one), torch.Tensor) and issubclass(type(other), torch.Tensor):
            self._losses += 1
            with undisturbed(torch):
                shapes = [tuple(torch.Tensor.size(each)) for each in (one, other)]
            if shapes[0] != shapes[1]:
                length = max(map(len, shapes))
                first, second = ((1,) * (length - len(shape)) + shape for shape in shapes)
                grows = [a > b for a, b in zip(first, second, strict=True) if a != b]
                self._broadcast += any(grows) and not all(grows)

    def _grad_asked(self, _frame: FrameType) -> None:
        self._differentiated = True

    def backward(self, step: Step, loss: Any) -> None:
        """A backward pass of a recorded step begins: follow its graph, once a step."""
        if type(loss) in (tuple, list):
            loss = loss[0] if loss else None
        torch = sys.modules["torch"]
        if step.role != "train" or type(loss) is not torch.Tensor or (self._graphs and self._graphs[-1][0] == step.n):
            return
        with undisturbed(torch):
            metadata = getattr(loss.grad_fn, "metadata", None)
        if type(metadata) is dict:
            mark = metadata[_KEY] = _Mark()
            self._graphs = [each for each in self._graphs if each[1]() is not None][-_MOST:]
            self._graphs.append((step.n, weakref.ref(mark)))

    def record(self, step: Step, stepped: bool, graphs: int, roots: int) -> dict[str, Any]:
        """The record of a step that is over; `graphs` of its `roots`, modules that can learn, ran with gradients on."""
        kept = [n for n, mark in self._graphs if n <= step.n - _OLD and mark() is not None]
        dicts = [n for n, tensor in self._dicts if 0 < n < step.n and tensor() is not None]
        if stepped:
            self._trained = step.n
        found = {
            "graphs_kept": len(kept),
            "states_kept": len(dicts) if stepped else 0,
            "broadcast": self._broadcast,
            "losses": self._losses,
            "roots": roots,
            "with_grad": 0 if self._differentiated else graphs,
        }
        self._broadcast = self._losses = 0
        self._differentiated = False
        return {"kind": "signs", **identity(step), **found}
