"""Keeps modules of tcmon and of the program apart where both have the same name.

A program finds modules in its own folder before any other. tcmon shares the process: without care, a program
with its own ``click.py`` would get the click that tcmon has loaded, and tcmon would load the program's own
``rich`` for the summary. So what the folder has itself is taken out of ``sys.modules`` before the program
starts, and put back for as long as tcmon works after the program's end.

What can't be done: ``python -m`` and the script of the command ``tcmon`` load a few modules of the standard
library before tcmon (``types``, ``warnings``, ``re``), and a namesake of these stays hidden. ``python -m
tcmon`` in a folder with its own ``tcmon.py`` runs that file; the command ``tcmon`` doesn't. And tcmon must
import nothing while the program runs: it would get the program's modules.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from itertools import takewhile
from types import ModuleType


class Namesakes:
    """The modules in one folder that are named like modules of tcmon or its libraries."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = list(sys.path)
        self._before: dict[str, ModuleType] = {}
        self._parked: dict[str, ModuleType] = {}

    def give_way(self) -> None:
        """Take out of ``sys.modules`` what plain python would load from the folder."""
        self._before = dict(sys.modules)
        # What was loaded before tcmon, plain python has loaded too when a program starts.
        settled = {"__main__", *takewhile(lambda name: name != "tcmon", sys.modules)}
        loaded = {_top(name) for name in sys.modules} - settled
        self._parked = _take_out({name for name in loaded if self._has_its_own(name)})

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Give tcmon its own modules and import path back for as long as the block lasts."""
        now = dict(sys.modules)  # a copy: daemon threads may import meanwhile
        # By exact type: what the program put there as a name, or as a module, may be anything, and is not asked.
        loaded = {
            _top(name) for name, module in now.items() if type(name) is str and module is not self._before.get(name)
        }
        hidden = _take_out({name for name in loaded - {"__main__"} if self._is_from_folder(name)})
        sys.modules.update(self._parked)
        program_path, sys.path = sys.path, list(self._path)
        try:
            yield
        finally:
            sys.path = program_path
            _take_out({_top(name) for name in self._parked})
            sys.modules.update(hidden)

    def _has_its_own(self, name: str) -> bool:
        if BuiltinImporter.find_spec(name) or FrozenImporter.find_spec(name):
            return False  # found before any folder is looked at
        origin = self._origin(name)
        return origin is not None and origin != _origin_of(name)

    def _is_from_folder(self, name: str) -> bool:
        origin = self._origin(name)
        return origin is not None and origin == _origin_of(name)

    def _origin(self, name: str) -> str | None:
        # None too for a folder without __init__.py: a module anywhere else on the path goes before that.
        spec = PathFinder.find_spec(name, [self._folder])
        return spec.origin if spec else None


def _origin_of(name: str) -> str | None:
    module = sys.modules.get(name)
    if not issubclass(type(module), ModuleType):
        return None
    spec = vars(ModuleType)["__dict__"].__get__(module).get("__spec__")
    return spec.origin if type(spec) is ModuleSpec else None


def _top(name: str) -> str:
    return name.partition(".")[0]


def _take_out(tops: set[str]) -> dict[str, ModuleType]:
    return {name: sys.modules.pop(name) for name in list(sys.modules) if type(name) is str and _top(name) in tops}
