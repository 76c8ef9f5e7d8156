"""`tcmon query`: SQL over one run or many, whatever form its rows have."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from program_runs import CHECKOUT, Ended, tcmon_run
from test_export_parquet import WITH_STATE
from trace_builder import calls, function, header, loop, step, steps, write_run

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

RECORDS = [*WITH_STATE, calls(2, 50, [(1, 1), (0, 5)]), step(2, 50, 40), steps([50, 40, 30, 20])]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name, took in (("a", 10), ("b", 20)):
        write_run(tmp_path / "runs" / name, [*RECORDS, steps([took] * 5, first=5, begin=140)])
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path


def query(cwd: Path, *arguments: str, **how: Any) -> Ended:
    ended = tcmon_run("query", *arguments, cwd=cwd, **how)
    assert "Traceback" not in ended.stderr
    return ended


def rows(cwd: Path, *arguments: str) -> Any:
    ended = query(cwd, *arguments, "--json")
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


def test_one_run_answers_in_sql(runs: Path) -> None:
    statement = (
        "SELECT qualname, count(*) AS calls, sum(self_ns) AS self FROM calls JOIN functions USING (process, function) "
        "GROUP BY ALL"
    )
    assert rows(runs, "runs/a", statement) == [{"qualname": "f1", "calls": 1, "self": 5}]
    (state,) = rows(runs, "runs/a", "SELECT name, shape, grad_norm, settings FROM state WHERE name = 'fc.weight'")
    assert state == {"name": "fc.weight", "shape": [3, 4], "grad_norm": 0.5, "settings": None}


def test_many_runs_are_told_apart_by_the_column_run(runs: Path) -> None:
    statement = "SELECT run, rank, max(n) AS n, sum(duration_ns) AS ns FROM steps GROUP BY ALL ORDER BY run"
    both = [{"run": "a", "rank": 0, "n": 9, "ns": 190}, {"run": "b", "rank": 0, "n": 9, "ns": 240}]
    assert rows(runs, "runs/*", statement) == rows(runs, "runs/a", "runs/b", statement) == both
    write_run(runs / "other" / "a", [header(), loop(1), steps([1])])
    names = rows(runs, "runs/*", "other/a", "SELECT run FROM runs ORDER BY run")
    assert [each["run"] for each in names] == ["b", "other/a", "runs/a"]


def test_an_export_is_queried_like_the_run(runs: Path) -> None:
    assert tcmon_run("export", "runs/a", "--to", "parquet", "-o", "a.parquet", cwd=runs).returncode == 0
    statement = "SELECT s.* EXCLUDE (run) FROM steps s ORDER BY n"
    assert rows(runs, "a.parquet", statement) == rows(runs, "runs/a", statement)
    names = rows(runs, "*.parquet", "runs/b", "SELECT DISTINCT run FROM steps ORDER BY run")
    assert [each["run"] for each in names] == ["a.parquet", "b"]


def test_all_tables_can_be_listed_and_described(runs: Path) -> None:
    tables = {each["name"] for each in rows(runs, "runs/a", "SHOW TABLES")}
    assert {"runs", "steps", "calls", "functions", "loops", "lines", "losses", "state", "ops", "devices"} <= tables
    columns = {each["column_name"]: each["column_type"] for each in rows(runs, "runs/a", "DESCRIBE ops")}
    assert (columns["run"], columns["rank"], columns["duration_ns"]) == ("VARCHAR", "BIGINT", "BIGINT")


def test_values_of_every_kind_are_json_and_csv(runs: Path) -> None:
    statement = (
        "SELECT 170141183460469231731687303715884105727 AS big, 1.25::DECIMAL(4,2) AS decimal, 'nan'::DOUBLE AS nan, "
        "DATE '2026-12-01' AS day, [1, NULL] AS list, {'a': 2} AS struct, 'x,\"y' AS text, NULL AS nothing"
    )
    (row,) = rows(runs, "runs/a", statement)
    assert row == {
        "big": 2**127 - 1,
        "decimal": 1.25,
        "nan": None,
        "day": "2026-12-01",
        "list": [1, None],
        "struct": {"a": 2},
        "text": 'x,"y',
        "nothing": None,
    }
    assert query(runs, "runs/a", statement, "--csv").stdout.splitlines() == [
        "big,decimal,nan,day,list,struct,text,nothing",
        f'{2**127 - 1},1.25,nan,2026-12-01,"[1,null]","{{""a"":2}}","x,""y",',
    ]


def test_a_table_shows_as_many_rows_as_it_should_and_says_that_there_are_more(runs: Path) -> None:
    ended = query(runs, "runs/a", "SELECT n, stage FROM steps ORDER BY n", "--rows", "2")
    head, *shown, more = ended.stdout.splitlines()
    assert head.split() == ["n", "stage"]
    assert [line.split() for line in shown] == [["1", "training"], ["2", "training"]]
    assert "--rows" in more
    ended = query(runs, "runs/a", "SELECT n FROM steps", "--rows", "9")
    assert len(ended.stdout.splitlines()) == 10
    assert query(runs, "runs/a", "-", stdin="SELECT 6 * 7 AS answer").stdout.split() == ["answer", "42"]


@pytest.mark.parametrize(
    "arguments, named",
    [
        (("runs/a", "SELECT nothing FROM steps"), "nothing"),
        (("runs/a", "SELEC 1"), "SELEC"),
        (("runs/a", "SELECT 'x'::INTEGER"), "x"),
        (("runs/none", "SELECT 1"), "runs/none"),
        (("nowhere/*", "SELECT 1"), "nowhere/*"),
        (("runs/notes", "SELECT 1"), "runs/notes"),
    ],
)
def test_what_fails_is_one_line(runs: Path, arguments: tuple[str, str], named: str) -> None:
    ended = query(runs, *arguments)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert named in ended.stderr


def test_nothing_is_left_behind(runs: Path) -> None:
    (runs / "tmp").mkdir()
    for statement in ("SELECT count(*) FROM calls", "SELECT wrong"):
        query(runs, "runs/*", statement, TMPDIR=str(runs / "tmp"))
    assert list((runs / "tmp").iterdir()) == []
    assert {each.name for each in runs.iterdir()} == {"runs", "tmp"}


def test_only_the_tables_that_are_asked_for_are_made(runs: Path) -> None:
    from tcmon.export.query import query as run_query
    from tcmon.export.query import sources

    (runs / "tables").mkdir()
    found = sources([str(runs / "runs" / "a")])
    result = run_query(found, "SELECT max(n) FROM Steps", runs / "tables")
    assert list(result.rows) == [(9,)]
    assert [each.name for each in (runs / "tables" / "sources" / "run_number=0").iterdir()] == ["steps"]


def test_without_duckdb_it_is_said_what_to_install(runs: Path) -> None:
    (runs / "duckdb.py").write_text("raise ImportError")
    ended = query(runs, "runs/a", "SELECT 1", PYTHONPATH=os.pathsep.join([str(runs), str(CHECKOUT)]))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'tcmon[query]'" in ended.stderr


def test_names_of_runs_may_hold_anything(tmp_path: Path) -> None:
    name = "it's 100% = [odd] \U0001f642"
    write_run(tmp_path / name, [header(), loop(1), function(1, "f"), steps([5, 6])])
    assert rows(tmp_path, name, "SELECT run, count(*) AS n FROM steps GROUP BY run") == [{"run": name, "n": 2}]
