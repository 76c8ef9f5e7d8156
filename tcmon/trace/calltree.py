"""Calls of recorded steps, out of the events that a trace holds: as trees, and as sums by function.

A thread's events in one step make a stack: an event with a function pushes a call, any other event ends
the innermost one. An end without an open call belongs to a call that began before the recording, and is
passed over. A call that is still open at the end of the step is unfinished, and ends there; where calls
were dropped it ends with the last event that is known.

Recording pauses while another loop's steps run within the step (an evaluation, say). The pause is part of
the calls that it fell into but nobody's self time. The step's own thread is in the same calls when
recording goes on; of other threads nothing is known by then, so their calls end, unfinished, with the
last event before the pause.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tcmon.trace.details import Args, Module, Owners, StepDetail
from tcmon.trace.records import Calls, ExceptionType, Function, Step

RETURNED: Final = "returned"
YIELDED: Final = "yielded"
UNFINISHED: Final = "unfinished"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a Python function in a recorded step, or one stretch of a generator between two yields.

    `start_ns` and `end_ns` are clock values. `depth` is 0 where the loop's own frame made the call.
    `outcome` is "returned", "yielded", "unfinished" (still open when the step ended), or "raised" and
    the exception's name. `self_ns` is the time not spent in calls made by this one.
    `module` is the one whose `forward` it is. `arguments` and `returned` are as `Args` has them, where they were
    recorded.
    """

    function: Function
    start_ns: int
    end_ns: int
    depth: int
    thread: int
    outcome: str
    self_ns: int
    children: tuple["Call", ...] = field(repr=False)
    module: Module | None = None
    arguments: Mapping[str, object] | None = field(default=None, repr=False)
    returned: object = field(default=None, repr=False)

    @property
    def total_ns(self) -> int:
        """Time from start to end."""
        return self.end_ns - self.start_ns

    def walk(self) -> Iterator["Call"]:
        """This call and all below it, each before the calls that it made."""
        rest = [self]
        while rest:
            call = rest.pop()
            yield call
            rest.extend(reversed(call.children))


def call_trees(
    step: Step,
    rows: Iterable[Calls],
    functions: Mapping[int, Function],
    exceptions: Mapping[int, ExceptionType],
    details: Iterable[StepDetail] = (),
    modules: Mapping[int, Module] = MappingProxyType({}),
) -> tuple[Call, ...]:
    """The outermost calls of a recorded step, thread by thread, each with the calls below it.

    What else is known of calls is in `details` and `modules`. A function or an exception whose record was lost gets a
    name made of its id.
    """
    roots: list[Call] = []
    known = _facts(details, modules)
    for thread, thread_rows in _by_thread(rows).items():
        tree = _Tree(thread, functions, known.get(thread, {}))
        now = thread_rows[0].begin
        for row in thread_rows:
            if row.begin > now:
                tree.pause(row.begin - now) if thread == step.thread else tree.end_all(now)
                now = row.begin
            for what, passed in zip(row.what, row.at, strict=True):
                now += passed
                if what > 0:
                    tree.start(what, now)
                else:
                    tree.end(now, _outcome(what, exceptions))
        tree.end_all(_last(step, now))
        roots += tree.outermost
    return tuple(roots)


def lost_function(function: int) -> Function:
    """Stands for a function whose record is missing from the trace."""
    return Function(function, module=None, qualname=f"function {function}", file="", line=0)


@dataclass(slots=True)
class FunctionTime:
    """What a function's calls in recorded steps add up to.

    `calls` counts how often it was entered, a generator's resumptions included; `raised` how many of
    those ended by an exception. `self_ns` leaves out the calls that it made. `total_ns` includes them
    and counts a recursive call within its outermost one.
    """

    calls: int = 0
    raised: int = 0
    self_ns: int = 0
    total_ns: int = 0
    # For the stack being replayed: open calls of this function, and the clock when the outermost of them
    # began.
    open: int = 0
    since: int = 0


type FunctionTimes = dict[int, FunctionTime]
"""Sums over the calls of recorded steps, by the function's id."""


def add_calls(times: FunctionTimes, step: Step, rows: Iterable[Calls]) -> None:
    """Count the calls of a recorded step in."""
    for thread, thread_rows in _by_thread(rows).items():
        _replay(times, step, thread_rows, stays=thread == step.thread)


