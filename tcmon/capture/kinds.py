"""What can be recorded of a step, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tcmon.capture.calls import CallRecorder
from tcmon.capture.recorder import Equipment, Recorder

RECORDERS: dict[str, Callable[[Equipment], Recorder]] = {"calls": CallRecorder}
"""Makes the recorder of a name. They are asked in this order."""

DEFAULT = ("calls",)
"""What is recorded unless something else is asked for."""


def recorders(names: Iterable[str], equipment: Equipment) -> list[Recorder]:
    """The recorders of `names`."""
    wanted = frozenset(names)
    return [make(equipment) for name, make in RECORDERS.items() if name in wanted]
