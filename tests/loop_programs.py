"""Random programs made of loops, which count their own iterations.

A program is a function `f`. A loop begins its body with `hit(i)`, or with another statement: then it isn't counted.
`t()` answers at random and ends the program by raising `OutOfFuel` after a while, so every program ends.
"""

import random
from collections import Counter
from typing import Any

from hypothesis import strategies as st


class OutOfFuel(Exception):
    pass


_CONDITIONS = ["t()", "t() and t()", "t() or t()", "not t()", "(t() or t()) and t()", "[a for a in (1, 2) if t()]"]


class _Writer:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._loops = 0
        self.lines: list[str] = ["def f():", "    x = 0"]

    def _one_of(self, options: list[str]) -> str:
        return self._draw(st.sampled_from(options))

    def _emit(self, depth: int, *lines: str) -> None:
        self.lines += ["    " * depth + line for line in lines]

    def block(self, depth: int, in_loop: bool = False, nesting: int = 0) -> None:
        for _ in range(self._draw(st.integers(1, 3))):
            self._statement(depth, in_loop, nesting)

    def _statement(self, depth: int, in_loop: bool, nesting: int) -> None:
        simple = ["assign", "return", "jump" if in_loop else "call"]
        kinds = ["assign", "for", "while", "while true", "while over lines", "if", "try", "finally", "with", "match"]
        kind = self._one_of(simple if nesting >= 4 else [*kinds, *simple, "comprehension"])
        inner = (depth + 1, in_loop, nesting + 1)
        if kind == "assign":
            self._emit(depth, "x = t()")
        elif kind == "call":
            self._emit(depth, "t()")
        elif kind == "return":
            self._emit(depth, "if rarely(): return 1")
        elif kind == "jump":
            self._emit(depth, f"if t(): {self._one_of(['break', 'continue'])}")
        elif kind == "comprehension":
            self._emit(depth, "x = [a for a in (1, 2, 3) if t()]")
        elif kind == "if":
            self._emit(depth, f"if {self._one_of(_CONDITIONS)}:")
            self.block(*inner)
            if self._draw(st.booleans()):
                self._emit(depth, "else:")
                self.block(*inner)
        elif kind == "try":
            self._emit(depth, "try:")
            self.block(*inner)
            self._emit(depth, "    boom()", "except ValueError:")
            self.block(*inner)
        elif kind == "finally":
            self._emit(depth, "try:")
            self.block(*inner)
            self._emit(depth, "finally:", "    t()")
        elif kind == "with":
            self._emit(depth, "with manager():")
            self.block(*inner)
        elif kind == "match":
            self._emit(depth, "match pick():", "    case 0:")
            self.block(depth + 2, in_loop, nesting + 1)
            self._emit(depth, "    case _:")
            self.block(depth + 2, in_loop, nesting + 1)
        else:
            self._loop(kind, depth, in_loop, nesting)

    def _loop(self, kind: str, depth: int, in_loop: bool, nesting: int) -> None:
        number, self._loops = self._loops, self._loops + 1
        if kind == "for":
            self._emit(depth, f"for v{number} in items():")
        elif kind == "while":
            self._emit(depth, f"while {self._one_of(_CONDITIONS)}:")
        elif kind == "while over lines":
            self._emit(depth, "while (", "        t()", f"        {self._one_of(['and', 'or'])} t()", "):")
        else:
            self._emit(depth, "while True:")
        if self._draw(st.integers(0, 3)):
            self._emit(depth + 1, f"hit({number})")
        self.block(depth + 1, True, nesting + 1)
        if kind != "while true" and not self._draw(st.integers(0, 4)):
            self._emit(depth, "else:")
            self.block(depth + 1, in_loop, nesting + 1)


@st.composite
def sources(draw: st.DrawFn) -> str:
    """The source of a program."""
    writer = _Writer(draw)
    writer.block(1)
    writer.block(1)
    return "\n".join([*writer.lines, "    return 0", ""])


def environment(seed: int, fuel: int = 300) -> tuple[dict[str, Any], Counter[int]]:
    """The names that a program uses, drawing from `seed`, and the iterations that it counts itself, by loop."""
    rng = random.Random(seed)
    counts: Counter[int] = Counter()
    left = fuel

    def t() -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise OutOfFuel
        return rng.random() < 0.5

    def boom() -> None:
        if rng.random() < 0.3:
            raise ValueError

    class Manager:
        def __enter__(self) -> None:
            t()

        def __exit__(self, kind: type | None, *_: object) -> bool:
            return kind is ValueError

    def hit(number: int) -> None:
        counts[number] += 1
        t()

    names = {
        "t": t,
        "rarely": lambda: rng.random() < 0.05,
        "boom": boom,
        "manager": Manager,
        "hit": hit,
        "items": lambda: range(rng.randint(0, 4)),
        "pick": lambda: rng.randint(0, 2),
    }
    return names, counts
