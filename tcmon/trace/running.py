"""Finds the files of runs in progress on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tcmon.errors import TcmonError

_JOURNAL = re.compile(r"trace-(?:.*-)?(\d+)(?:\.\d+)?\.journal")


def journal_of(pid: int) -> Path:
    """The journal of a process that is being watched, found among the files that it has mapped.

    Raises `TcmonError` if there is no such process, it is not watched, or this system does not tell.
    """
    journals = _mapped_journals(pid)
    if journals is None:
        raise TcmonError("this system does not tell which files a process has open; give its run directory instead")
    if not journals:
        raise TcmonError(f"process {pid} is not watched by tcmon; start it with tcmon run, or attach to it")
    return journals[-1]


def running_journals(run_dir: Path) -> dict[int, Path]:
    """The journals of a run directory's processes that run on this machine, by the numbers of the processes.

    Raises `TcmonError` if there is none.
    """
    found = {}
    for journal in sorted(run_dir.glob("trace-*.journal")):
        named = _JOURNAL.fullmatch(journal.name)
        if named and _is_alive(int(named[1]), journal.resolve()):
            found[int(named[1])] = journal
    if not found:
        what = "holds no run" if not any(run_dir.glob("trace-*")) else "is a run of which no process runs here"
        raise TcmonError(f"{str(run_dir)!r} {what}; give the directory or the process number of a run in progress")
    return found


def _is_alive(pid: int, journal: Path) -> bool:
    try:
        mapped = _mapped_journals(pid)
    except TcmonError:
        return False
    return mapped is None or journal in mapped


def _mapped_journals(pid: int) -> list[Path] | None:
    """The journals that a process has mapped; None where the system does not tell. Raises `TcmonError`."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        raise TcmonError(f"there is no process {pid}") from None
    except PermissionError:
        raise TcmonError(f"process {pid} is another user's") from None
    if not Path("/proc/self/maps").exists():
        return None
    try:
        maps = os.fsdecode(Path(f"/proc/{pid}/maps").read_bytes())
    except OSError as error:
        raise TcmonError(f"can't see the files of process {pid}: {error.strerror}") from None
    paths = (Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if line.endswith(".journal"))
    return [path for path in dict.fromkeys(paths) if _JOURNAL.fullmatch(path.name)]
