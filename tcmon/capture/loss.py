"""The `loss` of recorded steps: the scalars on which `backward()` was called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import get_ident
from types import FrameType
from typing import Any

from tcmon.capture.landmarks import Landmark, function_code
from tcmon.capture.measures import Measures, undisturbed
from tcmon.capture.recorder import Equipment, Step, identity

_MOST = 1000
"""Backward passes of one step whose loss is kept."""


class LossRecorder:
    """Records the `loss` of a step, read at its end."""

    def __init__(self, equipment: Equipment) -> None:
        self._landmarks = equipment.landmarks()
        self._mark: Landmark | None = None
        self._open: dict[int, tuple[Step, Measures, list[int | None]]] = {}
        self._active: set[int] = set()

    def start(self, step: Step) -> None:
        mark = self._find()
        if mark is not None:
            self._open.setdefault(step.thread, (step, Measures(sys.modules["torch"]), []))
            self._active.add(id(step))
            mark.switch(True)

    def pause(self, step: Step) -> None:
        if id(step) in self._active and self._mark is not None:
            self._active.discard(id(step))
            self._mark.switch(False)

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        opened = self._open.get(step.thread)
        if opened is not None and opened[0] is step:
            del self._open[step.thread]
            _, measures, handles = opened
            if handles:
                with undisturbed(sys.modules["torch"]):
                    measures.read()
                yield {"kind": "loss", **identity(step), "value": measures.reals(handles)}

    def discard(self, step: Step) -> None:
        self.pause(step)
        opened = self._open.get(step.thread)
        if opened is not None and opened[0] is step:
            del self._open[step.thread]

    def _find(self) -> Landmark | None:
        if self._mark is None and self._landmarks is not None and "torch" in sys.modules:
            backward = function_code("torch.autograd", "backward")
            if backward is not None:
                self._mark = self._landmarks.add(backward, self._backward_starts)
        return self._mark

    def _backward_starts(self, frame: FrameType) -> None:
        opened = self._open.get(get_ident())
        if opened is None or len(opened[2]) >= _MOST:
            return
        torch: Any = sys.modules["torch"]
        loss = loss_of(torch, frame)
        with undisturbed(torch):
            # Not the tensor itself, which holds the graph; and a copy, since the program may change it in place.
            scalar = None if loss is None else loss.detach().reshape(()).clone()
        opened[2].append(None if scalar is None else opened[1].add(scalar))


def loss_of(torch: Any, frame: FrameType) -> Any | None:
    """The tensor of one element on which `torch.autograd.backward` is called in `frame`, if it is called on one."""
    loss: Any = frame.f_locals.get("tensors")
    if isinstance(loss, tuple | list) and len(loss) == 1:
        loss = loss[0]
    if type(loss) is not torch.Tensor:
        return None
    with undisturbed(torch):
        is_scalar = loss.numel() == 1 and loss.layout is torch.strided and loss.device.type != "meta"
    return loss if is_scalar else None
