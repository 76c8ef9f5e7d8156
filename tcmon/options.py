"""What a session records, and where."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tcmon.analysis.roles import Role
from tcmon.recordable import DEFAULT, RECORDABLE
from tcmon.steps.budget import Budget
from tcmon.steps.named import NamedLoop
from tcmon.steps.onstep import StepNumbers
from tcmon.steps.sampler import AllOf, Always, AnyOf, Combinable, Interval, Sampler, parts


@dataclasses.dataclass(frozen=True)
class Options:
    """What a session records, and where.

    Step n of training is recorded when `n < warmup` or `(n - warmup) % interval == 0`; evaluation steps are counted
    apart, under the same rule with `eval_interval` and `eval_warmup` (None: as for training). A `sampler` or
    `eval_sampler` decides in the place of the rule; where `sampler` holds a budget, evaluation steps spend of it too.
    `trigger`, a sampler or a list of them, has training steps recorded beside those that are chosen so. `record` names
    what is kept of these steps, and `lines` functions (as "Model.forward") whose lines are kept too; `include` and
    `exclude` are patterns ("torch.nn.*"; a package stands for all in it) of modules whose functions' calls are
    kept, or are not, and `threads` whether those of the loop's thread are ("loop") or of "all". With `flight`,
    recorded steps are held in memory, that many at most, and written only when a trigger asks for steps, after an
    uncaught exception, an interrupt, SIGTERM or a hang: no step for `hang_after` seconds (None: not watched for),
    of which a note is made in any case. From `max_bytes` on, the trace of a process takes no more details, only the
    times of steps. `out` is the run directory, None for a new one under `tcmon-runs`. `train_loop` and `eval_loop`
    name a loop as "FILE:LINE" (the line of its `for` or `while`) in the
    place of those that would be found. `on_step` is called with a `StepNumbers` after each step, in the loop's thread;
    what it takes is counted as the next step's wait. With `check`, what is wrong with the training is told as it is
    found, by all rules but those in `ignore`. Raises `ValueError` or `TypeError` naming argument and value.
    """

    interval: int = 20
    warmup: int = 2
    eval_interval: int | None = None
    eval_warmup: int | None = None
    sampler: Sampler | None = None
    eval_sampler: Sampler | None = None
    trigger: Sampler | Sequence[Sampler] = ()
    record: tuple[str, ...] = DEFAULT
    lines: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    threads: str = "loop"
    flight: int | None = None
    hang_after: float | None = None
    max_bytes: int = 2 << 30
    out: Path | None = None
    train_loop: str | None = None
    eval_loop: str | None = None
    on_step: Callable[[StepNumbers], object] | None = None
    check: bool = True
    ignore: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers = (("interval", 1), ("warmup", 0), ("eval_interval", 1), ("eval_warmup", 0), ("max_bytes", 0))
        for name, least in numbers:
            value = getattr(self, name)
            if value is None and name.startswith("eval_"):
                continue
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be a whole number, not {value!r}")
            if value < least:
                raise ValueError(f"{name} must be at least {least}, not {value}")
        if self.flight is not None:
            if type(self.flight) is not int:
                raise TypeError(f"flight must be a whole number, not {self.flight!r}")
            if self.flight < 1:
                raise ValueError(f"flight must be at least 1, not {self.flight}")
        if self.hang_after is not None:
            if type(self.hang_after) not in (int, float):
                raise TypeError(f"hang_after must be a number of seconds, not {self.hang_after!r}")
            if not 0 < self.hang_after < 1e9:
                raise ValueError(f"hang_after must be more than 0, not {self.hang_after}")
        for name in ("sampler", "eval_sampler"):
            sampler = getattr(self, name)
            if sampler is not None and (isinstance(sampler, type) or not isinstance(sampler, Sampler)):
                what = type(sampler).__name__
                raise TypeError(f"{name} must be an object with the methods reason(n) and next_after(n), not {what}")
        triggers: tuple[object, ...] = self.triggers
        for trigger in triggers:
            if isinstance(trigger, type) or not isinstance(trigger, Sampler):
                given = trigger.__name__ if isinstance(trigger, type) else type(trigger).__name__
                raise TypeError(f"trigger must be a sampler as Slow(), or a list of them, not {given}")
        if not isinstance(self.record, tuple | list):
            raise TypeError(f"record must be a list of names, not {self.record!r}")
        for recorder in self.record:
            if recorder not in RECORDABLE:
                raise ValueError(f"record can't hold {recorder!r}: available are {', '.join(RECORDABLE)}")
        names: object = self.lines
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
            raise TypeError(f"lines must be a list of names of functions, not {names!r}")
        if self.lines and "lines" not in self.record:
            raise ValueError("lines of functions are recorded only where record holds 'lines'")
        if not isinstance(self.threads, str):
            raise TypeError(f"threads must be 'loop' or 'all', not {self.threads!r}")
        if self.threads not in ("loop", "all"):
            raise ValueError(f"threads must be 'loop' or 'all', not {self.threads!r}")
        for name in ("include", "exclude"):
            patterns = getattr(self, name)
            if not isinstance(patterns, tuple | list) or not all(isinstance(each, str) for each in patterns):
                raise TypeError(f"{name} must be a list of patterns of modules' names, not {patterns!r}")
            if not all(patterns):
                raise ValueError(f"{name} must be a list of patterns of modules' names as torch.nn.*, not {patterns!r}")
        if self.out is not None and not isinstance(self.out, Path):
            raise TypeError(f"out must be a path, not {self.out!r}")
        if type(self.check) is not bool:
            raise TypeError(f"check must be True or False, not {self.check!r}")
        rules: object = self.ignore
        if not isinstance(rules, tuple | list) or not all(isinstance(rule, str) for rule in rules):
            raise TypeError(f"ignore must be a list of names of rules, not {rules!r}")
        if self.ignore:
            from tcmon.checks.run import rule_ids

            for rule in self.ignore:
                if rule not in (known := rule_ids()):
                    raise ValueError(f"ignore can't hold {rule!r}: the rules are {', '.join(sorted(known))}")
        if self.on_step is not None and not callable(self.on_step):
            raise TypeError(f"on_step must be a function of one argument, not {self.on_step!r}")

    @property
    def triggers(self) -> tuple[Sampler, ...]:
        """`trigger` as a tuple."""
        return tuple(self.trigger) if isinstance(self.trigger, Sequence) else (self.trigger,)

    def interval_for(self, role: Role) -> Interval:
        """The rule of interval and warm-up for the steps of `role`."""
        if role is Role.TRAIN:
            return Interval(self.interval, self.warmup)
        return Interval(
            self.interval if self.eval_interval is None else self.eval_interval,
            self.warmup if self.eval_warmup is None else self.eval_warmup,
        )

    def sampler_for(self, role: Role) -> Sampler:
        """The sampler for the steps of `role`."""
        if role is Role.TRAIN:
            # With a flight recorder, what happened in the last steps is asked for.
            usual = Always() if self.flight is not None else self.interval_for(role)
            chosen = self.sampler if self.sampler is not None else usual
            return AnyOf(*self.triggers, chosen) if self.triggers else chosen
        if self.eval_sampler is not None:
            return self.eval_sampler
        if self.flight is not None:
            return Always()
        budgets = (each for each in parts(self.sampler) if isinstance(each, Budget)) if self.sampler else ()
        shared = [budget.sharing() for budget in budgets]
        return AllOf(self.interval_for(role), *shared) if shared else self.interval_for(role)

    def named_loops(self) -> tuple[NamedLoop, ...]:
        """The loops that are named by hand; raises `TcmonError` if one of them is none."""
        named = ((Role.TRAIN, self.train_loop), (Role.EVAL, self.eval_loop))
        return tuple(NamedLoop(role, place) for role, place in named if place is not None)

    def as_record(self) -> dict[str, Any]:
        training, evaluation = self.interval_for(Role.TRAIN), self.interval_for(Role.EVAL)
        samplers = {
            name: repr(sampler)[:200] if isinstance(sampler, Combinable) else type(sampler).__qualname__
            for name, sampler in (("sampler", self.sampler), ("eval_sampler", self.eval_sampler))
            if sampler is not None
        }
        if self.triggers:
            samplers["trigger"] = ", ".join(map(repr, self.triggers))[:200]
        others = {
            name: value
            for name, value in (("flight", self.flight), ("hang_after", self.hang_after))
            if value is not None
        }
        patterns = {name: list(value) for name in ("include", "exclude") if (value := getattr(self, name))}
        return {
            **samplers,
            **patterns,
            **others,
            "interval": training.interval,
            "warmup": training.warmup,
            "eval_interval": evaluation.interval,
            "eval_warmup": evaluation.warmup,
            "record": list(self.record),
        }
