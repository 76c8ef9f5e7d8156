"""What the calls of a code object say about training and evaluation, judged by the names they are written with."""

from __future__ import annotations

import re
from enum import StrEnum

from tcmon.analysis.calls import Call


class Sign(StrEnum):
    """What a call is a sign of."""

    STEP = "step"
    """An optimizer is stepped."""
    MAYBE_STEP = "maybe step"
    """`x.step()` where the name of `x` tells nothing; it counts beside a `backward`."""
    BACKWARD = "backward"
    """Gradients are computed or cleared."""


_BACKWARD = frozenset({"backward", "manual_backward", "zero_grad"})

_STEPPERS = re.compile(
    r"optim|scaler|engine|solver|lbfgs|adam|sgd|rmsprop|adagrad|(^|_)opts?(_|\d|$)|^opt|opts?$", re.IGNORECASE
)
"""Names of what is stepped to update parameters; `opt` alone or as a word of the name."""

_OTHERS = re.compile(
    r"sched|(^|_)lr(_|$)|warm|anneal|(^|_)env|environment|gym|prof|pbar|progress|(^|_)bar$|token|simul|(^|_)sim(_|$)"
    r"|world|physics|writer|logg|timer|clock|meter|early|stopper|game|option|optional|tracker|monitor|(^|_)ema(_|$)"
    r"|callback|(^|_)beta|annealer|decay|board",
    re.IGNORECASE,
)
"""Names of what is stepped for other reasons: schedulers, environments, profilers, progress bars."""

_EVALUATION_WORDS = (
    "eval",
    "evaluate",
    "evaluation",
    "evaluating",
    "valid",
    "validate",
    "validation",
    "val",
    "test",
)
_EVALUATION = re.compile(rf"(^|_)({'|'.join((*_EVALUATION_WORDS, 'testing', 'tester', 'dev'))})(_|\d|$)")
_BATCHES = re.compile(
    r"load(er)?s?($|_|\d)|(^|_)dl$|batch|dataset|(^|_)data(_|$)|^ds$|(^|_)iter(ator)?$", re.IGNORECASE
)
_MODELS = re.compile(
    r"(^|_)(model|net|network|module|encoder|decoder|generator|discriminator|classifier|backbone|policy|actor|critic"
    r"|ae|vae|gan|cnn|mlp|gpt|bert|transformer|predictor|net[a-z]|m)(_|\d|$)|model$|net$",
    re.IGNORECASE,
)
NO_GRAD = frozenset({"no_grad", "inference_mode"})

TELLING = _BACKWARD | {"step", "eval"} | NO_GRAD
"""A code object none of whose names is here, and whose own name is not an evaluation's, plays no role."""


def training_sign(call: Call) -> Sign | None:
    """What `call` says about training, or None."""
    if call.name in _BACKWARD:
        return Sign.BACKWARD
    if call.name == "step" and call.receiver is not None:
        receiver = call.receiver
        if _OTHERS.search(receiver):
            return None
        if _STEPPERS.search(_words(receiver)) or _STEPPERS.search(receiver):
            return Sign.STEP
        return Sign.MAYBE_STEP
    return None


def names_evaluation(name: str) -> bool:
    """Whether a function or variable is named like an evaluation: `evaluate`, `val_loader`, `run_validation`."""
    return _EVALUATION.search(_words(name)) is not None


def names_batches(name: str) -> bool:
    """Whether a variable is named like something that yields batches."""
    return _BATCHES.search(_words(name)) is not None


def names_model(name: str) -> bool:
    """Whether a variable is named like a model."""
    return _MODELS.search(_words(name)) is not None


def _words(name: str) -> str:
    """`valLoader` as `val_loader`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
