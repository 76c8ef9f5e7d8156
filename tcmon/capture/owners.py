"""Modules of the program's model as they are called: whose `forward` a call is."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from types import CodeType
from typing import Any

from tcmon.capture.modules import class_name, walk
from tcmon.trace.names import NameTable

_MOST = 100_000
"""Modules that are known at a time."""


class ModuleTable:
    """Numbers modules, and names them by the outermost one that was called."""

    def __init__(self, names: NameTable) -> None:
        self._names = names
        self._count = 0
        self._known: dict[int, tuple[weakref.ref[Any], int, str, str]] = {}

    def number(self, module: object) -> int:
        """The number of a module."""
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:
            self._learn(module)
            known = self._known[id(module)]
        number = known[1]
        if not number:
            self._count = number = self._count + 1
            self._known[id(module)] = known[0], number, known[2], known[3]
            self._names.announce({"kind": "module", "id": number, "name": known[2], "class": known[3]})
        return number

    def name(self, module: object) -> tuple[str, str]:
        """Name and class of a module that has a number."""
        return self._known[id(module)][2:]

    def _learn(self, root: object) -> None:
        """Name all modules below one that was called and isn't known: a model's outermost one is called first."""
        if len(self._known) > _MOST:
            self._known = {key: value for key, value in self._known.items() if value[0]() is not None}
        for name, module in walk(root):
            known = self._known.get(id(module))
            # A longer name is one in a larger whole.
            if known is None or known[0]() is not module or len(known[2]) < len(name):
                self._known[id(module)] = weakref.ref(module), 0, name, class_name(module)


def is_module(thing: object) -> bool:
    """Whether `thing` is an `nn.Module`, by its class."""
    base = _class("torch.nn.modules.module", "Module")
    return base is not None and issubclass(type(thing), base)


def is_optimizer(thing: object) -> bool:
    """Whether `thing` is a torch optimizer, by its class."""
    base = _class("torch.optim.optimizer", "Optimizer")
    return base is not None and issubclass(type(thing), base)


def _class(module: str, name: str) -> type | None:
    holder = sys.modules.get(module)
    found = None if holder is None else vars(holder).get(name)
    return found if isinstance(found, type) else None


class OwnerListener:
    """Hears of calls of `forward`, and tells whose they are."""

    def __init__(self, table: ModuleTable) -> None:
        self._table = table
        self._heard: list[tuple[CodeType, int, int, int]] = []

    def wants(self, code: CodeType, arguments: Mapping[str, Any]) -> bool:
        """As `Listener` has it."""
        return code.co_name == "forward" and code.co_argcount > 0 and is_module(arguments.get(code.co_varnames[0]))

    def started(self, code: CodeType, arguments: Mapping[str, Any], event: int, thread: int) -> None:
        """As `Listener` has it."""
        module = arguments[code.co_varnames[0]]
        if is_module(module):
            self._heard.append((code, event, thread, self._table.number(module)))

    def ended(self, code: CodeType, thread: int, value: object, raised: bool) -> None:
        """As `Listener` has it."""

    def take(self) -> list[tuple[CodeType, int, int, int]]:
        """Where in the log modules were called: code, event, thread, number of the module."""
        heard, self._heard = self._heard, []
        return heard
