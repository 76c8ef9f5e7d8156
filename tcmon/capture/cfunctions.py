"""The C functions of torch among the calls: which callables are such, and what they are called."""

from __future__ import annotations

import sys
from types import BuiltinFunctionType, MethodDescriptorType, ModuleType
from typing import Any

from tcmon.trace.names import CFunction

_MOST = 20_000
"""Callables that are remembered, most of which are no functions of torch's."""


class CFunctions:
    """Tells the C functions of torch. No code of the program runs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, CFunction | None]] = {}
        self._named: dict[tuple[str, str], CFunction] = {}

    def find(self, function: Any) -> CFunction | None:
        """What `function` is as a C function of torch, or None."""
        known = self._known.get(id(function))
        if known is not None:
            return known[1]
        kind = type(function)
        if kind is MethodDescriptorType:
            found = self._method(function)
        elif kind is BuiltinFunctionType:
            owner = function.__self__
            if owner is not None and type(owner) is not ModuleType and not _is_of_binding(owner):
                return self._bound(function, owner)
            found = self._function(function)
        else:
            return None
        # It belongs to a module or a class, which keep it anyway.
        if len(self._known) > _MOST:
            self._known.clear()
        self._known[id(function)] = function, found
        return found

    def _function(self, function: Any) -> CFunction | None:
        module = function.__module__
        return self._make(module, function.__name__) if type(module) is str and _is_torch(module) else None

    def _method(self, function: Any) -> CFunction | None:
        module, kind = _names(function.__objclass__)
        if not _is_torch(module):
            return None
        if kind in ("TensorBase", "_TensorBase"):  # of all tensors
            module, kind = "torch", "Tensor"
        return self._make(module, f"{kind}.{function.__name__}")

    def _bound(self, function: Any, owner: object) -> CFunction | None:
        """One that is bound to an object or a class of the program, and must not keep it alive."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        tensor, base = vars(torch).get("Tensor"), vars(sys.modules["torch._C"]).get("_FunctionBase")
        if isinstance(owner, type):
            if base is not None and issubclass(owner, base):  # `apply` of the program's own functions
                module, kind = _names(owner)
                return self._make(module, f"{kind}.{function.__name__}")
        elif tensor is not None and issubclass(type(owner), tensor):
            return self._make("torch", f"Tensor.{function.__name__}")
        return None

    def _make(self, module: str, name: str) -> CFunction:
        found = self._named.get((module, name))
        if found is None:
            found = self._named[module, name] = CFunction(module, name)
        return found


def _is_torch(module: str) -> bool:
    return module == "torch" or module.startswith("torch.")


def _is_of_binding(owner: object) -> bool:
    """Whether `owner` is what bindings of C++ bind a module's functions to."""
    return type(owner).__name__ == "PyCapsule" or _names(type(owner))[0] == "pybind11_builtins"


def _names(kind: type) -> tuple[str, str]:
    """Module and name of a class, without asking its metaclass."""
    module, name = vars(type)["__module__"].__get__(kind), vars(type)["__qualname__"].__get__(kind)
    return module if type(module) is str else "", str(name)
