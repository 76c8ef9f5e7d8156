"""What a recorded step tells rules, put together from the records of its trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tcmon.trace.details import Inputs, Loss, Modes, Optimizer, Parameter, State
from tcmon.trace.reader import Process
from tcmon.trace.records import End, Step, Steps

_KINDS = ("parameter", "optimizer", "state", "loss", "modes", "inputs")


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
    parameters: Mapping[int, Parameter]
    optimizers: Mapping[int, Optimizer]

    def name(self, parameter: int) -> str:
        """The name of a parameter."""
        known = self.parameters.get(parameter)
        return known.name if known is not None else f"parameter {parameter}"


@dataclass(slots=True)
class RunFacts:
    """How many steps of each role there were so far, and whether the run is over."""

    steps: dict[str, int]
    ended: bool = False


def recorded_facts(process: Process, run: RunFacts) -> Iterator[StepFacts]:
    """The recorded steps of a process, in the order in which they ended; `run` is filled on the way.

    Raises `TcmonError` when the trace can't be read.
    """
    parameters: dict[int, Parameter] = {}
    optimizers: dict[int, Optimizer] = {}
    states: dict[tuple[str, int], list[State]] = {}
    losses: dict[tuple[str, int], Loss] = {}
    modes: dict[tuple[str, int], Modes] = {}
    inputs: dict[tuple[str, int], Inputs] = {}
    for times in process.unwritten_steps():
        run.steps[times.role] = max(run.steps.get(times.role, 0), times.n)
    for record in process.read(calls=False, details=_KINDS):
        match record:
            case End():
                run.ended = True
            case Parameter():
                parameters[record.id] = record
            case Optimizer():
                optimizers[record.id] = record
            case State():
                states.setdefault((record.role, record.n), []).append(record)
            case Loss():
                losses[record.role, record.n] = record
            case Modes():
                modes[record.role, record.n] = record
            case Inputs():
                inputs[record.role, record.n] = record
            case Steps():
                last = record.first + len(record.end) - 1
                run.steps[record.role] = max(run.steps.get(record.role, 0), last)
            case Step():
                key = record.role, record.n
                found = states.pop(key, [])
                loss = losses.pop(key, None)
                yield StepFacts(
                    record,
                    tuple(state for state in found if state.optimizer),
                    next((state for state in found if not state.optimizer), None),
                    tuple(loss.value) if loss is not None else (),
                    modes.pop(key, None),
                    inputs.pop(key, None),
                    parameters,
                    optimizers,
                )
            case _:
                pass
