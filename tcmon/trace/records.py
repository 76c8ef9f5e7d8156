"""The typed records of a run directory, and the strict reading of one JSON object into one of them.

A trace may be cut, damaged or made up, so every value is checked before anything counts on it: an object of
the wrong shape raises `Damaged`, and never any other exception. Fields that are not known are passed over, so
that a later writer of the same format may add some.

Times are nanoseconds on the session's clock (zero at its start); durations are nanoseconds.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import gt
from typing import Final

from tcmon.trace import details, fields
from tcmon.trace.details import ROLES as ROLES
from tcmon.trace.details import Detail
from tcmon.trace.fields import Damaged, Object, Setting
from tcmon.trace.journal import PHASES

FORMAT: Final = 1
"""The format of run directories that this version reads."""

"""Parts of a step's time beyond its `wait`; "data" is waiting for a data loader within the step's body."""

_FOUND: Final = ("static", "dynamic", "manual")


class UnknownKind(Damaged):
    """A well-formed record of a kind that this version doesn't know."""


@dataclass(frozen=True, slots=True)
class Header:
    """First record of a trace: the process that wrote it.

    The wall clock at the session's zero is `start_unix_ns`, give or take `start_uncertain_ns` (None where it was not
    measured). `rank` and what follows are None for a process that is no rank of a distributed run.
    """

    format: int
    pid: int
    start_unix_ns: int
    start_uncertain_ns: int | None = None
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    restart: int | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that was found; a later record with the same id takes its place.

    `line` is that of the `for` or `while`, `evidence` says why the loop has its role.
    """

    id: int
    file: str
    qualname: str
    line: int
    role: str
    found: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A Python function that was called in a recorded step; `module` is None where it couldn't be told."""

    id: int
    module: str | None
    qualname: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class ExceptionType:
    """An exception that left a call in a recorded step."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class Steps:
    """Times of the consecutive steps `first`, `first + 1`, ... of one role, recorded or not.

    `begin` holds clock values; `wait` is how long each step waited for data, and `end` how long it took, wait
    included. `phases` holds the time of each of `PHASES` that any of the steps spent time in; what is left of `end` is
    none of them.
    """

    role: str
    stage: str
    loop: int
    first: int
    begin: Sequence[int]
    wait: Sequence[int]
    end: Sequence[int]
    phases: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def phases_of(self, index: int) -> tuple[int, ...]:
        """The time of one of the steps in each of `PHASES`; empty where nothing is known of them."""
        if not self.phases:
            return ()
        return tuple(self.phases[name][index] if name in self.phases else 0 for name in PHASES)


@dataclass(frozen=True, slots=True)
class Step:
    """A step that was recorded in detail, and why. It follows the `Calls` that belong to it.

    One of role "other" is no step: it is what ran after the program entered a stage outside of all steps.
    """

    role: str
    n: int
    loop: int
    reason: str
    stage: str
    begin: int
    wait: int
    end: int
    thread: int
    calls_stored: int
    calls_dropped: int


@dataclass(frozen=True, slots=True)
class Calls:
    """Events of one thread in one recorded step, in order.

    `what[i]` is a function's id where a call of it starts or resumes, 0 where the innermost open call
    returned, -1 where it yielded, and -1 minus an exception's id where it raised. `at[i]` is the time
    since the event before, for the first one the time since the clock value `begin`.
    """

    role: str
    n: int
    loop: int
    thread: int
    begin: int
    what: Sequence[int]
    at: Sequence[int]


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The share of the run's time that watching may take, and what it took so far (None: nothing is known yet)."""

    target: float
    achieved: float | None


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the monitor itself did since the session began; the last record of a trace counts.

    `budget` is None where the run has none.
    """

    callbacks: int
    callback_ns: int
    dispatch_ns: int
    write_ns: int
    events: int
    bytes: int
    budget: BudgetUse | None = None


@dataclass(frozen=True, slots=True)
class Hang:
    """Where a process stood when there was no step for `ns`: in step `n` of `role`, or none.

    `at` is the place of the innermost call of the step's thread, `program` that of the innermost call in the program's
    own files, `collective` the function of torch.distributed that it is in, if it is in one.
    """

    ns: int
    role: str | None
    n: int | None
    at: str | None
    program: str | None
    collective: str | None


@dataclass(frozen=True, slots=True)
class Note:
    """Something that went wrong or was left out."""

    level: str
    text: str
    hang: Hang | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """How much code was looked at: code objects that ran, those analysed, loops found in them."""

    code_objects: int
    analysed: int
    loops: int


@dataclass(frozen=True, slots=True)
class End:
    """Last record of a trace whose process came to its end.

    `hint` says what to do when no training loop was found.
    """

    reason: str
    exit_code: int | None
    clock_ns: int
    seen: Seen | None
    hint: str | None


type Record = Header | Loop | Function | ExceptionType | Steps | Step | Calls | Overhead | Note | End | Detail


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, as run.json says it."""

    reason: str
    exit_code: int | None
    clock_ns: int


