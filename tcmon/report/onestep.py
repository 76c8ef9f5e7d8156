"""One recorded step: found by its number, and its calls as a tree in which repeats are one line."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from tcmon.errors import TcmonError
from tcmon.trace.calltree import Call
from tcmon.trace.described import signature
from tcmon.trace.details import Module, Ops
from tcmon.trace.index import TraceIndex
from tcmon.trace.reader import RecordedStep, Run, reason_of
from tcmon.trace.records import Function, Loop

# How many calls in a row are looked at for being repeated as a whole: a, b, c, a, b, c, ...
_PERIOD: Final = 6


@dataclass(frozen=True, slots=True)
class OneStep:
    """A recorded step of a run's first process; `loop` is None where its record was lost."""

    recorded: RecordedStep
    loop: Loop | None


def one_step(run: Run, role: str, n: int) -> OneStep:
    """Step `n` of a role. Raises TcmonError that names the nearest recorded steps when it was not recorded."""
    if not run.processes:
        raise TcmonError(f"{str(run.path)!r} holds no trace, so no step was recorded")
    trace = run.processes[0].trace
    index = TraceIndex(trace)
    place = index.find(role, n)
    if place is None:
        raise TcmonError(_not_recorded(index, role, n))
    try:
        with trace.open("rb") as file:
            recorded = index.load(file, place)
    except OSError as error:
        raise TcmonError(f"{str(trace)!r} can't be read: {reason_of(error)}") from None
    loops = {loop.id: loop for loop in run.meta.loops} | index.loops
    return OneStep(recorded, loops.get(recorded.step.loop))


def _not_recorded(index: TraceIndex, role: str, n: int) -> str:
    numbers = index.numbers(role)
    if not numbers:
        return f"no {role} step was recorded"
    nearest = [*[each for each in numbers if each < n][-1:], *[each for each in numbers if each > n][:1]]
    which = f"is {nearest[0]}" if len(nearest) == 1 else f"are {nearest[0]} and {nearest[1]}"
    return f"{role} step {n} was not recorded; the nearest recorded {which}"


@dataclass(slots=True)
class Operator:
    """What the calls of one operator or kernel on one device add up to; an operator's time holds those it calls."""

    name: str
    device: str
    calls: int = 0
    ns: int = 0


def operators(recorded: RecordedStep, most: int) -> tuple[list[Operator], int]:
    """The operators of a step with the most time, and how many others there are."""
    found: dict[tuple[str, str], Operator] = {}
    for ops in recorded.details:
        if isinstance(ops, Ops):
            for name, device, ns in zip(ops.name, ops.device, ops.ns, strict=True):
                if name != "[memory]":
                    operator = found.setdefault((name, device), Operator(name, device))
                    operator.calls += 1
                    operator.ns += ns
    order = sorted(found.values(), key=lambda each: (-each.ns, each.name))
    return order[:most], len(order) - len(order[:most])


@dataclass(slots=True, eq=False)
class Line:
    """Calls of one function that one place made, repeats of each other: a line of the tree.

    `start_ns` is the clock value at which the first of them began; `total_ns` and `self_ns` are sums.
    `hidden_calls` calls below it, `hidden_ns` of time in all, are left out of `below`.
    """

    function: Function
    depth: int
    calls: int
    start_ns: int
    total_ns: int
    self_ns: int
    outcomes: Counter[str]
    below: list["Line"] = field(default_factory=list)
    hidden_calls: int = 0
    hidden_ns: int = 0
    module: Module | None = None
    """Whose `forward` all of them are."""
    signature: str = ""
    """What all of them were given and returned."""


@dataclass(slots=True)
class Thread:
    """The calls of one thread in a step, in at most so many lines as were asked for."""

    thread: int
    calls: int
    total_ns: int
    lines: list[Line]
    hidden_calls: int
    hidden_ns: int

    def walk(self) -> Iterator[Line]:
        """Every line, each before those below it."""
        return _walk(self.lines)


