"""Manual control from within a program: where its steps begin, and which stage it is in.

Every function here is empty. A session sees it start, as it sees any other function of the program start, and acts on
that; without a session nothing happens, at the cost of an empty call, so the calls can stay in the code.
"""

STAGES = (
    "init",
    "training",
    "evaluation",
    "inference",
    "testing",
    "checkpointing",
    "preprocessing",
    "postprocessing",
)
"""The stages of a run."""

_KNOWN = frozenset(STAGES)


def start_step():  # type: () -> None
    """Begin a training step here, at the top of a loop's body; the step before it ends.

    From its first call on, it takes over from the training loops that tcmon finds in this thread. The last step ends
    when the innermost loop around the first call is left.
    """


def start_eval_step():  # type: () -> None
    """Begin an evaluation step here, as `start_step` does for training."""


class _Block:
    def __enter__(self):  # type: () -> None
        pass

    def __exit__(self, *_raised):  # type: (object) -> None
        pass


_BLOCK = _Block()


def step():  # type: () -> _Block
    """A training step from the beginning of a `with` block to its end: `with tcmon.step(): ...`."""
    return _BLOCK


def annotate_stage(name):  # type: (str) -> None
    """Say that this thread is in another stage from here on, until its loop is left or another stage is entered.

    Raises `ValueError` if `name` is none of `STAGES`, with or without a session. Entering a different stage within a
    step that is not recorded turns recording on for the rest of it.
    """
    if name not in _KNOWN:
        raise ValueError("stage must be one of {}, not {!r}".format(", ".join(STAGES), name))
    _stage_entered(name)


def _stage_entered(name):  # type: (str) -> None
    pass
