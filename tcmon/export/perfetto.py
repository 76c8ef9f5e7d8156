"""A run as Chrome trace-event JSON, for ui.perfetto.dev and chrome://tracing.

Each process has a track of stages, tracks of steps (one for each loop, data wait within the step), one track for
each thread with the calls of recorded steps, tracks of operators where they were recorded, and counters of step times,
loss and norms. Times count from the start of the run.

What is kept while writing is the index of recorded steps and one step's calls, of each of the loops that are
within each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import chain, count
from math import isfinite
from pathlib import PurePath
from typing import BinaryIO, Final

from tcmon.errors import TcmonError
from tcmon.export.chrome import ChromeTrace, described, encoded, track_of
from tcmon.export.lanes import Lanes
from tcmon.export.selection import ALL_TIME, StepRange, Window, no_such_steps, window_of
from tcmon.export.training import figures_of
from tcmon.trace.calltree import RETURNED, Call
from tcmon.trace.described import short
from tcmon.trace.details import DeviceTime, Ops
from tcmon.trace.everystep import OUTSIDE, TimedStep, every_step
from tcmon.trace.index import TraceIndex
from tcmon.trace.reader import Process, RecordedStep, Run, reason_of
from tcmon.trace.records import Function, Loop, Step

# Slices overlap only in damaged traces and where threads run one loop; more lanes than that are no help.
_FURTHEST_APART: Final = 90 * 86_400 * 10**9
"""Nanoseconds (90 days) between the starts of two processes of one run; beyond 100 days doubles lose nanoseconds."""

_LANES: Final = 16

# Where tracks stand in a process.
_STAGE_ORDER: Final = 0
_STEP_ORDER: Final = 1
_THREAD_ORDER: Final = 1000
_OPS_ORDER: Final = 100_000

type Advance = Callable[[int], object]


@dataclass(slots=True)
class Exported:
    """What an export came to. `left_out` slices overlapped others in more lanes than are written."""

    events: int = 0
    steps: int = 0
    recorded: int = 0
    calls: int = 0
    damaged_calls: int = 0
    left_out: int = 0


def total_bytes(run: Run, steps: StepRange | None) -> int:
    """About what `export` tells its `advance` of in the end: it reads a trace several times."""
    passes = 3 if steps is None else 4
    return sum(passes * process.trace.stat().st_size for process in run.processes)


def export(
    run: Run, write: Callable[[bytes], object], *, steps: StepRange | None = None, advance: Advance = lambda _: None
) -> Exported:
    """Write `run` as one JSON object.

    With `steps`, only what lies in the time of these steps, whatever its role. Raises TcmonError when there are no
    such steps, or when the run can't be read.
    """
    windows = [ALL_TIME if steps is None else window_of(process, steps, advance) for process in run.processes]
    if steps is not None and not any(windows):
        raise no_such_steps(run.processes, steps)
    exported = Exported()
    trace = ChromeTrace(write)
    tids = count(1)
    for order, (process, window) in enumerate(zip(run.processes, windows, strict=True)):
        if window is not None:
            _ProcessExport(run, process, window, trace, tids, exported, advance).write(order)
    trace.close(
        {
            "command": " ".join(run.meta.command),
            "started": run.meta.started,
            "python": run.meta.python,
            "torch": run.meta.torch or "",
            "host": run.meta.host,
            "tcmon": run.meta.tcmon,
        }
    )
    exported.events = trace.events
    return exported


@dataclass(slots=True)
class _Track:
    """Slices of one kind, and the tracks that they are spread over."""

    name: str
    order: int
    lanes: Lanes = field(default_factory=lambda: Lanes(_LANES))
    shown: list[str] = field(default_factory=list)


class _ProcessExport:
    """Writes one process."""

    def __init__(
        self,
        run: Run,
        process: Process,
        window: Window,
        trace: ChromeTrace,
        tids: Iterator[int],
        exported: Exported,
        advance: Advance,
    ) -> None:
        self._run = run
        self._process = process
        self._window = window
        self._trace = trace
        self._tids = tids
        self._exported = exported
        self._advance = advance
        self._index = TraceIndex(process.trace, advance)
        start = self._index.start_unix_ns
        apart = 0 if start is None else start - run.meta.start_unix_ns
        # No two processes of a run begin further apart: one of the times is damaged, and viewers would round others.
        self._zero = apart if abs(apart) < _FURTHEST_APART else 0
        self._loops = {loop.id: loop for loop in run.meta.loops} | self._index.loops
        self._tracks: dict[tuple[str, int], _Track] = {}
        self._threads: dict[int, _Track] = {}
        self._functions: dict[int, str] = {}

    def write(self, order: int) -> None:
        rank = "" if self._process.rank is None else f"rank {self._process.rank}, "
        name = f"{PurePath(self._run.meta.script).name} ({rank}pid {self._process.pid})"
        self._trace.process(self._process.pid, name, order)
        self._write_steps()
        try:
            with self._process.trace.open("rb") as file:
                self._write_calls(file)
        except OSError as error:
            raise TcmonError(f"{str(self._process.trace)!r} can't be read: {reason_of(error)}") from None
        self._exported.damaged_calls += self._index.damaged_calls

    def _write_steps(self) -> None:
        stages = _Stages(self._write_stage)
        for each in every_step(self._process, self._advance):
            times = each.times
            end = times.begin + times.end
            if self._window.holds(times.begin, end):
                if times.role != OUTSIDE:
                    self._write_step(each)
                stages.add(each.stage, times.begin, end)
        stages.close()

    def _write_step(self, each: TimedStep) -> None:
        times = each.times
        begin, end = times.begin, times.begin + times.end
        track = self._tracks.get((times.role, times.loop)) or self._step_track(times.role, times.loop)
        lane = track.lanes.place(begin, end)
        if lane is None:
            self._exported.left_out += 1
            return
        where = self._lane_of(track, lane)
        args = f'"step":{times.n}'
        if each.recorded is not None:
            args += f',"recorded":{encoded(each.recorded.reason)},"stage":{encoded(each.recorded.stage)}'
        self._slice(where, begin, end, described(f"{times.role} {times.n}", "step", args))
        if times.wait:
            self._slice(where, begin, begin + times.wait, described("data wait", "wait"))
        if lane == 0:
            counter = encoded(f"{track.name}: time")
            self._trace.counter(self._process.pid, counter, self._zero + begin, f'"ms":{times.end / 1e6:.6f}')
        self._exported.steps += 1

    def _write_stage(self, stage: str, begin: int, end: int) -> None:
        track = self._tracks.setdefault(("stages", 0), _Track("stages", _STAGE_ORDER))
        lane = track.lanes.place(begin, end)
        if lane is not None:
            self._slice(self._lane_of(track, lane), begin, end, described(stage, "stage"))

    def _write_calls(self, file: BinaryIO) -> None:
        places = self._index.in_time(self._window.begin, self._window.end)
        # Steps lie within each other (an evaluation in a training step): their calls are merged by time.
        active: list[tuple[int, int, int, Call, Iterator[Call]]] = []
        turns = count()
        for place in [*places, None]:
            until = None if place is None else self._index.begin(place)
            while active and (until is None or active[0][0] < until):
                *_, call, calls = active[0]
                self._write_call(call)
                if len(active) == 1:  # as nearly always: nothing to compare with
                    for call in calls:
                        if until is not None and call.start_ns >= until:
                            active[0] = call.start_ns, -call.end_ns, next(turns), call, calls
                            break
                        self._write_call(call)
                    else:
                        active.clear()
                elif (following := next(calls, None)) is None:
                    heappop(active)
                else:
                    heapreplace(active, (following.start_ns, -following.end_ns, next(turns), following, calls))
            if place is not None:
                for calls in self._load(file, place):
                    first = next(calls)
                    heappush(active, (first.start_ns, -first.end_ns, next(turns), first, calls))

    def _load(self, file: BinaryIO, place: int) -> list[Iterator[Call]]:
        """The calls of a step: for each thread those in the order of time."""
        recorded = self._index.load(file, place)
        self._advance(self._index.size(place))
        self._exported.recorded += recorded.step.role != OUTSIDE
        if recorded.details:
            self._write_training(recorded)
            self._write_ops(recorded)
        threads: dict[int, list[Call]] = {}
        for root in recorded.calls:
            threads.setdefault(root.thread, []).append(root)
        for thread in threads:
            self._add_thread(thread, recorded)
        return [chain.from_iterable(root.walk() for root in roots) for roots in threads.values()]

    def _write_training(self, recorded: RecordedStep) -> None:
        """Counters of what the step came to, as it ended."""
        step = recorded.step
        figures = figures_of(recorded.details)
        values = {
            "loss": figures.loss,
            "gradient norm": figures.grad_norm,
            "parameter norm": figures.norm,
            "update ratio": figures.update,
        }
        for name, value in values.items():
            # The format has no number for what is not finite.
            if value is not None and isfinite(value):
                at = self._zero + step.begin + step.end
                self._trace.counter(self._process.pid, encoded(f"{step.role}: {name}"), at, f'"value":{value!r}')
        for row in recorded.details:
            if isinstance(row, DeviceTime):
                name = encoded(f"{row.device}: busy per step")
                self._trace.counter(self._process.pid, name, self._zero + step.begin, f'"ms":{row.ns / 1e6:.6f}')

    def _write_ops(self, recorded: RecordedStep) -> None:
        """Operators and kernels, on a track for each device and thread (or stream) of it."""
        for row in recorded.details:
            if isinstance(row, Ops):
                columns = zip(row.begin, row.ns, row.name, row.device, row.thread, row.bytes, strict=True)
                for begin, took, name, device, thread, size in sorted(columns, key=lambda op: (op[0], -op[1])):
                    key = f"ops on {device}", thread
                    track = self._tracks.get(key)
                    if track is None:
                        number = sum(each == key[0] for each, _ in self._tracks) + 1
                        shown = f"{key[0]}, thread {number}" if device == "cpu" else f"{key[0]}, stream {thread}"
                        track = self._tracks[key] = _Track(shown, _OPS_ORDER + _LANES * len(self._tracks))
                    lane = track.lanes.place(begin, begin + took)
                    if lane is None:
                        self._exported.left_out += 1
                        continue
                    what = described(name, "op", f'"bytes":{size}' if size else "")
                    self._slice(self._lane_of(track, lane), begin, begin + took, what)

    def _write_call(self, call: Call) -> None:
        track = self._threads[call.thread]
        begin, end, own = call.start_ns, call.end_ns, call.self_ns
        lane = track.lanes.place(begin, end)
        if lane is None:
            self._exported.left_out += 1
            return
        what = self._functions.get(call.function.id)
        if what is None:
            what = self._functions[call.function.id] = _described(call.function)
        outcome = "" if call.outcome == RETURNED else f',"outcome":{encoded(call.outcome)}'
        where = track.shown[lane] if lane < len(track.shown) else self._lane_of(track, lane)
        facts = "" if call.module is None and call.arguments is None else _facts(call)
        args = f'"self_us":{own // 1000}.{own % 1000:03d}{outcome}{facts}}}'
        self._trace.slice(where, self._zero + begin, self._zero + end, f"{what},{args}")
        self._exported.calls += 1

    def _slice(self, where: str, begin: int, end: int, what: str) -> None:
        self._trace.slice(where, self._zero + begin, self._zero + end, what)

    def _step_track(self, role: str, loop: int) -> _Track:
        others = sum(1 for kind, _ in self._tracks if kind == role)
        known = self._loops.get(loop)
        name = f"{role} steps" if not others or known is None else f"{role} steps, {_place(known)}"
        track = self._tracks[role, loop] = _Track(name, _STEP_ORDER + _LANES * len(self._tracks))
        return track

    def _add_thread(self, thread: int, recorded: RecordedStep) -> None:
        if thread not in self._threads:
            number = len(self._threads) + 1
            where = _where(recorded.step, thread)
            self._threads[thread] = _Track(f"calls of thread {number} ({where})", _THREAD_ORDER + _LANES * number)

    def _lane_of(self, track: _Track, lane: int) -> str:
        while len(track.shown) <= lane:
            number = len(track.shown)
            tid = next(self._tids)
            name = track.name if number == 0 else f"{track.name} [{number + 1}]"
            self._trace.thread(self._process.pid, tid, name, track.order + number)
            track.shown.append(track_of(self._process.pid, tid))
        return track.shown[lane]


class _Stages:
    """Makes one slice of the steps of one stage that follow each other.

    A stage within a step of another, as an evaluation is, ends the other's slice until it is over.
    """

    def __init__(self, write: Callable[[str, int, int], object]) -> None:
        self._write = write
        self._before: tuple[str, int, int] | None = None
        self._now: tuple[str, int, int] | None = None

    def add(self, stage: str, begin: int, end: int) -> None:
        """A step, in the order in which steps end."""
        if self._now is None:
            self._now = stage, begin, end
        elif end < self._now[2]:
            pass  # out of order: left over from a damaged trace, and within what is known already
        elif self._now[0] == stage:
            self._now = stage, min(begin, self._now[1]), max(end, self._now[2])
        else:
            inner, inner_begin, inner_end = self._now
            if begin < inner_begin:  # the step that this stage was within
                if self._before is not None and self._before[0] == stage:
                    self._before = stage, self._before[1], inner_begin
                else:
                    self._flush()
                    self._before = stage, begin, inner_begin
            self._flush()
            self._before = inner, inner_begin, inner_end
            self._now = stage, max(begin, inner_end), end

    def close(self) -> None:
        """There are no more steps."""
        self._flush()
        self._before, self._now = self._now, None
        self._flush()

    def _flush(self) -> None:
        if self._before is not None:
            self._write(*self._before)
            self._before = None


def _where(step: Step, thread: int) -> str:
    if thread != step.thread:
        return "beside the steps"
    return "outside of steps" if step.role == OUTSIDE else f"{step.role} steps"


def _described(function: Function) -> str:
    """Name and place of a function as JSON; the arguments stay open for those of a call."""
    where = ("file", function.file) if function.module is None else ("module", function.module)
    args = f'"{where[0]}":{encoded(where[1])},"line":{function.line}'
    return described(function.qualname, "call", args).removesuffix("}")


def _facts(call: Call) -> str:
    """What is known of a call beyond its times, as JSON of further arguments."""
    facts = ""
    if call.module is not None:
        facts = f',"owner":{encoded(call.module.name)},"class":{encoded(call.module.class_name)}'
    if call.arguments is not None:
        given = ",".join(f"{encoded(name)}:{encoded(short(value))}" for name, value in call.arguments.items())
        facts += f',"arguments":{{{given}}},"returned":{encoded(short(call.returned))}'
    return facts


def _place(loop: Loop) -> str:
    return f"{PurePath(loop.file).name}:{loop.line}"