def trees(calls: Iterable[Call], most: int) -> list[Thread]:
    """The calls of a step by thread, those with the most time in `most` lines all in all.

    Successive calls of one function are one line, and so are those of a sequence of functions that repeats; below
    such a line all calls of one function are one. A line is shown only below one that is shown.
    """
    roots: dict[int, list[Call]] = {}
    for call in calls:
        roots.setdefault(call.thread, []).append(call)
    forest = {thread: _lines(of_thread) for thread, of_thread in roots.items()}
    everything = [line for lines in forest.values() for line in _walk(lines)]
    # A line takes no less time than one below it and comes before it, so what is shown hangs together.
    order = nlargest(most, range(len(everything)), key=lambda at: (everything[at].total_ns, -at))
    shown = {id(everything[at]) for at in order}
    for line in everything:
        line.below, line.hidden_calls, line.hidden_ns = _pruned(line.below, shown)
    threads = []
    for thread, lines in forest.items():
        kept, hidden_calls, hidden_ns = _pruned(lines, shown)
        count = sum(1 for root in roots[thread] for _ in root.walk())
        threads.append(Thread(thread, count, sum(line.total_ns for line in lines), kept, hidden_calls, hidden_ns))
    return threads


def _pruned(lines: list[Line], shown: set[int]) -> tuple[list[Line], int, int]:
    kept = [line for line in lines if id(line) in shown]
    hidden = [line for line in lines if id(line) not in shown]
    return kept, sum(line.calls for line in hidden), sum(line.total_ns for line in hidden)


def _walk(lines: Sequence[Line]) -> Iterator[Line]:
    rest = [*reversed(lines)]
    while rest:
        line = rest.pop()
        yield line
        rest.extend(reversed(line.below))


def _lines(calls: Sequence[Call]) -> list[Line]:
    top: list[Line] = []
    # Not recursive: calls may nest deeper than Python's stack allows here.
    rest: list[tuple[Iterable[list[Call]], int, list[Line]]] = [(_repeats(calls), 0, top)]
    while rest:
        groups, depth, into = rest.pop()
        for group in groups:
            first = group[0]
            line = Line(
                function=first.function,
                depth=depth,
                calls=len(group),
                start_ns=first.start_ns,
                total_ns=sum(call.total_ns for call in group),
                self_ns=sum(call.self_ns for call in group),
                outcomes=Counter(call.outcome for call in group),
                module=first.module if all(call.module is first.module for call in group) else None,
                signature=_signature(group),
            )
            into.append(line)
            if len(group) == 1:
                rest.append((_repeats(first.children), depth + 1, line.below))
            else:
                rest.append((_by_function(child for call in group for child in call.children), depth + 1, line.below))
    return top


def _signature(group: Sequence[Call]) -> str:
    first = group[0]
    if first.arguments is None:
        return ""
    alike = all(call.arguments == first.arguments and call.returned == first.returned for call in group)
    return signature(first.arguments, first.returned) if alike else ""


def _by_function(calls: Iterable[Call]) -> Iterable[list[Call]]:
    groups: dict[int, list[Call]] = {}
    for call in calls:
        groups.setdefault(call.function.id, []).append(call)
    return groups.values()


def _repeats(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Successive calls, those in one group that repeat each other."""
    ids = [call.function.id for call in calls]
    at = 0
    while at < len(ids):
        period, times = 1, 1
        for length in range(1, _PERIOD + 1):
            again = _times(ids, at, length)
            if again > 1 and again * length > period * times:
                period, times = length, again
        for offset in range(period):
            yield [calls[at + offset + turn * period] for turn in range(times)]
        at += period * times


def _times(ids: Sequence[int], at: int, length: int) -> int:
    """How often the `length` ids from `at` on stand there one after another."""
    times = 1
    while ids[at : at + length] == ids[at + times * length : at + (times + 1) * length]:
        times += 1
    return times
