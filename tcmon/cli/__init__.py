"""The command line: one thin module a command."""

import sys

import click

from tcmon import __version__
from tcmon.cli.attach import attach, detach
from tcmon.cli.check import check
from tcmon.cli.demo import demo
from tcmon.cli.diff import diff
from tcmon.cli.export import export
from tcmon.cli.loops import loops
from tcmon.cli.query import query
from tcmon.cli.record import record
from tcmon.cli.report import report
from tcmon.cli.run import run
from tcmon.cli.view import view
from tcmon.errors import TcmonError

BAD_INPUT = 2
INTERRUPTED = 130

EXAMPLES = """\b
Examples:
  tcmon run train.py --epochs 3
  tcmon run --interval 50 -m package.train --epochs 3
  tcmon loops train.py
  tcmon report tcmon-runs/train-20261201-033000-4711
  tcmon view tcmon-runs/train-20261201-033000-4711 --open
  tcmon diff tcmon-runs/monday tcmon-runs/today
  tcmon export tcmon-runs/train-20261201-033000-4711 --to perfetto
  tcmon demo"""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as added: in the order of use


@click.group(cls=_Commands, epilog=EXAMPLES)
@click.version_option(__version__, message="tcmon %(version)s")
def command_line() -> None:
    """Watch a PyTorch training run at almost no cost, without a change to the program."""


for command in (run, attach, detach, record, loops, report, view, check, diff, export, query, demo):
    command_line.add_command(command)


def main() -> None:
    """Run what ``sys.argv`` says; the process ends as the command, or the program that it runs, ends."""
    try:
        result = command_line.main(sys.argv[1:] or ["--help"], prog_name="tcmon", standalone_mode=False)
        # A program is run here, where no code of click is on the stack to catch what ends it.
        sys.exit(result() if callable(result) else result)
    except click.Abort:
        sys.exit(INTERRUPTED)
    except TcmonError as error:
        _refuse(str(error), BAD_INPUT)
    except click.ClickException as error:
        hint = ""
        if isinstance(error, click.UsageError) and error.ctx is not None:
            hint = f" (see {error.ctx.command_path} --help)"
        _refuse(error.format_message().rstrip(".") + hint, error.exit_code)


def _refuse(text: str, exit_code: int) -> None:
    print("tcmon: error:", " ".join(text.split()), file=sys.stderr)
    sys.exit(exit_code)
