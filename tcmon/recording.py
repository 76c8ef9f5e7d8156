"""What a session writes of steps: the tracker's sink, with the recorders of recorded steps.

Called inside monitoring callbacks: nothing that runs here is monitored.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon.analysis.roles import Role
from tcmon.capture.calls import CallRecorder, Returned, Yielded
from tcmon.capture.kinds import recorders
from tcmon.capture.landmarks import Landmarks
from tcmon.capture.lines import LineRecorder
from tcmon.capture.modulefilter import ModuleFilter
from tcmon.capture.ops import OpsRecorder
from tcmon.capture.owners import ModuleTable
from tcmon.capture.owntime import OwnTime
from tcmon.capture.recorder import Equipment, Recorder
from tcmon.log import log as _log
from tcmon.log import warn
from tcmon.monitoring.tool import Tool
from tcmon.steps.tracker import RecordedStep
from tcmon.steps.triggers import WORDS
from tcmon.trace.flight import Flight
from tcmon.trace.journal import ROLES, Columns, StepJournal, StoreStep, no_rows
from tcmon.trace.names import NameTable
from tcmon.trace.records import FORMAT
from tcmon.trace.writer import TraceWriter, lines, steps_records


class Recording:
    """The trace of this process: every step's times, and all that the recorders keep of recorded steps.

    Its files are `trace`, and the journal beside it. `process` holds what the first record says of the process, and
    `overhead` is asked for what monitoring has cost so far. `asked` is called with the number of steps that another
    process wants to be recorded. Raises `OSError` if the files can't be made.
    """

    def __init__(
        self,
        trace: Path,
        origin: int,
        process: dict[str, Any],
        overhead: Callable[[], dict[str, Any]],
        asked: Callable[[int], None],
    ) -> None:
        self._pid = os.getpid()
        self._origin = origin
        self._overhead_of_steps = overhead
        self._flushing = threading.RLock()
        self._receipt: object = None
        self._recorders: list[Recorder] = []
        self.own_time = OwnTime()
        self._flight: Flight | None = None
        self._release_for: str | None = None
        self._latest_recorded = dict.fromkeys(ROLES, 0)
        self._full = False
        self.most_bytes = 1 << 62
        """From this size of the trace on, details of recorded steps are left out; the times of all steps never are."""
        self._calls: CallRecorder | None = None
        self._names = NameTable(Returned, Yielded)
        self._switch_ns = 0
        self._write_ns = 0
        self._trace = TraceWriter(trace)
        self._trace.write([{"kind": "process", "format": FORMAT, "pid": self._pid, **process}])
        self._journal = StepJournal(trace.with_suffix(".journal"), origin, self._journal_full, asked)
        self.step_times: StoreStep = self._journal.add
        self.observers: dict[str, Callable[[int, int, int, list[int]], None]] = {}
        """Told of each recorded step of a role: its number, time, time spent on records, times of others before it."""
        self.detail_watchers: list[Callable[[RecordedStep, list[dict[str, Any]]], None]] = []
        """Told of each recorded step with its records, before they are written."""
        self.written_watchers: list[Callable[[str, int], None]] = []
        """Told of each recorded step, by role and number, when all that is kept of it has been written or is held."""

    def watch_every_step(self, role: str, watch: Callable[[int, int, int, bool], None]) -> None:
        """Call `watch` with each step of a role: its number, its time, that of its wait, and whether it is recorded.

        To be called before any loop is watched.
        """
        add = self.step_times
        of_role, roles, latest = ROLES.index(role), len(ROLES), self._latest_recorded

        def add_and_tell(loop: int, code: int, n: int, begin: int, body: int, end: int, phases: Sequence[int]) -> None:
            add(loop, code, n, begin, body, end, phases)
            if code % roles == of_role:
                watch(n, end - begin, body - begin, n == latest[role])

        self.step_times = add_and_tell

    def hold_back(self, steps: int) -> None:
        """Write recorded steps only when `release_held` is called, and no more than the last `steps` of them."""
        self._flight = Flight(steps)

    def release_soon(self, why: str) -> None:
        """Write the recorded steps that are held back together with the one that is in progress, or is next."""
        self._release_for = why

    def release_held(self, why: str) -> None:
        """Write the recorded steps that are held back, because of `why`."""
        if self._flight is None or os.getpid() != self._pid:
            return
        self._release_for = None
        held, count, lost = self._flight.take()
        if count:
            gone = f"; {lost} before them are not kept" if lost else ""
            text = f"the last {count} recorded steps were written because of {why}{gone}"
            self._trace.append(held)
            self.write([{"kind": "note", "level": "info", "text": text}])

    def equip(
        self,
        record: Iterable[str],
        tool: Tool,
        failed: Callable[[BaseException], None],
        landmarks: Callable[[], Landmarks | None],
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        all_threads: bool = False,
    ) -> None:
        """Record these kinds in recorded steps, with the events of `tool` and `landmarks`.

        Calls only of functions in modules that the patterns `include` and `exclude` leave (see `ModuleFilter`), of
        the loop's thread or of `all_threads`.
        """
        chosen = ModuleFilter(include, exclude, self._names.module_of) if include or exclude else None
        leaves_out = None if chosen is None else chosen.leaves_out
        self._recorders = recorders(
            record,
            Equipment(
                tool,
                self._names,
                self._origin,
                failed,
                self.own_time,
                landmarks,
                ModuleTable(self._names),
                c_functions="cfunctions" in record,
                all_threads=all_threads,
                leaves_out=leaves_out,
            ),
        )
        self._calls = next((each for each in self._recorders if isinstance(each, CallRecorder)), None)

    def record_lines_of(self, code: CodeType) -> None:
        """Record the lines of a function, besides those of loops."""
        for recorder in self._recorders:
            if isinstance(recorder, LineRecorder):
                recorder.add_function(code)

    def program_profiles(self) -> None:
        """A profiler of the program is about to start."""
        for recorder in self._recorders:
            if isinstance(recorder, OpsRecorder):
                recorder.program_profiles()

    # The tracker's sink

    def start(self, step: RecordedStep) -> None:
        begin = perf_counter_ns()
        for recorder in self._recorders:
            recorder.start(step)
        self._latest_recorded[step.role] = step.n
        self._switch_ns += perf_counter_ns() - begin

    def pause(self, step: RecordedStep) -> None:
        begin = perf_counter_ns()
        for recorder in reversed(self._recorders):
            recorder.pause(step)
        self._switch_ns += perf_counter_ns() - begin

    def finish_recorded(self, step: RecordedStep) -> None:
        begin = perf_counter_ns()
        facts = {
            "kind": "step",
            "role": step.role,
            "n": step.n,
            "loop": step.loop,
            "reason": step.reason,
            "stage": step.stage,
            "begin": max(0, step.begin - self._origin),
            "wait": (wait := max(0, step.body - step.begin)),
            "end": max(wait, step.end - step.begin),
            "thread": step.thread,
        }
        records = [record for recorder in self._recorders for record in recorder.finish(step, facts)]
        for watch in self.detail_watchers:
            watch(step, records)
        if self._trace.bytes >= self.most_bytes:
            records = self._thinned()
        if self._flight is None or step.reason in WORDS:
            if self._release_for is not None:
                self.release_held(self._release_for)
            written = self._write_with_times([*self._names.take_new(), *records, facts])
        else:
            self._flight.hold(lines([*records, facts]))
            written = self._write_with_times(self._names.take_new())
            if self._release_for is not None:
                self.release_held(self._release_for)
        spent = perf_counter_ns() - begin
        self._write_ns += spent
        observer = self.observers.get(step.role)
        if observer is not None:
            of_role = ROLES.index(step.role)
            others = [
                end
                for code, end, n in zip(written.code, written.end, written.n, strict=True)
                if code % len(ROLES) == of_role and n != step.n
            ]
            observer(step.n, step.end - step.begin, spent, others)
        for written_watcher in self.written_watchers:
            written_watcher(step.role, step.n)

    def _thinned(self) -> list[dict[str, Any]]:
        """What is written in the place of a step's details once the trace has its full size: a note, the first time."""
        self._names.take_new()
        if self._full:
            return []
        self._full = True
        text = f"the trace has reached {self.most_bytes:,} bytes: of later steps only the times are kept"
        warn(f"{text} (--max-bytes)")
        return [{"kind": "note", "level": "warning", "text": text}]

    def discard(self, step: RecordedStep) -> None:
        for recorder in self._recorders:
            recorder.discard(step)

    def decided(self, role: Role, n: int, reason: str | None) -> None:
        what = {None: "Skipping", "warm-up": "Warm-up", "interval": "Interval"}.get(reason, str(reason).capitalize())
        _log.debug("%s%s step %d", "Eval: " if role is Role.EVAL else "", what, n)

    # The rest of the trace

    def write(self, records: list[dict[str, Any]]) -> None:
        """Append records; raises `OSError` if they can't be written yet. Does nothing in a forked child."""
        if os.getpid() == self._pid:
            begin = perf_counter_ns()
            self._trace.write(records)
            self._write_ns += perf_counter_ns() - begin

    def interrupted(self) -> None:
        """A callback was interrupted, maybe the one that was about to pause a step."""
        if self._calls is not None:
            self._calls.stop()

    def end(self, record: dict[str, Any]) -> None:
        """Write all that is held back, of recorded steps if something has happened, and the last record."""
        if self._release_for is not None:
            self.release_held(self._release_for)
        self._write_with_times([], [record])

    def close(self) -> None:
        """Close the files. Another thread may still write, to nowhere."""
        try:
            self._trace.close()
        finally:
            self._journal.close()

    def _journal_full(self) -> None:
        begin = perf_counter_ns()
        self._write_with_times([])
        self._write_ns += perf_counter_ns() - begin

    def _write_with_times(self, before: list[dict[str, Any]], after: Iterable[dict[str, Any]] = ()) -> Columns:
        """Write records, between them the step times since the last ones (returned), and the overhead so far."""
        if os.getpid() != self._pid:
            return no_rows()
        # Times stay in the journal until the trace has them: a signal's handler may raise at any place.
        try:
            self._flushing.acquire()
            self._forget_written()
            times = self._journal.take()
            self._receipt = object()
            self._trace.write([*before, *steps_records(times), self._overhead(), *after], self._receipt)
            self._forget_written()
            return times
        finally:
            try:
                self._flushing.release()
            except RuntimeError:
                pass  # a signal's handler raised before it was acquired

    def _forget_written(self) -> None:
        if self._receipt is not None and self._trace.receipt is self._receipt:
            self._journal.drop_taken()
            self._receipt = None

    def _overhead(self) -> dict[str, Any]:
        steps = self._overhead_of_steps()
        return {
            "kind": "overhead",
            "callbacks": steps["callbacks"],
            "callback_ns": max(0, steps["callback_ns"] + self._switch_ns),
            "dispatch_ns": steps["dispatch_ns"],
            "write_ns": max(0, self._write_ns),
            "events": 0 if self._calls is None else self._calls.events,
            "bytes": self._trace.bytes,
            **({"budget": steps["budget"]} if steps["budget"] is not None else {}),
        }


def tells_decisions() -> bool:
    """Whether somebody reads what `decided` says."""
    return _log.isEnabledFor(logging.DEBUG)
