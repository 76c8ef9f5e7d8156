"""What can be recorded of a step, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tcmon.capture.args import ArgsRecorder
from tcmon.capture.calls import CallRecorder
from tcmon.capture.lines import LineRecorder
from tcmon.capture.loss import LossRecorder
from tcmon.capture.ops import OpsRecorder
from tcmon.capture.recorder import Equipment, Recorder
from tcmon.capture.state import StateRecorder

RECORDERS: dict[str, Callable[[Equipment], Recorder]] = {
    "ops": OpsRecorder,
    "state": StateRecorder,
    "loss": LossRecorder,
    "lines": LineRecorder,
    "args": ArgsRecorder,
    "calls": CallRecorder,
}
"""Makes the recorder of a name. They start in this order and pause in the other: what costs most is on for least."""


def recorders(names: Iterable[str], equipment: Equipment) -> list[Recorder]:
    """The recorders of `names`; `args` and `cfunctions` bring `calls` with them."""
    wanted = set(names)
    if wanted & {"args", "cfunctions"}:
        wanted.add("calls")
    return [make(equipment) for name, make in RECORDERS.items() if name in wanted]
