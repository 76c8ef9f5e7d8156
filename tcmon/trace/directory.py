"""Makes run directories; one that holds a run is never written into again, save by other ranks of the same launch."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from tcmon.errors import TcmonError

_LAUNCH = "launch-"


def make_run_directory(out: Path | None, script: str, launch: str | None = None) -> Path:
    """The new directory of a run: `out`, or one under `tcmon-runs` that is named after the script.

    The processes of one `launch` share a directory, whichever of them comes first. Raises `TcmonError` if it can't be
    made or written to, or holds another run already.
    """
    try:
        if out is None and launch is not None:
            out = Path("tcmon-runs") / f"{_stem(script)}-{launch}"
        if out is None:
            return _new_directory(Path("tcmon-runs").absolute(), script)
        path = out.absolute()
        path.mkdir(parents=True, exist_ok=True)
        held = any(path.glob("trace-*.jsonl")) or any(path.glob("run*.json"))
        if launch is not None:
            # The mark comes before any other file of the launch: where another rank's are seen, it is there too.
            mark = path / f"{_LAUNCH}{launch}"
            if not held and not mark.exists():
                os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
            held = any(each != mark for each in path.glob(f"{_LAUNCH}*")) or not mark.exists()
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
    name = f"{_stem(script)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for again in itertools.count(1):
        path = parent / (name if again == 1 else f"{name}-{again}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("there are always more numbers")


def _stem(script: str) -> str:
    return Path(script).name.removesuffix(".py") or "run"
