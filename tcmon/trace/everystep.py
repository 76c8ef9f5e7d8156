"""The times of every step of a process, recorded or not, each of them once.

They come as they ended, while the trace is read: what is kept is no more than the journal and one batch of
rows. A step's times are in a row of the trace, or still in the journal, and those of a recorded step also in
its own record; the trace's row wins.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tcmon.trace.journal import StepTimes
from tcmon.trace.reader import Process
from tcmon.trace.records import Step, Steps

# Rows that were written together hold the steps of one loop each, and have to be brought in order. No more than
# a journal holds is written at a time.
_BATCH: Final = 1 << 16

OUTSIDE: Final = "other"
"""The role of what is recorded outside of all steps, after the program entered a stage; it is no step."""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """When a step was and in what stage, and its record if it was recorded in detail."""

    times: StepTimes
    stage: str
    recorded: Step | None


def every_step(process: Process, advance: Callable[[int], object] | None = None) -> Iterator[TimedStep]:
    """The steps of `process` in the order in which they ended; `advance` is told of the bytes read.

    Among them is, with the role `OUTSIDE`, what was recorded outside of steps.

    Raises TcmonError when a file of the process can't be read.
    """
    unwritten = {(each.role, each.n): each for each in process.unwritten_steps()}
    recorded: dict[tuple[str, int], Step] = {}
    written: dict[str, int] = {}
    batch: list[tuple[StepTimes, str]] = []

    def drained() -> Iterator[TimedStep]:
        batch.sort(key=_end)
        for times, stage in batch:
            yield TimedStep(times, stage, recorded.pop((times.role, times.n), None))
        batch.clear()

    reading = process.read(calls=False)
    told = 0
    for record in reading:
        if advance is not None:
            advance(reading.size - told)
            told = reading.size
        if isinstance(record, Steps):
            if len(batch) >= _BATCH:
                yield from drained()
            for offset, (begin, wait, end) in enumerate(zip(record.begin, record.wait, record.end, strict=True)):
                phases = record.phases_of(offset)
                times = StepTimes(record.role, record.loop, record.first + offset, begin, wait, end, phases=phases)
                unwritten.pop((times.role, times.n), None)
                batch.append((times, record.stage))
            written[record.role] = max(written.get(record.role, 0), record.first + len(record.begin) - 1)
            continue
        yield from drained()
        if isinstance(record, Step):
            times = StepTimes(record.role, record.loop, record.n, record.begin, record.wait, record.end)
            key = record.role, record.n
            if record.role == OUTSIDE:
                yield TimedStep(times, record.stage, record)
            elif record.n > written.get(record.role, 0):
                recorded[key] = record
                unwritten.setdefault(key, times)
    for key, times in unwritten.items():
        step = recorded.get(key)
        batch.append((times, (times.stage or times.role) if step is None else step.stage))
    yield from drained()
    if advance is not None:
        advance(reading.size - told)


def _end(each: tuple[StepTimes, str]) -> int:
    return each[0].begin + each[0].end
