"""The phases of every training step, recorded or not: where its time goes, by the starts and ends of a few functions.

Phases are exclusive: within another one the inner one counts (gradients that an optimizer's closure computes are
backward), but all of an evaluation is evaluation. What lies in none is forward if gradients are computed next, and none
of them otherwise. Of several threads that train, each has its own.

The callbacks cost every step of every run: they are closures, and do nothing that another place could do. What a
recorder does at the same functions lies outside of the phase.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Final

from tcmon.monitoring.tool import DISABLE, Tool, events

DATA, FORWARD, BACKWARD, OPTIMIZER, EVALUATION, CHECKPOINT, COLLECTIVE, NONE = range(8)
NOTHING: Final = (0,) * 8
"""The times of a step's phases where none is known; the last one is no phase."""

_STEP: Final = "Optimizer.profile_hook_step.<locals>.wrapper"
_FUNCTIONS: Final[dict[str, tuple[str | tuple[str, ...], int]]] = {
    "backward": ("torch/autograd/__init__.py", BACKWARD),
    "grad": ("torch/autograd/__init__.py", BACKWARD),
    _STEP: ("torch/optim/optimizer.py", OPTIMIZER),
    "Optimizer.zero_grad": ("torch/optim/optimizer.py", OPTIMIZER),
    "Module.zero_grad": ("torch/nn/modules/module.py", OPTIMIZER),
    "clip_grad_norm_": ("torch/nn/utils/clip_grad.py", OPTIMIZER),
    "clip_grad_value_": ("torch/nn/utils/clip_grad.py", OPTIMIZER),
    "GradScaler.unscale_": ("torch/amp/grad_scaler.py", OPTIMIZER),
    "GradScaler.step": ("torch/amp/grad_scaler.py", OPTIMIZER),
    "GradScaler.update": ("torch/amp/grad_scaler.py", OPTIMIZER),
    "save": (("torch/serialization.py", "torch/distributed/checkpoint/state_dict_saver.py"), CHECKPOINT),
    "save_file": ("safetensors/torch.py", CHECKPOINT),
    "_exception_logger.<locals>.wrapper": ("torch/distributed/c10d_logger.py", COLLECTIVE),
    "_BaseDataLoaderIter.__next__": ("torch/utils/data/dataloader.py", DATA),
}
"""Functions in which a phase is spent, by qualified name: the end of the file's name, and the phase.

All collectives of torch.distributed run through one wrapper, as all optimizers' steps do.
"""

_PATIENCE = 100
"""Calls of a data loader between steps, and none within one, after which it is no longer looked at: the loop's own wait
is known anyway, and most loops wait for nothing else."""

_SAMPLED_EVERY = 61
"""Of so many ends of phases, one is timed."""

_BOTH = events.PY_START | events.PY_RETURN


class Clock:
    """The times of the phases of the step that a thread is in."""

    __slots__ = ("now_in", "running", "since", "stack", "times")

    def __init__(self) -> None:
        self.times = [0] * 8
        self.now_in = NONE
        self.since = 0
        self.stack: list[int] = []
        self.running = False

    def begin(self, now: int) -> None:
        """The body of a step begins."""
        self.times = [0] * 8
        self.now_in = NONE
        self.since = now
        self.running = True
        if self.stack:  # an exception may have left a phase unended
            self.stack.clear()

    def take(self, now: int) -> list[int]:
        """The step is over: its times by phase, and what was none of them."""
        self.running = False
        self.times[self.now_in] += now - self.since
        self.since = now
        return self.times

    def enter(self, phase: int, now: int) -> None:
        """A phase begins."""
        self.times[self.now_in] += now - self.since
        self.since = now
        self.stack.append(self.now_in)
        self.now_in = phase
        if phase == BACKWARD:
            self.times[FORWARD] += self.times[NONE]
            self.times[NONE] = 0

    def leave(self, now: int) -> None:
        """The innermost phase ends."""
        if self.stack:
            self.times[self.now_in] += now - self.since
            self.since = now
            self.now_in = self.stack.pop()


