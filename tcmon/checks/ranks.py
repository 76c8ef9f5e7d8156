"""Rules about the ranks of a data-parallel run, which compare what each of them has recorded of the same steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Protocol

from tcmon.checks.facts import StepFacts
from tcmon.checks.rule import made
from tcmon.trace.details import Finding


class RankRule(Protocol):
    """Looks at the recorded steps of each rank, one rank after the other, and compares them at the end."""

    id: ClassVar[str]

    def look(self, rank: int, facts: StepFacts) -> None:
        """One more recorded step of a rank."""

    def findings(self) -> Iterator[Finding]:
        """What is wrong; nothing, if there is no sign of it."""


class _Seen:
    """The parameters of the optimizers of one rank by step: as a hash before and after, and of a shape."""

    def __init__(self) -> None:
        self.before: dict[int, int] = {}
        self.after: dict[int, int] = {}
        self.shapes: int | None = None

    def look(self, facts: StepFacts) -> bool:
        """Note a step; False if it says nothing of whole parameters."""
        before = tuple(content for state in facts.states for content in state.before)
        after = tuple(content for state in facts.states for content in state.after)
        if facts.step.role != "train" or not before or None in before or None in after:
            return False
        if self.shapes is None:
            ids = [each for state in facts.states for each in state.parameter]
            self.shapes = hash(tuple(tuple(facts.parameters[each].shape) for each in ids if each in facts.parameters))
        self.before[facts.step.n] = hash(before)
        self.after[facts.step.n] = hash(after)
        return True


def _alike_at_first(seen: dict[int, _Seen]) -> int | None:
    """The first step that all ranks recorded, if they are several and their parameters were equal before it."""
    if len(seen) < 2 or len({each.shapes for each in seen.values()}) != 1:
        return None
    common = set.intersection(*(set(each.before) for each in seen.values()))
    first = min(common, default=None)
    return first if first is not None and len({each.before[first] for each in seen.values()}) == 1 else None


class ReplicasApart:
    """Parameters of the ranks were equal, bit for bit, when training began, and are no longer.

    Gradients are not averaged: the model is called past its data-parallel wrapper, or is not wrapped. From the content
    hashes of all ranks in at least two steps that all of them recorded, in all of which they differ after the
    optimizer's step. Silent where ranks hold parts of a model (they differ from the start), where they become equal
    again from time to time, and of one process.
    """

    id: ClassVar[str] = "replicas-apart"

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, rank: int, facts: StepFacts) -> None:
        self._seen.setdefault(rank, _Seen()).look(facts)

    def findings(self) -> Iterator[Finding]:
        seen = {rank: each for rank, each in self._seen.items() if each.before}
        first = _alike_at_first(seen)
        if first is None:
            return
        common = sorted(set.intersection(*(set(each.after) for each in seen.values())))
        apart = [n for n in common if len({each.after[n] for each in seen.values()}) > 1]
        if len(apart) >= 2 and apart == [n for n in common if n >= apart[0]]:
            yield made(
                self.id,
                "error",
                apart[0],
                f"the parameters of {len(seen)} ranks were equal before step {first} and differ after step {apart[0]} "
                "and all later ones",
                "each rank trains a model of its own, on its part of the data only",
                "whether the model is called through its data-parallel wrapper (not as .module), and whether all ranks "
                "step with the same gradients",
                [],
            )


class RanksGetTheSameBatch:
    """All ranks of a data-parallel run get the same batch, bit for bit, in every recorded step.

    From the first inputs of outermost modules that are trained, in at least three steps that all ranks recorded, and
    of ranks whose parameters are equal (replicas). Silent where ranks hold parts of a model, which get the same batch
    on purpose, and where all steps have one batch.
    """

    id: ClassVar[str] = "ranks-get-the-same-batch"

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._inputs: dict[int, dict[int, tuple[str | None, ...]]] = {}

    def look(self, rank: int, facts: StepFacts) -> None:
        inputs, modes = facts.inputs, facts.modes
        if not self._seen.setdefault(rank, _Seen()).look(facts) or inputs is None or modes is None:
            return
        if len(inputs.hash) == len(modes.stepped):
            given = tuple(each for each, stepped in zip(inputs.hash, modes.stepped, strict=True) if stepped)
            if given and None not in given:
                self._inputs.setdefault(rank, {})[facts.step.n] = given

    def findings(self) -> Iterator[Finding]:
        if set(self._inputs) != set(self._seen) or _alike_at_first(self._seen) is None:
            return
        common = sorted(set.intersection(*(set(each) for each in self._inputs.values())))
        batches = {self._inputs[rank][n] for rank in self._inputs for n in common}
        same = all(len({each[n] for each in self._inputs.values()}) == 1 for n in common)
        if len(common) >= 3 and same and len(batches) > 1:
            yield made(
                self.id,
                "warning",
                common[0],
                f"all {len(self._inputs)} ranks got the same batch in each of {len(common)} recorded steps",
                "they all compute the same: more ranks bring nothing",
                "whether the data loader has a sampler that gives each rank its own part",
                [],
            )


RANK_RULES: tuple[type[RankRule], ...] = (ReplicasApart, RanksGetTheSameBatch)
"""All rules about ranks."""
