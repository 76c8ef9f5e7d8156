"""Long runs stay as cheap as they began, and many sessions in one process leave nothing behind."""

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

from monitored import STAND_INS
from program_runs import environment

from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.session import Options, start
from tcmon.trace.reader import open_run
from tcmon.trace.records import Steps

STEPS = int(os.environ.get("TCMON_TEST_STEPS", "300_000"))
"""1,000,000 for a thorough test."""
SESSIONS = int(os.environ.get("TCMON_TEST_SESSIONS", "250"))
"""10,000 for a thorough test."""

LONG = (
    STAND_INS
    + f"""
import resource, sys

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

def train(count):
    for step in range(count):
        optimizer.step()
        if step == count // 5:
            before = memory()
    print(memory() - before)

train({STEPS})
"""
)


def test_a_long_run_takes_no_more_memory_and_little_disk(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LONG)
    options = ["--quiet", "--interval", "5000", "--out", "run"]
    command = [sys.executable, "-m", "tcmon", "run", *options, "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)

    assert ended.stderr == ""
    assert int(ended.stdout) < 2 << 20
    expected = 1
    for record in open_run(tmp_path / "run").processes[0].read():
        if isinstance(record, Steps):
            assert record.first == expected
            expected += len(record.end)
    assert expected - 1 == STEPS
    summary = as_json(summarise(open_run(tmp_path / "run")))
    assert summary["steps"]["train"]["count"] == STEPS
    assert sum(file.stat().st_size for file in (tmp_path / "run").iterdir()) < 20 * STEPS + (1 << 20)


def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - Path.iterdir would keep the directory open
        try:
            found.append(str(Path(f"/proc/self/fd/{name}").readlink()))
        except FileNotFoundError:
            pass
    return sorted(found)


def tools() -> list[str | None]:
    return [sys.monitoring.get_tool(each) for each in range(6)]


def test_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    # In a process of its own: what other tests have loaded makes its memory go up and down by more than a session.
    code = f"from pathlib import Path; import test_long_runs as t; t.run_sessions(Path({str(tmp_path)!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment(), check=True)


def run_sessions(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    source = STAND_INS + "\ndef train():\n  for step in range(5):\n    loss.backward(); optimizer.step()\n"
    exec(compile(source, str(tmp_path / "program.py"), "exec"), names)
    train = names["train"]
    assert callable(train)

    def one(number: int) -> None:
        session = start(Options(out=tmp_path / str(number)), command=["test"], script="program.py")
        # In a thread, so that no loop of this test is among its callers.
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        session.finish(reason="exit", exit_code=0)

    def held() -> tuple[object, ...]:
        gc.collect()
        kinds = ("Session", "Tracker", "TraceWriter", "StepJournal", "Tool", "mmap")
        alive = [type(each).__name__ for each in gc.get_objects()]
        events = [sys.monitoring.get_events(each) for each in range(6) if sys.monitoring.get_tool(each)]
        return descriptors(), tools(), events, threading.active_count(), [alive.count(kind) for kind in kinds]

    for number in range(50):
        one(number)
    before, size = held(), memory()
    for number in range(50, 50 + SESSIONS):
        one(number)
    assert held() == before
    # What Python itself keeps of paths and exit functions is less than a kilobyte each time.
    assert memory() - size < (2 << 20) + (SESSIONS << 10)


def memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
