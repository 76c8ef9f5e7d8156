"""Which functions' calls are recorded, by the names of their modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from types import CodeType


class ModuleFilter:
    """Leaves out the code of modules that no pattern of `include` names (if there are any), or one of `exclude` does.

    A pattern ("torch.nn.*") names a module, or a package with all that is in it. The program's script is "__main__" and
    has the name of its file as well. `module_of` tells the module whose source is a file.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str], module_of: Callable[[str], str | None]) -> None:
        self._include = tuple(include)
        self._exclude = tuple(exclude)
        self._module_of = module_of
        self._known: dict[int, bool] = {}
        self._codes: list[CodeType] = []  # so that an id stays that of one code object

    def leaves_out(self, code: CodeType) -> bool:
        """Whether calls of `code` are not recorded."""
        known = self._known.get(id(code))
        if known is None:
            known = self._decide(code.co_filename)
            self._codes.append(code)
            self._known[id(code)] = known
        return known

    def _decide(self, file: str) -> bool:
        module = self._module_of(file)
        names = [] if module is None else _with_packages(module)
        if module in ("__main__", None):
            names.append(PurePath(file).stem)
        if self._include and not _match(names, self._include):
            return True
        return _match(names, self._exclude)


def _with_packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]


def _match(names: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)
