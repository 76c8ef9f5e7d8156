"""A function of the user's that is called after each step."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import NamedTuple

from tcmon.analysis.roles import Role
from tcmon.log import warn
from tcmon.monitoring.interruptions import is_interruption


class StepNumbers(NamedTuple):
    """A step that is over. Times are nanoseconds: of the whole step, its wait for data included, and of that wait."""

    role: str
    n: int
    took_ns: int
    wait_ns: int
    recorded: bool


class OnStep:
    """Calls `function` after each step, in the loop's thread; once it has failed, no more."""

    def __init__(self, function: Callable[[StepNumbers], object]) -> None:
        self._function: Callable[[StepNumbers], object] | None = function
        self.within: int | None = None
        """The thread in which it is being called."""
        self._waiting: dict[tuple[str, int], StepNumbers] = {}

    def watching(self, role: Role) -> Callable[[int, int, int, bool], None]:
        """What is to be called with the times of each step of `role`, as they are known."""

        def step_over(n: int, took_ns: int, wait_ns: int, recorded: bool) -> None:
            numbers = StepNumbers(role.value, n, took_ns, wait_ns, recorded)
            if recorded:  # what is called now would be among what the step holds
                self._waiting[role.value, n] = numbers
            else:
                self._call(numbers)

        return step_over

    def written(self, role: str, n: int) -> None:
        """All that a recorded step holds has been written."""
        numbers = self._waiting.pop((role, n), None)
        if numbers is not None:
            self._call(numbers)

    def _call(self, numbers: StepNumbers) -> None:
        function = self._function
        if function is None:
            return
        self.within = get_ident()
        try:
            function(numbers)
        except Exception as error:
            if is_interruption(error):
                raise
            self._function = None
            text = " ".join(f"{type(error).__name__}: {error}".split())
            warn(f"on_step failed after {numbers.role} step {numbers.n} and is called no more: {text}", error)
        finally:
            self.within = None
