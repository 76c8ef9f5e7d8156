"""Where a session has what triggers look at: the times of all steps, losses, calls."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from tcmon.capture.landmarks import Landmarks
from tcmon.capture.losswatch import LossWatch
from tcmon.recording import Recording
from tcmon.steps.discovery import Discovery
from tcmon.steps.phases import Phases
from tcmon.steps.tracker import RecordedStep


class Happenings:
    """The `Sources` of a session's triggers."""

    def __init__(
        self,
        recording: Recording,
        discovery: Discovery,
        functions: Phases | None,
        landmarks: Callable[[], Landmarks | None],
    ) -> None:
        self._functions = functions
        self._discovery = discovery
        self._landmarks = landmarks
        self._recording = recording
        self.watch_every_step = recording.watch_every_step
        self.happened = recording.release_soon
        self._number_makers: list[Callable[[object, object], bool]] = []

    def watch_losses(self, loss: Callable[[float], None], nonfinite: Callable[[int], None]) -> None:
        """Call `loss` with each loss, and `nonfinite` with what recorded steps tell.

        Of a loss on a device of which the program makes no number, which could only be read by waiting for it, nothing
        is told but by recorded steps.
        """
        landmarks = self._landmarks()
        watch = None if landmarks is None else LossWatch(landmarks, loss)
        if watch is not None:
            self._discovery.await_code("backward", _of_torch("autograd/__init__.py", watch.first_start))
            self._number_makers.append(watch.call)

        def details(_step: RecordedStep, records: list[dict[str, Any]]) -> None:
            if watch is None or not watch.heard:
                for value in _column(records, "loss", "value"):
                    loss(float(value))
            if any(record["kind"] == "state" for record in records):
                columns = (_column(records, "state", name) for name in ("nonfinite", "grad_nonfinite"))
                nonfinite(sum(map(sum, columns)))

        self._recording.detail_watchers.append(details)

    def training_loop_in(self, code: CodeType) -> None:
        """A training loop was found in `code`."""
        if self._number_makers and self._functions is not None:
            self._functions.watch_calls_in(code, self._called)

    def _called(self, function: object, argument: object) -> bool:
        wanted = [told(function, argument) for told in self._number_makers]  # all of them are told
        return any(wanted)

    def watch_calls(self, function: CodeType | str, called: Callable[[], None]) -> None:
        """Call `called` when a function is called, given by its code or its qualified name."""
        landmarks = self._landmarks()
        if landmarks is None:
            return
        watched: dict[int, CodeType] = {}

        def met(code: CodeType, _frame: FrameType) -> None:
            if id(code) not in watched:
                watched[id(code)] = code
                landmarks.add(code, lambda _: called()).switch(True)
                called()

        if isinstance(function, str):
            self._discovery.await_code(function, met)
        else:
            landmarks.add(function, lambda _: called()).switch(True)


def _of_torch(file: str, met: Callable[[CodeType, FrameType], None]) -> Callable[[CodeType, FrameType], None]:
    def met_there(code: CodeType, frame: FrameType) -> None:
        if code.co_filename.endswith(f"torch/{file}"):
            met(code, frame)

    return met_there


def _column(records: list[dict[str, Any]], kind: str, name: str) -> list[Any]:
    """The values of a column of all records of a kind, but those that are None; "nan" and "inf" are texts there."""
    return [value for record in records if record["kind"] == kind for value in record[name] if value is not None]