@dataclass(frozen=True, slots=True)
class RunMeta:
    """The facts of a run, from its run.json.

    `ended` is None while the run goes on, and stays so when it was killed.
    """

    format: int
    tcmon: str
    command: tuple[str, ...]
    script: str
    cwd: str | None
    python: str
    implementation: str
    torch: str | None
    platform: str
    host: str
    pid: int
    started: str
    start_unix_ns: int
    options: Mapping[str, Setting]
    loops: tuple[Loop, ...]
    ended: Ended | None
    rank: int | None = None
    world_size: int | None = None


def read_record(line: bytes) -> Record:
    """The record that one line of a trace holds.

    Raises `UnknownKind` where a later version may know better, else `Damaged`.
    """
    obj = fields.parse(line)
    kind = fields.text(obj, "kind")
    reader = _READERS.get(kind)
    if reader is None:
        raise UnknownKind(f"unknown kind {kind[:40]!r}")
    return reader(obj)


def read_meta(obj: Object) -> RunMeta:
    """The facts in the object of a run.json. Raises `Damaged`."""
    return RunMeta(
        format=fields.number(obj, "format", low=1),
        tcmon=fields.text(obj, "tcmon"),
        command=fields.texts(obj, "command"),
        script=fields.text(obj, "script"),
        cwd=fields.text_or_none(obj, "cwd"),
        python=fields.text(obj, "python"),
        implementation=fields.text(obj, "implementation"),
        torch=fields.text_or_none(obj, "torch"),
        platform=fields.text(obj, "platform"),
        host=fields.text(obj, "host"),
        pid=fields.number(obj, "pid"),
        started=fields.text(obj, "started"),
        start_unix_ns=fields.time(obj, "start_unix_ns"),
        options=fields.settings(obj, "options"),
        loops=tuple(_loop(each) for each in fields.nested_list(obj, "loops")),
        ended=None if obj.get("ended") is None else _ended(fields.nested(obj, "ended")),
        rank=_number_or_none(obj, "rank"),
        world_size=_number_or_none(obj, "world_size"),
    )


def read_format(obj: Object) -> int:
    """The format that an object of run.json or a trace's header claims to have. Raises `Damaged`."""
    return fields.number(obj, "format", low=1)


def _header(obj: Object) -> Header:
    return Header(
        read_format(obj),
        fields.number(obj, "pid"),
        fields.time(obj, "start_unix_ns"),
        _number_or_none(obj, "start_uncertain_ns"),
        fields.text_or_none(obj, "host") if "host" in obj else None,
        *(_number_or_none(obj, name) for name in ("rank", "local_rank", "world_size", "restart")),
    )


def _number_or_none(obj: Object, name: str) -> int | None:
    return None if obj.get(name) is None else fields.number(obj, name)


def _loop(obj: Object) -> Loop:
    return Loop(
        id=fields.number(obj, "id"),
        file=fields.text(obj, "file"),
        qualname=fields.text(obj, "qualname"),
        line=fields.number(obj, "line"),
        role=fields.choice(obj, "role", ROLES),
        found=fields.choice(obj, "found", _FOUND),
        evidence=fields.texts(obj, "evidence"),
    )


def _function(obj: Object) -> Function:
    return Function(
        id=fields.number(obj, "id", low=1),
        module=fields.text_or_none(obj, "module"),
        qualname=fields.text(obj, "qualname"),
        file=fields.text(obj, "file"),
        line=fields.number(obj, "line"),
    )


def _exception(obj: Object) -> ExceptionType:
    return ExceptionType(fields.number(obj, "id", low=1), fields.text(obj, "name"))


def _steps(obj: Object) -> Steps:
    begin = list(accumulate(fields.numbers(obj, "begin", low=-fields.TIME_LIMIT)))
    wait = fields.numbers(obj, "wait", low=0)
    end = fields.numbers(obj, "end", low=0)
    if not len(begin) == len(wait) == len(end):
        raise Damaged("the columns of steps differ in length")
    if begin and not 0 <= min(begin) <= max(begin) < fields.TIME_LIMIT:
        raise Damaged("begin of a step lies outside the clock")
    if any(map(gt, wait, end)):
        raise Damaged("a step waited longer than it took")
    times = fields.nested(obj, "phases") if "phases" in obj else {}
    unit = fields.number(obj, "phases_unit", low=1, limit=1_000_000_000) if "phases_unit" in obj else 1
    phases = {name: [unit * each for each in fields.numbers(times, name, low=0)] for name in PHASES if name in times}
    if any(len(column) != len(end) for column in phases.values()):
        raise Damaged("the columns of steps differ in length")
    if any(wait[i] + sum(column[i] for column in phases.values()) > end[i] for i in range(len(end) if phases else 0)):
        raise Damaged("the phases of a step took longer than it did")
    return Steps(
        fields.choice(obj, "role", ROLES),
        fields.text(obj, "stage"),
        fields.number(obj, "loop"),
        fields.number(obj, "first", low=1),
        begin,
        wait,
        end,
        phases,
    )


