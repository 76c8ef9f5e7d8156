"""`tcmon check`: what is wrong with the training of a run."""

import sys
from pathlib import Path

import click

SEVERITIES = ("error", "warning", "hint")
FOUND = 1

EXAMPLES = """\b
Examples:
  tcmon check tcmon-runs/train-20261201-033000-4711
  tcmon check RUN --fail-on error     (exit code 1 if there is an error, for CI)"""


@click.command(epilog=EXAMPLES)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="End with exit code 1 if there is a finding of this severity or a graver one.",
)
@click.option("--ignore", metavar="RULE", multiple=True, help="Leave a rule out; may be given several times.")
def check(run: Path, *, as_json: bool, fail_on: str | None, ignore: tuple[str, ...]) -> int:
    """Tell what is wrong with the training of RUN, a run directory, from its recorded steps.

    Findings are errors (certainly wrong), warnings (probably wrong) and hints (worth a look).
    """
    # What reading takes is imported only for a command line without mistakes.
    from tcmon.checks.run import check as checked
    from tcmon.checks.run import rule_ids
    from tcmon.checks.text import render
    from tcmon.trace.reader import open_run

    known = rule_ids()
    for rule in ignore:
        if rule not in known:
            raise click.UsageError(f"there is no rule {rule!r}; the rules are {', '.join(sorted(known))}")
    result = checked(open_run(run), ignored=ignore)
    if as_json:
        import orjson

        from tcmon.report.as_json import finding_as_json

        objects = [finding_as_json(finding) for finding in result.findings]
        sys.stdout.write(orjson.dumps(objects, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        render(result)
    failing = SEVERITIES[: SEVERITIES.index(fail_on) + 1] if fail_on is not None else ()
    return FOUND if any(finding.severity in failing for finding in result.findings) else 0
