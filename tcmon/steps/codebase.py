"""What is known of the program's code: the loops of its code objects, and whose code is not the program's."""

from __future__ import annotations

import ast
import linecache
import os
import re
import stat
import sys
import sysconfig
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FrameType, ModuleType

from tcmon.analysis.live import RuntimeScope
from tcmon.analysis.loops import Loop, LoopForest
from tcmon.analysis.scopes import Program, Scope
from tcmon.monitoring.interruptions import is_interruption

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
_STANDARD_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGES = tuple(os.sep + name + os.sep for name in ("site-packages", "dist-packages"))
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
        self._programs: dict[str, Program] = {}
        self._is_program: dict[str, bool] = {}
        self._torch: str | None = None

    def forest(self, code: CodeType) -> LoopForest:
        """The loops of `code`."""
        known = self._forests.get(id(code))
        if known is None:
            forest = LoopForest(code)
            if forest.loops:
                forest = LoopForest(code, self.source(code.co_filename), forest.graph, forest.dominators)
            known = self._forests[id(code)] = (code, forest)
        return known[1]

    def loops_at(self, frame: FrameType) -> list[Loop]:
        """The loops that `frame` is in the middle of, innermost first."""
        forest = self.forest(frame.f_code)
        return [forest.loops[i] for i in forest.around(forest.innermost(frame.f_lasti))] if forest.loops else []

    def source(self, file: str) -> ast.AST | None:
        """The parsed source of `file`, or None where there is none."""
        if file not in self._sources:
            self._sources[file] = _parsed(file)
        return self._sources[file]

    def is_program(self, file: str) -> bool:
        """Whether `file` is the program's own: no installed package, nothing of Python, torch or tcmon."""
        known = self._is_program.get(file)
        if known is None:
            known = not (
                file.startswith(("<", *_STANDARD_LIBRARY))
                or any(folder in file for folder in _PACKAGES)
                or self.is_foreign(file)
            )
            self._is_program[file] = known
        return known

    def scope(self, frame: FrameType) -> Scope:
        """What names mean in the code of `frame`, which has just started."""
        code = frame.f_code
        static = None
        if self.is_program(code.co_filename):
            if code.co_name == "<module>":
                self._programs[code.co_filename] = Program(code)
            program = self._programs.get(code.co_filename)
            if program is not None and (code is program.root or id(code) in program.parents):
                static = program.scope(code)
        return RuntimeScope(code, frame.f_globals, frame.f_locals, static)

    def is_foreign(self, file: str) -> bool:
        """Whether loops in `file` are never the program's: tcmon's own, and torch's (optimizers, data loading)."""
        return is_own(file) or self.is_torch(file)

    def is_torch(self, file: str) -> bool:
        """Whether `file` belongs to torch; never before torch is imported."""
        if self._torch is None:
            spec = module_attribute(sys.modules.get("torch"), "__spec__")
            origin = spec.origin if type(spec) is ModuleSpec else None
            if type(origin) is not str:
                return False
            self._torch = str(Path(origin).parent) + os.sep
        return file.startswith(self._torch)


def module_attribute(module: object, name: str) -> object:
    """What a module's own dictionary holds, or None; no code of the program runs, whatever it put among the modules."""
    if not issubclass(type(module), ModuleType):
        return None
    found: object = vars(ModuleType)["__dict__"].__get__(module).get(name)
    return found


_LONGEST_SOURCE = 8 << 20
_ESCAPE = re.compile(r"\\([^\\'\"\r\nN])|\\[\s\S]")


def _parsed(file: str) -> ast.AST | None:
    try:
        if file not in linecache.cache:
            status = Path(file).stat()
            # Standard input, say, is the program's to read.
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LONGEST_SOURCE:
                return None
        text = "".join(linecache.getlines(file))
        # The parser would warn of invalid escape sequences on the program's stderr. What strings hold is of no interest
        # here, only where they stand.
        return ast.parse(_ESCAPE.sub(lambda match: f".{match[1]}" if match[1] else match[0], text))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if is_interruption(error):
            raise
        return None