def _replay(times: FunctionTimes, step: Step, rows: Sequence[Calls], *, stays: bool) -> None:
    # A summary of a long trace spends most of its time here. Every stretch between two events belongs to the
    # innermost open call, so self time needs no look at children.
    nobody = inner = FunctionTime()  # stands below the outermost call: what it gathers is the loop's own
    stack: list[FunctionTime] = []
    push, pop = stack.append, stack.pop
    now = rows[0].begin
    for row in rows:
        if row.begin > now:
            if not stays:
                _end_all(inner, stack, now)
                inner = nobody
            now = row.begin
        for what, passed in zip(row.what, row.at, strict=True):
            now += passed
            inner.self_ns += passed
            if what > 0:
                push(inner)
                try:
                    inner = times[what]
                except KeyError:
                    inner = times[what] = FunctionTime()
                inner.calls += 1
                if not inner.open:
                    inner.since = now
                inner.open += 1
            elif stack:
                if what < -1:
                    inner.raised += 1
                inner.open -= 1
                if not inner.open:
                    inner.total_ns += now - inner.since
                inner = pop()
    last = _last(step, now)
    inner.self_ns += last - now
    _end_all(inner, stack, last)


def _end_all(inner: FunctionTime, stack: list[FunctionTime], now: int) -> None:
    while stack:
        inner.open -= 1
        if not inner.open:
            inner.total_ns += now - inner.since
        inner = stack.pop()


@dataclass(slots=True)
class _Facts:
    """What is known of a call beyond its times."""

    module: Module | None = None
    arguments: Mapping[str, object] | None = None
    returned: object = None


_NOTHING: Final = _Facts()


def _facts(details: Iterable[StepDetail], modules: Mapping[int, Module]) -> dict[int, dict[int, _Facts]]:
    """By thread and position."""
    found: dict[int, dict[int, _Facts]] = {}
    for detail in details:
        if isinstance(detail, Args):
            of_thread = found.setdefault(detail.thread, {})
            for at, arguments, returned in zip(detail.call, detail.arguments, detail.returned, strict=True):
                facts = of_thread.setdefault(at, _Facts())
                facts.arguments, facts.returned = arguments, returned
        elif isinstance(detail, Owners):
            of_thread = found.setdefault(detail.thread, {})
            for at, module in zip(detail.call, detail.module, strict=True):
                of_thread.setdefault(at, _Facts()).module = modules.get(module)
    return found


@dataclass(slots=True)
class _Open:
    """A call that has not ended yet."""

    function: int
    start: int
    facts: _Facts
    paused: int = 0
    made: list[Call] = field(default_factory=list)


class _Tree:
    """Builds the calls of one thread from their starts and ends."""

    def __init__(self, thread: int, functions: Mapping[int, Function], facts: Mapping[int, _Facts]) -> None:
        self.outermost: list[Call] = []
        self._facts = facts
        self._started = 0
        self._thread = thread
        self._functions = functions
        self._open: list[_Open] = []

    def start(self, function: int, now: int) -> None:
        self._open.append(_Open(function, now, self._facts.get(self._started, _NOTHING)))
        self._started += 1

    def pause(self, length: int) -> None:
        if self._open:
            self._open[-1].paused += length

    def end(self, now: int, outcome: str) -> None:
        if not self._open:
            return
        ended = self._open.pop()
        call = Call(
            function=self._functions.get(ended.function) or lost_function(ended.function),
            start_ns=ended.start,
            end_ns=now,
            depth=len(self._open),
            thread=self._thread,
            outcome=outcome,
            self_ns=now - ended.start - ended.paused - sum(each.total_ns for each in ended.made),
            children=tuple(ended.made),
            module=ended.facts.module,
            arguments=ended.facts.arguments,
            returned=ended.facts.returned,
        )
        (self._open[-1].made if self._open else self.outermost).append(call)

    def end_all(self, now: int) -> None:
        while self._open:
            self.end(now, UNFINISHED)


def _last(step: Step, now: int) -> int:
    """When calls that are open after the last event, at `now`, end."""
    return now if step.calls_dropped else max(now, step.begin + step.end)


def _by_thread(rows: Iterable[Calls]) -> Mapping[int, list[Calls]]:
    threads: dict[int, list[Calls]] = {}
    for row in rows:
        threads.setdefault(row.thread, []).append(row)
    return threads


def _outcome(what: int, exceptions: Mapping[int, ExceptionType]) -> str:
    if what == 0:
        return RETURNED
    if what == -1:
        return YIELDED
    exception = exceptions.get(-what - 1)
    return f"raised {exception.name if exception else f'exception {-what - 1}'}"
