"""All loops of one module, from its code alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

from tcmon.analysis.loops import LoopForest
from tcmon.analysis.roles import Analysis, Role, RoleFinder, is_too_long
from tcmon.analysis.scopes import Program

_GENERATED = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")


@dataclass(frozen=True, slots=True)
class ModuleLoop:
    """A `for` or `while` of a module: the role that it is proposed for and why, or no role and why not."""

    qualname: str
    line: int
    role: Role | None
    evidence: tuple[str, ...]


def module_loops(code: CodeType, tree: ast.AST) -> list[ModuleLoop]:
    """The loops of a module in the order of its lines; `code` and `tree` are both compiled from its source."""
    return sorted(_loops(code, tree), key=lambda loop: (loop.line, loop.qualname))


def too_long(code: CodeType) -> list[CodeType]:
    """The functions of a module that are too long to be analysed."""
    return [each for each in Program(code).codes if is_too_long(each)]


def _loops(code: CodeType, tree: ast.AST) -> Iterator[ModuleLoop]:
    program, analysis = Program(code), Analysis()
    statements = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.For | ast.While | ast.AsyncFor)}
    for each in program.codes:
        if is_too_long(each):
            continue
        scope = program.scope(each)
        graph = scope.reading.graph
        if not graph.has_cycle or not (forest := LoopForest(each, tree, graph)).loops:
            continue
        finder = RoleFinder(each, scope=scope, analysis=analysis, forest=forest)
        for proposal in finder.proposals:
            yield ModuleLoop(each.co_qualname, proposal.loop.line, proposal.role, proposal.evidence)
        for loop, why in finder.rejected:
            if loop.line in statements and each.co_name not in _GENERATED:
                yield ModuleLoop(each.co_qualname, loop.line, None, (why,))
