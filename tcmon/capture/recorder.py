"""What every recorder of a recorded step is, and what it gets from the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Protocol

from tcmon.capture.landmarks import Landmarks
from tcmon.capture.listening import Listener
from tcmon.capture.owners import ModuleTable
from tcmon.capture.owntime import OwnTime
from tcmon.capture.positions import Placed
from tcmon.monitoring.tool import Tool
from tcmon.trace.names import NameTable


class Step(Protocol):
    """A step while it is recorded. Times are `perf_counter_ns`; `body` and `end` are set when it is finished.

    `code`, `frame` (its id) and `line` are those of the loop; `code` is None where the steps are no loop's iterations.
    """

    role: str
    n: int
    loop: int
    stage: str
    begin: int
    body: int
    end: int
    thread: int
    code: CodeType | None
    frame: int
    line: int


class Recorder(Protocol):
    """Records one aspect of the steps that a sampler picked.

    Called from inside monitoring callbacks, in the loop's thread: nothing that runs here is monitored. A step is
    started, paused while another loop's steps run within it, started again, paused at its end, and then finished or
    discarded. Steps of several threads may be open at once.
    """

    def start(self, step: Step) -> None:
        """Record from here on, for a new step or one that was paused. As cheap as can be."""

    def pause(self, step: Step) -> None:
        """Record no longer for `step`. As cheap as can be."""

    def finish(self, step: Step, facts: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """The step is over: its records, without those of names (`Equipment.names`), and nothing kept of it.

        `facts` is the step's own record, which follows; a field of the recorder's name may be added to it.
        """

    def discard(self, step: Step) -> None:
        """The step never was: nothing is kept of it."""


class CallReport(Protocol):
    """Makes records of what was heard of calls while they were logged."""

    @property
    def listener(self) -> Listener:
        """What hears of the calls."""

    def records(self, heard: Any, placed: Placed, step: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The records of a segment: of what the listener gave for it. `step` says which step they belong to."""


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a session lends its recorders."""

    tool: Tool
    """The tool id of captures. Its global events are those of `calls`."""
    names: NameTable
    origin: int
    """The zero of the session's clock, in `perf_counter_ns`."""
    failed: Callable[[BaseException], None]
    """To be called with what a callback caught."""
    own: OwnTime
    """What the recorders themselves spend within a step."""
    landmarks: Callable[[], Landmarks | None]
    """Functions of torch to watch while a step is recorded; None where no tool id is left for them."""
    modules: ModuleTable
    c_functions: bool = False
    """Whether C functions of torch are among the calls."""
    all_threads: bool = False
    """Whether the calls of other threads than the loop's belong to a step."""
    leaves_out: Callable[[CodeType], bool] | None = None
    """Whether the calls of some code are not recorded; None: all are."""
    call_reports: list[CallReport] = field(default_factory=list)
    """What recorders that come before that of calls want to hear of them."""


def identity(step: Step) -> dict[str, Any]:
    """The fields that say which step a record belongs to."""
    return {"role": step.role, "n": step.n, "loop": step.loop}
