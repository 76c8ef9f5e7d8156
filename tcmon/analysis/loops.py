"""Natural loops of a code object, and the instructions at which their iterations can be counted.

A back edge is an edge whose target dominates its source; the natural loop of a header is every block that reaches one
of its back edges without passing the header (Aho, Sethi, Ullman). One `for` or `while` of the source is one natural
loop, save that CPython 3.12 and 3.13 copy a `while` test to the bottom of the loop: with a `continue`, the statement
then has two headers (the test at the top and the body), which are joined here.
"""

from __future__ import annotations

import ast
import sys
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import pairwise, takewhile
from types import CodeType

from tcmon.analysis.dominators import Dominators
from tcmon.analysis.flowgraph import Block, FlowGraph, Instruction


class LoopKind(StrEnum):
    """The statement that a loop is written as."""

    FOR = "for"
    ASYNC_FOR = "async for"
    WHILE = "while"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of one code object. All places are offsets as `sys.monitoring` reports them."""

    kind: LoopKind
    line: int
    """Line of the `for` or `while`."""
    entries: frozenset[int]
    """Instructions that run once, just before a `for` loop asks its iterator first; empty for `while`."""
    start: int
    """The first instruction of an iteration's body."""
    back_edges: frozenset[int]
    """Instructions that end an iteration and go on with the loop."""
    exits: frozenset[int]
    """First instructions after the loop, however it is left within its frame (`break`, exhaustion, a handler)."""
    fruitless: frozenset[int]
    """Instructions that run when an iteration only found the end of its data (`except StopIteration: break`)."""
    body: frozenset[int]
    """Offsets of all instructions of the loop, header and inner loops included."""
    parent: int | None
    """Index of the loop around it in `LoopForest.loops`."""
    lines: tuple[int, int]
    """First and last line of the loop."""


def unplaced_loop(line: int) -> Loop:
    """Stands for steps that no loop's instructions tell of, but a call in `line`: it has no place in the code."""
    nowhere: frozenset[int] = frozenset()
    return Loop(LoopKind.WHILE, line, nowhere, -1, nowhere, nowhere, nowhere, nowhere, None, (0, 0))


@dataclass(slots=True)
class _Draft:
    """A natural loop while it is being assembled, in terms of blocks."""

    header: int
    sources: list[int]
    body: set[int]
    start: int = -1
    repeats: frozenset[int] = frozenset()
    """Blocks from which a back edge can be reached: the natural loop itself."""
    runs_out: dict[int, int] = field(default_factory=dict)
    """Blocks of which only so many instructions belong to the loop."""


