"""How a run came to its end, or whether it still goes on."""

import os
import socket
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tcmon.trace.records import End, RunMeta

# A process' start, as the kernel tells it, and the session's, which begins a little later, on two clocks.
_SLACK_S: Final = 60.0


class Condition(StrEnum):
    """Where a run stands. A run without an end record either goes on or was killed."""

    ENDED = "ended"
    RUNNING = "running"
    KILLED = "killed"
    UNKNOWN = "running or killed"


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands; `reason`, `exit_code` and `clock_ns` (when) are known only for a run that ended."""

    condition: Condition
    reason: str | None = None
    exit_code: int | None = None
    clock_ns: int | None = None


def state_of(meta: RunMeta, end: End | None) -> State:
    """Where the run stands whose first process left the end record `end`, if any.

    Without one, the process is looked for; that tells something only on the host that it ran on.
    """
    ended = meta.ended or end
    if ended is not None:
        return State(Condition.ENDED, ended.reason, ended.exit_code, ended.clock_ns)
    if meta.host != socket.gethostname():
        return State(Condition.UNKNOWN)
    return State(_condition(meta.pid, meta.start_unix_ns / 1e9))


def _condition(pid: int, started: float) -> Condition:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return Condition.KILLED
    except OSError:
        pass  # it is there, and somebody else's
    since = _start_of(pid)
    if since is None:
        return Condition.UNKNOWN
    return Condition.RUNNING if since <= started + _SLACK_S else Condition.KILLED


def _start_of(pid: int) -> float | None:
    """Unix time at which a living process started, infinity for one that is dead but not yet waited for.

    None where the system doesn't tell (/proc is Linux's).
    """
    try:
        # The name of the program comes second, in parentheses, and may hold anything.
        state, *values = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        if state in "ZX":
            return float("inf")
        boot = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text("ascii").splitlines()
            if line.startswith("btime")
        )
        return boot + int(values[18]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration):
        return None
