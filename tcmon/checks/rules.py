"""The rules: each claims one thing that is wrong with training, from what was recorded, and says when it is silent.

They rest on what was observed: gradients, hashes, modes. Names are only told, never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from tcmon.checks import effects, kept
from tcmon.checks.facts import RunFacts, StepFacts
from tcmon.checks.rule import Rule
from tcmon.checks.rule import made as _finding
from tcmon.trace.details import Finding, State


class GradientsNeverCleared:
    """Gradients of a step are still there when the next step's first backward pass begins, and are added to.

    Of all parameters or of some. From two recorded steps in a row (the default warm-up records the first two) in both
    of which the same, single optimizer stepped: gradients that are accumulated on purpose come without an optimizer's
    step between. Silent where a step has several optimizers, and if in any two steps in a row nothing was left.
    """

    id: ClassVar[str] = "gradients-never-cleared"

    def __init__(self) -> None:
        self._last: State | None = None
        self._found: tuple[int, float, list[str], int] | None = None
        self._cleared = False

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "train":
            return
        last, self._last = self._last, None
        if len(facts.states) != 1 or not facts.losses:
            return
        [state] = facts.states
        self._last = state
        if last is None or last.optimizer != state.optimizer or last.n + 1 != state.n:
            return
        left = [norm or 0.0 for norm in state.grad_before]
        had = [norm or 0.0 for norm in last.grad_norm]
        kept = [
            i
            for i, (now, before, trainable) in enumerate(zip(left, had, state.requires_grad, strict=False))
            if before > 0 and trainable and _close(now, before)
        ]
        if not kept:
            self._cleared = True
        elif self._found is None:
            names = [facts.name(state.parameter[i]) for i in kept]
            self._found = state.n, math.hypot(*left), names, len(kept)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._found is not None and not self._cleared:
            n, size, names, count = self._found
            yield _finding(
                self.id,
                "error",
                n,
                f"as the first backward pass of step {n} began, {count} parameters still had the gradients that the "
                f"optimizer had used in step {n - 1} (norm {size:.3g})",
                "each step uses the sum of all gradients so far, not its own",
                "at the place of optimizer.zero_grad(): it belongs before each backward pass",
                names,
            )


class NothingToStepWith:
    """The optimizer steps, but none of its parameters has a gradient, though gradients were computed in the step.

    Cleared between `backward()` and `step()`, or of parameters that are not the model's. From every recorded step in
    which an optimizer stepped; silent if it had a gradient in any, and where no backward pass ran.
    """

    id: ClassVar[str] = "no-gradient-at-step"

    def __init__(self) -> None:
        self._empty: dict[int, tuple[int, int, list[str]]] = {}
        self._times: dict[int, int] = {}
        self._fine: set[int] = set()

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "train" or not facts.losses:
            return
        for state in facts.states:
            trainable = [i for i, flag in enumerate(state.requires_grad) if flag]
            if any(state.has_grad[i] and state.grad_norm[i] != 0 for i in trainable):
                self._fine.add(state.optimizer)
            elif trainable:
                names = [facts.name(state.parameter[i]) for i in trainable]
                self._empty.setdefault(state.optimizer, (state.n, len(trainable), names))
                self._times[state.optimizer] = self._times.get(state.optimizer, 0) + 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for optimizer, (n, count, names) in self._empty.items():
            if optimizer not in self._fine and self._times[optimizer] >= 2:
                yield _finding(
                    self.id,
                    "error",
                    n,
                    f"in each recorded step from {n} on, backward() ran but all {count} trainable parameters of the "
                    "optimizer had no gradient, or one of zeros, when it stepped",
                    "the optimizer changes nothing, whatever the loss is",
                    "whether zero_grad() stands between backward() and step(), and whether the optimizer holds the "
                    "parameters of the model that is trained",
                    names,
                )


class InNoOptimizer:
    """Parameters of modules that run get gradients step after step, and no optimizer ever steps them.

    Layers in a plain list, a head that was replaced after the optimizer was made. From at least two recorded steps;
    silent about parameters that any optimizer holds by the end, and about those without a gradient.
    """

    id: ClassVar[str] = "in-no-optimizer"

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._held: set[int] = set()
        self._steps = 0

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "train":
            return
        for state in facts.states:
            self._held.update(state.parameter)
        self._steps += bool(facts.states)
        loose = facts.loose
        if loose is not None and facts.states and facts.losses:
            for parameter, has_grad, norm in zip(loose.parameter, loose.has_grad, loose.grad_norm, strict=True):
                if has_grad and norm:
                    first, count = self._seen.get(parameter, (facts.step.n, 0))
                    self._seen[parameter] = first, count + 1
                    self._names[parameter] = facts.name(parameter)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        lost = {
            parameter: first
            for parameter, (first, count) in self._seen.items()
            if parameter not in self._held and count >= 2 and count >= self._steps - 1
        }
        if lost:
            names = [self._names[parameter] for parameter in lost]
            yield _finding(
                self.id,
                "error",
                min(lost.values()),
                f"{len(lost)} trainable parameters of modules that run get gradients, and no optimizer holds them",
                "they stay as they were initialised, while the loss depends on them",
                "whether they were made after the optimizer, or kept in a plain list or dict instead of a ModuleList",
                names,
            )


class NoGradientReachesThem:
    """Parameters that an optimizer holds and whose module runs never get a gradient, while others do.

    What their module computes doesn't reach the loss: it was detached, or turned into a number. From at least three
    recorded steps, in all of which the module ran; silent about modules that don't run (experts, unused heads).
    """

    id: ClassVar[str] = "no-gradient-reaches"

    def __init__(self) -> None:
        self._without: dict[int, tuple[int, int]] = {}
        self._with: set[int] = set()
        self._names: dict[int, str] = {}

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "train":
            return
        for state in facts.states:
            if not any(state.has_grad):
                continue
            columns = zip(state.parameter, state.requires_grad, state.ran, state.has_grad, strict=True)
            for parameter, trainable, ran, has_grad in columns:
                if has_grad or not trainable or not ran:
                    self._with.add(parameter)
                else:
                    first, count = self._without.get(parameter, (state.n, 0))
                    self._without[parameter] = first, count + 1
                    self._names[parameter] = facts.name(parameter)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        lost = {
            parameter: first
            for parameter, (first, count) in self._without.items()
            if parameter not in self._with and count >= 3
        }
        if lost:
            yield _finding(
                self.id,
                "warning",
                min(lost.values()),
                f"the modules of {len(lost)} trainable parameters run in every step, but their gradients are None",
                "what they compute does not reach the loss, so they are never trained",
                "for detach(), item(), float(), no_grad() or a copy between these modules and the loss",
                [self._names[parameter] for parameter in lost],
            )


class NotFinite:
    """A loss, a gradient or a parameter is NaN or infinite in a recorded step.

    Silent about losses and gradients where a gradient scaler is in use: it skips such steps by design.
    """

    id: ClassVar[str] = "not-finite"

    def __init__(self) -> None:
        self._found: tuple[int, str, list[str]] | None = None

    def look(self, facts: StepFacts) -> None:
        if self._found is not None or facts.step.role != "train":
            return
        n = facts.step.n
        for state in facts.states:
            bad = [i for i, count in enumerate(state.nonfinite) if count]
            what = "parameters"
            if not bad and state.scale is None:
                bad = [i for i, norm in enumerate(state.grad_norm) if norm is not None and not math.isfinite(norm)]
                what = "gradients"
            if bad:
                names = [facts.name(state.parameter[i]) for i in bad]
                self._found = n, f"{len(bad)} {what} hold NaN or infinite elements in step {n}", names
                return
        scaled = any(state.scale is not None for state in facts.states)
        wrong = [loss for loss in facts.losses if loss is not None and not math.isfinite(loss)]
        if wrong and facts.states and not scaled:
            self._found = n, f"the loss of step {n} is {wrong[0]}", []

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._found is not None:
            n, observed, names = self._found
            yield _finding(
                self.id,
                "error",
                n,
                observed,
                "whatever they touch becomes NaN as well, and the run can't recover",
                "at the learning rate, at divisions, logarithms and roots near zero, and at the input of that step",
                names,
            )


class TrainedInEvaluationMode:
    """A module that is being trained is in evaluation mode, and holds dropout or batch statistics that are then off.

    From two recorded steps or more, the last ones; silent about modules without such layers, and where only parts of a
    module are in evaluation mode (frozen on purpose).
    """

    id: ClassVar[str] = "trained-in-eval-mode"

    def __init__(self) -> None:
        self._run: dict[str, tuple[int, int]] = {}
        self._trained: set[str] = set()
        self._found: dict[str, int] = {}

    def look(self, facts: StepFacts) -> None:
        modes = facts.modes
        if facts.step.role != "train" or modes is None or not facts.losses:
            return
        for module, training, sensitive, stepped in zip(
            modes.module, modes.training, modes.sensitive, modes.stepped, strict=True
        ):
            if not (stepped and sensitive):
                continue
            if training:
                self._trained.add(module)
                self._run.pop(module, None)
            else:
                first, count = self._run.get(module, (facts.step.n, 0))
                self._run[module] = first, count + 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for module, (first, count) in self._run.items():
            # Evaluation mode from the first step on may be meant; after training mode it was forgotten.
            forgotten = module in self._trained
            if count >= 2 or (forgotten and count):
                since = f"from recorded step {first} on" + (", in training mode before" if forgotten else "")
                yield _finding(
                    self.id,
                    "warning" if forgotten else "hint",
                    first,
                    f"{module} is trained in evaluation mode {since}",
                    "dropout is off and batch normalisation uses and keeps its old statistics",
                    "whether model.train() is called again after each evaluation",
                    [],
                )


class EvaluatedInTrainingMode:
    """A module with dropout or batch statistics is in training mode in evaluation steps.

    Silent about modules without such layers.
    """

    id: ClassVar[str] = "evaluated-in-train-mode"

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, int]] = {}
        self._fine: set[str] = set()

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "eval" or facts.modes is None or facts.states:
            return
        for module, training, sensitive in zip(
            facts.modes.module, facts.modes.training, facts.modes.sensitive, strict=True
        ):
            if sensitive and training:
                first, count = self._found.get(module, (facts.step.n, 0))
                self._found[module] = first, count + 1
            elif sensitive:
                self._fine.add(module)

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for module, (first, count) in self._found.items():
            if module not in self._fine and count >= 2:
                yield _finding(
                    self.id,
                    "warning",
                    first,
                    f"{module} is in training mode in evaluation step {first} and later ones",
                    "dropout makes the result random, and batch normalisation learns from the evaluation's data",
                    "whether model.eval() is called before the evaluation",
                    [],
                    role="eval",
                )


class RateVanished:
    """The learning rate falls to a millionth of its highest long before training ends, or early to a hundredth.

    A schedule meant for epochs that is stepped for each batch. From recorded steps whose rate is that low, with more
    than half of all steps still to come after the first of them, or, known when a run of a hundred steps or more is
    over, seven eighths. Silent about rates that rise again.
    """

    id: ClassVar[str] = "learning-rate-vanished"

    def __init__(self) -> None:
        self._highest: dict[tuple[int, int], float] = {}
        self._low: dict[tuple[tuple[int, int], float], tuple[int, float, int]] = {}

    def look(self, facts: StepFacts) -> None:
        if facts.step.role != "train":
            return
        for state in facts.states:
            for number, group in enumerate(state.groups):
                rate = group.get("lr")
                if not isinstance(rate, int | float):
                    continue
                key = state.optimizer, number
                highest = self._highest[key] = max(rate, self._highest.get(key, 0.0))
                for share in (1e-6, 1e-2):
                    if rate > share * highest or not highest:
                        self._low.pop((key, share), None)
                    else:
                        first, at_first, count = self._low.get((key, share), (state.n, float(rate), 0))
                        self._low[key, share] = first, at_first, count + 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        total = run.steps.get("train", 0)
        for (key, share), (first, rate, count) in self._low.items():
            early = first <= total / 2 if share < 1e-3 else run.ended and total >= 100 and first <= total / 8
            if count >= 2 and early:
                yield _finding(
                    self.id,
                    "warning",
                    first,
                    f"the learning rate was {self._highest[key]:.3g} and is {rate:.3g} in step {first} of {total}",
                    "parameters hardly change any more for the rest of the run",
                    "whether the scheduler is stepped for each batch while its schedule counts epochs",
                    [],
                )
                return


class ClippedWhileScaled:
    """Gradients were clipped while they were multiplied by a gradient scaler's scale.

    Then their norm times the scale is the same number in every step, however the loss changes. From at least three
    recorded steps with a scale of 16 or more; silent without a scaler.
    """

    id: ClassVar[str] = "clipped-while-scaled"

    def __init__(self) -> None:
        self._norms: dict[int, list[tuple[int, float, float]]] = {}

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" else ():
            if state.scale is not None and state.scale >= 16:
                norm = math.hypot(*(each for each in state.grad_norm if each is not None))
                self._norms.setdefault(state.optimizer, []).append((state.n, norm, state.scale))

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for seen in self._norms.values():
            scaled = [norm * scale for _, norm, scale in seen]
            if len(seen) >= 3 and 0 < max(scaled) <= 1.01 * min(scaled):
                n, norm, scale = seen[0]
                yield _finding(
                    self.id,
                    "error",
                    n,
                    f"in every recorded step the gradients' norm is {scaled[0]:.3g} divided by the scale "
                    f"({norm:.3g} at scale {scale:g} in step {n})",
                    "the gradients that reach the optimizer are smaller than the limit of the clipping by the scale",
                    "whether scaler.unscale_(optimizer) is called before the gradients are clipped",
                    [],
                )


class OptimizerMadeAnew:
    """Another optimizer of the same class steps the same parameters in every recorded step.

    From at least three recorded steps with one optimizer each, which is never the same; its momentum and averages are
    lost each time.
    """

    id: ClassVar[str] = "optimizer-made-anew"

    def __init__(self) -> None:
        self._ids: list[tuple[int, int, tuple[int, ...], str]] = []

    def look(self, facts: StepFacts) -> None:
        if facts.step.role == "train" and len(facts.states) == 1:
            [state] = facts.states
            known = facts.optimizers.get(state.optimizer)
            name = known.name if known is not None else "?"
            self._ids.append((state.n, state.optimizer, tuple(state.parameter), name))

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        ids = [optimizer for _, optimizer, _, _ in self._ids]
        alike = len({(parameters, name) for _, _, parameters, name in self._ids}) == 1
        if len(ids) >= 3 and len(set(ids)) == len(ids) and alike:
            n, _, _, name = self._ids[0]
            yield _finding(
                self.id,
                "warning",
                n,
                f"{len(ids)} recorded steps used {len(ids)} different optimizers ({name}) for the same parameters",
                "momentum and running averages start from nothing each time",
                "whether the optimizer is made inside of the training loop",
                [],
            )


class SameBatchAgain:
    """Two steps in a row get the same batch, bit for bit.

    From the first inputs of the one outermost module that is trained, in recorded steps that follow each other. A hint
    only where all recorded steps get the same, as in training on the full batch. Silent where the program passes the
    very same tensors again (several passes over one batch on purpose).
    """

    id: ClassVar[str] = "same-batch-again"

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, str]] = {}
        self._hashes: dict[str, set[str]] = {}
        self._again: dict[str, tuple[int, int]] = {}
        self._other: dict[str, int] = {}
        self._steps = 0

    def look(self, facts: StepFacts) -> None:
        inputs, modes = facts.inputs, facts.modes
        if facts.step.role != "train" or inputs is None or modes is None or modes.module != inputs.module:
            return
        trained = [i for i, stepped in enumerate(modes.stepped) if stepped]
        for i in trained if len(trained) == 1 else ():
            self._steps += 1
            module, content, reused = inputs.module[i], inputs.hash[i], inputs.reused[i]
            if content is None:
                continue
            n, before = self._last.get(module, (0, ""))
            self._last[module] = facts.step.n, content
            self._hashes.setdefault(module, set()).add(content)
            if n + 1 == facts.step.n:
                if content == before and not reused:
                    first, count = self._again.get(module, (facts.step.n, 0))
                    self._again[module] = first, count + 1
                else:
                    self._other[module] = self._other.get(module, 0) + 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        for module, (n, count) in self._again.items():
            if count >= self._other.get(module, 0) and self._steps >= 3:
                yield _finding(
                    self.id,
                    "warning" if len(self._hashes[module]) >= 2 else "hint",
                    n,
                    f"{module} got the same batch, bit for bit, in steps {n - 1} and {n}",
                    "every batch is trained on more than once, and the variety of the data is lost",
                    "at the random numbers of the data loader's workers: numpy and random must be seeded in each",
                    [],
                )


class ProbabilitiesAsLogits:
    """cross_entropy, which applies a softmax itself, is given rows that are probabilities already.

    From at least two recorded steps; silent if any call got anything else.
    """

    id: ClassVar[str] = "probabilities-as-logits"

    def __init__(self) -> None:
        self._first: int | None = None
        self._steps = 0
        self._fine = False

    def look(self, facts: StepFacts) -> None:
        inputs = facts.inputs
        if facts.step.role == "train" and inputs is not None and inputs.logits:
            if inputs.probabilities < inputs.logits:
                self._fine = True
            else:
                self._first = self._first or facts.step.n
                self._steps += 1

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if self._first is not None and not self._fine and self._steps >= 2:
            yield _finding(
                self.id,
                "warning",
                self._first,
                "all rows given to cross_entropy are not negative and sum to one",
                "softmax is applied twice: the loss can't come near zero, and gradients are small",
                "for a softmax at the end of the model; cross_entropy wants what comes before it",
                [],
            )


class ClippedAfterStep:
    """Gradients are scaled down after the optimizer has used them.

    From at least two recorded steps in which the gradients at the end of the step are those that the optimizer got,
    all times one factor below one; in others they may be small enough to be left alone. Silent if in any step they
    change in another way, and about gradients that are cleared before the step ends.
    """

    id: ClassVar[str] = "clipped-after-step"

    def __init__(self) -> None:
        self._found: list[tuple[int, float]] = []
        self._fine = False

    def look(self, facts: StepFacts) -> None:
        for state in facts.states if facts.step.role == "train" and len(facts.states) == 1 else ():
            pairs = [(a, b) for a, b in zip(state.grad_after, state.grad_norm, strict=True) if a and b]
            factors = [after / before for after, before in pairs]
            if len(factors) < 2:
                continue
            if max(factors) > 1.001 * min(factors):
                self._fine = True
            elif max(factors) < 0.999:
                self._found.append((state.n, factors[0]))

    def findings(self, run: RunFacts) -> Iterator[Finding]:
        if len(self._found) >= 2 and not self._fine:
            n, factor = self._found[0]
            yield _finding(
                self.id,
                "warning",
                n,
                f"after the optimizer's step all gradients are scaled down (by {factor:.3g} in step {n})",
                "the optimizer has used them as they were: the clipping has no effect",
                "whether the gradients are clipped between backward() and step()",
                [],
            )


RULES: tuple[type[Rule], ...] = (
    GradientsNeverCleared,
    NothingToStepWith,
    InNoOptimizer,
    NoGradientReachesThem,
    NotFinite,
    TrainedInEvaluationMode,
    EvaluatedInTrainingMode,
    RateVanished,
    ClippedWhileScaled,
    OptimizerMadeAnew,
    SameBatchAgain,
    ProbabilitiesAsLogits,
    ClippedAfterStep,
    *effects.RULES,
    *kept.RULES,
)
"""All rules, in the order in which their findings are told."""


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-4)