class LoopForest:
    """The loops of one code object with their nesting, outer loops before inner ones.

    Who has the graph or its dominators already hands them over.
    """

    def __init__(
        self,
        code: CodeType,
        tree: ast.AST | None = None,
        graph: FlowGraph | None = None,
        dominators: Dominators | None = None,
    ) -> None:
        self.code = code
        self.graph = graph or FlowGraph(code)
        self.dominators = dominators or Dominators(self.graph)
        self._offsets = [i.offset for block in self.graph.blocks for i in block.instructions]
        self._statements = _Statements(tree, code)
        drafts = self._merge_while_copies(self._natural_loops())
        for draft in drafts:
            draft.repeats = frozenset(draft.body)
            self._grow(draft)
        drafts.sort(key=lambda draft: (-len(draft.body), draft.header))
        self.loops: list[Loop] = []
        holding: dict[int, list[int]] = {}
        for index, draft in enumerate(drafts):
            around = [other for other in holding.get(draft.header, ()) if draft.body < drafts[other].body]
            self.loops.append(self._finish(draft, around[-1] if around else None))
            for block in draft.body:
                holding.setdefault(block, []).append(index)

    def innermost(self, offset: int) -> int | None:
        """The index of the innermost loop that holds the instruction at `offset`, or None.

        `offset` may be a frame's `f_lasti`, which during a call points into the instruction's inline caches.
        """
        offset = self._offsets[bisect_right(self._offsets, offset) - 1]
        found = None
        for index, loop in enumerate(self.loops):
            if offset in loop.body and (found is None or loop.body < self.loops[found].body):
                found = index
        return found

    def around(self, index: int | None) -> list[int]:
        """The loops that hold loop `index`, itself first, outwards."""
        chain = []
        while index is not None:
            chain.append(index)
            index = self.loops[index].parent
        return chain

    # Natural loops

    def _natural_loops(self) -> list[_Draft]:
        blocks = self.graph.blocks
        sources: dict[int, list[int]] = {}
        for source in sorted(self.graph.reachable):
            for header in blocks[source].successors:
                if not self._is_await(blocks[header]) and self.dominators.dominates(header, source):
                    sources.setdefault(header, []).append(source)
        drafts: list[_Draft] = []
        for header, ends in sources.items():
            drafts += self._split_shared_header(self._natural_loop(header, ends))
        return drafts

    @staticmethod
    def _is_await(header: Block) -> bool:
        """Whether a back edge to `header` is the polling of an `await` or `yield from`, not a loop of the source."""
        return header.first.name == "SEND"

    def _split_shared_header(self, draft: _Draft) -> list[_Draft]:
        """Tell apart `while` loops that begin at the same instruction, outermost first.

        On 3.12 and 3.13 the body of an outer `while` may begin with an inner `while`, whose first instruction is then
        the target of back edges of both. A back edge that comes from a test at the bottom carries the place of its
        test, so back edges with tests of different statements are of different loops.
        """
        header = _place(self.graph.blocks[draft.header].first)
        if sys.version_info >= (3, 14) or header is None or len(draft.sources) < 2:
            return [draft]
        groups: dict[int, list[int]] = {}
        rest: list[int] = []
        for source in draft.sources:
            place = _place(self.graph.blocks[source].last)
            if place is not None and place <= header:
                groups.setdefault(self._test_line(self.graph.blocks[source].last), []).append(source)
            else:
                rest.append(source)
        if not groups or (len(groups) == 1 and not rest):
            return [draft]
        nested = [groups[line] for line in sorted(groups)]
        if rest:
            # A `continue` jumps to the header only if that is its loop's own `while True` or its test.
            if max(groups) == header[0]:
                nested[-1] += rest
            else:
                nested.append(rest)
        if len(nested) < 2:
            return [draft]
        return [self._natural_loop(draft.header, sources) for sources in nested]

    def _test_line(self, instruction: Instruction) -> int:
        """The line that identifies the `while` in whose test an instruction stands."""
        statement = self._statements.while_at(instruction)
        return statement.lineno if statement is not None else instruction.line or 0

    def _natural_loop(self, header: int, sources: list[int]) -> _Draft:
        draft = _Draft(header, list(sources), {header})
        pending = list(sources)
        while pending:
            block = pending.pop()
            if block not in draft.body:
                draft.body.add(block)
                pending += [p for p in self.graph.blocks[block].predecessors if p in self.graph.reachable]
        return draft

    def _merge_while_copies(self, drafts: list[_Draft]) -> list[_Draft]:
        """Give every draft the block where its body starts, and join the two halves of one `while`."""
        if sys.version_info < (3, 14):
            whiles = [draft for draft in drafts if self._kind(draft) is LoopKind.WHILE]
            bottoms: dict[int, list[_Draft]] = {}
            for draft in filter(self._is_bottom_tested, whiles):
                tests = {self._test_line(self.graph.blocks[source].last) for source in draft.sources}
                if len(tests) == 1:
                    bottoms.setdefault(tests.pop(), []).append(draft)
            joined: set[int] = set()
            for outer in sorted(whiles, key=lambda draft: len(draft.body)):
                if bottoms and not self._is_bottom_tested(outer):
                    # The bottom test is a copy of the one at the top: both stand at the same `while` of the source.
                    test = self._test_line(self.graph.blocks[outer.header].first)
                    for inner in bottoms.get(test, ()):
                        if id(inner) not in joined and inner.header != outer.header and inner.body <= outer.body:
                            outer.sources += inner.sources
                            outer.start = inner.header
                            joined.add(id(inner))
                            break
            drafts = [draft for draft in drafts if id(draft) not in joined]
        for draft in drafts:
            if draft.start < 0:
                draft.start = self._start_block(draft)
        return drafts

    def _is_bottom_tested(self, draft: _Draft) -> bool:
        """Whether the back edges come from a copy of the test: they stand before the header in the source."""
        here = _place(self.graph.blocks[draft.header].first)
        return here is not None and all(
            (place := _place(self.graph.blocks[source].last)) is not None and place < here for source in draft.sources
        )

    # Where the body starts

    def _kind(self, draft: _Draft) -> LoopKind:
        name = self.graph.blocks[draft.header].first.name
        if name == "FOR_ITER":
            return LoopKind.FOR
        if name == "GET_ANEXT":
            return LoopKind.ASYNC_FOR
        return LoopKind.WHILE

    def _start_block(self, draft: _Draft) -> int:
        blocks = self.graph.blocks
        kind = self._kind(draft)
        if kind is LoopKind.FOR:
            return draft.header + 1
        if kind is LoopKind.ASYNC_FOR:
            return self._after_await(draft)
        if self._is_bottom_tested(draft) or blocks[draft.header].first.name == "NOP":
            return draft.header  # `while True`, or the body that the test at the bottom jumps to
        return self._after_test(draft)

    def _after_await(self, draft: _Draft) -> int:
        for index in range(draft.header, len(self.graph.blocks)):
            for instruction in self.graph.blocks[index].instructions:
                if instruction.name == "END_SEND":
                    return index
        return draft.header

    def _after_test(self, draft: _Draft) -> int:
        """The first block of the body of a `while` whose test stands at the top."""
        blocks = self.graph.blocks
        first = blocks[draft.header].first
        statement = self._statements.while_at(first)
        span = _span(statement.test) if statement is not None else None
        if span is None and first.line is not None:
            # Without the source: the test is what stands on the lines of its first operand and is left by a branch.
            ends = [b.end_line or 0 for b in blocks[draft.header].instructions if b.line == first.line]
            span = (first.line, 0, max(ends), 1 << 30)
        if span is not None:
            for index in sorted(draft.body):
                if index > draft.header and not all(_within(i, span) for i in blocks[index].instructions):
                    return index
        return draft.header

    # Bodies as the source has them

    def _grow(self, draft: _Draft) -> None:
        """Add the blocks that belong to an iteration but can't reach the back edge.

        `if done: save(); break` and the handler of a `finally` that raises again stand in the loop's body. They are
        dominated by the loop and lie within its lines.
        """
        blocks = self.graph.blocks
        lines = [i.line for index in draft.body for i in blocks[index].instructions if i.line is not None]
        if not lines:
            return
        first, last = min(lines), max(lines)
        statement = self._statement(draft)
        if statement is not None:
            first, last = statement.lineno, statement.body[-1].end_lineno or last
        below = self.dominators.children
        pending = [index for block in draft.body for index in below.get(block, ()) if index not in draft.body]
        heapify(pending)
        while pending:
            index = heappop(pending)
            if self.dominators.dominates(draft.start, index) and not self._is_exhaustion(draft, index):
                instructions = blocks[index].instructions
                within = list(takewhile(lambda i: i.line is None or first < i.line <= last, instructions))
                if len(within) == len(instructions):
                    draft.body.add(index)
                    for following in below.get(index, ()):
                        heappush(pending, following)
                elif within:
                    # A `finally` that a `break` passes through may run on into what stands after the loop.
                    draft.runs_out[index] = len(within)

    def _is_exhaustion(self, draft: _Draft, index: int) -> bool:
        return self._kind(draft) is LoopKind.FOR and index in self.graph.blocks[draft.header].successors

    def _finish(self, draft: _Draft, parent: int | None) -> Loop:
        blocks = self.graph.blocks
        kind = self._kind(draft)
        header = blocks[draft.header]
        exits: set[int] = set()
        for index in draft.body:
            for successor in (*blocks[index].successors, *blocks[index].handlers):
                if successor not in draft.body and successor not in draft.runs_out:
                    exits.update(_first_executed(blocks, successor))
        for index, count in draft.runs_out.items():
            exits.add(blocks[index].instructions[count].offset)
            exits.update(
                blocks[handler].first.offset for handler in blocks[index].handlers if handler not in draft.body
            )
        entries: set[int] = set()
        if kind is not LoopKind.WHILE:
            for index in header.predecessors:
                if index not in draft.body and index in self.graph.reachable:
                    entries.add(blocks[index].last.offset)
            if len(blocks[draft.header].instructions) and not entries and draft.header == 0:
                entries.add(header.first.offset)
        body = frozenset(
            i.offset
            for index in (*draft.body, *draft.runs_out)
            for i in blocks[index].instructions[: draft.runs_out.get(index)]
        )
        lines = [i.line for index in draft.body for i in blocks[index].instructions if i.line is not None]
        return Loop(
            kind=kind,
            line=self._line(draft),
            entries=frozenset(entries),
            start=self._start_offset(draft),
            back_edges=frozenset(blocks[source].last.offset for source in draft.sources),
            exits=frozenset(exits),
            fruitless=frozenset(self._fruitless(draft)),
            body=body,
            parent=parent,
            lines=(min(lines, default=0), max(lines, default=0)),
        )

    def _fruitless(self, draft: _Draft) -> Iterator[int]:
        """Where handlers of StopIteration begin that leave the loop."""
        blocks = self.graph.blocks
        for index in (*draft.body, *draft.runs_out):
            if index + 1 not in draft.repeats and self._catches_exhaustion(blocks[index]):
                yield from _first_executed(blocks, index + 1)

    def _catches_exhaustion(self, block: Block) -> bool:
        """Whether control runs on from `block` when the exception at hand is a StopIteration."""
        if len(block.instructions) < 3 or not block.last.name.endswith("JUMP_IF_FALSE"):
            return False
        load, check = block.instructions[-3:-1]
        names = self.code.co_names
        number = load.arg >> 1 if load.name == "LOAD_GLOBAL" else load.arg
        return (
            check.name == "CHECK_EXC_MATCH"
            and load.name in ("LOAD_GLOBAL", "LOAD_NAME")
            and names[number] in ("StopIteration", "StopAsyncIteration")
        )

    def _statement(self, draft: _Draft) -> _LoopStatement | None:
        """The statement of the source that this loop is, where the source is known."""
        blocks = self.graph.blocks
        if self._kind(draft) is not LoopKind.WHILE:
            return self._statements.for_at(self.graph.instruction_at[self._start_offset(draft)])
        tests = [blocks[draft.header].first, *(blocks[source].last for source in draft.sources)]
        for instruction in reversed(tests) if self._is_bottom_tested(draft) else tests:
            if (statement := self._statements.while_at(instruction)) is not None:
                return statement
        return None

    def _start_offset(self, draft: _Draft) -> int:
        if self._kind(draft) is LoopKind.ASYNC_FOR:
            return _following(self.graph.blocks, draft.start, "END_SEND")
        return self.graph.blocks[draft.start].first.offset

    def _line(self, draft: _Draft) -> int:
        statement = self._statement(draft)
        if statement is not None:
            return statement.lineno
        blocks = self.graph.blocks
        header = blocks[draft.header].first
        if self._kind(draft) is not LoopKind.WHILE:
            lines = [header.line, self.graph.instruction_at[self._start_offset(draft)].line]
        elif self._is_bottom_tested(draft):
            lines = [blocks[source].last.line for source in draft.sources]
        else:
            lines = [header.line]
        return min((line for line in lines if line is not None), default=self.code.co_firstlineno)


