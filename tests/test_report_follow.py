"""`tcmon report --follow`: on a terminal and elsewhere, while a run goes on and when it ends."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from program_runs import TCMON, environment, tcmon_run
from trace_builder import end, header, loop, steps, write_run

PROGRAM = """\
import pathlib, time
class A:
    def step(self): pass
    def backward(self): pass
optimizer = loss = A()
for _ in range(10**9):
    time.sleep(0.002)
    loss.backward(); optimizer.step()
    if pathlib.Path("stop").exists():
        break
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A folder in which a program runs under tcmon, until there is a file `stop`."""
    (tmp_path / "script.py").write_text(PROGRAM)
    command = [sys.executable, *TCMON, "run", "--quiet", "--out", "run", "script.py"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment())
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("run/*.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield tmp_path
    (tmp_path / "stop").touch()
    assert process.wait(60) == 0


def read_until(terminal: int, text: str, so_far: str = "") -> str:
    """What a terminal shows, until it has shown `text`."""
    deadline = time.monotonic() + 60
    while text not in so_far:
        assert time.monotonic() < deadline, so_far
        try:
            so_far += os.read(terminal, 1 << 16).decode(errors="replace")
        except OSError:  # nobody writes any more
            break
    assert text in so_far
    return so_far


def left_standing(terminal: int) -> str:
    """The summary that is printed once the screen has been given back."""
    back = "\x1b[?1049l"
    return read_until(terminal, "Next", read_until(terminal, back).rpartition(back)[2])


@pytest.fixture
def following(running: Path) -> Iterator[tuple[int, "subprocess.Popen[bytes]"]]:
    """`tcmon report --follow` on a terminal, and the end of it that shows what is on the screen."""
    try:
        ours, theirs = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal to be had: {error}")
    command = [sys.executable, *TCMON, "report", "--follow", "run"]
    env = environment(TERM="xterm", COLUMNS="100", LINES="30")
    process = subprocess.Popen(command, cwd=running, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    yield ours, process
    process.kill()
    process.wait()
    os.close(ours)


def test_on_a_terminal_the_summary_is_redrawn_until_the_run_ends(
    running: Path, following: tuple[int, "subprocess.Popen[bytes]"]
) -> None:
    terminal, process = following
    first = read_until(terminal, "redrawn while the run goes on")
    assert "still running" in first
    assert "\x1b[?1049h" in first  # on a screen of its own, so that what stood there comes back
    again = read_until(terminal, "redrawn while the run goes on")
    assert "still running" in again
    (running / "stop").touch()
    assert "exit code 0" in left_standing(terminal)
    assert process.wait(60) == 0


def test_an_interrupt_ends_the_following_with_the_summary_so_far(
    following: tuple[int, "subprocess.Popen[bytes]"],
) -> None:
    terminal, process = following
    read_until(terminal, "redrawn while the run goes on")
    process.send_signal(signal.SIGINT)
    last = left_standing(terminal)
    assert "Traceback" not in last
    assert "still running" in last
    assert process.wait(60) == 0


def test_elsewhere_it_waits_for_the_end_and_prints_once(running: Path) -> None:
    command = [sys.executable, *TCMON, "report", "--follow", "--json", "run"]
    process = subprocess.Popen(command, cwd=running, env=environment(), stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    (running / "stop").touch()
    report = json.loads(process.communicate(timeout=60)[0])
    assert report["run"]["state"] == "ended"


def test_a_run_that_has_ended_is_shown_at_once(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [header(), loop(1), steps([1_000_000] * 3), end()])
    followed = tcmon_run("report", "--follow", "run", cwd=tmp_path)
    assert followed == tcmon_run("report", "run", cwd=tmp_path)
    assert "3 steps" in followed.stdout


def test_one_step_is_not_followed(tmp_path: Path) -> None:
    refused = tcmon_run("report", "--follow", "--step", "1", "run", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--follow does not go with --step" in refused.stderr
