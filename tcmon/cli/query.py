"""`tcmon query`: SQL over runs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from tcmon.errors import TcmonError

if TYPE_CHECKING:
    from tcmon.export.query import Result

EXAMPLES = """\b
Examples:
  tcmon query runs/today "SELECT role, count(*), median(duration_ns) / 1e6 AS ms FROM steps GROUP BY role"
  tcmon query 'runs/*' "SELECT run, n, avg(value) AS loss FROM losses GROUP BY ALL ORDER BY ALL" --csv
  tcmon query runs/today "DESCRIBE state"
"""


@click.command(epilog=EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.argument("statement", metavar="SQL")
@click.option("--json", "form", flag_value="json", help="Print a JSON array with an object for each row.")
@click.option("--csv", "form", flag_value="csv", help="Print comma-separated values, the columns' names first.")
@click.option(
    "--rows",
    metavar="N",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Of a table show N rows; JSON and CSV have all.",
)
def query(runs: tuple[str, ...], statement: str, *, form: str | None, rows: int) -> None:
    """Query runs with SQL, by DuckDB.

    RUN is a run's directory, or a folder that it was exported to with --to parquet, which saves the time to read the
    trace; a pattern in quotes ('runs/*') means all runs that it matches. SQL may be - for standard input.

    Tables: runs, steps, calls, functions, loops, lines, losses, state, ops, devices, each with the columns run and
    rank; DESCRIBE and docs/export.md tell the others. It needs pip install 'tcmon[query]'.
    """
    from tcmon.cli.progress import progress
    from tcmon.export.query import query as run_query
    from tcmon.export.query import require_duckdb, sources, total_bytes

    if statement == "-":
        statement = sys.stdin.read()
    try:
        require_duckdb()
        found = sources(runs)
        with TemporaryDirectory(prefix="tcmon-query-") as folder:
            with progress(total_bytes(found, statement)) as advance:
                result = run_query(found, statement, Path(folder), advance)
            with _reader_may_leave():
                if form == "json":
                    _print_json(result)
                elif form == "csv":
                    _print_csv(result)
                else:
                    _print_table(result, rows)
    except TcmonError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"can't query: {error.strerror or error}") from None


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads standard output has seen enough; what is left must not be flushed into it either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(1) from None


def _print_json(result: "Result") -> None:
    write = sys.stdout.write
    write("[")
    for number, row in enumerate(result.rows):
        write(",\n" if number else "\n")
        write(_json(dict(zip(result.columns, row, strict=True))))
    write("\n]\n")


def _json(value: object) -> str:
    import orjson

    def plain(each: object) -> object:
        if isinstance(each, dict):
            return {str(key): plain(value) for key, value in each.items()}
        if isinstance(each, list | tuple):
            return [plain(value) for value in each]
        # Sums are wider than 64 bits, which orjson has no number for.
        if isinstance(each, int) and not -(1 << 63) <= each < 1 << 64:
            return orjson.Fragment(str(each))
        return each

    return orjson.dumps(plain(value), default=_text).decode()


def _text(value: object) -> object:
    from decimal import Decimal

    return float(value) if isinstance(value, Decimal) else str(value)


def _print_csv(result: "Result") -> None:
    import csv

    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(result.columns)
    for row in result.rows:
        rows.writerow([_json(each) if isinstance(each, dict | list) else each for each in row])


def _print_table(result: "Result", most: int) -> None:
    from itertools import islice

    from rich.console import Console
    from rich.text import Text

    from tcmon.report import wording
    from tcmon.report.layout import FAINT, show, show_line, table

    console = Console()
    shown = table()
    for name, numeric in zip(result.columns, result.numeric, strict=True):
        shown.add_column(wording.printable(name, console.encoding), justify="right" if numeric else "left")
    for row in islice(result.rows, most):
        shown.add_row(*(Text(wording.printable(_cell(each), console.encoding)) for each in row))
    show(shown, console)
    if next(result.rows, None) is not None:
        show_line(Text(f"There are more rows than these {most:,} (--rows, --csv, --json)", FAINT), console)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict | list):
        return _json(value)
    return str(value)
