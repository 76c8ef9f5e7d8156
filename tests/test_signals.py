"""Signals reach the program as without tcmon, wherever they meet it; and a process that one kills leaves its steps."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from monitored import STAND_INS
from program_runs import environment, run

from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.trace.reader import open_run
from tcmon.trace.records import Steps

INTERRUPTED = (
    STAND_INS
    + """
import json, random, signal, sys, time, traceback

rng = random.Random(7)
steps = caught = handled = 0
files, contexts = set(), set()
WANTED = int(sys.argv[1])

class Timeout(Exception): pass

def again():
    signal.setitimer(signal.ITIMER_REAL, 0.0001 + rng.random() * 0.0007)

def inner(n):
    return n if n == 0 else inner(n - 1)

def train():
    global steps
    for batch in range(10**9):
        steps += 1
        if steps == 20:
            again()
        inner(3)
        loss.backward()
        optimizer.step()

HANDLER

signal.signal(signal.SIGALRM, handler)
# In a function, and twice: the next signal may come while the last one's exception is being handled.
def main():
    global caught
    while caught < WANTED:
        try:
            try:
                train()
            except EXPECTED as error:
                caught += 1
                files.update(frame.filename for frame in traceback.extract_tb(error.__traceback__))
                contexts.add(type(error.__context__).__name__)
                again()
        except EXPECTED:
            caught += 1
            again()
main()
signal.setitimer(signal.ITIMER_REAL, 0)
print(json.dumps({"steps": steps, "caught": caught, "handled": handled, "files": sorted(files),
                  "contexts": sorted(contexts)}))
"""
)
RAISING = """
def handler(number, frame):
    global handled
    handled += 1
    raise {exception}
"""
HANDLERS = {
    "the interrupt of Python's own handler": ("handler = signal.default_int_handler", "KeyboardInterrupt"),
    "KeyboardInterrupt of the program": (RAISING.format(exception="KeyboardInterrupt"), "KeyboardInterrupt"),
    "SystemExit": (RAISING.format(exception="SystemExit(3)"), "SystemExit"),
    "an exception of the program": (RAISING.format(exception="Timeout('slow')"), "Timeout"),
    "a usual exception": (RAISING.format(exception="TimeoutError('slow')"), "TimeoutError"),
    "an exception of a method": (
        (
            "class Watch:\n    def late(self, *_):\n        global handled; handled += 1; raise KeyError('late')\n"
            "handler = Watch().late"
        ),
        "KeyError",
    ),
    "an exception of a callable": (
        (
            "class Watch:\n    def __call__(self, *_):\n"
            "        global handled; handled += 1; raise ValueError('late')\n"
            "handler = Watch()"
        ),
        "ValueError",
    ),
}


def numbers_of(run_dir: Path) -> list[int]:
    return [
        record.first + i
        for record in open_run(run_dir).processes[0].read()
        if isinstance(record, Steps) and record.role == "train"
        for i in range(len(record.end))
    ]


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_raises_reaches_the_program(handler: str, tmp_path: Path) -> None:
    definition, expected = HANDLERS[handler]
    source = INTERRUPTED.replace("HANDLER", definition).replace("EXPECTED", expected)
    (tmp_path / "program.py").write_text(source)
    wanted = 150

    # Every step is recorded: most of the time is spent in callbacks, so that is where most of the signals come.
    options = ["--quiet", "--interval", "1", "--out", "run", "program.py", str(wanted)]
    ended = run([sys.executable, "-m", "tcmon", "run", *options], cwd=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert told["caught"] == wanted
    assert told["handled"] == (0 if "Python's own" in handler else wanted)
    assert as_json(summarise(open_run(tmp_path / "run")))["dropped"]["damaged_lines"] == 0
    numbers = numbers_of(tmp_path / "run")
    assert len(set(numbers)) == len(numbers)
    # A step whose very beginning or end is interrupted may be missed.
    assert abs(told["steps"] - len(numbers)) <= wanted // 10
    assert told["steps"] > wanted


def test_interrupts_that_come_while_a_step_is_written_cost_no_step(tmp_path: Path) -> None:
    # Sent by another thread, which gets its turn while the main one writes: within callbacks, at their longest.
    source = """
        import os, threading
        ready, sent = threading.Event(), 0

        def interrupt():
            global sent
            ready.wait()
            for _ in range(WANTED):
                time.sleep(rng.random() * 0.002)
                sent += 1
                os.kill(os.getpid(), signal.SIGINT)
                while caught < sent:
                    time.sleep(0.0001)

        threading.Thread(target=interrupt).start()
        def again(): pass
        main_loop = train
        def train():
            ready.set()
            main_loop()
    """
    definition = textwrap.dedent(source) + "\nhandler = signal.default_int_handler"
    (tmp_path / "program.py").write_text(
        INTERRUPTED.replace("HANDLER", definition).replace("EXPECTED", "KeyboardInterrupt")
    )
    options = ["--quiet", "--interval", "2", "--out", "run", "program.py", "200"]
    ended = run([sys.executable, "-m", "tcmon", "run", *options], cwd=tmp_path)

    assert (ended.returncode, ended.stderr) == (0, "")
    told = json.loads(ended.stdout)
    assert told["caught"] == 200
    assert sorted(numbers_of(tmp_path / "run")) == list(range(1, told["steps"] + 1))


ENDLESS = (
    STAND_INS
    + """