class Phases:
    """Watches the functions that bound phases, on a tool id that it may lend to another watcher of functions.

    `clocks` holds the clocks of threads that are in a training step. `failed` is called with what a callback caught.
    """

    def __init__(self, tool: Tool, failed: Callable[[BaseException], None]) -> None:
        self.clocks: dict[int, Clock] = {}
        self._tool = tool
        self.unwinds: dict[int, Callable[[FrameType], None]] = {}
        """What is called when an exception leaves a code object."""
        self._failed = failed
        self._phase_of: dict[int, int] = {}
        self._steps: set[int] = set()
        """Functions that begin with what is not forward: optimizers' steps."""
        self._watched_calls: dict[int, int] = {}
        self._lent: dict[int, int] = {}
        self._borrower: dict[int, Callable[[CodeType, FrameType], None]] = {}
        self._ended = self._samples = self._sampled_ns = 0
        tool.on(events.PY_START, self._start_callback())
        tool.on(events.PY_RETURN, self._return_callback())

    @property
    def callbacks(self) -> int:
        """How often a phase began or ended."""
        return 2 * self._ended

    @property
    def callback_ns(self) -> int:
        """Time spent in the callbacks of phases, from samples of their ends: their starts do as much."""
        return self._sampled_ns * self.callbacks // self._samples if self._samples else 0

    def functions(self) -> list[tuple[str, Callable[[CodeType, FrameType], None]]]:
        """The qualified names of functions, and what is to be called as they start for the first time."""
        return [(name, self._first_start) for name in _FUNCTIONS]

    def _first_start(self, code: CodeType, _frame: FrameType) -> None:
        ends, phase = _FUNCTIONS[code.co_qualname]
        if code.co_filename.endswith(ends) and id(code) not in self._phase_of:
            self._phase_of[id(code)] = phase
            if code.co_qualname == _STEP:
                self._steps.add(id(code))
            self.unwinds[id(code)] = self._unwound
            self.watch(code, self._lent.get(id(code), 0))
            # This start was not seen, but the return will be.
            clock = self.clocks.get(get_ident())
            if clock is not None and clock.running:
                clock.enter(phase, perf_counter_ns())

    def _unwound(self, _frame: FrameType) -> None:
        """An exception leaves one of the functions."""
        clock = self.clocks.get(get_ident())
        if clock is not None:
            clock.leave(perf_counter_ns())

    # As a tool of the borrower's

    def on(self, event: int, callback: Callable[[CodeType, FrameType], None]) -> None:
        """Call `callback` for `event` in the functions that the borrower watches, with the function's frame."""
        self._borrower[event] = callback

    def watch(self, code: CodeType, event_set: int) -> None:
        """Switch exactly these events on for the borrower, beside those that phases need."""
        if event_set:
            self._lent[id(code)] = event_set
        else:
            self._lent.pop(id(code), None)
        own = self._watched_calls.get(id(code), 0) | (_BOTH if id(code) in self._phase_of else 0)
        self._tool.watch(code, event_set | own)

    def watch_calls_in(self, code: CodeType, called: Callable[[object, object], bool]) -> None:
        """Call `called` with each callable that `code` calls and its first argument, at each place until it says no.

        There is one such watcher for all code.
        """

        def on_call(_code: CodeType, _offset: int, function: object, argument: object) -> object:
            try:
                return None if called(function, argument) else DISABLE
            except BaseException as error:
                self._failed(error)
                return None

        self._tool.on(events.CALL, on_call)
        self._watched_calls[id(code)] = events.CALL
        self.watch(code, self._lent.get(id(code), 0))

    # Events: the hot paths

    def _start_callback(self) -> Callable[[CodeType, int], None]:
        clocks, phase_of, ends_forward, lent, borrower = (
            self.clocks,
            self._phase_of,
            self._steps,
            self._lent,
            self._borrower,
        )
        time = perf_counter_ns
        between_steps = 0

        def on_start(code: CodeType, _offset: int) -> None:
            nonlocal between_steps
            try:
                key = id(code)
                if lent and lent.get(key, 0) & events.PY_START:
                    borrower[events.PY_START](code, sys._getframe(1))
                phase = phase_of.get(key)
                clock = clocks.get(get_ident())
                if phase is not None and clock is not None:
                    if clock.running:
                        times = clock.times
                        now = time()
                        times[clock.now_in] += now - clock.since
                        clock.since = now
                        clock.stack.append(clock.now_in)
                        if clock.now_in == EVALUATION:
                            return
                        clock.now_in = phase
                        if phase == BACKWARD:
                            times[FORWARD] += times[NONE]
                            times[NONE] = 0
                        elif key in ends_forward:
                            times[NONE] = 0
                        elif phase == DATA:
                            between_steps = -1
                    elif phase == DATA and between_steps >= 0:
                        between_steps += 1
                        if between_steps > _PATIENCE:
                            del phase_of[key]
                            self.watch(code, lent.get(key, 0))
            except BaseException as error:
                self._failed(error)

        return on_start

    def _return_callback(self) -> Callable[[CodeType, int, object], None]:
        clocks, phase_of, lent, borrower = self.clocks, self._phase_of, self._lent, self._borrower
        time = perf_counter_ns
        next_sample = _SAMPLED_EVERY

        def on_return(code: CodeType, _offset: int, _value: object) -> None:
            nonlocal next_sample
            now = time()
            try:
                clock = clocks.get(get_ident())
                if clock is not None and clock.stack and id(code) in phase_of:
                    clock.times[clock.now_in] += now - clock.since
                    clock.since = now
                    clock.now_in = clock.stack.pop()
                    self._ended = ended = self._ended + 1
                    if ended >= next_sample:
                        next_sample = ended + _SAMPLED_EVERY
                        self._samples += 1
                        self._sampled_ns += time() - now
                if lent and lent.get(id(code), 0) & events.PY_RETURN:
                    borrower[events.PY_RETURN](code, sys._getframe(1))
            except BaseException as error:
                self._failed(error)

        return on_return
