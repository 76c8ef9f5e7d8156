"""Rules about what is kept alive for too long, and about losses and graphs that are not what they seem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from tcmon.checks.facts import RunFacts, StepFacts
from tcmon.checks.rule import Rule, made
from tcmon.trace.details import Finding


class StateKeptWithoutCopy:
    """A state dict that was taken in training is kept over further steps, and its tensors are the live parameters.

    From a tensor of each state dict that a module gave after the first recorded step: it is still there, and shares
    memory with its parameter, after an optimizer's step at least one recorded step later. Silent about state dicts that
    are saved to a file or loaded into a module before that, and about copies.
    """

    id: ClassVar[str] = "state-kept-without-copy"

    def __init__(self) -> None:
        self._found: tuple[int, int] | None = None

    def look(self, facts: StepFacts) -> None:
        signs = facts.signs
        if self._found is None and facts.step.role == "train" and signs is not None and signs.states_kept:
            self._found = facts.step.n, signs.states_kept

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._found is not None:
            n, count = self._found
            yield made(
                self.id,
                "warning",
                n,
                f"{count} state dict(s) taken in training are kept, and step {n} has changed their tensors: they are "
                "the live parameters",
                "what is kept as the best or an earlier state is always the latest one",
                "for state_dict() that is kept; copy.deepcopy(model.state_dict()) makes a copy",
                [],
            )


class GraphsKept:
    """Graphs of losses are kept for many steps, and memory grows.

    From the graphs of the losses of recorded steps: two or more are alive ten steps later or more. Silent about graphs
    that are kept for a few steps (truncated backpropagation), and about losses that are kept as numbers or detached.
    """

    id: ClassVar[str] = "graphs-kept"

    def __init__(self) -> None:
        self._found: tuple[int, int] | None = None

    def look(self, facts: StepFacts) -> None:
        signs = facts.signs
        if self._found is None and facts.step.role == "train" and signs is not None and signs.graphs_kept >= 2:
            self._found = facts.step.n, signs.graphs_kept

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._found is not None:
            n, count = self._found
            yield made(
                self.id,
                "warning",
                n,
                f"in step {n} the graphs of {count} earlier recorded losses are still alive",
                "memory grows with each step",
                "for losses that are summed or kept in a list with their graph; loss.item() lets it go",
                [],
            )


class EvaluationBuildsGraphs:
    """Evaluation runs with gradients switched on, so that graphs are built and activations kept.

    From evaluation steps, two at least and all recorded ones, in which every outermost module that can learn ran with
    gradients on. Silent where the program differentiates in an evaluation step.
    """

    id: ClassVar[str] = "evaluation-builds-graphs"

    def __init__(self) -> None:
        self._first: int | None = None
        self._count = 0
        self._fine = False

    def look(self, facts: StepFacts) -> None:
        signs = facts.signs
        if facts.step.role != "eval" or signs is None or not signs.roots:
            return
        if facts.losses or facts.states or signs.with_grad < signs.roots:
            self._fine = True
        else:
            self._first = self._first or facts.step.n
            self._count += 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._first is not None and not self._fine and self._count >= 2:
            yield made(
                self.id,
                "warning",
                self._first,
                f"in all {self._count} recorded evaluation steps modules ran with gradients switched on",
                "graphs are built for nothing; they take memory and time, and memory grows if results are kept",
                "whether the evaluation runs under torch.no_grad() or torch.inference_mode()",
                [],
                role="eval",
            )


class LossBroadcast:
    """An elementwise loss compares each prediction with each target, since their shapes are broadcast to a larger one.

    As of (N, 1) and (N,), which give (N, N). From calls of mse_loss, l1_loss, smooth_l1_loss and huber_loss in at least
    two recorded training steps. Silent where one shape is only stretched to the other.
    """

    id: ClassVar[str] = "loss-broadcast"

    def __init__(self) -> None:
        self._first: int | None = None
        self._count = 0

    def look(self, facts: StepFacts) -> None:
        if facts.step.role == "train" and facts.signs is not None and facts.signs.broadcast:
            self._first = self._first or facts.step.n
            self._count += 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._first is not None and self._count >= 2:
            yield made(
                self.id,
                "error",
                self._first,
                "the shapes of prediction and target of an elementwise loss are broadcast to a larger one than either",
                "each prediction is compared with each target, and the best one is their mean",
                "at a missing squeeze(1) or unsqueeze(1): prediction and target need one shape",
                [],
            )


RULES: tuple[type[Rule], ...] = (StateKeptWithoutCopy, GraphsKept, EvaluationBuildsGraphs, LossBroadcast)
"""The rules of this module, in the order in which their findings are told."""
