"""For any program, the iterations of each loop that events tell of are those that the program counts itself."""

import ast
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from types import CodeType
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_programs import OutOfFuel, environment, sources

from tcmon.analysis.loops import Loop, LoopForest
from tcmon.analysis.roles import Role
from tcmon.monitoring.tool import Tool, events
from tcmon.steps.sampler import Interval
from tcmon.steps.tracker import RecordedStep, Tracker


class Sink:
    """Notes what the tracker tells, and fails on what must not happen."""

    def __init__(self) -> None:
        self.times: list[tuple[int, int, int, int]] = []
        self.open: RecordedStep | None = None
        self.on = False
        self.recorded: list[int] = []

    def step_times(self, loop: int, role: int, n: int, begin: int, body: int, end: int, phases: Sequence[int]) -> None:
        self.times.append((n, begin, body, end))

    def start(self, step: RecordedStep) -> None:
        assert not self.on
        self.on = True

    def pause(self, step: RecordedStep) -> None:
        assert self.on
        self.on = False

    def finish_recorded(self, step: RecordedStep) -> None:
        assert not self.on
        self.recorded.append(step.n)

    def discard(self, step: RecordedStep) -> None:
        assert not self.on

    def decided(self, role: Role, n: int, reason: str | None) -> None:
        raise AssertionError("not asked for")


def watched(code: CodeType, loop: Loop, interval: int, sink: Sink, run: Callable[[], None]) -> None:
    """Run `run` with `loop` of `code` watched as the training loop."""
    problems: list[Exception] = []
    tool, other = Tool("test"), Tool("other")
    # Another tool whose events come and go in the same code.
    other.on(events.PY_START, lambda *_: None)
    other.watch_everywhere(events.PY_START)
    samplers = {role: Interval(interval) for role in Role}
    try:
        tracker = Tracker(
            tool, other, samplers, sink, tells_decisions=False, found=lambda *_: 0, failed=problems.append
        )
        tool.watch_everywhere(events.PY_UNWIND)
        tracker.watch(code, [(1, loop, Role.TRAIN)])
        run()
    finally:
        tool.release()
        other.release()
    assert not problems, problems
    assert not sink.on


def counted_loops(source: str) -> Iterator[tuple[ast.For | ast.While, int, CodeType, Loop | None, dict[str, Any]]]:
    """Each loop of a program that counts itself: statement, number, code, the loop found, the program's names."""
    tree = ast.parse(source)
    namespace: dict[str, Any] = {}
    exec(compile(tree, "program.py", "exec"), namespace)
    code = namespace["f"].__code__
    forest = LoopForest(code, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While) and (hit := re.fullmatch(r"hit\((\d+)\)", ast.unparse(node.body[0]))):
            # A comprehension in the header is a loop of the same line, but has no line of the body.
            found = [loop for loop in forest.loops if loop.line == node.lineno and loop.lines[1] >= node.body[0].lineno]
            assert len(found) <= 1
            yield node, int(hit[1]), code, found[0] if found else None, namespace


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(sources(), st.integers(0, 1000))
def test_each_loops_steps_are_the_iterations_that_the_program_counts(source: str, seed: int) -> None:
    for _, number, code, loop, namespace in counted_loops(source):
        names, counts = environment(seed)
        namespace.update(names)
        sink = Sink()
        if loop is None:
            continue  # no way leads back: its body is left in every iteration
        watched(code, loop, 2, sink, partial(run, namespace["f"]))
        assert [n for n, *_ in sink.times] == list(range(1, counts[number] + 1))
        assert sink.recorded == [n for n, *_ in sink.times if n % 2 == 0]
        assert all(begin <= body <= end for _, begin, body, end in sink.times)
        assert all(earlier[3] <= later[1] for earlier, later in pairwise(sink.times))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(sources(), st.integers(0, 1000))
def test_recording_is_on_in_the_body_of_the_loop_and_nowhere_else(source: str, seed: int) -> None:
    for node, _, code, loop, namespace in counted_loops(source):
        if loop is None:
            continue
        names, _ = environment(seed)
        sink = Sink()
        look = partial(check_recording, node, sink)
        for name in ("t", "hit", "boom", "pick", "rarely", "items"):
            names[name] = partial(look, names[name])
        namespace.update(names)
        watched(code, loop, 1, sink, partial(run, namespace["f"]))


def check_recording(node: ast.For | ast.While, sink: Sink, answer: Callable[..., Any], *args: Any) -> Any:
    """Called in the place of a function of the program, `answer`."""
    line, last = sys._getframe(1).f_lineno, node.body[-1].end_lineno or 0
    if node.body[0].lineno <= line <= last:
        assert sink.on, f"off in line {line}, in the body of the loop of line {node.lineno}"
    elif line > last or line < node.lineno:
        assert not sink.on, f"on in line {line}, outside the loop of line {node.lineno}"
    return answer(*args)


def run(program: Callable[[], object]) -> None:
    """Run a program until it ends, runs out of fuel, or raises an exception of its own."""
    with contextlib.suppress(OutOfFuel, ValueError):
        program()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(sources())
def test_loops_nest_as_the_statements_do(source: str) -> None:
    tree = ast.parse(source)
    namespace: dict[str, Any] = {}
    exec(compile(tree, "program.py", "exec"), namespace)
    forest = LoopForest(namespace["f"].__code__, tree)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    extents = {node.lineno: (node.lineno, node.body[-1].end_lineno or 0) for node in statements}
    for index, loop in enumerate(forest.loops):
        if loop.parent is not None:
            parent = forest.loops[loop.parent]
            assert loop.body <= parent.body
            assert loop.parent < index
            if parent.line in extents and loop.line in extents and parent.line != loop.line:
                low, high = extents[parent.line]
                assert low < loop.line <= high
