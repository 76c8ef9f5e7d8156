"""The control-flow graph of one code object, exception edges included.

Offsets are those that `sys.monitoring` reports: bytes into `co_code`, of the instruction itself and not of the
`EXTENDED_ARG` prefixes before it. Jumps, on the other hand, land on the first prefix; a block therefore has a
`start` (where jumps land) that may lie before the offset of its first instruction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType

from bytecode import ConcreteBytecode, ConcreteInstr

_FILLER = frozenset({"CACHE", "EXTENDED_ARG"})


@dataclass(frozen=True, slots=True)
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
            for low, high, handler in ranges:
                # A block is never split by a range: ranges begin and end at block starts.
                if low <= block.start < high:
                    block.handlers.append(self._by_start[handler])
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
    concrete = ConcreteBytecode.from_code(code)
    units: list[ConcreteInstr] = [instr for instr in concrete if isinstance(instr, ConcreteInstr)]
    instructions: list[Instruction] = []
    starts: dict[int, int] = {}
    unit = 0
    for instr in units:
        size = instr.size // 2
        if instr.name not in _FILLER:
            # bytecode folds EXTENDED_ARG into the instruction, whose last two bytes are the instruction proper.
            offset = 2 * (unit + size - 1)
            starts[offset] = 2 * unit
            jump = instr.get_jump_target(unit) if instr.has_jump() else None
            place = instr.location
            instructions.append(
                Instruction(
                    offset=offset,
                    name=instr.name,
                    arg=instr.arg,
                    line=place.lineno if place else None,
                    column=place.col_offset if place else None,
                    end_line=place.end_lineno if place else None,
                    end_column=place.end_col_offset if place else None,
                    target=None if jump is None else 2 * jump,
                    falls_through=not (instr.is_uncond_jump() or instr.is_final()),
                )
            )
        unit += size
    # bytecode's table counts units and includes the last one of a range.
    ranges = [
        (2 * entry.start_offset, 2 * entry.stop_offset + 2, 2 * entry.target) for entry in concrete.exception_table
    ]
    return instructions, starts, ranges


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