def _place(instruction: Instruction) -> tuple[int, int] | None:
    if instruction.line is None or instruction.column is None:
        return None
    return instruction.line, instruction.column


def _within(instruction: Instruction, span: tuple[int, int, int, int]) -> bool:
    """Whether an instruction stands within a span of the source; one without a place counts as within."""
    if instruction.line is None or instruction.end_line is None:
        return True
    begin = (instruction.line, instruction.column or 0)
    end = (instruction.end_line, instruction.end_column or 0)
    return (span[0], span[1]) <= begin and end <= (span[2], span[3])


def _first_executed(blocks: list[Block], index: int) -> Iterator[int]:
    """Offsets of which one is the first instruction that runs when control comes to block `index`.

    A branch may step over what stands at its target: an exhausted FOR_ITER over END_FOR and, on 3.13, the POP_TOP
    after it; and events leave out NOT_TAKEN.
    """
    instructions = [i for block in blocks[index : index + 3] for i in block.instructions]
    before = ""
    for instruction in instructions:
        yield instruction.offset
        if instruction.name not in ("END_FOR", "NOT_TAKEN") and (before, instruction.name) != ("END_FOR", "POP_TOP"):
            return
        before = instruction.name


def _following(blocks: list[Block], index: int, name: str) -> int:
    """The offset of the instruction after the first one called `name`, from block `index` on."""
    instructions = [i for block in blocks[index : index + 2] for i in block.instructions]
    for instruction, following in pairwise(instructions):
        if instruction.name == name:
            return following.offset
    return blocks[index].first.offset


