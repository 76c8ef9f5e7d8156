"""Runs a command whose Pythons are watched."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import orjson

from tcmon import __version__
from tcmon.errors import TcmonError
from tcmon.follow.environment import Settings, follow, new_launch
from tcmon.log import warn
from tcmon.options import Options
from tcmon.trace.clock import zero_on_wall_clock
from tcmon.trace.directory import make_run_directory
from tcmon.trace.records import FORMAT
from tcmon.trace.secrets import masked
from tcmon.trace.writer import write_atomically


def run_command(program: Sequence[str], options: Options, command: Sequence[str], *, level: str, quiet: bool) -> int:
    """Run `program` to its end and show the summary; returns its exit code.

    A command that a signal ends has 128 and the signal's number. Raises `TcmonError` if it can't be started, or the
    run directory can't be made.
    """
    launch, script = new_launch(), _script(program)
    run_dir = _directory(options, script, launch)
    began = time.perf_counter_ns()
    meta = _facts(options, command, script, began)
    write_atomically(run_dir / "run.json", meta)
    environment = dict(os.environ)
    settings = Settings(_replaced(options, run_dir), launch, list(command), level)
    follow(settings, environment)
    try:
        process = subprocess.Popen(program, env=environment)
    except OSError as error:
        raise TcmonError(f"can't run {program[0]!r}: {error.strerror}") from None
    code = _wait(process)
    code = 128 - code if code < 0 else code
    meta["ended"] = {"reason": "exit", "exit_code": code, "clock_ns": time.perf_counter_ns() - began}
    meta |= _facts_of_the_first(run_dir)
    write_atomically(run_dir / "run.json", meta)
    if not quiet:
        summarise_run(run_dir)
    return code


def _script(program: Sequence[str]) -> str:
    """What to call the run: the first script among the words, or the command."""
    return next((Path(word).name for word in program if word.endswith(".py")), Path(program[0]).name)


def _replaced(options: Options, run_dir: Path) -> Options:
    return dataclasses.replace(options, out=run_dir)


def _directory(options: Options, script: str, launch: str) -> Path:
    """A new directory that carries the mark of the launch."""
    if options.out is None:
        made = make_run_directory(None, script)
        return make_run_directory(made, script, launch)
    return make_run_directory(options.out, script, launch)


def _facts(options: Options, command: Sequence[str], script: str, began: int) -> dict[str, Any]:
    started, uncertain = zero_on_wall_clock(began)
    return {
        "format": FORMAT,
        "tcmon": __version__,
        "command": masked(command),
        "script": script,
        "cwd": str(Path.cwd()),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "torch": None,
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": datetime.datetime.fromtimestamp(started / 1e9, datetime.UTC).isoformat(timespec="seconds"),
        "start_unix_ns": started,
        "start_uncertain_ns": uncertain,
        "options": options.as_record(),
        "loops": [],
        "ended": None,
    }


def _facts_of_the_first(run_dir: Path) -> dict[str, Any]:
    """What is known only in the processes that were watched."""
    for file in [*sorted(run_dir.glob("run-rank*.json")), *sorted(run_dir.glob("run-process*.json"))]:
        try:
            facts = orjson.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        ranks = {"rank": 0, "world_size": facts["world_size"]} if "world_size" in facts else {}
        return {"torch": facts.get("torch"), "python": facts.get("python"), **ranks}
    return {}


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code of the command. It gets the signals that this process gets."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    # From a terminal, an interrupt reaches the command by itself.
    before = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN if sys.stdin.isatty() else hand_on)
    try:
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summarise_run(run_dir: Path) -> None:
    """Show what a run directory holds on stderr; a fault in it is told, and not raised."""
    from rich.console import Console

    from tcmon.checks.run import check
    from tcmon.checks.text import brief
    from tcmon.report.summary import summarise
    from tcmon.report.text import render
    from tcmon.trace.reader import open_run

    try:
        run, console = open_run(run_dir), Console(stderr=True)
        render(summarise(run), console)
        brief(check(run), str(run_dir), console)
    except Exception as error:
        warn(f"there is no summary: {error} (trace: {run_dir})", error)
