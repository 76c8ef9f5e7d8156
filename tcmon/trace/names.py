"""Small numbers for functions and exception types, and the records that say what each number means."""

from __future__ import annotations

import sys
from types import CodeType, ModuleType
from typing import Any

RETURNED = 0
YIELDED = -1
_UNKNOWN = sys.maxsize
_LONGEST = 1000


class CFunction:
    """A function that is no Python code: its module and its name."""

    __slots__ = ("module", "qualname")

    def __init__(self, module: str, qualname: str) -> None:
        self.module = module
        self.qualname = qualname


class NameTable:
    """Numbers functions (code objects, C functions) from 1 and exception types so that `-number - 1` is at most -2.

    Code objects are told apart by identity and kept alive, so that an id stays that of one function.
    """

    def __init__(self, returned: object, yielded: object) -> None:
        self._numbers: dict[int, int] = {id(returned): RETURNED, id(yielded): YIELDED}
        self._kept: list[object] = [returned, yielded]
        self._functions = 0
        self._exceptions = 0
        self._modules: dict[str, str] = {}
        self._modules_seen = 0
        self._new: list[dict[str, Any]] = []

    def numbers(self, things: list[Any]) -> list[int]:
        """The number of each code object, exception type or marker."""
        known = self._numbers
        numbers = [known.get(id(thing), _UNKNOWN) for thing in things]
        if _UNKNOWN not in numbers:
            return numbers
        for thing in things:
            if id(thing) not in known:
                self._add(thing)
        return [known[id(thing)] for thing in things]

    def take_new(self) -> list[dict[str, Any]]:
        """The records of numbers given since the last call: the trace must hold them before their numbers are used."""
        new, self._new = self._new, []
        return new

    def announce(self, record: dict[str, Any]) -> None:
        """Let a record of another kind be among those that `take_new` gives."""
        self._new.append(record)

    def _add(self, thing: Any) -> None:
        self._kept.append(thing)
        if isinstance(thing, CodeType):
            self._functions += 1
            self._numbers[id(thing)] = self._functions
            self._new.append(
                {
                    "kind": "function",
                    "id": self._functions,
                    "module": self.module_of(thing.co_filename),
                    "qualname": _short(thing.co_qualname),
                    "file": _short(thing.co_filename),
                    "line": max(0, thing.co_firstlineno),
                }
            )
        elif type(thing) is CFunction:
            self._functions += 1
            self._numbers[id(thing)] = self._functions
            where = {"module": _short(thing.module), "qualname": _short(thing.qualname), "file": "", "line": 0}
            self._new.append({"kind": "function", "id": self._functions, **where})
        else:
            self._exceptions += 1
            self._numbers[id(thing)] = -self._exceptions - 1
            # type's own attribute: a metaclass of the program must not be asked.
            name = vars(type)["__qualname__"].__get__(thing)
            self._new.append({"kind": "exception", "id": self._exceptions, "name": _short(name)})

    def module_of(self, file: str) -> str | None:
        """The name of the module whose source is `file`, or None."""
        if file not in self._modules and self._modules_seen != len(sys.modules):
            self._modules_seen = len(sys.modules)
            # What the program put there may be no module, and a module's attributes may be code of the program.
            for name, module in list(sys.modules.items()):
                if type(name) is str and issubclass(type(module), ModuleType):
                    path = _DICTIONARY.__get__(module).get("__file__")
                    if type(path) is str:
                        self._modules.setdefault(path, _short(name))
        return self._modules.get(file)


_DICTIONARY = vars(ModuleType)["__dict__"]


def _short(text: str) -> str:
    """`text` as a plain str, cut where it is too long to be the name of anything."""
    return str.__str__(text) if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
