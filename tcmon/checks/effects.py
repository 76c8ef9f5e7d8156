"""Rules about what the steps of a run do to its parameters and its loss, seen over many of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import ClassVar

from tcmon.checks.facts import RunFacts, StepFacts
from tcmon.checks.rule import Rule, made
from tcmon.trace.details import Finding, State


def _rates(state: State) -> list[float]:
    """The learning rates of an optimizer's groups; empty if any is unknown."""
    rates = [group.get("lr") for group in state.groups]
    known = [float(rate) for rate in rates if isinstance(rate, int | float)]
    return known if len(known) == len(rates) else []


def _has_gradients(state: State) -> bool:
    return any(norm for norm in state.grad_norm)


class NothingTrainable:
    """The optimizer steps, backward runs, and no parameter that the optimizer holds requires a gradient.

    From at least two recorded steps in which it stepped, all of them; silent if one of its parameters ever required a
    gradient, and where no backward pass ran.
    """

    id: ClassVar[str] = "nothing-trainable"

    def __init__(self) -> None:
        self._frozen: dict[int, tuple[int, int, list[str]]] = {}
        self._fine: set[int] = set()

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" and facts.losses else ():
            if any(state.requires_grad):
                self._fine.add(state.optimizer)
            elif state.parameter:
                first, count, _ = self._frozen.get(state.optimizer, (state.n, 0, []))
                self._frozen[state.optimizer] = first, count + 1, [facts.name(each) for each in state.parameter]

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for optimizer, (n, count, names) in self._frozen.items():
            if optimizer not in self._fine and count >= 2:
                yield made(
                    self.id,
                    "error",
                    n,
                    f"none of the {len(names)} parameters that the optimizer holds requires a gradient, from recorded "
                    f"step {n} on",
                    "the optimizer changes nothing, whatever the loss is",
                    "for requires_grad_(False), a freezing loop that reaches too far, or an optimizer made of copies",
                    names,
                )


class StepChangesNothing:
    """The optimizer steps with gradients and a learning rate above zero, and no matrix among its parameters changes.

    The rate is far too small for the parameters' type, or the optimizer's step does not reach them. From hashes of
    whole parameters before and after the optimizer's step, in at least three recorded steps, all of them; silent
    where only a sample of a large parameter is hashed, and with a gradient scaler, which skips steps.
    """

    id: ClassVar[str] = "step-changes-nothing"

    def __init__(self) -> None:
        self._still: dict[int, tuple[int, int, float]] = {}
        self._fine: set[int] = set()

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" else ():
            rates = _rates(state)
            if state.scale is not None or not rates or not any(rates):
                continue
            columns = zip(state.parameter, state.before, state.after, state.grad_norm, strict=True)
            with_gradient = [
                (len(known.shape) if (known := facts.parameters.get(parameter)) is not None else 0, before, after)
                for parameter, before, after, norm in columns
                if norm and math.isfinite(norm)
            ]
            # Vectors may start at zero, where any step counts.
            matrices = [(before, after) for dimensions, before, after in with_gradient if dimensions >= 2]
            pairs = matrices or [(before, after) for _, before, after in with_gradient]
            if any(before is None or after is None or before != after for before, after in pairs):
                self._fine.add(state.optimizer)
            elif pairs and not any((before or "~").startswith("~") for before, _ in pairs):
                first, count, _ = self._still.get(state.optimizer, (state.n, 0, 0.0))
                self._still[state.optimizer] = first, count + 1, max(rates)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for optimizer, (n, count, rate) in self._still.items():
            if optimizer not in self._fine and count >= 3:
                yield made(
                    self.id,
                    "error",
                    n,
                    f"in each of {count} recorded steps the weight matrices were the same, bit for bit, before and "
                    f"after the optimizer's step, with gradients and a learning rate of {rate:.3g}",
                    "nothing is learned",
                    "at the learning rate, and whether updates are lost in rounding (16-bit parameters need a copy in "
                    "32 bits, or a larger rate)",
                    [],
                )


class RateZero:
    """The learning rate of every group is zero, step after step, while there are gradients.

    From at least three recorded steps, all of them, with twenty steps or more between the first and the last: a warm-up
    that starts at zero leaves it with the second step. Silent about single groups (frozen on purpose) and where a rate
    is not known.
    """

    id: ClassVar[str] = "learning-rate-zero"

    def __init__(self) -> None:
        self._zero: dict[int, tuple[int, int, int]] = {}
        self._fine: set[int] = set()

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" else ():
            rates = _rates(state)
            if not rates or any(rates):
                self._fine.add(state.optimizer)
            elif _has_gradients(state):
                first, _, count = self._zero.get(state.optimizer, (state.n, 0, 0))
                self._zero[state.optimizer] = first, state.n, count + 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for optimizer, (first, last, count) in self._zero.items():
            if optimizer not in self._fine and count >= 3 and last - first >= 20:
                yield made(
                    self.id,
                    "error",
                    first,
                    f"the learning rate was zero in all recorded steps of the optimizer, from {first} to {last}",
                    "nothing is learned",
                    "at the schedule: whether a warm-up is ever stepped, and what its factor is at the start",
                    [],
                )


