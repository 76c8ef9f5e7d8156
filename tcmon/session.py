"""A monitoring session: the one object that wires loops, steps, capture and trace together."""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import enum
import functools
import itertools
import logging
import os
import platform
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon import __version__
from tcmon.analysis.roles import Proposal, Role
from tcmon.capture.calls import CallRecorder, Returned, Segment, Yielded, rows
from tcmon.errors import TcmonError
from tcmon.log import log as _log
from tcmon.log import warn
from tcmon.monitoring.interruptions import hand_on, is_interruption
from tcmon.monitoring.tool import Tool, empty_callback_ns, events
from tcmon.steps.codebase import Codebase, module_attribute
from tcmon.steps.confirmation import Confirmation
from tcmon.steps.discovery import Discovery
from tcmon.steps.evaluation import Evaluation
from tcmon.steps.manual import Manual
from tcmon.steps.named import NamedLoop, NamedLoops
from tcmon.steps.sampler import Interval
from tcmon.steps.tracker import RecordedStep, Tracker
from tcmon.trace.journal import StepJournal
from tcmon.trace.names import NameTable
from tcmon.trace.records import FORMAT
from tcmon.trace.secrets import masked
from tcmon.trace.writer import TraceWriter, steps_records, write_atomically

RECORDERS = ("calls",)
"""What `record` may name."""


