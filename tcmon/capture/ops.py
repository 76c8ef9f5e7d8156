"""The `ops` of recorded steps: operators and kernels, as torch's own profiler tells them.

The profiler is on for exactly the recorded steps, by the functions that `torch.profiler` is made of; it leaves the
state of its Python classes alone, which Dynamo looks at. If the program profiles itself, its profiler has precedence:
ours is off before it starts, and stays off, since two of them in turn may crash the process.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Iterator
from threading import get_ident
from time import perf_counter_ns
from typing import Any

from tcmon.capture.recorder import Equipment, Step, identity
from tcmon.log import warn

_MOST = 200_000
"""Events of one step that are kept."""
_MARK = "tcmon"
_MARKS = 5
"""One of them is not interrupted, presumably."""
PROFILERS = ("_KinetoProfile.prepare_trace", "profile._prepare_trace", "emit_nvtx.__enter__", "emit_itt.__enter__")
"""Functions of torch, by qualified name, by which profilers of the program start."""


class OpsRecorder:
    """Records the `ops` of a step: those of its thread, and what this hands on to autograd's threads and devices."""

    def __init__(self, equipment: Equipment) -> None:
        self._equipment = equipment
        self._held: dict[int, list[tuple[Any, list[tuple[int, int]]]]] = {}
        """By the id of a step: what the profiler found, and our clock around the marks."""
        self._on: tuple[Step, int, list[tuple[int, int]]] | None = None
        """The step that is profiled now, its thread, and our clock around the marks."""
        self._given_up = False

    def start(self, step: Step) -> None:
        torch = sys.modules.get("torch")
        if torch is None or self._on is not None or self._given_up or step.thread != get_ident():
            return
        begin = perf_counter_ns()
        try:
            if not self._is_free():
                return
            self._enable(torch)
            self._on = step, get_ident(), self._mark(torch)
        except Exception as error:  # these functions are torch's own affair, and may be others in another version
            self._give_up(error)
        self._equipment.own.note(begin, perf_counter_ns())

    def pause(self, step: Step) -> None:
        if self._on is not None and self._on[0] is step:
            begin = perf_counter_ns()
            self._stop()
            self._equipment.own.note(begin, perf_counter_ns())

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for found, marks in self._held.pop(id(step), ()):
            columns = self._columns(found.events(), marks, step)
            if columns["name"]:
                yield {"kind": "ops", **identity(step), **columns}

    def discard(self, step: Step) -> None:
        self.pause(step)
        self._held.pop(id(step), None)

    def program_profiles(self) -> None:
        """A profiler of the program is about to start, in this thread: from here on nothing is profiled."""
        if not self._given_up:
            self._given_up = True
            self._stop()
            warn("the program profiles itself: ops are recorded no longer")

    def _is_free(self) -> bool:
        """Whether no profiler of the program is on."""
        autograd = sys.modules["torch._C"]._autograd
        profiler = sys.modules.get("torch.autograd.profiler")
        return not (autograd._profiler_enabled() or (profiler is not None and profiler._is_profiler_enabled))

    def _enable(self, torch: Any) -> None:
        autograd, profiler = torch._C._autograd, torch._C._profiler
        activities = {profiler.ProfilerActivity.CPU}
        if torch.cuda.is_initialized():
            activities |= autograd._supported_activities() & {profiler.ProfilerActivity.CUDA}
        config = profiler.ProfilerConfig(
            profiler.ProfilerState.KINETO, False, True, False, False, False, profiler._ExperimentalConfig()
        )
        # The profiler's library tells stderr of every start unless it is told not to, which it looks for once. Past
        # os.environ, which is the program's.
        quiet = "KINETO_LOG_LEVEL" not in os.environ
        if quiet:
            os.putenv("KINETO_LOG_LEVEL", "6")
        try:
            autograd._prepare_profiler(config, activities)
            autograd._enable_profiler(config, activities)
        finally:
            if quiet:
                os.unsetenv("KINETO_LOG_LEVEL")

    def _mark(self, torch: Any) -> list[tuple[int, int]]:
        """Leave marks in what the profiler tells, by which its clock is told; our clock before and after each."""
        moments = []
        for _ in range(_MARKS):
            before = perf_counter_ns()
            with torch._C._profiler._RecordFunctionFast(_MARK):
                pass
            moments.append((before, perf_counter_ns()))
        return moments

    def _stop(self) -> None:
        if self._on is None:
            return
        step, thread, marks = self._on
        self._on = None
        if thread == get_ident():
            try:
                found = sys.modules["torch._C"]._autograd._disable_profiler()
                self._held.setdefault(id(step), []).append((found, marks))
            except Exception as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        if not self._given_up:
            self._given_up = True
            warn(f"can't record ops: {type(error).__name__}: {error}", error)

    def _columns(self, events: Any, marks: list[tuple[int, int]], step: Step) -> dict[str, Any]:
        """Events without tcmon's own, in our clock, without what recorders spent meanwhile."""
        found = [each for each in events if each.start_ns() > 0][:_MOST]
        marked = [each for each in found if each.name() == _MARK]
        columns: dict[str, list[Any]] = {name: [] for name in ("name", "begin", "ns", "device", "thread", "bytes")}
        if len(marked) != len(marks):
            return columns
        # The clocks differ by what they did at the mark that took the least time.
        took, mark = min((after - before, at) for at, (before, after) in enumerate(marks))
        event, begun = marked[mark], marks[-1][1]
        apart = marks[mark][0] + max(0, took - event.duration_ns()) // 2 - event.start_ns()
        own_thread = event.start_thread_id()
        stretches = self._equipment.own.since(begun)
        starts = [begin for begin, _ in stretches]
        rows = []
        for each in found:
            begin = each.start_ns() + apart
            at = bisect_right(starts, begin) - 1
            if each.name() == _MARK or (at >= 0 and begin < stretches[at][1]):
                continue
            rows.append((begin, each.duration_ns(), each))
        moments = sorted({moment for begin, ns, _ in rows for moment in (begin, begin + ns)})
        place = dict(zip(moments, self._equipment.own.without(moments, begun), strict=True))  # as calls do
        for begin, ns, each in sorted(rows, key=lambda row: row[0]):
            thread = each.start_thread_id()
            columns["name"].append(each.name())
            columns["begin"].append(max(0, place[begin] - self._equipment.origin))
            columns["ns"].append(max(0, place[begin + ns] - place[begin]))
            columns["device"].append(_device(each))
            columns["thread"].append(step.thread if thread == own_thread else thread)
            columns["bytes"].append(each.nbytes())
        return columns


def _device(event: Any) -> str:
    kind = str(event.device_type()).rpartition(".")[2].lower()
    return kind if kind == "cpu" else f"{kind}:{max(0, event.device_index())}"
