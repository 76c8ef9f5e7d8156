"""Tells of the loss of every step, recorded or not, where that costs no waiting for a device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tcmon.capture.landmarks import Landmarks
from tcmon.capture.loss import loss_of
from tcmon.capture.measures import undisturbed


class LossWatch:
    """Calls `told` with each loss on which `backward()` is called, if it is a scalar in the host's memory.

    Where there is none, with each scalar with gradients that a training loop makes a number of, by `item()` or
    `float()`: the program itself waits for a device then.
    """

    def __init__(self, landmarks: Landmarks, told: Callable[[float], None]) -> None:
        self._landmarks = landmarks
        self._told = told
        self._watched: CodeType | None = None
        self._on_host = False
        self.heard = False
        """Whether a loss was told."""

    def first_start(self, code: CodeType, frame: FrameType) -> None:
        """The code of `torch.autograd.backward` is known, as it starts for the first time."""
        if self._watched is None:
            self._watched = code
            self._landmarks.add(code, self._backward_starts).switch(True)
            self._backward_starts(frame)

    def _backward_starts(self, frame: FrameType) -> None:
        torch: Any = sys.modules.get("torch")
        loss: Any = frame.f_locals.get("tensors")
        if type(loss) is not torch.Tensor or _is_disturbed(torch._C):
            loss = loss_of(torch, frame)
            if loss is None:
                return
            with undisturbed(torch):
                value = loss.item() if loss.is_cpu else None
        else:
            value = loss.item() if loss.is_cpu and loss.numel() == 1 else None
        if value is not None:
            self._on_host = self.heard = True
            self._told(float(value))

    def call(self, function: object, argument: object) -> bool:
        """A training loop calls `function`; whether it shall be told of calls at this place further on."""
        torch: Any = sys.modules.get("torch")
        makes_number = torch is not None and (function is float or function is torch._C.TensorBase.item)
        if not makes_number or self._on_host:
            return False
        if type(argument) is torch.Tensor and not _is_disturbed(torch._C):
            tensor: Any = argument
            if tensor.requires_grad and tensor.numel() == 1 and tensor.device.type != "meta":
                self.heard = True
                self._told(float(tensor.item()))
        return True


def _is_disturbed(c: Any) -> bool:
    """Whether modes of the program would see what is done with a tensor; asking costs less than evading them."""
    try:
        return bool(c._len_torch_function_stack() or c._len_torch_dispatch_stack())
    except AttributeError:
        return True