import os, signal, sys

def work(n):
    return n if n == 0 else work(n - 1)

def train(count):
    for step in range(count):
        work(20)
        loss.backward()
        optimizer.step()
        print(step + 1, flush=True)

"""
)


def killed(folder: Path, number: int, moment: int, *options: str) -> int:
    """Kill a training once `moment` of its steps are over; the number of steps that it told of."""
    (folder / "program.py").write_text(ENDLESS + "train(10**9)")
    command = [sys.executable, "-m", "tcmon", "run", "--out", "run", *options, "program.py"]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = 0
        for line in process.stdout:
            if line.endswith("\n"):
                last = int(line)
            if last == moment:
                process.send_signal(number)
    assert process.returncode == -number
    return last


KILLS = int(os.environ.get("TCMON_TEST_KILLS", "20"))
"""How often a process is killed; 200 for a thorough test."""


@pytest.mark.parametrize("trial", range(KILLS))
def test_a_killed_process_loses_at_most_the_step_in_progress(trial: int, tmp_path: Path) -> None:
    chance = random.Random(trial)
    interval = chance.choice(["1", "3", "50"])
    told = killed(
        tmp_path, signal.SIGKILL, chance.randrange(1, 3000 if interval == "50" else 200), "--interval", interval
    )

    numbers = sorted(numbers_of_killed(tmp_path / "run"))
    assert numbers == list(range(1, len(numbers) + 1))
    # The step is over a moment after the program has told of it.
    assert told - 1 <= len(numbers) <= told
    summary = as_json(summarise(open_run(tmp_path / "run")))
    assert summary["steps"]["train"]["count"] == len(numbers)
    assert summary["dropped"]["damaged_lines"] == 0


def numbers_of_killed(run_dir: Path) -> set[int]:
    unwritten = {times.n for times in open_run(run_dir).processes[0].unwritten_steps()}
    return unwritten | set(numbers_of(run_dir))


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGSEGV], ids=lambda n: n.name
)
def test_a_signal_that_ends_the_process_ends_it_as_before(number: signal.Signals, tmp_path: Path) -> None:
    told = killed(tmp_path, number, 100, "--interval", "7")
    assert told - 1 <= len(numbers_of_killed(tmp_path / "run")) <= told


@pytest.mark.parametrize(
    "end, code",
    [
        ("os.abort()", -signal.SIGABRT),
        ("os._exit(7)", 7),
        ("os.execv(sys.executable, [sys.executable, '-c', 'print(0)'])", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_all_steps_are_there_after_an_end_without_notice(end: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ENDLESS + f"train(50)\n{end}")
    ended = run([sys.executable, "-m", "tcmon", "run", "--out", "run", "program.py"], cwd=tmp_path)
    assert (ended.returncode, ended.stderr.replace("Fatal Python error: Aborted", "")) == (code, "")
    assert as_json(summarise(open_run(tmp_path / "run")))["steps"]["train"]["count"] == 50


def test_a_program_that_runs_itself_anew_gets_a_run_each_time(tmp_path: Path) -> None:
    source = "train(5)\nif 'again' not in sys.argv: os.execv(sys.executable, [*sys.orig_argv, 'again'])"
    (tmp_path / "program.py").write_text(ENDLESS + source)
    ended = run([sys.executable, "-m", "tcmon", "run", "--quiet", "program.py"], cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    runs = list((tmp_path / "tcmon-runs").iterdir())
    assert [as_json(summarise(open_run(each)))["steps"]["train"]["count"] for each in runs] == [5, 5]
