"""The control-flow graph of one code object, exception edges included.

Offsets are those that `sys.monitoring` reports: bytes into `co_code`, of the instruction itself and not of the
`EXTENDED_ARG` prefixes before it. Jumps, on the other hand, land on the first prefix; a block therefore has a
`start` (where jumps land) that may lie before the offset of its first instruction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from dis import hasjrel
from functools import cached_property
from itertools import pairwise
from opcode import opmap, opname
from types import CodeType

_CACHE = opmap["CACHE"]
_EXTENDED_ARG = opmap["EXTENDED_ARG"]
_JUMPS = frozenset(hasjrel) - {opmap["END_ASYNC_FOR"]}  # which has an argument like a jump's from 3.14 on
_BACKWARD_JUMPS = frozenset(opcode for name, opcode in opmap.items() if "JUMP_BACKWARD" in name)
_NO_FALL_THROUGH = frozenset(
    opcode
    for name, opcode in opmap.items()
    if name.startswith(("JUMP_FORWARD", "JUMP_BACKWARD", "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"))
)


@dataclass(slots=True)
class Instruction:
    """One instruction: its offset, opcode name, argument, and place in the source (None where unknown)."""

    offset: int
    name: str
    arg: int
    line: int | None
    column: int | None
    end_line: int | None
    end_column: int | None
    target: int | None
    """Where it may jump to (an offset), or None."""
    falls_through: bool
    """Whether control can go on to the next instruction."""


@dataclass(slots=True)
class Block:
    """A basic block: straight-line code with one way in at the top."""

    index: int
    start: int
    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)
    """Blocks that control may reach from here by jumping or falling through."""
    handlers: list[int] = field(default_factory=list)
    """Blocks that an exception raised in here may reach."""
    predecessors: list[int] = field(default_factory=list)

    @property
    def first(self) -> Instruction:
        return self.instructions[0]

    @property
    def last(self) -> Instruction:
        return self.instructions[-1]


class FlowGraph:
    """Basic blocks of a code object, in the order of the bytecode; block 0 is the entry."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        instructions, starts, ranges = _decode(code)
        self.blocks = _blocks(instructions, starts, ranges)
        self._by_start = {block.start: block.index for block in self.blocks}
        self._connect(ranges)
        self.reachable = self._reachable()

    @cached_property
    def instruction_at(self) -> dict[int, Instruction]:
        """Every instruction by its offset."""
        return {instruction.offset: instruction for block in self.blocks for instruction in block.instructions}

    @property
    def has_cycle(self) -> bool:
        """Whether any jump leads back, so that there may be a loop."""
        return any(s <= block.index for block in self.blocks for s in (*block.successors, *block.handlers))

    def block_at(self, start: int) -> int:
        """The index of the block that jumps to `start` land on."""
        return self._by_start[start]

    def _connect(self, ranges: list[tuple[int, int, int]]) -> None:
        for block in self.blocks:
            last = block.last
            if last.falls_through and block.index + 1 < len(self.blocks):
                block.successors.append(block.index + 1)
            if last.target is not None:
                target = self._by_start[last.target]
                if target not in block.successors:
                    block.successors.append(target)
        places = [block.start for block in self.blocks]
        for low, high, handler in ranges:
            # A block is never split by a range: ranges begin and end at block starts.
            for index in range(bisect_left(places, low), bisect_left(places, high)):
                self.blocks[index].handlers.append(self._by_start[handler])
        for block in self.blocks:
            for successor in (*block.successors, *block.handlers):
                self.blocks[successor].predecessors.append(block.index)

    def _reachable(self) -> frozenset[int]:
        seen = {0}
        pending = [0]
        while pending:
            block = self.blocks[pending.pop()]
            for successor in (*block.successors, *block.handlers):
                if successor not in seen:
                    seen.add(successor)
                    pending.append(successor)
        return frozenset(seen)


def _decode(code: CodeType) -> tuple[list[Instruction], dict[int, int], list[tuple[int, int, int]]]:
    """Instructions without fillers; the landing offset of each; exception ranges as (begin, end, handler)."""
    units = code.co_code  # as compiled: neither specialised nor instrumented, inline caches empty
    places = list(code.co_positions())
    instructions: list[Instruction] = []
    starts: dict[int, int] = {}
    start, prefix = 0, 0
    for offset in range(0, len(units), 2):
        opcode = units[offset]
        if opcode == _CACHE:
            start = offset + 2
            continue
        arg = prefix | units[offset + 1]
        if opcode == _EXTENDED_ARG:
            prefix = arg << 8
            continue
        starts[offset] = start
        target = None
        if opcode in _JUMPS:
            after = offset + 2
            while after < len(units) and units[after] == _CACHE:
                after += 2
            target = after + (-2 * arg if opcode in _BACKWARD_JUMPS else 2 * arg)
        line, end_line, column, end_column = places[offset // 2]
        instructions.append(
            Instruction(
                offset, opname[opcode], arg, line, column, end_line, end_column, target, opcode not in _NO_FALL_THROUGH
            )
        )
        start, prefix = offset + 2, 0
    return instructions, starts, list(_exception_ranges(code.co_exceptiontable))


def _exception_ranges(table: bytes) -> Iterator[tuple[int, int, int]]:
    """Entries of an exception table, which are four numbers each, written in groups of six bits."""
    numbers: list[int] = []
    number = 0
    for byte in table:
        number = number << 6 | byte & 63
        if not byte & 64:
            numbers.append(number)
            number = 0
    for start, size, handler, _depth in zip(*[iter(numbers)] * 4, strict=True):
        yield 2 * start, 2 * (start + size), 2 * handler


def _blocks(instructions: list[Instruction], starts: dict[int, int], ranges: list[tuple[int, int, int]]) -> list[Block]:
    leaders = {0}
    for instruction, following in pairwise(instructions):
        if instruction.target is not None:
            leaders.add(instruction.target)
        if instruction.target is not None or not instruction.falls_through:
            leaders.add(starts[following.offset])
    if instructions and (target := instructions[-1].target) is not None:
        leaders.add(target)
    for low, high, handler in ranges:
        leaders.update((low, high, handler))
    blocks: list[Block] = []
    for instruction in instructions:
        start = starts[instruction.offset]
        if not blocks or start in leaders:
            blocks.append(Block(index=len(blocks), start=start))
        blocks[-1].instructions.append(instruction)
    return blocks
