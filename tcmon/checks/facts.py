"""What a recorded step tells rules, put together from the records of its trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tcmon.trace.details import Inputs, Loss, Modes, Optimizer, Parameter, Signs, State
from tcmon.trace.reader import Process
from tcmon.trace.records import End, Loop, Record, Step, Steps

KINDS = ("parameter", "optimizer", "state", "loss", "modes", "inputs", "signs")


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One recorded step: the optimizers that stepped in it, its losses, the modules that ran and their inputs.

    `loose` is the state of trainable parameters that no optimizer holds. `parameters` and `optimizers` say what the ids
    in these mean, as far as the trace has been read.
    """

    step: Step
    states: tuple[State, ...]
    loose: State | None
    losses: tuple[float | None, ...]
    modes: Modes | None
    inputs: Inputs | None
    signs: Signs | None
    parameters: Mapping[int, Parameter]
    optimizers: Mapping[int, Optimizer]

    def name(self, parameter: int) -> str:
        """The name of a parameter."""
        known = self.parameters.get(parameter)
        return known.name if known is not None else f"parameter {parameter}"


@dataclass(slots=True)
class RunFacts:
    """How many steps of each role there were so far, where the last recorded one's loop is, and whether all is over."""

    steps: dict[str, int] = field(default_factory=dict)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By role the file and the line of the loop."""
    ended: bool = False


class Gathering:
    """Puts the records of one process together, in their order, to the facts of its recorded steps."""

    def __init__(self) -> None:
        self.run = RunFacts()
        self._parameters: dict[int, Parameter] = {}
        self._optimizers: dict[int, Optimizer] = {}
        self._loops: dict[int, Loop] = {}
        self._states: dict[tuple[str, int], list[State]] = {}
        self._losses: dict[tuple[str, int], Loss] = {}
        self._modes: dict[tuple[str, int], Modes] = {}
        self._inputs: dict[tuple[str, int], Inputs] = {}
        self._signs: dict[tuple[str, int], Signs] = {}

    def add(self, record: Record) -> StepFacts | None:
        """Take the next record; the step's facts if it is the one that completes a recorded step."""
        match record:
            case Parameter():
                self._parameters[record.id] = record
            case Optimizer():
                self._optimizers[record.id] = record
            case Loop():
                self._loops[record.id] = record
            case State():
                self._states.setdefault((record.role, record.n), []).append(record)
            case Loss():
                self._losses[record.role, record.n] = record
            case Modes():
                self._modes[record.role, record.n] = record
            case Inputs():
                self._inputs[record.role, record.n] = record
            case Signs():
                self._signs[record.role, record.n] = record
            case Steps():
                self.count(record.role, record.first + len(record.end) - 1)
            case End():
                self.run.ended = True
            case Step():
                return self._step(record)
            case _:
                pass
        return None

    def count(self, role: str, n: int) -> None:
        """Step `n` of a role is over."""
        self.run.steps[role] = max(self.run.steps.get(role, 0), n)

    def _step(self, step: Step) -> StepFacts:
        key = step.role, step.n
        loop = self._loops.get(step.loop)
        if loop is not None:
            self.run.places[step.role] = loop.file, loop.line
        found = self._states.pop(key, [])
        loss = self._losses.pop(key, None)
        return StepFacts(
            step,
            tuple(state for state in found if state.optimizer),
            next((state for state in found if not state.optimizer), None),
            tuple(loss.value) if loss is not None else (),
            self._modes.pop(key, None),
            self._inputs.pop(key, None),
            self._signs.pop(key, None),
            self._parameters,
            self._optimizers,
        )


def recorded_facts(process: Process, gathering: Gathering) -> Iterator[StepFacts]:
    """The recorded steps of a process, in the order in which they ended; `gathering` tells of the run so far.

    Raises `TcmonError` when the trace can't be read.
    """
    for times in process.unwritten_steps():
        gathering.count(times.role, times.n)
    for record in process.read(calls=False, details=KINDS):
        facts = gathering.add(record)
        if facts is not None:
            yield facts