def _step(obj: Object) -> Step:
    calls = fields.nested(obj, "calls") if "calls" in obj else {"stored": 0, "dropped": 0}
    step = Step(
        role=fields.choice(obj, "role", ROLES),
        n=fields.number(obj, "n", low=1),
        loop=fields.number(obj, "loop"),
        reason=fields.text(obj, "reason"),
        stage=fields.text(obj, "stage"),
        begin=fields.time(obj, "begin"),
        wait=fields.time(obj, "wait"),
        end=fields.time(obj, "end"),
        thread=fields.number(obj, "thread", limit=1 << 64),
        calls_stored=fields.number(calls, "stored"),
        calls_dropped=fields.number(calls, "dropped"),
    )
    if step.wait > step.end:
        raise Damaged("a step waited longer than it took")
    return step


def _calls(obj: Object) -> Calls:
    what = fields.numbers(obj, "what", low=-fields.COUNT_LIMIT, limit=fields.COUNT_LIMIT)
    at = fields.numbers(obj, "at", low=0)
    if len(what) != len(at):
        raise Damaged("the columns of calls differ in length")
    begin = fields.time(obj, "begin")
    if begin + sum(at) >= fields.TIME_LIMIT:
        raise Damaged("a call lies outside the clock")
    return Calls(
        role=fields.choice(obj, "role", ROLES),
        n=fields.number(obj, "n", low=1),
        loop=fields.number(obj, "loop"),
        thread=fields.number(obj, "thread", limit=1 << 64),
        begin=begin,
        what=what,
        at=at,
    )


def _overhead(obj: Object) -> Overhead:
    return Overhead(
        callbacks=fields.number(obj, "callbacks"),
        callback_ns=fields.time(obj, "callback_ns"),
        dispatch_ns=fields.time(obj, "dispatch_ns"),
        write_ns=fields.time(obj, "write_ns"),
        events=fields.number(obj, "events"),
        bytes=fields.number(obj, "bytes"),
        budget=_budget(fields.nested(obj, "budget")) if obj.get("budget") is not None else None,
    )


def _budget(obj: Object) -> BudgetUse:
    target = fields.real(obj, "target")
    if target is None:
        raise Damaged("target is missing")
    return BudgetUse(target, fields.real(obj, "achieved"))


def _note(obj: Object) -> Note:
    hang = fields.nested(obj, "hang") if obj.get("hang") is not None else None
    return Note(fields.text(obj, "level"), fields.text(obj, "text"), None if hang is None else _hang(hang))


def _hang(obj: Object) -> Hang:
    return Hang(
        ns=fields.time(obj, "ns"),
        role=fields.text_or_none(obj, "role"),
        n=fields.number_or_none(obj, "n"),
        at=fields.text_or_none(obj, "at"),
        program=fields.text_or_none(obj, "program"),
        collective=fields.text_or_none(obj, "collective"),
    )


def _end(obj: Object) -> End:
    seen = obj.get("seen")
    ended = _ended(obj)
    return End(
        reason=ended.reason,
        exit_code=ended.exit_code,
        clock_ns=ended.clock_ns,
        seen=None if seen is None else _seen(fields.nested(obj, "seen")),
        hint=fields.text_or_none(obj, "hint"),
    )


def _ended(obj: Object) -> Ended:
    code = obj.get("exit_code")
    if code is not None and type(code) is not int:
        raise Damaged(f"exit_code is {code!r:.40}, not a number")
    return Ended(fields.text(obj, "reason"), code, fields.time(obj, "clock_ns"))


def _seen(obj: Object) -> Seen:
    return Seen(fields.number(obj, "code_objects"), fields.number(obj, "analysed"), fields.number(obj, "loops"))


_READERS: Final[Mapping[str, Callable[[Object], Record]]] = {
    "process": _header,
    "loop": _loop,
    "function": _function,
    "exception": _exception,
    "steps": _steps,
    "step": _step,
    "calls": _calls,
    "overhead": _overhead,
    "note": _note,
    "end": _end,
    **details.READERS,
}
