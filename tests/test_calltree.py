"""Calls of recorded steps: from a thread's events to trees and to sums by function."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from trace_builder import PID, Node, calls, exception, function, header, step, write_run

from tcmon.trace.calltree import Call, FunctionTime, FunctionTimes, add_calls, call_trees
from tcmon.trace.reader import Process
from tcmon.trace.records import Calls, ExceptionType, Function, Step

EXCEPTIONS = {1: ExceptionType(1, "ValueError"), 2: ExceptionType(2, "KeyError")}
OUTCOMES = {0: "returned", -1: "yielded", -2: "raised ValueError", -3: "raised KeyError"}


def named(id: int, name: str = "") -> Function:
    return Function(id, "m", name or f"f{id}", "m.py", id)


FUNCTIONS = {id: named(id) for id in range(1, 6)}


def recorded(begin: int, end: int, thread: int = 1) -> Step:
    return Step("train", 1, 1, "interval", "training", begin, 0, end, thread, 0, 0)


def row(begin: int, events: Sequence[tuple[int, int]], thread: int = 1) -> Calls:
    return Calls("train", 1, 1, thread, begin, [what for what, _ in events], [at for _, at in events])


def trees(events: Sequence[tuple[int, int]], end: int) -> tuple[Call, ...]:
    return call_trees(recorded(0, end), [row(0, events)], FUNCTIONS, EXCEPTIONS)


def nodes() -> st.SearchStrategy[Node]:
    def node(callees: st.SearchStrategy[list[Node]]) -> st.SearchStrategy[Node]:
        pauses = st.lists(st.integers(0, 1000), min_size=5, max_size=5)
        return st.builds(Node, st.integers(1, 5), st.sampled_from(sorted(OUTCOMES)), pauses, callees)

    return st.recursive(node(st.just([])), lambda inner: node(st.lists(inner, max_size=4)), max_leaves=25)


def shape(call: Call) -> tuple[object, ...]:
    outcome = next(what for what, text in OUTCOMES.items() if text == call.outcome)
    return call.function.id, outcome, call.self_ns, tuple(shape(child) for child in call.children)


@given(st.lists(nodes(), max_size=4), st.integers(0, 10**9), st.data())
def test_a_program_of_nested_calls_comes_back_as_it_was(program: list[Node], begin: int, data: st.DataObject) -> None:
    events = [event for node in program for event in node.events(3)]
    # The writer may cut the events into rows anywhere; the stack carries over.
    cut = data.draw(st.integers(0, len(events)))
    middle = begin + sum(at for _, at in events[:cut])
    rows = [row(begin, events[:cut]), row(middle, events[cut:])]
    length = sum(at for _, at in events) + 1
    outermost = call_trees(recorded(begin, length), rows, FUNCTIONS, EXCEPTIONS)

    assert [shape(call) for call in outermost] == [node.shape() for node in program]
    assert [call.total_ns for call in outermost] == [node.total() for node in program]
    for call in (each for root in outermost for each in root.walk()):
        assert call.self_ns + sum(child.total_ns for child in call.children) == call.total_ns
        assert all(child.depth == call.depth + 1 for child in call.children)
        assert all(call.start_ns <= child.start_ns <= child.end_ns <= call.end_ns for child in call.children)

    times: FunctionTimes = {}
    add_calls(times, recorded(begin, length), rows)
    assert sums(times) == summed(outermost)
    assert sum(time.self_ns for time in times.values()) == sum(node.total() for node in program)


def sums(times: FunctionTimes) -> dict[int, tuple[int, int, int, int]]:
    return {id: (time.calls, time.raised, time.self_ns, time.total_ns) for id, time in times.items()}


def summed(outermost: Iterable[Call]) -> dict[int, tuple[int, int, int, int]]:
    """The same sums, taken the slow way from the tree."""
    found: dict[int, FunctionTime] = {}

    def visit(call: Call, above: frozenset[int]) -> None:
        time = found.setdefault(call.function.id, FunctionTime())
        time.calls += 1
        time.raised += call.outcome.startswith("raised")
        time.self_ns += call.self_ns
        time.total_ns += call.total_ns if call.function.id not in above else 0
        for child in call.children:
            visit(child, above | {call.function.id})

    for call in outermost:
        visit(call, frozenset())
    return sums(found)


def test_a_recursive_call_counts_once_in_the_total() -> None:
    times: FunctionTimes = {}
    add_calls(times, recorded(0, 100), [row(0, [(1, 0), (2, 10), (1, 10), (0, 10), (0, 10), (0, 10)])])
    assert (times[1].calls, times[1].total_ns, times[1].self_ns) == (2, 50, 30)
    assert (times[2].total_ns, times[2].self_ns) == (30, 20)


def test_an_end_without_an_open_call_is_passed_over() -> None:
    (call,) = trees([(0, 5), (-2, 5), (1, 5), (0, 5), (0, 5)], end=30)
    assert (call.start_ns, call.end_ns, call.depth, call.outcome) == (15, 20, 0, "returned")


def test_a_call_still_open_at_the_end_of_the_step_is_unfinished() -> None:
    (outer,) = trees([(1, 5), (2, 5)], end=30)
    (inner,) = outer.children
    assert (outer.outcome, outer.end_ns, outer.self_ns) == ("unfinished", 30, 5)
    assert (inner.outcome, inner.end_ns, inner.self_ns) == ("unfinished", 30, 20)


def test_threads_have_stacks_of_their_own() -> None:
    rows = [row(0, [(1, 1)]), row(0, [(2, 2)], thread=2), row(1, [(0, 9)]), row(2, [(0, 10)], thread=2)]
    found = call_trees(recorded(0, 30), rows, FUNCTIONS, EXCEPTIONS)
    assert [(call.function.id, call.thread, call.depth, call.total_ns) for call in found] == [
        (1, 1, 0, 9),
        (2, 2, 0, 10),
    ]
    times: FunctionTimes = {}
    add_calls(times, recorded(0, 30), rows)
    assert sums(times) == summed(found)


def test_the_same_function_in_two_threads_adds_up() -> None:
    rows = [row(0, [(1, 0), (0, 10)]), row(0, [(1, 0), (0, 10)], thread=2)]
    times: FunctionTimes = {}
    add_calls(times, recorded(0, 30), rows)
    assert (times[1].calls, times[1].total_ns) == (2, 20)


def test_a_pause_of_the_recording_is_nobodys_self_time() -> None:
    # evaluate() runs a loop of its own from 20 to 1000, whose steps are recorded apart or not at all.
    rows = [row(0, [(1, 10), (2, 5), (0, 5)]), row(1000, [(3, 5), (0, 5), (0, 5)])]
    (call,) = call_trees(recorded(0, 2000), rows, FUNCTIONS, EXCEPTIONS)
    assert (call.total_ns, call.self_ns, call.outcome) == (1005, 15, "returned")
    assert [child.total_ns for child in call.children] == [5, 5]
    times: FunctionTimes = {}
    add_calls(times, recorded(0, 2000), rows)
    assert sums(times) == summed([call])


def test_after_a_pause_nothing_is_known_of_other_threads() -> None:
    rows = [row(0, [(1, 10)], thread=2), row(1000, [(0, 5), (2, 5), (0, 5)], thread=2)]
    before, after = call_trees(recorded(0, 2000), rows, FUNCTIONS, EXCEPTIONS)
    assert (before.function.id, before.outcome, before.total_ns) == (1, "unfinished", 0)
    assert (after.function.id, after.depth, after.total_ns) == (2, 0, 5)
    times: FunctionTimes = {}
    add_calls(times, recorded(0, 2000), rows)
    assert sums(times) == summed([before, after])


def test_where_calls_were_dropped_no_time_is_claimed_after_the_last_event() -> None:
    step = replace(recorded(0, 1000), calls_dropped=3)
    (call,) = call_trees(step, [row(0, [(1, 10), (2, 10)])], FUNCTIONS, EXCEPTIONS)
    assert (call.outcome, call.total_ns, call.self_ns) == ("unfinished", 10, 10)
    times: FunctionTimes = {}
    add_calls(times, step, [row(0, [(1, 10), (2, 10)])])
    assert sums(times) == summed([call])


def test_rows_that_overlap_never_make_time_go_back() -> None:
    rows = [row(100, [(1, 0), (2, 50)]), row(0, [(0, 10), (0, 10)])]
    (call,) = call_trees(recorded(100, 10), rows, FUNCTIONS, EXCEPTIONS)
    assert (call.start_ns, call.end_ns) == (100, 170)
    times: FunctionTimes = {}
    add_calls(times, recorded(100, 10), rows)
    assert sums(times) == summed([call])


def test_functions_and_exceptions_without_a_record_are_named_by_their_id() -> None:
    (call,) = trees([(9, 1), (-9, 1)], end=5)
    assert (call.function.qualname, call.outcome) == ("function 9", "raised exception 8")


def test_calls_deeper_than_pythons_own_stack_are_read() -> None:
    depth = 20_000
    (call,) = trees([(1, 1)] * depth + [(0, 1)] * depth, end=3 * depth)
    assert Counter(each.function.id for each in call.walk()) == {1: depth}
    assert "children" not in repr(call)


def test_a_recorded_step_comes_with_the_calls_of_its_own_role_and_number(tmp_path: Path) -> None:
    records = [
        header(),
        function(1, "evaluate"),
        function(2, "Net.forward"),
        calls(3, 0, [(1, 5)]),
        calls(1, 10, [(2, 5), (0, 5)], role="eval"),
        exception(1, "ValueError"),
        step(1, 10, 20, role="eval", loop=2),
        calls(3, 40, [(-2, 10)]),
        step(3, 0, 60),
        calls(4, 60, [(2, 1)]),
    ]
    process = Process(write_run(tmp_path, records) / f"trace-{PID}.jsonl", PID)
    inner, outer = process.recorded_steps()
    assert (inner.step.role, [call.function.qualname for call in inner.calls]) == ("eval", ["Net.forward"])
    assert [(call.function.qualname, call.outcome, call.total_ns) for call in outer.calls] == [
        ("evaluate", "raised ValueError", 45)
    ]
