"""Modules of a program's model, looked at without running any code of theirs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MOST = 100_000
"""Modules and parameters that are looked at below one module."""


def fields(thing: object) -> Mapping[str, Any]:
    """The instance dictionary of an object; empty where it has none."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return found if type(found) is dict else {}


def class_name(thing: object) -> str:
    """The class of an object with its module, without asking its metaclass."""
    kind = type(thing)
    module = vars(type)["__module__"].__get__(kind)
    name = vars(type)["__qualname__"].__get__(kind)
    return f"{module}.{name}" if type(module) is str else str(name)


def walk(root: object) -> Iterator[tuple[str, object]]:
    """The modules below `root`, itself first, each once, with the names that lead to them ("layers.3.attn")."""
    seen = {id(root)}
    pending: list[tuple[str, object]] = [("", root)]
    while pending and len(seen) < _MOST:
        name, module = pending.pop()
        yield name, module
        below = fields(module).get("_modules")
        if isinstance(below, dict):
            for key, child in reversed(list(dict.items(below))):
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    pending.append((f"{name}.{key}" if name else str(key), child))


def tensors(module: object, kind: str) -> Iterator[tuple[str, Any]]:
    """The `_parameters` or `_buffers` (`kind`) of one module, by name; those that are None are left out."""
    found = fields(module).get(kind)
    if isinstance(found, dict):
        yield from ((str(key), value) for key, value in list(dict.items(found)) if value is not None)


def is_training(module: object) -> bool:
    """Whether a module is in training mode."""
    return fields(module).get("training") is not False


def is_sensitive(module: object) -> bool:
    """Whether a module does something else in training than in evaluation, by its class: dropout, batch statistics."""
    for kind in vars(type)["__mro__"].__get__(type(module))[:-1]:
        name = vars(type)["__name__"].__get__(kind)
        if "Dropout" in name or name == "_DropoutNd":
            return fields(module).get("p") != 0
        if "BatchNorm" in name:
            return True
    return False


class Names:
    """Names of tensors, by identity; the tensors are not kept alive."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}

    def learn(self, below: Iterable[tuple[str, object]]) -> None:
        """Name the parameters of modules (as `walk` gives them); the first name stays (tied weights)."""
        for module_name, module in below:
            for name, tensor in tensors(module, "_parameters"):
                if self.get(tensor) is None:
                    self._names[id(tensor)] = (weakref.ref(tensor), f"{module_name}.{name}" if module_name else name)
        if len(self._names) > _MOST:
            self._names = {key: value for key, value in self._names.items() if value[0]() is not None}

    def get(self, tensor: object) -> str | None:
        """The name of a tensor, or None."""
        known = self._names.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None
