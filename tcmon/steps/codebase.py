"""What is known of the program's code: the loops of its code objects, and whose code is not the program's."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from pathlib import Path
from types import CodeType

from tcmon.analysis.loops import LoopForest

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
_DEMO_FOLDER = _OWN_FOLDER + "demo" + os.sep


def is_own(file: str) -> bool:
    """Whether `file` is tcmon's, the demo's program aside."""
    return file.startswith(_OWN_FOLDER) and not file.startswith(_DEMO_FOLDER)


class Codebase:
    """Loops by code object and sources by file, each looked up once."""

    def __init__(self) -> None:
        # By identity, with the code object to keep its id its own.
        self._forests: dict[int, tuple[CodeType, LoopForest]] = {}
        self._sources: dict[str, ast.AST | None] = {}
        self._torch: str | None = None

    def forest(self, code: CodeType) -> LoopForest:
        """The loops of `code`."""
        known = self._forests.get(id(code))
        if known is None:
            forest = LoopForest(code)
            if forest.loops:
                forest = LoopForest(code, self.source(code.co_filename))
            known = self._forests[id(code)] = (code, forest)
        return known[1]

    def source(self, file: str) -> ast.AST | None:
        """The parsed source of `file`, or None where there is none."""
        if file not in self._sources:
            try:
                self._sources[file] = ast.parse("".join(linecache.getlines(file)))
            except (SyntaxError, ValueError, RecursionError):
                self._sources[file] = None
        return self._sources[file]

    def is_foreign(self, file: str) -> bool:
        """Whether loops in `file` are never the program's: tcmon's own, and torch's (optimizers, data loading)."""
        return is_own(file) or self.is_torch(file)

    def is_torch(self, file: str) -> bool:
        """Whether `file` belongs to torch; never before torch is imported."""
        if self._torch is None:
            torch = sys.modules.get("torch")
            origin = getattr(torch.__spec__, "origin", None) if torch is not None else None
            if origin is None:
                return False
            self._torch = str(Path(origin).parent) + os.sep
        return file.startswith(self._torch)