class WarmUpWithoutEnd:
    """The learning rate only rises, and is still far below its goal when the run is over.

    A warm-up in batches is stepped once an epoch. From the rate of all recorded steps and the `initial_lr` or `max_lr`
    that a scheduler leaves in the optimizer's group: below a fifth of it first and last, never falling, and the same in
    two steps in a row, which a schedule that is stepped for each batch doesn't give. Silent before the end, and about
    runs of less than sixty steps.
    """

    id: ClassVar[str] = "warm-up-without-end"

    def __init__(self) -> None:
        self._rates: dict[tuple[int, int], list[tuple[int, float]]] = {}
        self._goal: dict[tuple[int, int], float] = {}

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" else ():
            for number, group in enumerate(state.groups):
                rate = group.get("lr")
                goal = group.get("max_lr", group.get("initial_lr"))
                if isinstance(rate, int | float) and isinstance(goal, int | float):
                    self._rates.setdefault((state.optimizer, number), []).append((state.n, float(rate)))
                    self._goal[state.optimizer, number] = float(goal)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        total = run.steps.get("train", 0)
        if not run.ended or total < 60:
            return
        for key, seen in self._rates.items():
            goal, rates = self._goal[key], [rate for _, rate in seen]
            steady = any(n + 1 == m and rate == later for (n, rate), (m, later) in pairwise(seen))
            rising = all(a <= b for a, b in pairwise(rates))
            if len(seen) >= 4 and steady and rising and 0 < rates[-1] < goal / 5 and seen[-1][0] > total / 2:
                yield made(
                    self.id,
                    "warning",
                    seen[0][0],
                    f"the learning rate was {rates[0]:.3g} in step {seen[0][0]} and still {rates[-1]:.3g} in step "
                    f"{seen[-1][0]} of {total}, on its way to {goal:.3g}",
                    "the run is over before the warm-up is, and has hardly learned",
                    "whether a schedule that counts batches is stepped once an epoch",
                    [],
                )
                return


