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

    def dominates(self, dominator: int, block: int) -> bool:
        """Whether every path from the entry to `block` goes through `dominator` (a block dominates itself)."""
        immediate = self.immediate
        while block != dominator:
            if block == 0 or block not in immediate:
                return False
            block = immediate[block]
        return True


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
