"""`tcmon run`: runs a program and watches it."""

import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from click import Context, Parameter

from tcmon.cli.trigger import triggers
from tcmon.recordable import DEFAULT, RECORDABLE

LEVELS = ("debug", "info", "warning", "error")

EXAMPLES = """\b
Examples:
  tcmon run train.py --epochs 3
  tcmon run --interval 50 --out runs/today train.py
  tcmon run -m package.train --interval 3    (this --interval is the program's)
  tcmon run -- torchrun --nproc-per-node 2 train.py"""


def _patterns(context: Context, option: Parameter, value: str | None) -> tuple[str, ...]:
    patterns = () if value is None else tuple(part.strip() for part in value.split(","))
    if not all(patterns):
        raise click.BadParameter(f"{value!r} is no list of modules; give names or patterns as torch.nn.*")
    return patterns


class _Run(click.Command):
    """Tells what follows `--`, a command, from a script."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(ctx, args)
        program = ctx.params.get("program") or ()
        before = given[: len(given) - len(program)]
        ctx.params["after_dashes"] = bool(before) and before[-1] == "--"
        return rest


def _at_least(least: int) -> Callable[[Context, Parameter, str | None], int | None]:
    def convert(context: Context, option: Parameter, value: str | None) -> int | None:
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise click.BadParameter(f"{value} is not a whole number of at least {least}")
        return number

    return convert


def _size(context: Context, option: Parameter, value: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    unit = units.get(value[-1:].upper())
    try:
        size = round(float(value[:-1]) * unit) if unit else int(value)
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise click.BadParameter(f"{value} is no size; give bytes, or a number with K, M, G or T")
    return size


def _share(value: str) -> float:
    return float(value.removesuffix("%")) / 100 if value.endswith("%") else float(value)


def _seconds(value: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    unit = units.get(value[-1:])
    return float(value[:-1]) * unit if unit else float(value)


def _duration(context: Context, option: Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        seconds = _seconds(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 1e9:
        raise click.BadParameter(f"{value} is no time; give seconds, or a number with s, m or h")
    return seconds


def _sampler(name: str, convert: Callable[[str], Any]) -> Callable[[Context, Parameter, str | None], Any]:
    def make(context: Context, option: Parameter, value: str | None) -> Any:
        if value is None:
            return None
        from tcmon import samplers

        try:
            converted = convert(value)
        except ValueError:
            raise click.BadParameter(f"{value} is not a number") from None
        try:
            return getattr(samplers, name)(converted)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return make


def _rules(context: Context, option: Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if value:
        from tcmon.checks.run import rule_ids

        for rule in value:
            if rule not in (known := rule_ids()):
                raise click.BadParameter(f"there is no rule {rule!r}; the rules are {', '.join(sorted(known))}")
    return value


def _recordable(context: Context, option: Parameter, value: str) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    for part in wanted:
        if part not in RECORDABLE:
            raise click.BadParameter(f"{part!r} can't be recorded; available: {', '.join(RECORDABLE)}")
    return wanted


@click.command(
    cls=_Run,
    epilog=EXAMPLES,
    # Options end at the first word that is none: what follows SCRIPT or MODULE is the program's.
    context_settings={"allow_interspersed_args": False},
)
@click.option("-m", "as_module", is_flag=True, help="Run a module, as python -m MODULE does.")
@click.option(
    "--interval",
    "--sampling-interval",
    metavar="N",
    callback=_at_least(1),
    default="20",
    show_default=True,
    help="Record every Nth step after the warm-up.",
)
@click.option(
    "--warmup",
    "--warm-up-steps",
    metavar="N",
    callback=_at_least(0),
    default="2",
    show_default=True,
    help="Record all steps before the Nth, from which intervals count.",
)
@click.option(
    "--eval-interval",
    metavar="N",
    callback=_at_least(1),
    help="--interval for evaluation steps.  [default: the same]",
)
@click.option(
    "--eval-warmup",
    metavar="N",
    callback=_at_least(0),
    help="--warmup for evaluation steps.  [default: the same]",
)
@click.option(
    "--steps",
    metavar="LIST",
    callback=_sampler("Steps", str),
    help="Record these training steps instead, as in 1,5,100:120.",
)
@click.option(
    "--budget",
    metavar="SHARE",
    callback=_sampler("Budget", _share),
    help="Record as often as this share of the time allows instead, as in 1%.",
)
@click.option(
    "--every",
    metavar="TIME",
    callback=_sampler("Every", _seconds),
    help="Record a training step every so many seconds instead, as in 60s or 5m.",
)
@click.option(
    "--ratio",
    metavar="SHARE",
    callback=_sampler("Ratio", _share),
    help="Record a random share of the training steps instead, as in 0.05.",
)
@click.option(
    "--trigger",
    metavar="WHAT",
    multiple=True,
    callback=triggers,
    help="Also record the next step after: slow[=FACTOR], stall[=FACTOR], nonfinite, loss-spike[=FACTOR], "
    "signal[=NAME], call=FUNCTION. With :N behind it, the next N steps. May be given several times.",
)
@click.option(
    "--flight",
    metavar="N",
    callback=_at_least(1),
    help="Record all steps, but only in memory; write the last N after an exception, SIGTERM, a hang or a trigger.",
)
@click.option(
    "--hang-after",
    metavar="TIME",
    callback=_duration,
    help="Note where all threads stand when there was no step for so long, as in 300s.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    callback=_size,
    default="2G",
    show_default=True,
    help="From this size on keep no more details of steps, only their times.",
)
@click.option("--train-loop", metavar="FILE:LINE", help="The training loop, by the line of its for or while.")
@click.option("--eval-loop", metavar="FILE:LINE", help="The evaluation loop, likewise.")
@click.option(
    "--record",
    metavar="LIST",
    callback=_recordable,
    default=",".join(DEFAULT),
    show_default=True,
    help="What to record in these steps, separated by commas.",
)
@click.option(
    "--lines",
    metavar="FUNC",
    multiple=True,
    help="Record the lines of this function too, as in Model.forward. May be given several times.",
)
@click.option(
    "--threads",
    type=click.Choice(("loop", "all")),
    default="loop",
    show_default=True,
    help="Record calls of the loop's own thread, or of all threads.",
)
@click.option(
    "--include",
    metavar="LIST",
    callback=_patterns,
    help="Record calls of functions in these modules only, as in train,torch.nn.*.  [default: all]",
)
@click.option(
    "--exclude",
    metavar="LIST",
    callback=_patterns,
    help="Record no calls of functions in these modules, as in torch.optim.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory for the run.  [default: tcmon-runs/SCRIPT-TIME-PID]",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="warning",
    show_default=True,
    help="What tcmon says on stderr while the program runs; debug: a line each step.",
)
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Watch the Pythons that it starts, too.  [default: --follow for a command after --, else --no-follow]",
)
@click.option("--check/--no-check", default=True, help="Tell what is wrong with the training as it is found.")
@click.option(
    "--ignore",
    metavar="RULE",
    multiple=True,
    callback=_rules,
    help="Leave a rule of the checks out (see tcmon check). May be given several times.",
)
@click.option("--quiet", is_flag=True, help="Show no summary at the end.")
@click.argument("program", metavar="SCRIPT|-m MODULE|-- COMMAND [ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    program: tuple[str, ...],
    *,
    as_module: bool,
    after_dashes: bool,
    log_level: str,
    follow: bool | None,
    quiet: bool,
    steps: Any,
    budget: Any,
    every: Any,
    ratio: Any,
    **options: Any,
) -> Callable[[], int | None]:
    """Run a program and watch its training loop.

    The program runs as under python, and all that follows SCRIPT or MODULE is its own. After -- may come any COMMAND,
    as torchrun or a shell script: the Pythons that it starts are watched. The summary is printed to stderr at the end.
    """
    if not program:
        raise click.UsageError("there is no program to run; give a Python script, or -m and a module")
    options = chosen_options({"steps": steps, "budget": budget, "every": every, "ratio": ratio, **options})
    if after_dashes and not as_module and shutil.which(program[0]):
        if follow is False:
            raise click.UsageError("a command after -- can't be watched with --no-follow")
        return partial(_run_command, program, log_level, quiet, options)
    return partial(_run, program, as_module, log_level, bool(follow), quiet, options)


def _run_command(program: tuple[str, ...], log_level: str, quiet: bool, options: dict[str, Any]) -> int:
    from tcmon.cli.watch import log_to_stderr
    from tcmon.follow.command import run_command
    from tcmon.options import Options

    log_to_stderr(log_level)
    return run_command(program, Options(**options), ["tcmon", *sys.argv[1:]], level=log_level, quiet=quiet)


def _run(
    program: tuple[str, ...], as_module: bool, log_level: str, follow: bool, quiet: bool, options: dict[str, Any]
) -> None:
    # Click's work is done: what it takes to watch is imported only for a command line without mistakes.
    from tcmon.cli.watch import log_to_stderr, watch
    from tcmon.options import Options
    from tcmon.program import ModuleProgram, script_program

    log_to_stderr(log_level)
    name, *args = program
    target = ModuleProgram(name, args) if as_module else script_program(name, args)
    watch(
        target,
        Options(**options),
        command=["tcmon", *sys.argv[1:]],
        quiet=quiet,
        follow=log_level if follow else None,
    )


_OF_RUN = ("program", "as_module", "follow", "quiet", "log_level")
_SAMPLERS = ("steps", "budget", "every", "ratio")


def watching_options() -> list[Parameter]:
    """Those options of `tcmon run` that say what is recorded, and where."""
    return [each for each in run.params if each.name not in _OF_RUN]


def chosen_options(values: dict[str, Any]) -> dict[str, Any]:
    """Values of these options as `Options` takes them: a step is recorded that any of the samplers picks."""
    chosen = {name: value for name, value in values.items() if name not in _SAMPLERS}
    for sampler in (values.get(name) for name in _SAMPLERS):
        if sampler is not None:
            chosen["sampler"] = chosen["sampler"] | sampler if "sampler" in chosen else sampler
    return chosen
