"""A monitoring session: the one object that wires loops, steps, capture and trace together."""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import enum
import logging
import os
import platform
import socket
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns
from types import CodeType
from typing import Any

from tcmon import __version__
from tcmon.analysis.roles import Proposal, Role
from tcmon.capture.calls import CallRecorder, Returned, Segment, Yielded, rows
from tcmon.errors import TcmonError
from tcmon.monitoring.tool import Tool, empty_callback_ns, events
from tcmon.steps.codebase import Codebase
from tcmon.steps.confirmation import Confirmation
from tcmon.steps.discovery import Discovery
from tcmon.steps.evaluation import Evaluation
from tcmon.steps.sampler import Interval
from tcmon.steps.tracker import RecordedStep, Tracker
from tcmon.trace.journal import StepJournal
from tcmon.trace.names import NameTable
from tcmon.trace.records import FORMAT
from tcmon.trace.writer import TraceWriter, steps_records, write_atomically

RECORDERS = ("calls",)
"""What `record` may name."""

_log = logging.getLogger("tcmon")


@dataclasses.dataclass(frozen=True)
class Options:
    """What a session records, and where.

    Step n of training is recorded when `n < warmup` or `(n - warmup) % interval == 0`; evaluation steps are counted
    apart, under the same rule with `eval_interval` and `eval_warmup` (None: as for training). `out` is the run
    directory, None for a new one under `tcmon-runs`. Raises `ValueError` or `TypeError` naming argument and value.
    """

    interval: int = 20
    warmup: int = 2
    eval_interval: int | None = None
    eval_warmup: int | None = None
    record: tuple[str, ...] = ("calls",)
    out: Path | None = None

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
        self.run_dir = _make_run_directory(options.out, script)
        self._pid = os.getpid()
        self._origin = perf_counter_ns()
        self._state = _State.RUNNING
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
        self._discovery = Discovery(
            tracking, self._tracker, codebase, self._confirmation, evaluation, self._loop_found, self._failed
        )
        _forget_in_children(self)
        # Callbacks that outlive the modules they use would be heard of at the end of the interpreter.
        atexit.register(self.finish, reason="exit", exit_code=None)
        tracking.watch_everywhere(events.PY_START | events.PY_UNWIND)

    def finish(self, *, reason: str, exit_code: int | None) -> None:
        """Stop monitoring and complete the trace; idempotent. `reason` is "exit", "exception" or "interrupt"."""
        if os.getpid() != self._pid or self._state is _State.FINISHED:
            return
        if self._state is _State.RUNNING:
            self._tracker.close()
            self._confirmation.sweep()
        self._state = _State.FINISHED
        self._release()
        atexit.unregister(self.finish)
        ended = {"reason": reason, "exit_code": exit_code, "clock_ns": perf_counter_ns() - self._origin}
        try:
            self._write([*self._drained(), {"kind": "end", **ended, "seen": self._seen(), "hint": self._hint()}])
            self._trace.close()
            self._meta["torch"] = _torch_version()
            self._meta["ended"] = ended
            self._write_meta()
        except OSError as error:
            _log.warning("the trace in %s is incomplete: %s", self.run_dir, error.strerror)

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
            self._open_steps[id(step)].append(segment)
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
                        "begin": segment.begin - self._origin,
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
                "begin": step.begin - self._origin,
                "wait": step.body - step.begin,
                "end": step.end - step.begin,
                "thread": step.thread,
                "calls": {"stored": stored, "dropped": dropped},
            }
        )
        self._write([*self._names.take_new(), *records, *self._drained()])
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
            "command": list(command),
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
        self._write_meta()
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
        self._write_meta()
        _log.info("no training loop after all: %s:%d in %s: %s", loop["file"], loop["line"], loop["qualname"], reason)

    def _journal_full(self) -> None:
        begin = perf_counter_ns()
        self._write(self._drained())
        self._write_ns += perf_counter_ns() - begin

    def _drained(self) -> list[dict[str, Any]]:
        """Records of the step times since the last ones, with the overhead so far."""
        overhead = {
            "kind": "overhead",
            "callbacks": self._tracker.callbacks,
            "callback_ns": self._tracker.callback_ns + self._switch_ns,
            "dispatch_ns": round(self._tracker.callbacks * self._dispatch_ns),
            "write_ns": self._write_ns,
            "events": self._calls.events,
            "bytes": self._trace.bytes,
        }
        return [*steps_records(self._journal.take()), overhead]

    def _write(self, records: list[dict[str, Any]]) -> None:
        if os.getpid() == self._pid:
            self._trace.write(records)

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

    def _failed(self, error: Exception) -> None:
        """An error of tcmon itself: say so once and let the program go on without monitoring."""
        if self._state is not _State.RUNNING:
            return
        self._state = _State.FAILED
        self._release()
        text = f"monitoring stopped by an error of tcmon ({type(error).__name__}: {error}); the program goes on"
        _log.warning("%s", text, exc_info=error if _log.isEnabledFor(logging.DEBUG) else None)
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


def _forget_in_children(session: Session) -> None:
    """Silence `session` in forked children (DataLoader workers): handlers can't be taken back, so it is held weakly."""
    reference = weakref.ref(session)

    def in_child() -> None:
        session = reference()
        if session is not None:
            session._forked()

    os.register_at_fork(after_in_child=in_child)


def _make_run_directory(out: Path | None, script: str) -> Path:
    if out is None:
        stem = Path(script).name.removesuffix(".py") or "run"
        stamp = time.strftime("%Y%m%d-%H%M%S")
        out = Path("tcmon-runs") / f"{stem}-{stamp}-{os.getpid()}"
    try:
        path = out.absolute()
        path.mkdir(parents=True, exist_ok=True)
        held = any(path.glob("trace-*.jsonl")) or (path / "run.json").exists()
    except OSError as error:
        raise TcmonError(f"can't make the run directory {out}: {error.strerror}; choose another with --out") from None
    if held:
        raise TcmonError(f"{out} already holds a run; choose another directory with --out")
    if not os.access(path, os.W_OK | os.X_OK):
        raise TcmonError(f"can't write to {out}: permission denied; choose another directory with --out")
    return path


def _torch_version() -> str | None:
    """The version of the program's torch, once it has imported it."""
    torch = sys.modules.get("torch")
    version = vars(torch).get("__version__") if torch is not None else None
    return None if version is None else str(version)


def _cwd() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:
        return None
