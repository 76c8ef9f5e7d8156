"""One session after another in one process: nothing of the first is left for the second."""

import sys
import threading
from pathlib import Path
from typing import Any

from monitored import STAND_INS, Monitored

from tcmon.session import Options, start
from tcmon.trace.reader import open_run

PROGRAM = (
    STAND_INS
    + """
def train():
    for batch in range(5):
        loss.backward()
        optimizer.step()

def evaluate():
    for batch in range(3):
        model(batch)
"""
)


def run(names: dict[str, Any], out: Path) -> Monitored:
    session = start(Options(interval=2, warmup=0, out=out), command=["test"], script="program.py")
    try:
        for name in ("train", "evaluate"):
            thread = threading.Thread(target=names[name])
            thread.start()
            thread.join()
    finally:
        session.finish(reason="exit", exit_code=0)
    return Monitored(names, open_run(out))


def test_the_same_code_is_watched_again_by_the_next_session(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(PROGRAM, "program.py", "exec"), names)

    for i in range(3):
        done = run(names, tmp_path / str(i))
        assert done.numbers("train") == [1, 2, 3, 4, 5]
        assert list(done.recorded("train")) == [2, 4]


def test_a_finished_session_leaves_no_tool_no_event_and_no_callback(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(PROGRAM, "program.py", "exec"), names)
    before = [sys.monitoring.get_tool(i) for i in range(6)]

    run(names, tmp_path / "out")

    assert [sys.monitoring.get_tool(i) for i in range(6)] == before
    for tool in (i for i in range(6) if before[i] is None):
        sys.monitoring.use_tool_id(tool, "test")
        try:
            assert sys.monitoring.get_events(tool) == 0
            assert sys.monitoring.get_local_events(tool, names["train"].__code__) == 0
            for event in range(sys.monitoring.events.BRANCH.bit_length()):
                assert sys.monitoring.register_callback(tool, 1 << event, None) is None
        finally:
            sys.monitoring.free_tool_id(tool)