type _LoopStatement = ast.For | ast.While | ast.AsyncFor


class _Statements:
    """The `for` and `while` statements of a source, found by the place of an instruction.

    Without a source every answer is None, and the loops are described from bytecode alone.
    """

    def __init__(self, tree: ast.AST | None, code: CodeType) -> None:
        self._whiles: dict[int, list[ast.While]] = {}
        self._fors: dict[int, list[ast.For | ast.AsyncFor]] = {}
        for loop in _loop_statements(tree) if tree is not None else ():
            if (loop.end_lineno or 0) < code.co_firstlineno:
                continue
            if isinstance(loop, ast.While):
                for line in _lines(loop.test):
                    self._whiles.setdefault(line, []).append(loop)
            else:
                for line in _lines(loop.target):
                    self._fors.setdefault(line, []).append(loop)

    def while_at(self, instruction: Instruction) -> ast.While | None:
        """The `while` whose test holds an instruction."""
        loops = self._whiles.get(instruction.line, ()) if instruction.line is not None else ()
        return next((loop for loop in loops if _within(instruction, _span(loop.test))), None)

    def for_at(self, start: Instruction) -> ast.For | ast.AsyncFor | None:
        """The `for` whose target holds an instruction (the first of the body, which stores the item)."""
        loops = self._fors.get(start.line, ()) if start.line is not None else ()
        return next((loop for loop in loops if _within(start, _span(loop.target))), None)


def _lines(node: ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _loop_statements(tree: ast.AST) -> Iterator[_LoopStatement]:
    pending = [tree]
    for node in pending:
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            yield node
        # A loop stands in a block of statements, and never within an expression.
        pending += [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
        ]


def _span(node: ast.expr | ast.stmt) -> tuple[int, int, int, int]:
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0
