"""Runs a program by python and by tcmon, for tests that both must do the same."""

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tcmon

CHECKOUT = Path(tcmon.__file__).parent.parent
TCMON = ("-m", "tcmon")
_numbers = itertools.count()


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


def environment(**more: str) -> dict[str, str]:
    """This process's, but for settings of Python, which change what a program does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return clean | {"PYTHONPATH": str(CHECKOUT)} | more


def run(command: Sequence[str], *, cwd: Path, stdin: str = "", merge: bool = False, **env: str) -> Ended:
    """The end of a command. With `merge`, stderr goes where stdout goes."""
    done = subprocess.run(
        command,
        cwd=cwd,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merge else subprocess.PIPE,
        text=True,
        env=environment(**env),
        timeout=120,
    )
    return Ended(done.returncode, done.stdout, done.stderr or "")


def watched_command(
    *args: str, flags: tuple[str, ...] = (), tcmon: tuple[str, ...] = TCMON, quiet: bool = True
) -> list[str]:
    """What runs `python ARGS` under tcmon."""
    out = ("--out", f".watched-{next(_numbers)}")
    return [sys.executable, *flags, *tcmon, "run", *(["--quiet"] if quiet else []), *out, *args]


def both(*args: str, cwd: Path, flags: tuple[str, ...] = (), tcmon: tuple[str, ...] = TCMON, **how: Any) -> Ended:
    """What `python ARGS` does, once `tcmon run ARGS` was seen to do just the same."""
    plain = run([sys.executable, *flags, *args], cwd=cwd, **how)
    watched = run(watched_command(*args, flags=flags, tcmon=tcmon), cwd=cwd, **how)
    assert watched == plain, f"tcmon run:\n{watched}\npython:\n{plain}"
    return plain


def tcmon_run(*args: str, cwd: Path, **how: Any) -> Ended:
    """What `python -m tcmon ARGS` does."""
    return run([sys.executable, *TCMON, *args], cwd=cwd, **how)
