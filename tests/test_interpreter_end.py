"""The interpreter ends as without tcmon, whatever still trains then; the trace holds the steps until then."""

import sys
import textwrap
from pathlib import Path

import pytest
from monitored import STAND_INS
from program_runs import both, run

from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.trace.reader import open_run

TRAIN = """
import atexit, os, sys, threading, time, weakref

def work(n):
    return n if n == 0 else work(n - 1)

def train(count):
    for step in range(count):
        work(5)
        loss.backward()
        optimizer.step()
"""

PROGRAMS = {  # and the least and the most number of steps
    "daemon threads that train": (
        """
        for _ in range(4): threading.Thread(target=train, args=(10**9,), daemon=True).start()
        time.sleep(0.2)
        """,
        4,
        10**9,
    ),
    "a thread that trains on": ("threading.Thread(target=lambda: (time.sleep(0.1), train(40))).start()", 40, 40),
    "a thread in a recorded step": (
        """
        entered = threading.Event()
        def stay(): entered.set(); time.sleep(0.2)
        def train():
            for step in range(2):
                loss.backward(); optimizer.step(); stay()
        threading.Thread(target=train).start()
        entered.wait()
        """,
        2,
        2,
    ),
    "a daemon thread in a recorded step": (
        """
        entered = threading.Event()
        def stay(): entered.set(); time.sleep(1000)
        def train():
            for step in range(2):
                loss.backward(); optimizer.step(); stay()
        threading.Thread(target=train, daemon=True).start()
        entered.wait()
        """,
        1,
        1,
    ),
    "functions at exit that train": ("atexit.register(train, 30)\ntrain(10)", 40, 40),
    "a function at exit that raises in training": (
        """
        class Fail:
            def __repr__(self): return "failing"
            def __call__(self):
                for step in range(5):
                    loss.backward(); optimizer.step(); 1 / (step - 3)
        atexit.register(Fail())
        """,
        4,
        4,
    ),
    "a finalizer that trains": (
        """
        class Late:
            def __del__(self): train(30)
        late = Late()
        late.itself = late
        train(10)
        """,
        10,
        40,
    ),
    "a generator that is still suspended": (
        """
        def losses():
            try:
                for step in range(9):
                    loss.backward(); optimizer.step()
                    yield step
            finally:
                train(3)
        left = losses()
        next(left); next(left)
        """,
        2,
        12,
    ),
    "an exit in a step": (
        "train(10)\nfor step in range(9):\n    loss.backward(); optimizer.step()\n    sys.exit(5)",
        11,
        11,
    ),
    "an exit in a thread": (
        "threading.Thread(target=lambda: (train(10), sys.exit(5))).start()",
        10,
        10,
    ),
    "a child process": (
        """
        train(10)
        child = os.fork()
        if child == 0:
            train(20)
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        train(5)
        """,
        15,
        15,
    ),
    "a child process from within a recorded step": (
        """
        def train(count):
            for step in range(count):
                loss.backward(); optimizer.step()
                if step in (1, 2):
                    sys.stdout.flush()
                    if (child := os.fork()) == 0:
                        work(9)
                    else:
                        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                        os.write(1, b"waited ")
        main = os.getpid()
        train(9)
        if os.getpid() != main: os._exit(3)
        """,
        9,
        9,
    ),
    "modules emptied by the program": ("train(10)\nsys.modules.clear()", 10, 10),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_interpreter_ends_as_without_tcmon(name: str, tmp_path: Path) -> None:
    source, least, most = PROGRAMS[name]
    (tmp_path / "program.py").write_text(STAND_INS + TRAIN + textwrap.dedent(source) + "\n")
    ended = both("program.py", cwd=tmp_path)
    [run_dir] = tmp_path.glob(".watched-*")
    summary = as_json(summarise(open_run(run_dir)))
    assert least <= summary["steps"]["train"]["count"] <= most
    assert summary["dropped"]["damaged_lines"] == 0
    assert open_run(run_dir).meta.ended is not None
    assert open_run(run_dir).meta.ended.exit_code == ended.returncode


def test_the_summary_comes_after_all_that_trains(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STAND_INS + TRAIN + "atexit.register(train, 30)\ntrain(10)\n")
    ended = run([sys.executable, "-m", "tcmon", "run", "program.py"], cwd=tmp_path)
    assert ended.returncode == 0
    assert "40" in ended.stderr
    assert "ignored" not in ended.stderr