class UpdatesTooLarge:
    """Steps move most weight matrices by more than their own size, again and again.

    From the size of the update relative to the norm, of parameters with two dimensions or more: the median is above
    one half in at least four recorded steps in a row, the last ones. Silent about the first steps of parameters that
    start small, and about vectors (biases start at zero).
    """

    id: ClassVar[str] = "updates-too-large"

    def __init__(self) -> None:
        self._large: dict[int, tuple[int, int, float]] = {}

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" else ():
            ratios = [
                ratio
                for each, ratio in zip(state.parameter, state.update, strict=True)
                if ratio is not None and each in facts.parameters and len(facts.parameters[each].shape) >= 2
            ]
            if not ratios:
                continue
            middle = sorted(ratios)[len(ratios) // 2]
            if math.isfinite(middle) and middle > 0.5:
                first, count, most = self._large.get(state.optimizer, (state.n, 0, 0.0))
                self._large[state.optimizer] = first, count + 1, max(most, middle)
            else:
                self._large.pop(state.optimizer, None)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for n, count, most in self._large.values():
            if count >= 4:
                yield made(
                    self.id,
                    "warning",
                    n,
                    f"in the last {count} recorded steps, from {n} on, the optimizer moved its weight matrices by more "
                    f"than half of their own size (up to {most:.3g} times)",
                    "each step throws away what the ones before have learned",
                    "at the learning rate, and at the scale of the loss and its gradients",
                    [],
                )
                return


class LossConstant:
    """The loss is one and the same number in all recorded steps, though parameters and batches change.

    From at least four recorded steps with one backward pass each, spread over twenty steps or more; silent where no
    optimizer steps, and where all known inputs are the same.
    """

    id: ClassVar[str] = "loss-constant"

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0
        self._count = 0
        self._values: set[float] = set()
        self._hashes: set[tuple[str | None, ...]] = set()
        self._fine = False

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "train" or not facts.states or self._fine:
            return
        if len(facts.losses) != 1 or facts.losses[0] is None or not math.isfinite(facts.losses[0]):
            self._fine = True
            return
        self._values.add(facts.losses[0])
        self._fine = len(self._values) > 1
        self._first = self._first or facts.step.n
        self._last = facts.step.n
        self._count += 1
        if facts.inputs is not None:
            self._hashes.add(tuple(facts.inputs.hash))

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._fine or self._first is None or self._count < 4 or self._last - self._first < 20:
            return
        if len(self._hashes) != 1:
            [value] = self._values
            yield made(
                self.id,
                "warning",
                self._first,
                f"the loss was {value:.6g} in all {self._count} recorded steps, from {self._first} to {self._last}",
                "it does not depend on the batch or the parameters, and nothing can be learned from it",
                "for a softmax over one class, a clamp or a hinge that is always reached, outputs that are all alike",
                [],
            )


class GradientAlwaysZero:
    """Parameters whose module runs get gradients that are exactly zero in every recorded step, while others don't.

    Dead units, or a term of the loss that is multiplied by zero. From at least five recorded steps, all of them; silent
    about modules that don't run, and about parameters that a single gradient ever reached (adapters and gates that
    start at zero give others a gradient from the second step on).
    """

    id: ClassVar[str] = "gradient-always-zero"

    def __init__(self) -> None:
        self._zero: dict[int, tuple[int, int]] = {}
        self._fine: set[int] = set()
        self._names: dict[int, str] = {}

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" else ():
            if not _has_gradients(state):
                continue
            columns = zip(state.parameter, state.requires_grad, state.ran, state.has_grad, state.grad_norm, strict=True)
            for parameter, trainable, ran, has_grad, norm in columns:
                if not (trainable and ran and has_grad) or norm != 0:
                    self._fine.add(parameter)
                else:
                    first, count = self._zero.get(parameter, (state.n, 0))
                    self._zero[parameter] = first, count + 1
                    self._names[parameter] = facts.name(parameter)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        lost = {
            parameter: first
            for parameter, (first, count) in self._zero.items()
            if parameter not in self._fine and count >= 5
        }
        if lost:
            yield made(
                self.id,
                "warning",
                min(lost.values()),
                f"the gradients of {len(lost)} parameters of modules that run were exactly zero in all recorded steps",
                "they are never trained",
                "for dead activations (a rate that is too high, inputs that are not scaled), a factor of zero, or a "
                "clamp that is always reached",
                [self._names[parameter] for parameter in lost],
            )


class TiedWeightsApart:
    """Two matrices were equal, bit for bit, before the first recorded step, and are no longer.

    One was meant to be the other, but a copy was made. From the hashes before the optimizer's step in step 1 and those
    after later ones; silent if more than one pair is equal (layers that are copies of one another start alike), about
    matrices of zeros, small ones, and those of a kind of which there are more than two.
    """

    id: ClassVar[str] = "tied-weights-apart"

    def __init__(self) -> None:
        self._pairs: list[tuple[int, int]] | None = None
        self._apart: int | None = None
        self._names: list[str] = []
        self._together = False

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "train" or not facts.states:
            return
        if self._pairs is None:
            self._pairs = self._equal(facts) if facts.step.n == 1 else []
        if len(self._pairs) != 1 or self._together:
            return
        one, other = self._pairs[0]
        after = {p: h for state in facts.states for p, h in zip(state.parameter, state.after, strict=True)}
        if one in after and other in after:
            self._together = after[one] == after[other]
            self._apart = self._apart or facts.step.n
            self._names = [facts.name(one), facts.name(other)]

    @staticmethod
    def _equal(facts: StepFacts) -> list[tuple[int, int]]:
        alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for state in facts.states:
            for parameter, content, norm in zip(state.parameter, state.before, state.norm, strict=True):
                known = facts.parameters.get(parameter)
                if known is None or content is None or not norm or len(known.shape) < 2 or math.prod(known.shape) < 32:
                    continue
                alike.setdefault((content, tuple(known.shape)), []).append(parameter)
        return [(a, b) for same in alike.values() if len(same) >= 2 for a, b in pairwise(same)]

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._apart is not None and not self._together:
            yield made(
                self.id,
                "warning",
                self._apart,
                f"{self._names[0]} and {self._names[1]} were equal, bit for bit, before the first step, and are no "
                f"longer after step {self._apart}",
                "if they are meant to be tied, they are now two parameters that are trained apart",
                "for clone(), copy_() or deepcopy() where one parameter is to be assigned to both modules",
                self._names,
            )


RULES: tuple[type[Rule], ...] = (
    NothingTrainable,
    StepChangesNothing,
    RateZero,
    WarmUpWithoutEnd,
    UpdatesTooLarge,
    LossConstant,
    GradientAlwaysZero,
    TiedWeightsApart,
)
"""The rules of this module, in the order in which their findings are told."""