@dataclasses.dataclass(frozen=True)
class Options:
    """What a session records, and where.

    Step n of training is recorded when `n < warmup` or `(n - warmup) % interval == 0`; evaluation steps are counted
    apart, under the same rule with `eval_interval` and `eval_warmup` (None: as for training). `out` is the run
    directory, None for a new one under `tcmon-runs`. `train_loop` and `eval_loop` name a loop as "FILE:LINE" (the line
    of its `for` or `while`) in the place of those that would be found. Raises `ValueError` or `TypeError` naming
    argument and value.
    """

    interval: int = 20
    warmup: int = 2
    eval_interval: int | None = None
    eval_warmup: int | None = None
    record: tuple[str, ...] = ("calls",)
    out: Path | None = None
    train_loop: str | None = None
    eval_loop: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("interval", 1), ("warmup", 0), ("eval_interval", 1), ("eval_warmup", 0)):
            value = getattr(self, name)
            if value is None and name.startswith("eval_"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        for recorder in self.record:
            if recorder not in RECORDERS:
                raise ValueError(f"record can't hold {recorder!r}: available are {', '.join(RECORDERS)}")

    def sampler(self, role: Role) -> Interval:
        """The sampler for the steps of `role`."""
        if role is Role.TRAIN:
            return Interval(self.interval, self.warmup)
        return Interval(
            self.interval if self.eval_interval is None else self.eval_interval,
            self.warmup if self.eval_warmup is None else self.eval_warmup,
        )

    def named_loops(self) -> tuple[NamedLoop, ...]:
        """The loops that are named by hand; raises `TcmonError` if one of them is none."""
        named = ((Role.TRAIN, self.train_loop), (Role.EVAL, self.eval_loop))
        return tuple(NamedLoop(role, place) for role, place in named if place is not None)

    def as_record(self) -> dict[str, Any]:
        training, evaluation = self.sampler(Role.TRAIN), self.sampler(Role.EVAL)
        return {
            "interval": training.interval,
            "warmup": training.warmup,
            "eval_interval": evaluation.interval,
            "eval_warmup": evaluation.warmup,
            "record": list(self.record),
        }


def start(options: Options, *, command: Sequence[str], script: str) -> Session:
    """Make the run directory and monitor this process from now on.

    `command` is what the user typed, `script` the program's name. Raises `TcmonError` if the directory can't be made
    or holds a run already, or if other tools hold all tool ids of `sys.monitoring`.
    """
    return Session(options, command=command, script=script)


class Session:
    """One process being monitored, from construction until `finish`."""

    def __init__(self, options: Options, *, command: Sequence[str], script: str) -> None:
        self.options = options
        named_loops = options.named_loops()
        self.run_dir = _make_run_directory(options.out, script)
        self._pid = os.getpid()
        self._origin = perf_counter_ns()
        self._state = _State.RUNNING
        self._flushing = threading.RLock()
        self._receipt: object = None
        self._tools: list[Tool] = []
        try:
            self._open_files(command, script)
            self._tools.append(tracking := Tool("tcmon"))
            self._tools.append(capturing := Tool("tcmon capture"))
        except TcmonError:
            self._release()
            raise
        except OSError as error:
            self._release()
            raise TcmonError(f"can't write to {self.run_dir}: {error.strerror}") from None
        self._names = NameTable(Returned, Yielded)
        self._calls = CallRecorder(capturing, self._failed)
        self._open_steps: dict[int, list[Segment]] = {}
        self._switch_ns = 0
        self._write_ns = 0
        self._dispatch_ns = empty_callback_ns(tracking)
        self._tracker = Tracker(
            tracking,
            capturing,
            {role: options.sampler(role) for role in Role},
            self,
            tells_decisions=_log.isEnabledFor(logging.DEBUG),
            found=self._loop_found,
            failed=self._failed,
        )
        codebase = Codebase()
        evaluation = Evaluation(tracking, self._tracker, codebase, self._loop_found)
        self._confirmation = Confirmation(self._tracker, codebase, self._loop_found, self._loop_retracted)
        named = NamedLoops(named_loops, codebase)
        manual = Manual(self._tracker, codebase, self._loop_found, self._loop_retracted)
        self._discovery = Discovery(
            tracking,
            self._tracker,
            codebase,
            self._confirmation,
            evaluation,
            manual,
            named,
            self._loop_found,
            self._failed,
        )
        _sessions.add(self)
        # Callbacks that outlive the modules they use would be heard of at the end of the interpreter.
        atexit.register(self.finish, reason="exit", exit_code=None)
        tracking.watch_everywhere(events.PY_START | events.PY_UNWIND)

    def finish(self, *, reason: str, exit_code: int | None) -> None:
        """Stop monitoring and complete the trace; idempotent. `reason` is "exit", "exception" or "interrupt"."""
        if os.getpid() != self._pid or self._state is _State.FINISHED:
            return
        if self._state is _State.RUNNING:
            try:
                self._tracker.close()
                self._confirmation.sweep()
            except Exception as error:
                self._give_up(error)
        told = self._state is _State.FAILED
        self._state = _State.FINISHED
        self._release()
        atexit.unregister(self.finish)
        ended = {"reason": reason, "exit_code": exit_code, "clock_ns": max(0, perf_counter_ns() - self._origin)}
        self._meta["torch"] = _torch_version()
        self._meta["ended"] = ended
        end = {"kind": "end", **ended, "seen": self._seen(), "hint": self._hint()}
        last_works: tuple[Callable[[], None], ...] = (
            functools.partial(self._write_with_times, [], [end]),
            self._trace.close,
            self._journal.close,
            self._write_meta,
        )
        for last_work in last_works:
            try:
                last_work()
            except Exception as error:
                if not told:
                    warn(f"the trace in {self.run_dir} is incomplete: {_reason(error)}", error)
                told = True

    # The tracker's sink. Called inside monitoring callbacks: nothing here is monitored.

    def start(self, step: RecordedStep) -> None:
        begin = perf_counter_ns()
        self._open_steps.setdefault(id(step), [])
        self._calls.start()
        self._switch_ns += perf_counter_ns() - begin

    def pause(self, step: RecordedStep) -> None:
        begin = perf_counter_ns()
        segment = self._calls.stop()
        if segment is not None:
            self._open_steps.setdefault(id(step), []).append(segment)
        self._switch_ns += perf_counter_ns() - begin

    def finish_recorded(self, step: RecordedStep) -> None:
        begin = perf_counter_ns()
        segments = self._open_steps.pop(id(step), [])
        identity = {"role": step.role, "n": step.n, "loop": step.loop}
        records: list[dict[str, Any]] = []
        stored = dropped = 0
        for segment in segments:
            dropped += segment.dropped
            for thread, what, at in rows(segment, self._names):
                stored += sum(1 for number in what if number > 0)
                records.append(
                    {
                        "kind": "calls",
                        **identity,
                        "thread": thread,
                        "begin": max(0, segment.begin - self._origin),
                        "what": what,
                        "at": at,
                    }
                )
        records.append(
            {
                "kind": "step",
                **identity,
                "reason": step.reason,
                "stage": step.stage,
                "begin": max(0, step.begin - self._origin),
                "wait": (wait := max(0, step.body - step.begin)),
                "end": max(wait, step.end - step.begin),
                "thread": step.thread,
                "calls": {"stored": stored, "dropped": dropped},
            }
        )
        self._write_with_times([*self._names.take_new(), *records])
        self._write_ns += perf_counter_ns() - begin

    def discard(self, step: RecordedStep) -> None:
        self._open_steps.pop(id(step), None)

    def decided(self, role: Role, n: int, reason: str | None) -> None:
        what = {None: "Skipping", "warm-up": "Warm-up", "interval": "Interval"}.get(reason, str(reason).capitalize())
        _log.debug("%s%s step %d", "Eval: " if role is Role.EVAL else "", what, n)

    # Records

    def _open_files(self, command: Sequence[str], script: str) -> None:
        started = time.time_ns()
        self._meta: dict[str, Any] = {
            "format": FORMAT,
            "tcmon": __version__,
            "command": masked(command),
            "script": script,
            "cwd": _cwd(),
            "python": platform.python_version(),
            "implementation": sys.implementation.name,
            "torch": None,
            "platform": platform.platform(),
            "host": socket.gethostname(),
            "pid": self._pid,
            "started": datetime.datetime.fromtimestamp(started / 1e9, datetime.UTC).isoformat(timespec="seconds"),
            "start_unix_ns": started,
            "options": self.options.as_record(),
            "loops": [],
            "ended": None,
        }
        self._write_meta()
        self._trace = TraceWriter(self.run_dir / f"trace-{self._pid}.jsonl")
        self._trace.write([{"kind": "process", "format": FORMAT, "pid": self._pid, "start_unix_ns": started}])
        journal = StepJournal(self.run_dir / f"trace-{self._pid}.journal", self._origin, self._journal_full)
        self._journal = journal
        self.step_times = journal.add

    def _loop_found(self, code: CodeType, proposal: Proposal, found: str) -> int:
        begin = perf_counter_ns()
        record: dict[str, Any] = {
            "kind": "loop",
            "id": len(self._meta["loops"]) + 1,
            "file": code.co_filename,
            "qualname": code.co_qualname,
            "line": proposal.loop.line,
            "role": proposal.role,
            "found": found,
            "evidence": list(proposal.evidence),
        }
        self._meta["loops"].append({key: value for key, value in record.items() if key != "kind"})
        self._meta["torch"] = _torch_version()
        self._write([record])
        self._update_meta()
        _log.info(
            "%s loop at %s:%d in %s: %s",
            proposal.role,
            code.co_filename,
            proposal.loop.line,
            code.co_qualname,
            "; ".join(proposal.evidence),
        )
        self._write_ns += perf_counter_ns() - begin
        return len(self._meta["loops"])

    def _loop_retracted(self, loop_id: int, reason: str) -> None:
        """The steps that a loop counted are none: its record says so, and readers leave them out."""
        loop = self._meta["loops"][loop_id - 1]
        loop["role"] = "other"
        loop["evidence"].append(f"not the training loop: {reason}")
        self._write([{"kind": "loop", **loop}])
        self._update_meta()
        _log.info("no training loop after all: %s:%d in %s: %s", loop["file"], loop["line"], loop["qualname"], reason)

    def _journal_full(self) -> None:
        begin = perf_counter_ns()
        self._write_with_times([])
        self._write_ns += perf_counter_ns() - begin

    def _write_with_times(self, before: list[dict[str, Any]], after: Iterable[dict[str, Any]] = ()) -> None:
        """Write records, between them the step times since the last ones, and the overhead so far."""
        if os.getpid() != self._pid:
            return
        # Times stay in the journal until the trace has them: a signal's handler may raise at any place.
        try:
            self._flushing.acquire()
            self._forget_written()
            times = steps_records(self._journal.take())
            self._receipt = object()
            self._trace.write([*before, *times, self._overhead(), *after], self._receipt)
            self._forget_written()
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
        return {
            "kind": "overhead",
            "callbacks": self._tracker.callbacks,
            "callback_ns": max(0, self._tracker.callback_ns + self._switch_ns),
            "dispatch_ns": round(self._tracker.callbacks * self._dispatch_ns),
            "write_ns": max(0, self._write_ns),
            "events": self._calls.events,
            "bytes": self._trace.bytes,
        }

    def _write(self, records: list[dict[str, Any]]) -> None:
        if os.getpid() == self._pid:
            self._trace.write(records)

    def _update_meta(self) -> None:
        try:
            self._write_meta()
        except OSError as error:
            if is_interruption(error):
                raise
            # Otherwise the trace has it too, and at the end this is tried again.

    def _write_meta(self) -> None:
        write_atomically(self.run_dir / "run.json", self._meta)

    def _seen(self) -> dict[str, int]:
        return {
            "code_objects": self._discovery.seen,
            "analysed": self._discovery.analysed,
            "loops": len(self._meta["loops"]),
        }

    def _hint(self) -> str | None:
        if any(loop["role"] == Role.TRAIN for loop in self._meta["loops"]):
            return None
        return (
            "no code that ran has a loop that calls optimizer.step() or loss.backward(); see what tcmon sees in a file "
            "with `tcmon loops FILE`"
        )

    # Ending

    def _failed(self, error: BaseException) -> None:
        """An exception in a callback: the program's, which gets it, or an error of tcmon itself."""
        if is_interruption(error):
            if self._state is _State.RUNNING:
                self._calls.stop()  # the callback may have been about to
            hand_on(error)
        else:
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        """Say once what went wrong, and let the program go on without monitoring."""
        if self._state is not _State.RUNNING:
            return
        self._state = _State.FAILED
        self._release()
        text = f"monitoring stopped: {_reason(error)}; the program goes on, without its further steps in {self.run_dir}"
        warn(text, error)
        try:
            self._write([{"kind": "note", "level": "warning", "text": text}])
        except OSError:
            pass

    def _release(self) -> None:
        for tool in self._tools:
            tool.release()

    def _forked(self) -> None:
        """In a forked child: the parent's files are not this process's business."""
        if self._state is _State.RUNNING:
            self._release()
        self._state = _State.FINISHED


class _State(enum.Enum):
    RUNNING = enum.auto()
    FAILED = enum.auto()
    FINISHED = enum.auto()


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()
"""The sessions of this process. Handlers of forks can't be taken back: there is one for all sessions."""


def _forget_in_child() -> None:
    """The sessions of the parent are not the business of a forked child (DataLoader workers)."""
    for session in list(_sessions):
        session._forked()


os.register_at_fork(after_in_child=_forget_in_child)


def _make_run_directory(out: Path | None, script: str) -> Path:
    try:
        if out is None:
            return _new_directory(Path("tcmon-runs").absolute(), script)
        path = out.absolute()
        path.mkdir(parents=True, exist_ok=True)
        held = any(path.glob("trace-*.jsonl")) or os.path.lexists(path / "run.json")
    except OSError as error:
        raise TcmonError(
            f"can't make the run directory {out or 'tcmon-runs'}: {error.strerror}; choose another with --out"
        ) from None
    if held:
        raise TcmonError(f"{out} already holds a run; choose another directory with --out")
    if not os.access(path, os.W_OK | os.X_OK):
        raise TcmonError(f"can't write to {out}: permission denied; choose another directory with --out")
    return path


def _new_directory(parent: Path, script: str) -> Path:
    """A directory of its own for each run, also where a process runs the program anew (`os.execv`) at once."""
    parent.mkdir(parents=True, exist_ok=True)
    stem = Path(script).name.removesuffix(".py") or "run"
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for again in itertools.count(1):
        path = parent / (name if again == 1 else f"{name}-{again}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("there are always more numbers")


def _torch_version() -> str | None:
    """The version of the program's torch, once it has imported it."""
    version = module_attribute(sys.modules.get("torch"), "__version__")
    return str.__str__(version) if isinstance(version, str) else None


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"a file of the run can't be written ({error.strerror})"
    return f"an error of tcmon ({' '.join(f'{type(error).__name__}: {error}'.split())})"


def _cwd() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None
