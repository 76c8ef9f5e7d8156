"""The calls that a code object makes, by the names that they are written with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from tcmon.analysis.flowgraph import FlowGraph, Instruction


@dataclass(frozen=True, slots=True)
class Call:
    """One place where something is called, as `optimizer.step()` is with the path ("optimizer", "step")."""

    path: tuple[str, ...]
    """The dotted name that is called. A call or a subscript within it keeps the name before it."""
    offset: int
    """Where the called object is loaded."""
    line: int | None
    index: str | None
    """The variable that subscripts the receiver, as `i` in `optimizers[i].step()`, or None."""

    def __str__(self) -> str:
        return ".".join(self.path) + "()"

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def receiver(self) -> str | None:
        """The last name before the called one, or None for a plain call."""
        return self.path[-2] if len(self.path) > 1 else None


def calls(graph: FlowGraph) -> Iterator[Call]:
    """Every call of a named function or method in the code of `graph`, in the order of the bytecode."""
    instructions = [instruction for block in graph.blocks for instruction in block.instructions]
    names = _Names(graph.code)
    for position in range(len(instructions)):
        callee = _callee(instructions, position)
        if callee is not None:
            path, index = names.path(instructions, callee)
            if path:
                yield Call(path, instructions[callee].offset, instructions[callee].line, index)


def stored_at(graph: FlowGraph, offset: int) -> frozenset[str]:
    """The names that the instructions from `offset` on store into: the targets of a `for` loop at its body's start."""
    names = _Names(graph.code)
    stored: set[str] = set()
    for block in graph.blocks:
        for instruction in block.instructions:
            if instruction.offset < offset:
                continue
            targets = names.stored(instruction)
            if targets is None:
                return frozenset(stored)
            stored.update(targets)
    return frozenset(stored)


def loads(graph: FlowGraph, offset: int) -> tuple[str, ...]:
    """The names from which the value on top of the stack before the instruction at `offset` was built, outermost last.

    For the `GET_ITER` of `for x in enumerate(val_loader)` that is ("val_loader", "enumerate").
    """
    names = _Names(graph.code)
    for block in graph.blocks:
        for position, instruction in enumerate(block.instructions):
            if instruction.offset == offset:
                line = instruction.line
                found: list[str] = []
                for before in reversed(block.instructions[:position]):
                    if before.line != line and found:
                        break
                    if names.stored(before) or before.name in ("POP_TOP", "RESUME"):
                        break
                    found += reversed(names.loaded(before))
                return tuple(found)
    return ()


def _callee(instructions: list[Instruction], position: int) -> int | None:
    """The position of the last load of a called name, if the one at `position` marks it as called."""
    instruction = instructions[position]
    name = instruction.name
    if not name.startswith("LOAD_") or name == "LOAD_CONST":
        return None
    if name == "LOAD_ATTR":
        marked = bool(instruction.arg & 1)
    else:
        # 3.12 pushes the NULL that marks a call before the dotted name, later versions mostly after it.
        marked = (name == "LOAD_GLOBAL" and bool(instruction.arg & 1)) or (
            position > 0 and instructions[position - 1].name == "PUSH_NULL"
        )
        while marked and _is_attribute(instructions, position + 1):
            position += 1
    if not marked and position + 1 < len(instructions) and instructions[position + 1].name == "PUSH_NULL":
        # On 3.12 this NULL belongs to the next call.
        marked = sys.version_info >= (3, 13)
    return position if marked else None


def _is_attribute(instructions: list[Instruction], position: int) -> bool:
    return (
        position < len(instructions)
        and instructions[position].name == "LOAD_ATTR"
        and not instructions[position].arg & 1
    )


class _Names:
    """Names of variables and attributes that instructions mean by their arguments."""

    def __init__(self, code: CodeType) -> None:
        self._names = code.co_names
        cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
        self._locals = (*code.co_varnames, *cells, *code.co_freevars)

    def loaded(self, instruction: Instruction) -> tuple[str, ...]:
        """Names that an instruction loads, in the order in which they are pushed."""
        name, arg = instruction.name, instruction.arg
        if name in ("LOAD_ATTR", "LOAD_GLOBAL"):
            return (self._names[arg >> 1],)
        if name in ("LOAD_NAME", "LOAD_METHOD"):
            return (self._names[arg],)
        if name == "LOAD_SUPER_ATTR":
            return (self._names[arg >> 2],)
        if name in ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW"):
            return (self._locals[arg >> 4], self._locals[arg & 15])
        if name == "STORE_FAST_LOAD_FAST":
            return (self._locals[arg & 15],)
        if name.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF")):
            return (self._locals[arg],)
        return ()

    def stored(self, instruction: Instruction) -> tuple[str, ...] | None:
        """Names that an instruction of an assignment stores into; None if it does not belong to an assignment."""
        name, arg = instruction.name, instruction.arg
        if name in ("UNPACK_SEQUENCE", "UNPACK_EX"):
            return ()
        if name in ("STORE_NAME", "STORE_GLOBAL"):
            return (self._names[arg],)
        if name == "STORE_FAST_STORE_FAST":
            return (self._locals[arg >> 4], self._locals[arg & 15])
        if name == "STORE_FAST_LOAD_FAST":
            return (self._locals[arg >> 4],)
        if name in ("STORE_FAST", "STORE_DEREF"):
            return (self._locals[arg],)
        return None

    def path(self, instructions: list[Instruction], position: int) -> tuple[tuple[str, ...], str | None]:
        """The dotted name that ends in the load at `position`, and the variable that subscripts it."""
        parts: list[str] = []
        index: str | None = None
        while position >= 0:
            instruction = instructions[position]
            name = instruction.name
            if name == "LOAD_ATTR":
                parts += self.loaded(instruction)
                position -= 1
            elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and instruction.arg >= 26):
                key = self.loaded(instructions[position - 1])
                index = key[-1] if key else index
                if len(key) == 2:  # one instruction loads container and key
                    parts.append(key[0])
                    break
                position -= 2
            elif name == "CALL" and instruction.arg == 0:
                position -= 1
                while position >= 0 and instructions[position].name == "PUSH_NULL":
                    position -= 1
            else:
                loaded = self.loaded(instruction)
                if loaded:
                    parts.append(loaded[-1])
                break
        return tuple(reversed(parts)), index
