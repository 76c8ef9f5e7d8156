"""Finds the loops to watch as the program's code first runs.

Every code object is looked at once, at its first PY_START; the names that it uses dismiss nearly all. The rest is
analysed, and its training and evaluation loops are watched before their first iteration. Code that trains without a
loop of its own is met when it first runs: the loop is then the innermost one among its callers on the stack.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tcmon.analysis.loops import LoopForest
from tcmon.analysis.roles import Proposal, Role, RoleFinder, is_telling
from tcmon.monitoring.tool import DISABLE, Tool, events
from tcmon.steps.tracker import Tracker

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
_DEMO_FOLDER = _OWN_FOLDER + "demo" + os.sep
_PATIENCE = 100
"""How often a function that trains without a loop is met outside any loop before it is no longer looked at."""


class Discovery:
    """Watches code objects as they first run and hands their loops to `tracker`.

    `found` is told of each loop that is watched, and how it was found, and answers with the loop's number.
    """

    def __init__(
        self,
        tool: Tool,
        tracker: Tracker,
        found: Callable[[CodeType, Proposal], int],
        failed: Callable[[Exception], None],
    ) -> None:
        self._tracker = tracker
        self._found = found
        self._failed = failed
        self._sources: dict[str, ast.AST | None] = {}
        self._forests: dict[int, tuple[CodeType, LoopForest]] = {}
        self._watched: dict[tuple[int, int], CodeType] = {}
        self._loose: dict[int, tuple[CodeType, str, int]] = {}
        self._torch: str | None = None
        self._lock = threading.Lock()
        self.seen = 0
        self._analysed: dict[int, CodeType] = {}
        tool.on(events.PY_START, self._on_start)

    @property
    def analysed(self) -> int:
        """How many code objects the names of which told something."""
        return len(self._analysed)

    def _on_start(self, code: CodeType, _offset: int) -> Any:
        try:
            if id(code) in self._loose:
                return self._look_for_caller(code, sys._getframe(1))
            self.seen += 1
            if is_telling(code) and not self._is_foreign(code.co_filename):
                # Another thread that runs the code meanwhile waits, or its first iterations would be missed.
                with self._lock:
                    return self._analyse(code)
        except Exception as error:
            self._failed(error)
        return DISABLE

    def _analyse(self, code: CodeType) -> Any:
        if id(code) in self._analysed:
            return DISABLE
        self._analysed[id(code)] = code
        finder = RoleFinder(code, lambda: self._source(code.co_filename))
        self._forests[id(code)] = (code, finder.forest)
        self._watch(code, finder.proposals)
        loose = finder.loose_signs
        if not loose:
            return DISABLE
        _, call = loose[0]
        reason = f"calls {code.co_qualname}() -> {call} ({Path(code.co_filename).name}:{call.line})"
        self._loose[id(code)] = (code, reason, _PATIENCE)
        return self._look_for_caller(code, sys._getframe(2))

    def _watch(self, code: CodeType, proposals: list[Proposal]) -> None:
        chosen = [p for p in proposals if (id(code), p.loop.start) not in self._watched]
        for proposal in chosen:
            self._watched[id(code), proposal.loop.start] = code
        if chosen:
            self._tracker.watch(code, [(self._found(code, p), p.loop, p.role) for p in chosen])

    # Functions that train without a loop of their own

    def _look_for_caller(self, code: CodeType, frame: FrameType) -> Any:
        """Adopt the loop that the first caller in a loop is in, unless a training loop is being counted already."""
        _, reason, patience = self._loose[id(code)]
        if self._tracker.is_counting(Role.TRAIN) or self._adopt_caller(reason, frame.f_back):
            patience = 0
        else:
            patience -= 1
        if patience > 0:
            self._loose[id(code)] = (code, reason, patience)
            return None
        del self._loose[id(code)]
        return DISABLE

    def _adopt_caller(self, reason: str, frame: FrameType | None) -> bool:
        while frame is not None and not _is_own(frame.f_code.co_filename):
            code = frame.f_code
            if not self._is_foreign(code.co_filename):
                forest = self._forest(code)
                index = forest.innermost(frame.f_lasti) if forest.loops else None
                if index is not None:
                    proposal = Proposal(forest.loops[index], Role.TRAIN, (reason,))
                    if (id(code), proposal.loop.start) in self._watched:
                        return False
                    self._watched[id(code), proposal.loop.start] = code
                    [watched] = self._tracker.watch(code, [(self._found(code, proposal), proposal.loop, Role.TRAIN)])
                    self._tracker.adopt(watched, frame)
                    return True
            frame = frame.f_back
        return False

    def _forest(self, code: CodeType) -> LoopForest:
        if id(code) not in self._forests:
            forest = LoopForest(code)
            if forest.loops:
                forest = LoopForest(code, self._source(code.co_filename))
            self._forests[id(code)] = (code, forest)
        return self._forests[id(code)][1]

    # Files

    def _is_foreign(self, file: str) -> bool:
        """Whether loops in `file` are never the program's: tcmon's own, and torch's (optimizers, data loading)."""
        if self._torch is None and (torch := sys.modules.get("torch")) is not None:
            origin = getattr(torch.__spec__, "origin", None)
            self._torch = str(Path(origin).parent) + os.sep if origin else None
        return _is_own(file) or (self._torch is not None and file.startswith(self._torch))

    def _source(self, file: str) -> ast.AST | None:
        if file not in self._sources:
            try:
                self._sources[file] = ast.parse("".join(linecache.getlines(file)))
            except (SyntaxError, ValueError, RecursionError):
                self._sources[file] = None
        return self._sources[file]


def _is_own(file: str) -> bool:
    """Whether `file` is tcmon's, the demo's program aside."""
    return file.startswith(_OWN_FOLDER) and not file.startswith(_DEMO_FOLDER)
