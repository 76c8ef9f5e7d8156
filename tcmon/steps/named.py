"""Loops that the user names by file and line, in the place of those that tcmon would find."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from types import CodeType

from tcmon.analysis.loops import Loop
from tcmon.analysis.roles import Role
from tcmon.errors import TcmonError
from tcmon.steps.codebase import Codebase

_SHOWN = 5
"""How many of the loops near a line that holds none are listed."""


class NamedLoop:
    """A loop that plays `role`, named as "FILE:LINE" with the line of its `for` or `while`.

    Raises `TcmonError`, which names the loops nearby, if there is no such loop.
    """

    def __init__(self, role: Role, place: str) -> None:
        file, _, line = place.rpartition(":")
        if not file or not line.isdecimal():
            raise TcmonError(f"--{role}-loop takes FILE:LINE, not {place!r}")
        self.role = role
        self.place = place
        self.file = os.path.realpath(file)
        self.line = int(line)
        lines = _loop_lines(file)
        if self.line not in lines:
            near = sorted(sorted(lines, key=lambda each: abs(each - self.line))[:_SHOWN])
            told = f"the loops near it are in line {', '.join(map(str, near))}" if near else "that file holds no loop"
            raise TcmonError(f"no for or while in line {line} of {file}: {told}")


def _loop_lines(file: str) -> list[int]:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except OSError as error:
        raise TcmonError(f"can't read {file}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise TcmonError(f"{file} is no Python source: {error}") from None
    return [node.lineno for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.AsyncFor)]


class NamedLoops:
    """Tells which loops of a code object were named."""

    def __init__(self, loops: tuple[NamedLoop, ...], codebase: Codebase) -> None:
        self._loops = loops
        self._codebase = codebase
        self._is_file: dict[str, bool] = {}
        self.roles = frozenset(loop.role for loop in loops)

    def in_code(self, code: CodeType) -> list[tuple[NamedLoop, Loop]]:
        """The named loops that `code` holds."""
        if not self._loops or not self._may_hold(code.co_filename):
            return []
        file = os.path.realpath(code.co_filename)
        found = []
        for named in self._loops:
            if named.file == file:
                # A comprehension in a loop's header stands in the same line.
                here = [loop for loop in self._codebase.forest(code).loops if loop.line == named.line]
                found += [(named, max(here, key=lambda loop: len(loop.body)))] if here else []
        return found

    def _may_hold(self, file: str) -> bool:
        if file not in self._is_file:
            self._is_file[file] = any(os.path.realpath(file) == named.file for named in self._loops)
        return self._is_file[file]
