"""A low-overhead monitor for PyTorch training that needs no change to the program."""

import sys

from tcmon.control import STAGES, annotate_stage, start_eval_step, start_step, step

__version__ = "0.1.0"
__all__ = ["STAGES", "annotate_stage", "attach", "samplers", "session", "start_eval_step", "start_step", "step"]

# This, `control` and `__main__` are read before the folder of the command is out of the way (`python -m tcmon`), where
# the program may have modules with any name, and by Pythons too old for tcmon: nothing else is imported here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from tcmon import samplers
    from tcmon.attached import Attached, Profile
else:
    ModuleType = type(sys)


def attach(**options: "Any") -> "Attached":
    """Watch this process from now on, until `detach()` of what this returns; also as `with tcmon.attach() as run:`.

    It works before training or in the midst of it, in any thread; the loops that run already count from their next
    iteration on. The options are those of `tcmon.options.Options`: `interval=20`, `warmup=2`, `eval_interval`,
    `eval_warmup`, `sampler` (see `tcmon.samplers`), `record="calls,state,loss"`, `out`, `train_loop`, ...

    Raises `TypeError` and `ValueError` for options that are none, before anything is done, and `TcmonError` if this
    process is watched already, or the run directory can't be made.
    """
    from tcmon import attached

    return attached.attach(options, sys._getframe(1))


def session(
    steps: int = 20, warmup: int = 5, on_done: "Callable[[Profile], object] | None" = None, **options: "Any"
) -> "Profile":
    """Watch this process as `attach()` does, until `steps` training steps, after `warmup` others, have been recorded.

    Then it is detached by itself, in a thread of its own, while training goes on, and `done` of what this returns is
    true. `on_done` is called once with it when the process is no longer watched, also where `detach()` (the end of a
    `with`) came first. The options are those of `attach()` but `sampler`, `interval` and `warmup`; raises as it does.
    """
    from tcmon import attached

    return attached.profile(steps, warmup, on_done, options, sys._getframe(1))


def load_ipython_extension(shell: "Any") -> None:
    """IPython's `%load_ext tcmon`: adds the cell magic `%%tcmon [options]`."""
    from tcmon import notebook

    notebook.load(shell)


def __getattr__(name: str) -> object:
    if name == "samplers":
        import importlib

        return importlib.import_module("tcmon.samplers")
    raise AttributeError(f"module 'tcmon' has no attribute {name!r}")


class _Package(ModuleType):
    """So that the import of the module `tcmon.session` leaves the function of that name what it is."""

    def __setattr__(self, name: str, value: object) -> None:
        if name != "session" or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
