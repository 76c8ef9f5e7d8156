"""The flight recorder keeps the last steps for when something happens, and a hang says where the threads stand."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from monitored import STAND_INS
from program_runs import environment

from tcmon.trace.everystep import every_step
from tcmon.trace.flight import Flight
from tcmon.trace.reader import open_run
from tcmon.trace.records import Note

PROGRAM = (
    STAND_INS
    + """
import sys, time
def forward(n): return n
def train(count):
    for n in range(1, count + 1):
        forward(n)
        loss.backward()
        optimizer.step()
        if n == 20:
            print("there", flush=True)
            if sys.argv[1] == "raise": raise RuntimeError("lost")
            if sys.argv[1] == "wait": time.sleep(600)
            if sys.argv[1] == "hang": time.sleep(4)
train(25)
"""
)


def started(folder: Path, how: str, *options: str) -> "subprocess.Popen[str]":
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "tcmon", "run", "--quiet", "--out", "run", *options, "train.py", how]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True)


def recorded(folder: Path) -> dict[int, list[str]]:
    """The calls of each recorded step."""
    [process] = open_run(folder / "run").processes
    return {
        each.step.n: [call.function.qualname for call in each.calls if call.function]
        for each in process.recorded_steps()
    }


def notes(folder: Path) -> list[str]:
    [process] = open_run(folder / "run").processes
    return [record.text for record in process.read() if isinstance(record, Note)]


CALLS = ["forward", "Loss.backward", "Optimizer.step"]


def test_the_steps_before_an_exception_are_written(tmp_path: Path) -> None:
    process = started(tmp_path, "raise", "--flight", "3")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert errors.endswith("RuntimeError: lost\n")
    assert recorded(tmp_path) == {18: CALLS, 19: CALLS, 20: CALLS}
    assert notes(tmp_path) == [
        "the last 3 recorded steps were written because of an exception; 17 before them are not kept"
    ]


ATTACHED = (
    PROGRAM.replace("train(25)\n", "")
    + """
import os, signal, tcmon
kind = sys.argv.pop()
sampler = tcmon.samplers.OnSignal() | tcmon.samplers.Always() if kind == "signal" else None
run = tcmon.attach(flight=3, sampler=sampler, out="run")
if kind == "signal":
    forward = lambda n: n == 10 and os.kill(os.getpid(), signal.SIGUSR1)
    train(25)
elif kind == "with":
    with run: train(25)
else:
    train(25)
"""
)


@pytest.mark.parametrize(
    ("kind", "how", "steps", "why"),
    [
        ("with", "raise", [18, 19, 20], "an exception"),
        ("bare", "raise", [18, 19, 20], "an exception"),
        ("with", "-", [], ""),
        ("bare", "-", [], ""),
        ("signal", "-", [8, 9, 10, 11], "the signal SIGUSR1"),
    ],
)
def test_a_program_that_attaches_has_its_last_steps_too(
    kind: str, how: str, steps: list[int], why: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(ATTACHED)
    command = [sys.executable, "train.py", how, kind]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == (how == "raise"), done.stderr
    assert list(recorded(tmp_path)) == steps
    assert [f"because of {why}" in note for note in notes(tmp_path)] == [True] * bool(steps)


def test_a_slow_step_is_written_with_those_before_it(tmp_path: Path) -> None:
    source = ATTACHED.replace("tcmon.samplers.OnSignal()", "tcmon.samplers.Slow(50)")
    source = source.replace("os.kill(os.getpid(), signal.SIGUSR1)", "time.sleep(1)")
    (tmp_path / "train.py").write_text(source.replace("n == 10", "n == 15"))
    command = [sys.executable, "train.py", "-", "signal"]
    subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=120, check=True)
    assert {13, 14, 15} <= set(recorded(tmp_path))
    assert any("because of Slow at step 15" in note for note in notes(tmp_path))


@pytest.mark.parametrize("time", ["", "x", "0", "-1", "nan", "inf", "1e10", "s", "3d"])
@pytest.mark.parametrize("option", ["--hang-after", "--every"])
def test_a_time_that_is_none_is_refused(option: str, time: str, tmp_path: Path) -> None:
    process = started(tmp_path, "-", option, time)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert len(errors.splitlines()) == 1
    assert option in errors
    assert not (tmp_path / "run").exists()


def test_nothing_is_written_when_nothing_happens(tmp_path: Path) -> None:
    process = started(tmp_path, "-", "--flight", "3")
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert recorded(tmp_path) == {}
    assert notes(tmp_path) == []


def test_the_steps_before_sigterm_are_written_and_the_process_ends_of_it(tmp_path: Path) -> None:
    process = started(tmp_path, "wait", "--flight", "2")
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert recorded(tmp_path) == {18: CALLS, 19: CALLS}


def test_a_hang_is_noted_with_the_place_of_every_thread(tmp_path: Path) -> None:
    process = started(tmp_path, "hang", "--flight", "2", "--hang-after", "1s")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert errors.count("no step for 1 s: MainThread") == 1
    assert f"train ({tmp_path / 'train.py'}:" in errors
    assert recorded(tmp_path) == {18: CALLS, 19: CALLS}
    assert any("because of a hang" in note for note in notes(tmp_path))
    [process_of] = open_run(tmp_path / "run").processes
    [hang] = [record.hang for record in process_of.read() if isinstance(record, Note) and record.hang]
    assert (hang.role, hang.n, hang.collective) == ("train", 20, None)
    assert hang.program is not None
    assert hang.program.startswith(f"train ({tmp_path / 'train.py'}:")


def test_no_hang_is_told_of_where_steps_go_on(tmp_path: Path) -> None:
    process = started(tmp_path, "-", "--hang-after", "30")
    begin = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert errors == ""
    assert time.monotonic() - begin < 30, "the watch ends with the program"


def pieces() -> Iterator[bytes]:
    for number in range(10):
        yield b"%d" % number * 10


def test_what_is_held_is_bounded_in_steps_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    flight = Flight(4)
    for piece in pieces():
        flight.hold(piece)
    assert flight.take() == (b"6" * 10 + b"7" * 10 + b"8" * 10 + b"9" * 10, 4, 6)
    assert flight.take() == (b"", 0, 0)
    monkeypatch.setattr("tcmon.trace.flight.MOST_BYTES", 25)
    for piece in pieces():
        flight.hold(piece)
    assert flight.take() == (b"8" * 10 + b"9" * 10, 2, 8)


def test_a_trace_of_full_size_keeps_the_times_of_all_steps(tmp_path: Path) -> None:
    process = started(tmp_path, "-", "--interval", "1", "--warmup", "0", "--max-bytes", "4K")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert errors.count("only the times are kept") == 1
    calls = recorded(tmp_path)
    kept = [n for n, names in calls.items() if names]
    assert kept == list(range(1, len(kept) + 1))
    assert 1 <= len(kept) < 20
    [process_of] = open_run(tmp_path / "run").processes
    assert [each.times.n for each in every_step(process_of)] == list(range(1, 26))


@pytest.mark.parametrize("size", ["", "x", "-1", "1X", "nanG", "1e999G"])
def test_a_size_that_is_none_is_refused(size: str, tmp_path: Path) -> None:
    process = started(tmp_path, "-", "--max-bytes", size)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "run").exists()
