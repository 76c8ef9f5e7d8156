"""A monitoring session: the one object that wires loops, steps, capture and trace together."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import enum
import functools
import itertools
import os
import platform
import socket
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING, Any

from tcmon import __version__
from tcmon.analysis.roles import Proposal, Role
from tcmon.capture.landmarks import Landmarks
from tcmon.capture.ops import PROFILERS
from tcmon.errors import TcmonError
from tcmon.hang import HangWatch
from tcmon.happenings import Happenings
from tcmon.log import log as _log
from tcmon.log import warn
from tcmon.monitoring.interruptions import hand_on, is_interruption
from tcmon.monitoring.tool import Tool, empty_callback_ns, events
from tcmon.options import Options
from tcmon.recording import Recording, tells_decisions
from tcmon.steps.budget import Budget
from tcmon.steps.codebase import Codebase, module_attribute
from tcmon.steps.confirmation import Confirmation
from tcmon.steps.discovery import Discovery
from tcmon.steps.evaluation import Evaluation
from tcmon.steps.listening import Listening
from tcmon.steps.manual import Manual
from tcmon.steps.named import NamedLoops
from tcmon.steps.onstep import OnStep
from tcmon.steps.phases import Phases
from tcmon.steps.sampler import Guarded, Interval, Sampler, Steered, parts
from tcmon.steps.tracker import RecordedStep, Tracker
from tcmon.trace.clock import zero_on_wall_clock
from tcmon.trace.directory import make_run_directory
from tcmon.trace.ranks import rank_from
from tcmon.trace.records import FORMAT
from tcmon.trace.secrets import masked
from tcmon.trace.writer import write_atomically


@dataclass(frozen=True, slots=True)
class Joins:
    """A run directory that several processes share which call their launch `launch`.

    The one that `leads` writes run.json. A process that is started by a rank inherits its variables and is none:
    `is_rank` tells.
    """

    launch: str
    leads: bool
    is_rank: bool = True


if TYPE_CHECKING:
    from tcmon.checks.live import LiveChecks


def start(options: Options, *, command: Sequence[str], script: str, joins: Joins | None = None) -> Session:
    """Make the run directory and monitor this process from now on.

    `command` is what the user typed, `script` the program's name. Raises `TcmonError` if the directory can't be made
    or holds a run already, or if other tools hold all tool ids of `sys.monitoring`.
    """
    return Session(options, command=command, script=script, joins=joins)


class Session:
    """One process being monitored, from construction until `finish`."""

    def __init__(
        self,
        options: Options,
        *,
        command: Sequence[str],
        script: str,
        origin: str = "tcmon run",
        joins: Joins | None = None,
    ) -> None:
        self.options = options
        self.origin = origin
        """What began it: a place of the program, or a command."""
        named_loops = options.named_loops()
        self.rank = rank_from(os.environ) if joins is None or joins.is_rank else None
        """Which rank of a distributed run this process is, if its launcher tells."""
        self._joins = joins
        launch = self.rank.launch if self.rank else None
        self._launch = joins.launch if joins else launch
        """What the processes call their launch that share the run directory; None if it is this one's alone."""
        self._pid = os.getpid()
        self._origin = perf_counter_ns()
        self._state = _State.RUNNING
        self._tools: list[Tool] = []
        self._tracker: Tracker | None = None
        try:
            # First, since without them there is nothing to make a directory for.
            self._tools.append(tracking := Tool("tcmon"))
            self._tools.append(capturing := Tool("tcmon capture"))
            self.run_dir = make_run_directory(options.out, script, self._launch)
            self._meta = self._facts(command, script)
            self._write_meta()
            self.trace = self._new_trace()
            self._recording = Recording(self.trace, self._origin, self._process(), self._overhead, self._asked)
        except TcmonError:
            self._release()
            raise
        except OSError as error:
            self._release()
            raise TcmonError(f"can't write to {self.run_dir}: {error.strerror}") from None
        self._phases: Phases | None = None
        self._live: LiveChecks | None = None
        landmarks = functools.cache(self._landmarks)
        self._recording.equip(
            options.record,
            capturing,
            self._failed,
            landmarks,
            options.include,
            options.exclude,
            options.threads == "all",
        )
        self._dispatch_ns = empty_callback_ns(tracking)
        self._counting_ns = 0
        self._samplers = {role: Steered(self._guarded(role)) for role in Role}
        chosen = parts(self._samplers[Role.TRAIN].chosen)
        self._budget = next((each for each in chosen if isinstance(each, Budget)), None)
        self._tracker = tracker = Tracker(
            tracking,
            capturing,
            dict(self._samplers),
            self._recording,
            tells_decisions=tells_decisions(),
            found=self._loop_found,
            failed=self._failed,
        )
        for role, steered in self._samplers.items():
            if steered.observer is not None:
                self._recording.observers[role] = functools.partial(self._observe, role)
        codebase = Codebase()
        self._confirmation = Confirmation(tracker, codebase, self._loop_found, self._loop_retracted)
        self._discovery = Discovery(
            tracking,
            tracker,
            codebase,
            self._confirmation,
            Evaluation(tracking, tracker, codebase, self._loop_found),
            Manual(tracker, codebase, self._loop_found, self._loop_retracted),
            NamedLoops(named_loops, codebase),
            self._loop_found,
            self._failed,
        )
        self._tell_phases(tracker)
        for name in options.lines:
            self._discovery.await_code(name, lambda code, _frame: self._recording.record_lines_of(code))
        if "ops" in options.record:
            for name in PROFILERS:
                self._discovery.await_code(name, self._program_profiles)
        self._happenings = happenings = Happenings(self._recording, self._discovery, self._functions(), landmarks)
        self._listening = Listening(self._samplers, tracker.counters, happenings)
        self._live = self._live_checks() if options.check and (self.rank is None or self.rank.rank == 0) else None
        self._on_step = None
        if options.on_step is not None:
            self._on_step = on_step = OnStep(options.on_step)
            for role in (Role.TRAIN, Role.EVAL):
                self._recording.watch_every_step(role, on_step.watching(role))
            self._recording.written_watchers.append(on_step.written)
        self._recording.most_bytes = options.max_bytes
        if options.flight is not None:
            self._recording.hold_back(options.flight)
            self._listening.before_the_end(functools.partial(self._recording.release_held, "SIGTERM"))
        self._hang_watch = None
        if options.hang_after is not None:
            self._hang_watch = HangWatch(
                options.hang_after, lambda: tracker.callbacks, tracker.in_progress, codebase.is_program, self._hung
            )
        _sessions.add(self)
        # Callbacks that outlive the modules they use would be heard of at the end of the interpreter.
        atexit.register(self._at_exit)
        self._last_error = getattr(sys, "last_exc", None)
        tracking.watch_everywhere(events.PY_START | events.PY_UNWIND)

    def meet_running(self) -> None:
        """Look at the code that runs already, in all threads: the start of these frames will never be told of.

        Their loops count from their next iteration on.
        """
        try:
            for frame in sys._current_frames().values():
                self._discovery.meet(frame)
        except Exception as error:
            self._give_up(error)

    @property
    def is_running(self) -> bool:
        """Whether the program is being watched: not finished, and not given up."""
        return self._state is _State.RUNNING and os.getpid() == self._pid

    @property
    def loops(self) -> list[dict[str, Any]]:
        """The loops found so far, as in run.json."""
        return [dict(loop) for loop in self._meta["loops"]]

    def pause(self) -> None:
        """Record no further step, until `resume`; steps are counted and timed all the same."""
        for sampler in self._samplers.values():
            sampler.paused = True

    def resume(self) -> None:
        """Record again as the sampler says."""
        for sampler in self._samplers.values():
            sampler.paused = False
        if self._tracker is not None:
            for counter in self._tracker.counters.values():
                counter.next = counter.count + 1

    def record_next(self, count: int) -> None:
        """Record the next `count` training steps, whatever the sampler says.

        Raises `ValueError` or `TypeError` if `count` is no positive number.
        """
        if type(count) is not int:
            raise TypeError(f"count must be a whole number, not {count!r}")
        if count < 1:
            raise ValueError(f"count must be at least 1, not {count}")
        if self._tracker is not None:
            counter = self._tracker.counters[Role.TRAIN]
            self._samplers[Role.TRAIN].record_until(counter.count + count)
            counter.next = counter.count + 1

    def when_written(self, last: int, then: Callable[[], None]) -> None:
        """Call `then`, in the loop's thread, when training step `last` is over and, if recorded, has been written.

        To be called before any loop is watched. It may be called more than once.
        """

        def written(role: str, n: int) -> None:
            if role == Role.TRAIN and n >= last:
                then()

        def step_over(n: int, _took_ns: int, _wait_ns: int, recorded: bool) -> None:
            if n > last and not recorded:
                then()

        self._recording.written_watchers.append(written)
        self._recording.watch_every_step(Role.TRAIN, step_over)

    def _asked(self, count: int) -> None:
        """Another process wants steps to be recorded (`tcmon record`)."""
        self.record_next(count)
        self._recording.release_soon("a request")

    def raised(self) -> None:
        """An exception leaves what is watched: steps that are held back are written at the end."""
        self._recording.release_soon("an exception")

    def finish(self, *, reason: str, exit_code: int | None) -> None:
        """Stop monitoring and complete the trace; idempotent. `reason` is "exit", "exception" or "interrupt"."""
        if os.getpid() != self._pid or self._state is _State.FINISHED:
            return
        if self._on_step is not None and self._on_step.within == get_ident():
            raise TcmonError("on_step can't end the session, being called within a step; let another thread do it")
        if self._state is _State.RUNNING:
            try:
                if self._tracker is not None:
                    self._tracker.close()
                    self._confirmation.sweep()
            except Exception as error:
                self._give_up(error)
        told = self._state is _State.FAILED
        self._state = _State.FINISHED
        self._release()
        self._listening.close()
        if self._hang_watch is not None:
            self._hang_watch.stop()
        atexit.unregister(self._at_exit)
        ended = {"reason": reason, "exit_code": exit_code, "clock_ns": max(0, perf_counter_ns() - self._origin)}
        self._meta["torch"] = _torch_version()
        self._meta["ended"] = ended
        notes: list[dict[str, Any]] = []
        end = {"kind": "end", **ended, "seen": self._seen(), "hint": self._hint()}
        if reason in ("exception", "interrupt"):
            first: Callable[[], None] = functools.partial(self._recording.release_held, f"an {reason}")
        else:
            first = functools.partial(self._recording.write, [])
        last_works: tuple[Callable[[], None], ...] = (
            first,
            functools.partial(self._recording.write, notes),
            functools.partial(self._recording.end, end),
            self._recording.close,
            self._write_meta,
        )
        for last_work in last_works:
            try:
                last_work()
            except Exception as error:
                if not told:
                    warn(f"the trace in {self.run_dir} is incomplete: {_reason(error)}", error)
                told = True

    def _at_exit(self) -> None:
        # Set by the interpreter, to what it has just shown as the end of the program.
        if getattr(sys, "last_exc", None) is not self._last_error:
            self.raised()
        self.finish(reason="exit", exit_code=None)

    def _functions(self) -> Phases | None:
        """What watches functions of torch, on one more tool id if there is one."""
        if self._phases is None:
            try:
                tool = Tool("tcmon functions")
            except TcmonError as error:
                warn(f"can't tell what happens in torch: {error}")
                return None
            self._tools.append(tool)
            self._phases = Phases(tool, self._failed)
        return self._phases

    def _landmarks(self) -> Landmarks | None:
        """What watches functions of torch for recorders."""
        functions = self._functions()
        return None if functions is None else Landmarks(functions, self._recording.own_time, self._failed)

    def _tell_phases(self, tracker: Tracker) -> None:
        """Tell the phases of training steps apart."""
        functions = self._functions()
        if functions is not None:
            tracker.clocks = functions.clocks
            functions.unwinds = tracker.returns
            for name, first_start in functions.functions():
                self._discovery.await_code(name, first_start)

    def _program_profiles(self, code: CodeType, _frame: object) -> None:
        if code.co_filename.endswith(("torch/autograd/profiler.py", "torch/profiler/profiler.py")):
            self._recording.program_profiles()

    def _live_checks(self) -> LiveChecks | None:
        """What looks at recorded steps as they come, if they hold what it needs."""
        if "state" not in self.options.record:
            return None
        # Now: later the program decides what can be imported, and from where.
        from tcmon.checks.live import LiveChecks, as_record
        from tcmon.trace.details import Finding
        from tcmon.trace.records import Step

        def tell(finding: Finding) -> None:
            step = f"{'evaluation ' if finding.role == 'eval' else ''}step {finding.n}"
            warn(f"{finding.severity} {finding.rule}, {step}: {finding.observed} (tcmon check {self.run_dir})")
            self._recording.write([as_record(finding)])

        live = LiveChecks(tell, self.options.ignore)

        def recorded(step: RecordedStep, records: list[dict[str, Any]]) -> None:
            attempt(
                lambda: live.recorded(
                    Step(step.role, step.n, step.loop, step.reason, step.stage, 0, 0, 0, step.thread, 0, 0), records
                )
            )

        def attempt(action: Callable[[], None]) -> None:
            try:
                if self._live is live:
                    action()
            except Exception as error:
                if is_interruption(error):
                    raise
                self._live = None
                warn(f"checks stopped: {_reason(error)}; tcmon check tells afterwards what is wrong", error)

        self._recording.detail_watchers.append(recorded)
        self._recording.written_watchers.append(lambda _role, _n: attempt(live.look))
        return live

    def _hung(self, note: dict[str, Any]) -> None:
        """There was no step for long; called in a thread of its own."""
        if self._state is not _State.RUNNING:
            return
        warn(note["text"])
        try:
            self._recording.write([note])
            self._recording.release_held("a hang")
        except OSError as error:
            warn(f"what is known of the hang could not be written: {_reason(error)}", error)

    def _observe(self, role: Role, n: int, took_ns: int, spent_ns: int, others_ns: list[int]) -> None:
        """Tell a sampler that wants to know what recording a step cost, and ask it for the next one at once."""
        observer = self._samplers[role].observer
        if observer is None or self._tracker is None:
            return
        cost = self._overhead()
        counted = cost["callback_ns"] + cost["dispatch_ns"]
        counting, self._counting_ns = counted - self._counting_ns, counted
        try:
            observer.observe(n, took_ns, spent_ns, counting, others_ns)
        except Exception as error:
            if is_interruption(error):
                raise
            del self._recording.observers[role]
            self._samplers[role].give_up(f"observe({n}, ...) raised {type(error).__name__}", error)
        self._tracker.counters[role].next = self._samplers[role].next_after(n)

    def _guarded(self, role: Role) -> Sampler:
        """The sampler of a role; if it is the user's and fails, the rule of interval and warm-up takes its place."""
        chosen, instead = self.options.sampler_for(role), self.options.interval_for(role)
        if type(chosen) is Interval:
            return chosen

        def failed(what: str, error: Exception | None) -> None:
            text = f"{what}: {instead} decides from here on"
            warn(f"the {'sampler' if role is Role.TRAIN else 'eval_sampler'} failed, its {text}", error)
            self._recording.write([{"kind": "note", "level": "warning", "text": f"the sampler failed, its {text}"}])

        return Guarded(chosen, instead, failed)

    # Records

    def _facts(self, command: Sequence[str], script: str) -> dict[str, Any]:
        """What run.json says."""
        started, uncertain = zero_on_wall_clock(self._origin)
        ranks = {} if self.rank is None else {"rank": self.rank.rank, "world_size": self.rank.world_size}
        return {
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
            "start_uncertain_ns": uncertain,
            **ranks,
            "options": self.options.as_record(),
            "loops": [],
            "ended": None,
        }

    def _process(self) -> dict[str, Any]:
        """What the trace says of this process, since run.json is of one process only."""
        facts = {name: self._meta[name] for name in ("start_unix_ns", "start_uncertain_ns", "host")}
        facts["parent"] = os.getppid()
        if self.rank is not None:
            facts |= {"rank": self.rank.rank, "local_rank": self.rank.local_rank}
            facts |= {"world_size": self.rank.world_size, "restart": self.rank.restart}
        return facts

    def _new_trace(self) -> Path:
        """The file of this session; ranks share a directory, and may be attached to more than once."""
        if self._launch is None:
            return self.run_dir / f"trace-{self._pid}.jsonl"
        name = f"trace-{self.rank.stem if self.rank else ''}{self._pid}"
        names = (f"{name}.{number}.jsonl" if number > 1 else f"{name}.jsonl" for number in itertools.count(1))
        return next(trace for trace in map(self.run_dir.joinpath, names) if not os.path.lexists(trace))

    def _loop_found(self, code: CodeType, proposal: Proposal, found: str) -> int:
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
        if proposal.role is Role.TRAIN:
            self._happenings.training_loop_in(code)
        self._recording.write([record])
        if self._live is not None:
            self._live.loop(record)
        self._update_meta()
        _log.info(
            "%s loop at %s:%d in %s: %s",
            proposal.role,
            code.co_filename,
            proposal.loop.line,
            code.co_qualname,
            "; ".join(proposal.evidence),
        )
        return len(self._meta["loops"])

    def _loop_retracted(self, loop_id: int, reason: str) -> None:
        """The steps that a loop counted are none: its record says so, and readers leave them out."""
        loop = self._meta["loops"][loop_id - 1]
        loop["role"] = "other"
        loop["evidence"].append(f"not the training loop: {reason}")
        self._recording.write([{"kind": "loop", **loop}])
        if self._live is not None:
            self._live.start_over()
        self._update_meta()
        _log.info("no training loop after all: %s:%d in %s: %s", loop["file"], loop["line"], loop["qualname"], reason)

    def _overhead(self) -> dict[str, Any]:
        """What counting steps and telling their phases has cost so far, and what became of the budget."""
        counting = [each for each in (self._tracker, self._phases) if each is not None]
        callbacks = sum(each.callbacks for each in counting)
        spent = sum(each.callback_ns for each in counting)
        budget = self._budget
        return {
            "callbacks": callbacks,
            "callback_ns": spent,
            "dispatch_ns": round(callbacks * self._dispatch_ns),
            "budget": None if budget is None else {"target": budget.share, "achieved": budget.achieved},
        }

    def _update_meta(self) -> None:
        try:
            self._write_meta()
        except OSError as error:
            if is_interruption(error):
                raise
            # Otherwise the trace has it too, and at the end this is tried again.

    def _write_meta(self) -> None:
        write_atomically(self.run_dir / self._meta_name, self._meta)

    @property
    def _meta_name(self) -> str:
        # Of several ranks, each has its own facts: any of them may be all that is left.
        leads = self._joins.leads if self._joins else self.rank is None or self.rank.rank == 0
        if self._launch is None or leads:
            return "run.json"
        return f"run-rank{self.rank.rank}.json" if self.rank else f"run-process{self._pid}.json"

    def forget_if_empty(self) -> None:
        """Leave nothing of a process that has found no loop and was only one of several; after `finish`."""
        others = [each for each in self.run_dir.glob("trace-*.jsonl") if each != self.trace]
        if self._joins is None or self._meta["loops"] or (self._joins.leads and not others):
            return
        files = [self.trace, self.trace.with_suffix(".journal")]
        if not self._joins.leads:
            files.append(self.run_dir / self._meta_name)
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink()

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
                self._recording.interrupted()
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
            self._recording.write([{"kind": "note", "level": "warning", "text": text}])
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


def running_session() -> Session | None:
    """The session that watches this process, if one does."""
    return next((session for session in list(_sessions) if session.is_running), None)


def _forget_in_child() -> None:
    """The sessions of the parent are not the business of a forked child (DataLoader workers)."""
    for session in list(_sessions):
        session._forked()


os.register_at_fork(after_in_child=_forget_in_child)


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
