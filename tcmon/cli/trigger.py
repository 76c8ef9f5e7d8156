"""The values of `--trigger`: samplers that record steps after something has happened."""

import signal
from collections.abc import Callable
from typing import Any

import click
from click import Context, Parameter

NAMES = ("slow", "stall", "nonfinite", "loss-spike", "signal", "call")


def triggers(context: Context, option: Parameter, values: tuple[str, ...]) -> tuple[Any, ...]:
    """The samplers that these texts name: `NAME[=VALUE][:STEPS]`."""
    return tuple(map(_trigger, values))


def _trigger(text: str) -> Any:
    from tcmon import samplers

    named, _, count = text.rpartition(":")
    if not count.isdecimal():
        named, count = text, "1"
    name, equals, value = named.partition("=")
    if name not in NAMES:
        raise click.BadParameter(f"{text} is no trigger; there are {', '.join(NAMES)}")
    if equals and not value:
        raise click.BadParameter(f"{text} has no value behind its =")
    factors: dict[str, Callable[..., Any]] = {
        "slow": samplers.Slow,
        "stall": samplers.Stall,
        "loss-spike": samplers.LossSpike,
    }
    steps = int(count)
    try:
        if name in factors:
            return factors[name](float(value), steps) if value else factors[name](steps=steps)
        if name == "signal":
            return samplers.OnSignal(_signal(value or "USR1"), steps)
        if name == "call":
            if not value:
                raise click.BadParameter("call needs a function's name, as in call=Trainer.save")
            return samplers.OnCall(value, steps)
        if value:
            raise click.BadParameter(f"{text}: nonfinite takes no value")
        return samplers.NonFinite(steps)
    except ValueError as error:
        raise click.BadParameter(f"{text}: {error}") from None


def _signal(name: str) -> int:
    if name.isdecimal():
        return int(name)
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    if full not in signal.Signals.__members__:
        raise ValueError(f"there is no signal {name}")
    return signal.Signals[full]
