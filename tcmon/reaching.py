"""Reaches another Python process from outside, by `sys.remote_exec` of Python 3.14 (PEP 768)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tcmon.errors import TcmonError
from tcmon.options import Options

PATIENCE = 30.0
"""Seconds in which a process must come to run Python code in its main thread."""

# Run in the other process, in the midst of its own code. It must not raise: the process would show it.
_SCRIPT = """\
def _tcmon():
    import json, os, sys
    folder = {folder!r}
    if not os.path.exists(folder + "/wanted"):
        return
    path, sys.path = sys.path, [*sys.path, *{path!r}]
    try:
        try:
            from tcmon import remote
            import base64, pickle
        finally:
            sys.path = path
        call, *arguments = pickle.loads(base64.b64decode({call!r}))
        answer = getattr(remote, call)(*arguments)
    except Exception as error:
        answer = dict(error=" ".join(str(error).split()) or type(error).__name__)
    with open(folder + "/answer.new", "w") as file:
        json.dump(answer, file)
    os.replace(folder + "/answer.new", folder + "/answer")
_tcmon()
del _tcmon
"""


def attach_to(pid: int, options: Options) -> Path:
    """Watch a running process; its run directory. Raises `TcmonError` saying why that can't be done."""
    return _call(pid, "attach to", "begin", options)


def detach_from(pid: int) -> Path:
    """Stop watching a process that was attached to; its run directory. Raises `TcmonError`."""
    return _call(pid, "detach from", "end")


def ranks_of(pid: int) -> list[int]:
    """The processes of the launch that `pid`, a rank or the launcher of ranks, belongs to, in the order of ranks.

    Raises `TcmonError` if there are none.
    """
    parents, ranks = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                variables = (folder / "environ").read_bytes().split(b"\0")
                rank = next((each[5:] for each in variables if each.startswith(b"RANK=")), b"")
                if rank.isdigit():
                    ranks[int(folder.name)] = int(rank)
    launcher = parents.get(pid) if pid in ranks else pid
    found = [each for each in ranks if parents[each] == launcher]
    if not found:
        raise TcmonError(f"process {pid} is no rank and has started none; attach to it without --all-ranks")
    return sorted(found, key=ranks.__getitem__)


def _call(pid: int, what: str, *call: object) -> Path:
    remote_exec = getattr(sys, "remote_exec", None)
    if remote_exec is None:
        version = ".".join(map(str, sys.version_info[:3]))
        raise TcmonError(
            f"can't {what} process {pid}: that takes Python 3.14 or newer, here and there, and this is "
            f"Python {version}; use tcmon run, or tcmon.attach() in the program"
        )
    folder = Path(tempfile.mkdtemp(prefix="tcmon-"))
    waited_in_vain = False
    try:
        _give_to_owner(folder, pid)
        (folder / "wanted").touch()
        text = base64.b64encode(pickle.dumps(call)).decode()
        path = [str(Path(__file__).parents[1]), *(entry for entry in sys.path if entry)]
        script = folder / "script.py"
        script.write_text(_SCRIPT.format(folder=str(folder), path=path, call=text))
        _run_in(pid, what, str(script), remote_exec)
        waited_in_vain = True
        answer = _answer(pid, what, folder / "answer")
        waited_in_vain = False
    finally:
        # A process that comes to the script later finds that it isn't wanted, instead of no script.
        with contextlib.suppress(OSError):
            (folder / "wanted").unlink()
        if not waited_in_vain:
            shutil.rmtree(folder, ignore_errors=True)
    if "error" in answer:
        raise TcmonError(f"can't {what} process {pid}: {answer['error']}")
    return Path(answer["run_dir"])


def _give_to_owner(folder: Path, pid: int) -> None:
    with contextlib.suppress(OSError):
        owner = Path(f"/proc/{pid}").stat().st_uid
        if owner != os.geteuid():
            os.chown(folder, owner, -1)


def _run_in(pid: int, what: str, script: str, remote_exec: Callable[[int, str], None]) -> None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        raise TcmonError(f"can't {what} process {pid}: there is no such process") from None
    except OSError:
        pass  # what is allowed is found out next
    try:
        remote_exec(pid, script)
    except PermissionError:
        raise TcmonError(
            f"can't {what} process {pid}: permission denied; run tcmon as its owner (and see "
            "/proc/sys/kernel/yama/ptrace_scope) or as root"
        ) from None
    except (OSError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise TcmonError(
            f"can't {what} process {pid}: {why}; is it Python {sys.version_info[0]}.{sys.version_info[1]}, as this is, "
            "and was it started without PYTHON_DISABLE_REMOTE_DEBUG?"
        ) from None


def _answer(pid: int, what: str, file: Path) -> dict[str, str]:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if file.exists():
            answer: dict[str, str] = json.loads(file.read_text())
            return answer
        if not Path(f"/proc/{pid}").exists():
            raise TcmonError(f"can't {what} process {pid}: it has ended")
        time.sleep(0.02)
    raise TcmonError(
        f"can't {what} process {pid}: its main thread ran no Python code for {PATIENCE:g} s; try again later"
    )


def processes(pid: int, all_ranks: bool) -> Sequence[int]:
    """The processes that are meant."""
    return ranks_of(pid) if all_ranks else [pid]
