"""Values of the program described as JSON texts: by their types alone, without running any code of theirs.

Tensors are told by their metadata, containers by their size and first elements, what is unknown by its class.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from orjson import dumps

from tcmon.capture.modules import class_name
from tcmon.capture.owners import ModuleTable, is_module, is_optimizer

_LONGEST = 200
"""Characters of a text that are kept."""
_ELEMENTS = 4
"""Elements of a container that are kept."""
_DEEPEST = 3
"""Containers within each other that are looked into."""
_REMEMBERED = 10_000

type _Maker = Callable[[Any, int], str]


class Describer:
    """Describes values; what it has described once, it does quicker.

    To be used where overrides of torch's functions are off (`torch._C.DisableTorchFunction`).
    """

    def __init__(self, modules: ModuleTable) -> None:
        self._modules = modules
        self._module_texts: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._optimizers: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._count_optimizers = 0
        self._tensors: dict[Any, str] = {}
        self._makers: dict[int, tuple[weakref.ref[type], _Maker]] = {}
        self._plain: dict[int, _Maker] = {
            id(type(None)): lambda value, depth: "null",
            id(bool): lambda value, depth: "true" if value else "false",
            id(int): _int,
            id(float): _float,
            id(str): lambda value, depth: _text(value),
        }
        self._torch: Any = None

    def describe(self, value: object, depth: int = 0) -> str:
        """The JSON of a value; that of its class where it misbehaves."""
        kind = type(value)
        make = self._plain.get(id(kind))
        if make is None:
            known = self._makers.get(id(kind))
            if known is not None and known[0]() is kind:
                make = known[1]
            else:
                make = self._maker(kind, value)
                if len(self._makers) > _REMEMBERED:
                    self._makers.clear()
                self._makers[id(kind)] = weakref.ref(kind), make
        try:
            return make(value, depth)
        except Exception:  # an object that is not what its class promises
            return _class(value, depth)

    def _maker(self, kind: type, value: object) -> _Maker:
        """What describes the values of a class."""
        torch = sys.modules.get("torch")
        found = None if torch is None else vars(torch).get("Tensor")
        if isinstance(found, type):  # not while torch is being imported
            self._torch = torch
            if kind is found:
                return self._tensor
            if issubclass(kind, found):
                return self._tensor if kind is vars(self._torch.nn).get("Parameter") else self._special_tensor
            # By identity: what is equal to a class, its metaclass would say.
            if any(kind is each for each in (torch.dtype, torch.device, torch.layout, torch.memory_format)):  # type: ignore[union-attr]
                return _constant
        if is_module(value):
            return self._module
        if is_optimizer(value):
            return self._optimizer
        for base, size, elements in _CONTAINERS:
            if issubclass(kind, base):
                return self._container(base, size, elements)
        if issubclass(kind, bool | int | float | str):
            return self._derived
        if issubclass(kind, type):
            return lambda value, depth: f'{{"type":"type","value":{_text(_name_of(value))}}}'
        if _is_callable(kind):
            return lambda value, depth: f'{{"type":{_text(class_name(value))},"value":{_text(_function_name(value))}}}'
        return _class

    # Tensors

    def _tensor(self, value: Any, depth: int) -> str:
        base = self._torch.Tensor
        key = (
            base.size(value),
            base.dtype.__get__(value),
            base.device.__get__(value),
            base.requires_grad.__get__(value),
            base.is_leaf.__get__(value),
            self._contiguous(value),
            type(value) is base,
        )
        text = self._tensors.get(key)
        if text is None:
            if len(self._tensors) > _REMEMBERED:
                self._tensors.clear()
            text = self._tensors[key] = self._tensor_text(value, *key[:-1])
        return text

    def _special_tensor(self, value: Any, depth: int) -> str:
        """One of a subclass: past what it makes of its attributes, as far as that goes."""
        base = self._torch.Tensor
        with self._torch._C._DisableTorchDispatch():
            facts: list[Any] = []
            for read in (
                lambda: base.size(value),
                lambda: base.dtype.__get__(value),
                lambda: base.device.__get__(value),
                lambda: base.requires_grad.__get__(value),
                lambda: base.is_leaf.__get__(value),
                lambda: self._contiguous(value),
            ):
                try:
                    facts.append(read())
                except Exception:  # a subclass may have no storage, or none that can be asked without its own code
                    facts.append(None)
            return self._tensor_text(value, *facts)

    def _contiguous(self, value: Any) -> bool | None:
        try:
            return bool(self._torch.Tensor.is_contiguous(value))
        except Exception:  # sparse ones
            return None

    def _tensor_text(
        self, value: Any, shape: Any, dtype: Any, device: Any, requires_grad: Any, leaf: Any, contiguous: Any
    ) -> str:
        facts = {
            "tensor": None if shape is None else [each if type(each) is int else None for each in shape],
            "dtype": None if dtype is None else str(dtype).removeprefix("torch."),
            "device": None if device is None else str(device),
            "requires_grad": requires_grad,
            "leaf": leaf,
            "contiguous": contiguous,
        }
        if type(value) is not self._torch.Tensor:
            facts["class"] = class_name(value)
        return dumps(facts).decode()

    # Objects with an identity

    def _module(self, value: Any, depth: int) -> str:
        known = self._module_texts.get(id(value))
        if known is None or known[0]() is not value:
            number = self._modules.number(value)
            name, of_class = self._modules.name(value)
            if len(self._module_texts) > _REMEMBERED:
                self._module_texts.clear()
            text = f'{{"module":{_text(of_class)},"id":{number},"name":{_text(name)}}}'
            known = self._module_texts[id(value)] = weakref.ref(value), text
        return known[1]

    def _optimizer(self, value: Any, depth: int) -> str:
        known = self._optimizers.get(id(value))
        if known is None or known[0]() is not value:
            self._count_optimizers += 1
            text = f'{{"optimizer":{_text(class_name(value))},"id":{self._count_optimizers}}}'
            known = self._optimizers[id(value)] = weakref.ref(value), text
        return known[1]

    # Containers

    def _container(self, base: type, size: Callable[[Any], int], elements: Callable[[Any], Iterable[Any]]) -> _Maker:
        name = "dict" if base is dict else "list"

        def make(value: Any, depth: int) -> str:
            of_class = "" if type(value) is base and base in (list, dict) else f',"type":{_text(class_name(value))}'
            count = size(value)
            if depth >= _DEEPEST:
                return f'{{"{name}":{count}{of_class}}}'
            first: list[str] = []
            for each in elements(value):
                if len(first) == _ELEMENTS:
                    break
                if base is dict:
                    key, item = each
                    first.append(f"[{self.describe(key, depth + 1)},{self.describe(item, depth + 1)}]")
                else:
                    first.append(self.describe(each, depth + 1))
            return f'{{"{name}":{count}{of_class},"items":[{",".join(first)}]}}'

        return make

    def _derived(self, value: Any, depth: int) -> str:
        """A number or text of a subclass (an enumeration's), past what that makes of it."""
        for base, plain in ((int, int.__int__), (float, float.__float__), (str, str.__str__)):
            if issubclass(type(value), base):
                inner = self.describe(plain(value))
                return f'{{"type":{_text(class_name(value))},"value":{inner}}}'
        return _class(value, depth)


def _first(iterate: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Iterable[Any]]:
    """The first elements, taken at once: another thread may change the container."""

    def take(value: Any) -> list[Any]:
        taken: list[Any] = []
        for each in iterate(value):
            taken.append(each)
            if len(taken) == _ELEMENTS:
                break
        return taken

    return take


_CONTAINERS: tuple[tuple[type, Callable[[Any], int], Callable[[Any], Iterable[Any]]], ...] = (
    (tuple, tuple.__len__, lambda value: tuple.__getitem__(value, slice(_ELEMENTS))),
    (list, list.__len__, lambda value: list.__getitem__(value, slice(_ELEMENTS))),
    (dict, dict.__len__, _first(dict.items)),
    (set, set.__len__, _first(set.__iter__)),
    (frozenset, frozenset.__len__, _first(frozenset.__iter__)),
)


def _int(value: int, depth: int) -> str:
    return int.__repr__(value) if -(1 << 63) <= value < 1 << 63 else '{"type":"int"}'


def _float(value: float, depth: int) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return f'{{"type":"float","value":"{float.__repr__(value)}"}}'


def _text(value: str) -> str:
    cut = value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"
    try:
        return dumps(cut).decode()
    except TypeError:  # surrogates, which are no text
        return dumps(cut.encode("utf-8", "replace").decode()).decode()


def _constant(value: object, depth: int) -> str:
    """One of torch's own constants, whose text is made by torch."""
    return f'{{"type":{_text(class_name(value))},"value":{_text(str(value))}}}'


def _class(value: object, depth: int) -> str:
    return f'{{"type":{_text(class_name(value))}}}'


def _name_of(kind: type) -> str:
    name = vars(type)["__qualname__"].__get__(kind)
    module = vars(type)["__module__"].__get__(kind)
    return f"{module}.{name}" if type(module) is str else str(name)


_FUNCTION = type(_text)
_BUILTIN = type(len)


def _is_callable(kind: type) -> bool:
    return kind is _FUNCTION or kind is _BUILTIN


def _function_name(value: Any) -> str:
    module = value.__module__ if type(value.__module__) is str else ""
    return f"{module}.{value.__qualname__}".removeprefix(".")
