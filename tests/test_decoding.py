"""The flow graph's own decoding agrees with that of the `bytecode` library."""

import argparse
import ast
import asyncio.base_events
import dataclasses
import inspect
import logging.config
import tarfile
import typing
from collections.abc import Iterator
from types import CodeType, ModuleType

import pytest
from bytecode import UNSET, ConcreteBytecode, ConcreteInstr

from tcmon.analysis.flowgraph import FlowGraph

MODULES = [argparse, ast, asyncio.base_events, dataclasses, inspect, logging.config, tarfile, typing]


def codes(module: ModuleType) -> Iterator[CodeType]:
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    pending = [module.__spec__.loader.get_code(module.__name__)]  # type: ignore[attr-defined]
    while pending:
        code = pending.pop()
        yield code
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_instructions_jumps_and_places_are_those_that_bytecode_reads(module: ModuleType) -> None:
    for code in codes(module):
        expected, unit = [], 0
        for instr in ConcreteBytecode.from_code(code):
            assert isinstance(instr, ConcreteInstr)
            size = instr.size // 2
            if instr.name not in ("CACHE", "EXTENDED_ARG"):
                target = instr.get_jump_target(unit) if instr.has_jump() else None
                place = instr.location
                expected.append(
                    (
                        2 * (unit + size - 1),
                        instr.name,
                        0 if instr.arg is UNSET else instr.arg,
                        place.lineno if place else None,
                        None if target is None else 2 * target,
                        not (instr.is_uncond_jump() or instr.is_final()),
                    )
                )
            unit += size
        found = [
            (each.offset, each.name, each.arg, each.line, each.target, each.falls_through)
            for block in FlowGraph(code).blocks
            for each in block.instructions
        ]
        assert found == expected, code.co_qualname
