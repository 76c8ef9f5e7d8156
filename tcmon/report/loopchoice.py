"""One loop of a run, named by its place or its function."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath

from tcmon.errors import TcmonError
from tcmon.trace.reader import Process, Run
from tcmon.trace.records import Loop


@dataclass(frozen=True, slots=True)
class LoopChoice:
    """Loops in `file` (the last parts of its path are enough) at `line`, or in the function `qualname`."""

    text: str
    file: PurePath | None
    line: int
    qualname: str

    @classmethod
    def parse(cls, text: str) -> "LoopChoice":
        """From "train.py:31", or the qualified name of a function."""
        file, _, line = text.rpartition(":")
        if file and line.isdecimal():
            return cls(text, PurePath(file), int(line), "")
        return cls(text, None, 0, text)

    def holds(self, loop: Loop) -> bool:
        """Whether a loop is meant."""
        if self.file is None:
            return loop.qualname == self.qualname
        parts = self.file.parts
        return loop.line == self.line and PurePath(loop.file).parts[-len(parts) :] == parts

    def require_in(self, run: Run) -> None:
        """Raise TcmonError when `run` has no such loop."""
        known = {
            f"{loop.file}:{loop.line} in {loop.qualname}": loop
            for process in run.processes
            for loop in [*run.meta.loops, *loops_of(process)]
            if loop.role != "other"
        }
        if not any(map(self.holds, known.values())):
            raise TcmonError(f"no loop {self.text!r}; the run has {'; '.join(known) or 'none'}")


def loops_of(process: Process) -> Iterator[Loop]:
    """The loops of a process, as its trace tells them."""
    return (record for record in process.read(calls=False) if isinstance(record, Loop))
