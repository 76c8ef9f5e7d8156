"""Dominators of a flow graph.

A block `d` dominates a block `b` when every path from the entry to `b` goes through `d`. Computed by the iterative
algorithm of Cooper, Harvey and Kennedy ("A Simple, Fast Dominance Algorithm", 2001).
"""

from __future__ import annotations

from tcmon.analysis.flowgraph import FlowGraph


class Dominators:
    """The dominator tree over the reachable blocks of `graph`, normal and exception edges alike."""

    def __init__(self, graph: FlowGraph) -> None:
        order = _postorder(graph)
        position = {block: index for index, block in enumerate(order)}
        immediate: dict[int, int] = {0: 0}
        changed = True
        while changed:
            changed = False
            for block in reversed(order):
                if block == 0:
                    continue
                candidate: int | None = None
                for predecessor in graph.blocks[block].predecessors:
                    if predecessor in immediate:
                        if candidate is None:
                            candidate = predecessor
                        else:
                            candidate = _meet(predecessor, candidate, immediate, position)
                if candidate is not None and immediate.get(block) != candidate:
                    immediate[block] = candidate
                    changed = True
        self.immediate = immediate
        self.children: dict[int, list[int]] = {}
        """The blocks right below a block in the dominator tree."""
        for block, parent in immediate.items():
            if block != parent:
                self.children.setdefault(parent, []).append(block)
        self._first, self._last = _intervals(self.children)

    def dominates(self, dominator: int, block: int) -> bool:
        """Whether every path from the entry to `block` goes through `dominator` (a block dominates itself)."""
        if block not in self._first or dominator not in self._first:
            return block == dominator
        return self._first[dominator] <= self._first[block] <= self._last[dominator]


def _intervals(children: dict[int, list[int]]) -> tuple[dict[int, int], dict[int, int]]:
    """A number for each block of the dominator tree, in preorder, and the last number below it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    pending = [0]
    while pending:
        block = pending.pop()
        if block < 0:  # all below it have their numbers
            last[~block] = len(first) - 1
        else:
            first[block] = len(first)
            pending.append(~block)
            pending += children.get(block, ())
    return first, last


def _postorder(graph: FlowGraph) -> list[int]:
    order: list[int] = []
    seen = {0}
    stack = [(0, iter((*graph.blocks[0].successors, *graph.blocks[0].handlers)))]
    while stack:
        block, edges = stack[-1]
        for successor in edges:
            if successor not in seen:
                seen.add(successor)
                following = graph.blocks[successor]
                stack.append((successor, iter((*following.successors, *following.handlers))))
                break
        else:
            order.append(block)
            stack.pop()
    return order


def _meet(left: int, right: int, immediate: dict[int, int], position: dict[int, int]) -> int:
    while left != right:
        while position[left] < position[right]:
            left = immediate[left]
        while position[right] < position[left]:
            right = immediate[right]
    return left
