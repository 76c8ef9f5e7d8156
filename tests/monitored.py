"""Runs a program's source in this process under a session, and reads what the session wrote."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcmon.session import Options, start
from tcmon.trace.reader import RecordedStep, Run, open_run
from tcmon.trace.records import Loop, Steps

STAND_INS = """
class Optimizer:
    def zero_grad(self): pass
    def step(self): pass

class Loss:
    def backward(self): pass

def model(batch):
    return Loss()

optimizer, loss = Optimizer(), Loss()
"""
"""What training programs here step and differentiate; their loops are found by names, so no torch is needed."""


@dataclass(frozen=True)
class Monitored:
    """A program that has run under a session."""

    names: dict[str, Any]
    run: Run

    def loops(self, role: str) -> list[Loop]:
        """The loops that have a role in the end."""
        last = {record.id: record for record in self.run.processes[0].read() if isinstance(record, Loop)}
        return [loop for loop in last.values() if loop.role == role]

    def numbers(self, role: str) -> list[int]:
        """The numbers of all steps of a role, in the order of the trace."""
        return [
            record.first + i
            for record in self.run.processes[0].read()
            if isinstance(record, Steps) and record.role == role
            for i in range(len(record.end))
        ]

    def stages(self, role: str) -> dict[int, str]:
        """The stage of each step of a role."""
        return {
            record.first + i: record.stage
            for record in self.run.processes[0].read()
            if isinstance(record, Steps) and record.role == role
            for i in range(len(record.end))
        }

    def times(self, role: str) -> dict[int, tuple[int, int, int]]:
        """Begin, wait and end of each step of a role, the latter two as durations."""
        return {
            record.first + i: (record.begin[i], record.wait[i], record.end[i])
            for record in self.run.processes[0].read()
            if isinstance(record, Steps) and record.role == role
            for i in range(len(record.end))
        }

    def recorded(self, role: str) -> dict[int, RecordedStep]:
        return {each.step.n: each for each in self.run.processes[0].recorded_steps() if each.step.role == role}


def monitored(source: str, folder: Path, **options: Any) -> Monitored:
    """Run `source` as a script of its own under a session with `options`.

    In a thread, so that no loop of the test runner is among its callers.
    """
    script = folder / "program.py"
    script.write_text(source)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    code = compile(source, str(script), "exec")
    session = start(Options(out=folder / "run", **options), command=["test"], script="program.py")
    try:
        thread = threading.Thread(target=exec, args=(code, names))
        thread.start()
        thread.join()
    finally:
        session.finish(reason="exit", exit_code=0)
    return Monitored(names, open_run(session.run_dir))
