"""SQL over runs, by DuckDB, which is an extra.

Each run is exported to Parquet into a temporary folder, but only the tables whose names the statement holds; DuckDB
reads them from there. So memory does not grow with the traces.
"""

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tcmon.errors import TcmonError
from tcmon.export.parquet import TABLES, Advance, empty_tables, export, require_pyarrow
from tcmon.trace.reader import Run, open_run

_MEMORY: Final = "512MB"
_THREADS: Final = 4
_FETCHED: Final = 1000


@dataclass(frozen=True, slots=True)
class Source:
    """Something to query under a name: a run directory, or the folder that a run was exported to."""

    name: str
    path: Path
    run: Run | None


@dataclass(frozen=True, slots=True)
class Result:
    """The columns of a result, which of them hold numbers, and its rows, which are fetched as they are taken."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: Iterator[tuple[Any, ...]]


def require_duckdb() -> None:
    """Raise TcmonError, which says what to install, when DuckDB or pyarrow can't be imported."""
    try:
        import_module("duckdb")
        require_pyarrow()
    except (ImportError, TcmonError):
        raise TcmonError("queries need duckdb and pyarrow, not both installed: pip install 'tcmon[query]'") from None


def sources(patterns: Iterable[str]) -> list[Source]:
    """What is at some paths, which may be patterns with `*`, `?`, `[...]` and `**`; what a pattern matches beside runs
    is passed over.

    They are named by their folder, or by their whole path where two folders have one name. Raises TcmonError when there
    is no run.
    """
    found: dict[Path, Run | None] = {}
    for pattern in patterns:
        before = len(found)
        if Path(pattern).exists() or not glob.has_magic(pattern):
            found[Path(pattern)] = _run_at(Path(pattern))
            continue
        matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 - the pattern may be absolute
        for path in map(Path, sorted(matches)):
            if path.is_dir() and (_is_exported(path) or any(path.glob("run*.json"))):
                found[path] = _run_at(path)
        if len(found) == before:
            raise TcmonError(f"no run matches {pattern!r}")
    names = [path.absolute().resolve().name for path in found]
    return [
        Source(name if names.count(name) == 1 else str(path), path, run)
        for name, (path, run) in zip(names, found.items(), strict=True)
    ]


def tables_in(statement: str) -> frozenset[str]:
    """The tables whose names are in a statement, whatever they mean there."""
    return frozenset(TABLES).intersection(re.findall(r"\w+", statement.lower()))


def total_bytes(sources: Iterable[Source], statement: str) -> int:
    """About what `query` tells its `advance` of in the end."""
    tables = tables_in(statement)
    passes = ("steps" in tables) + bool(tables - {"steps"}) + bool(tables - {"steps", "runs", "loops", "functions"})
    traces = (process.trace for each in sources if each.run for process in each.run.processes)
    return sum(passes * trace.stat().st_size for trace in traces)


def query(sources: Sequence[Source], statement: str, folder: Path, advance: Advance = lambda _: None) -> Result:
    """What `statement` gives, with the tables of an export and the further column `run`, the name of the source.

    Tables are written into `folder`, which is there and empty, and stay there until the rows are taken. Raises
    TcmonError when a run can't be read or the statement fails, also while rows are taken.
    """
    require_duckdb()
    duckdb: Any = import_module("duckdb")
    tables = tables_in(statement)
    empty_tables(_folder(folder, -1))
    for number, source in enumerate(sources):
        target = _folder(folder, number, make=source.run is not None)
        if source.run is None:
            target.symlink_to(source.path.absolute(), target_is_directory=True)
        elif tables:
            export(source.run, target, tables=tables, advance=advance)
    try:
        database = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "temp_directory": str(folder / "spilled"),
                "threads": str(min(_THREADS, os.cpu_count() or 1)),
                "autoinstall_known_extensions": "false",
            }
        )
        database.execute("CREATE TABLE tcmon_sources(run_number BIGINT, run VARCHAR)")
        database.executemany(
            "INSERT INTO tcmon_sources VALUES (?, ?)",
            [(-1, ""), *((number, source.name) for number, source in enumerate(sources))],
        )
        for table in TABLES:
            files = _quoted(str(folder / "sources" / "*" / table / "*" / "*.parquet"))
            types = "hive_partitioning = true, hive_types = {'run_number': BIGINT, 'rank': BIGINT}"
            database.execute(
                f"CREATE VIEW {table} AS SELECT run, rank, rows.* EXCLUDE (run_number, rank) "
                f"FROM read_parquet({files}, {types}, union_by_name = true) AS rows "
                "JOIN tcmon_sources USING (run_number)"
            )
        done = database.execute(statement)
        description = done.description or ()
    except duckdb.Error as error:
        raise _failed(error) from None
    numeric = tuple(_is_number(str(column[1])) for column in description)
    return Result(tuple(str(column[0]) for column in description), numeric, _rows(done, duckdb.Error))


def _rows(done: Any, failure: type[Exception]) -> Iterator[tuple[Any, ...]]:
    try:
        while rows := done.fetchmany(_FETCHED):
            yield from rows
    except failure as error:
        raise _failed(error) from None


def _folder(folder: Path, number: int, *, make: bool = True) -> Path:
    target = folder / "sources" / f"run_number={number}"
    (target if make else target.parent).mkdir(parents=True, exist_ok=True)
    return target


def _run_at(path: Path) -> Run | None:
    return None if _is_exported(path) else open_run(path)


def _is_exported(path: Path) -> bool:
    return any(path.glob("runs/rank=*/*.parquet"))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_number(type: str) -> bool:
    return type.startswith(("DECIMAL", "FLOAT", "DOUBLE")) or type.removeprefix("U") in (
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
    )


def _failed(error: Exception) -> TcmonError:
    """The error in one line, without the drawing of where in the statement it is."""
    return TcmonError(" ".join(str(error).partition("\n\nLINE ")[0].split()))
