"""`tcmon export --to parquet`: the tables hold what the run holds, under documented names."""

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from program_runs import CHECKOUT, tcmon_run
from test_reader import WHOLE
from trace_builder import (
    calls,
    encode,
    exception,
    function,
    header,
    loop,
    of_step,
    parameter,
    state,
    step,
    steps,
    write_run,
)

from tcmon.errors import TcmonError
from tcmon.export.parquet import TABLES, Exported, export
from tcmon.export.selection import StepRange
from tcmon.trace.reader import open_run

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

PYTHONPATH = os.pathsep.join([str(CHECKOUT), str(Path(pyarrow.__file__).parent.parent)])
NAMES = [header(), loop(1), loop(2, "eval", line=50), *[function(id, f"f{id}") for id in range(1, 6)]]


def exported(directory: Path, folder: Path, range_: str | None = None) -> tuple[dict[str, list[Any]], Exported]:
    folder.mkdir()
    chosen = None if range_ is None else StepRange.parse(range_, "train")
    result = export(open_run(directory), folder, steps=chosen)
    return tables_of(folder), result


def tables_of(folder: Path) -> dict[str, list[Any]]:
    assert {each.name for each in folder.iterdir()} == set(TABLES)
    return {name: parquet.read_table(folder / name).to_pylist() for name in TABLES}


def test_the_tables_hold_what_the_run_holds(tmp_path: Path) -> None:
    tables, result = exported(write_run(tmp_path / "run", WHOLE), tmp_path / "out")
    (run,) = tables["runs"]
    assert (run["pid"], run["command"][1], run["start_unix_ns"]) == (4242, "train.py", 1_796_000_000_000_000_000)
    assert (run["end_reason"], run["exit_code"], run["end_ns"]) == ("exit", 0, 3_000_000_000)
    assert [(each["loop"], each["role"], each["evidence"]) for each in tables["loops"]] == [
        (1, "train", ["optimizer.step() (train.py:38)"]),
        (2, "eval", ["optimizer.step() (train.py:38)"]),
    ]
    assert [(each["function"], each["module"], each["qualname"], each["line"]) for each in tables["functions"]] == [
        (1, "model", "Net.forward", 7),
        (2, "model", "Linear.forward", 7),
    ]
    columns = ("role", "n", "stage", "begin_ns", "wait_ns", "duration_ns", "recorded")
    assert [tuple(each[column] for column in columns) for each in tables["steps"]] == [
        ("train", 1, "training", 0, 5, 50, "interval"),
        ("train", 2, "training", 50, 4, 40, None),
        ("train", 3, "training", 90, 3, 30, None),
        ("eval", 1, "evaluation", 125, 0, 20, "interval"),
    ]
    columns = ("role", "n", "call", "parent", "depth", "function", "begin_ns", "duration_ns", "self_ns", "outcome")
    assert [tuple(each[column] for column in columns) for each in tables["calls"]] == [
        ("train", 1, 0, None, 0, 1, 6, 26, 6, "returned"),
        ("train", 1, 1, 0, 1, 2, 9, 10, 10, "returned"),
        ("train", 1, 2, 0, 1, 2, 20, 4, 4, "raised"),
        ("eval", 1, 0, None, 0, 1, 131, 3, 3, "returned"),
    ]
    assert [each["exception"] for each in tables["calls"]] == [None, None, "StopIteration", None]
    assert result == Exported(steps=4, recorded=2, calls=4)


def test_columns_are_documented_in_the_files_and_in_the_manual(tmp_path: Path) -> None:
    exported(write_run(tmp_path / "run", WHOLE), tmp_path / "out")
    manual = (CHECKOUT / "docs" / "export.md").read_text()
    for name, columns in TABLES.items():
        schema = parquet.read_schema(tmp_path / "out" / name / "rank=0" / "0.parquet")
        assert schema.names == [column.name for column in columns]
        section = manual.partition(f"\n### {name}\n")[2].partition("\n#")[0]
        for column in columns:
            assert schema.field(column.name).metadata[b"description"].decode() == column.meaning
            assert f"\n| `{column.name}` |" in section, f"{name}.{column.name}"


def everything_of(n: int) -> list[dict[str, Any]]:
    """What every recorder keeps of a step."""
    return [
        of_step("lines", n, thread=1, function=1, body=True, line=[31, 32], hits=[1, 2], ns=[20, 30], own=0),
        of_step("loss", n, value=[0.5, None, "nan"]),
        state(n, [1, 2], groups=[{"lr": 0.1, "betas": [0.9, 0.999]}], state={"exp_avg": [0.25, None]}),
        of_step("buffers", n, name=["bn.mean"], norm=[2.0], nonfinite=[0], hash=["ab"]),
        of_step(
            "ops",
            n,
            name=["aten::mm", "gemm"],
            begin=[3, 4],
            ns=[5, 6],
            device=["cpu", "cuda:0"],
            thread=[1, 7],
            bytes=[64, -64],
        ),
        of_step("device", n, device="cuda:0", ns=17),
        step(n, 0, 50),
    ]


WITH_STATE = [
    *NAMES,
    {"kind": "optimizer", "id": 1, "name": "torch.optim.adam.Adam"},
    parameter(1, "group 0 [0]"),
    *everything_of(1),
    parameter(1, "fc.weight", shape=[3, 4]),
]


def test_what_recorders_kept_of_a_step_has_tables(tmp_path: Path) -> None:
    tables, _ = exported(write_run(tmp_path / "run", WITH_STATE), tmp_path / "out")
    assert [(each["line"], each["hits"], each["time_ns"], each["body"]) for each in tables["lines"]] == [
        (31, 1, 20, True),
        (32, 2, 30, True),
    ]
    assert [(each["backward"], str(each["value"])) for each in tables["losses"]] == [
        (0, "0.5"),
        (1, "None"),
        (2, "nan"),
    ]
    optimizer, weight, unknown, buffer = tables["state"]
    assert (optimizer["kind"], optimizer["name"], optimizer["lr"]) == ("optimizer", "torch.optim.adam.Adam", 0.1)
    assert optimizer["settings"] == '{"lr":0.1,"betas":[0.9,0.999]}'
    assert (weight["kind"], weight["name"], weight["shape"]) == ("parameter", "fc.weight", [3, 4])
    assert (weight["grad_norm"], weight["update"], weight["own"]) == (0.5, 0.001, '{"exp_avg":0.25}')
    assert weight["before"] != weight["after"]
    assert (unknown["name"], unknown["shape"], unknown["own"]) == ("parameter 2", None, None)
    assert (buffer["kind"], buffer["name"], buffer["norm"], buffer["after"]) == ("buffer", "bn.mean", 2.0, "ab")
    assert [(each["name"], each["device"], each["begin_ns"], each["bytes"]) for each in tables["ops"]] == [
        ("aten::mm", "cpu", 3, 64),
        ("gemm", "cuda:0", 4, -64),
    ]
    assert [(each["device"], each["busy_ns"]) for each in tables["devices"]] == [("cuda:0", 17)]


def test_phases_are_null_where_they_were_not_measured(tmp_path: Path) -> None:
    rows = [steps([50], first=1) | {"phases": {"forward": [20]}}, steps([40], first=2, begin=50)]
    tables, _ = exported(write_run(tmp_path / "run", [*NAMES, *rows]), tmp_path / "out")
    columns = ("forward_ns", "backward_ns", "collective_ns")
    assert [tuple(each[column] for column in columns) for each in tables["steps"]] == [
        (20, 0, 0),
        (None, None, None),
    ]


def test_ranks_are_partitions_that_readers_know(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", None)
    for rank in (0, 1):
        (directory / f"trace-rank{rank}.0-{50 + rank}.jsonl").write_bytes(encode([*WITH_STATE, steps([rank + 1] * 3)]))
    tables, _ = exported(directory, tmp_path / "out")
    assert {(each["rank"], each["process"], each["pid"]) for each in tables["runs"]} == {(0, 0, 50), (1, 1, 51)}
    assert [(each["rank"], each["duration_ns"]) for each in tables["steps"]] == [(0, 1)] * 3 + [(1, 2)] * 3
    duckdb = pytest.importorskip("duckdb")
    for name, rows in tables.items():
        found = duckdb.sql(f"SELECT * FROM '{tmp_path}/out/{name}/*/*.parquet'")
        assert set(found.columns) == {*(column.name for column in TABLES[name]), "rank"}
        assert len(found.fetchall()) == len(rows)
    joined = duckdb.sql(
        f"SELECT s.rank, count(*) FROM '{tmp_path}/out/steps/*/*.parquet' s "
        f"JOIN '{tmp_path}/out/state/*/*.parquet' USING (process, role, n) GROUP BY ALL ORDER BY 1"
    )
    assert joined.fetchall() == [(0, 4), (1, 4)]


def test_callers_lead_to_the_outermost_call(tmp_path: Path) -> None:
    events = [(1, 1), (2, 1), (3, 1), (0, 1), (0, 1), (4, 1), (0, 1), (0, 1), (5, 1), (0, 1)]
    other = [(2, 1), (3, 1), (0, 1), (0, 1)]
    records = [*NAMES, calls(1, 0, events), calls(1, 0, other, thread=2**64 - 1), step(1, 0, 20)]
    tables, _ = exported(write_run(tmp_path / "run", records), tmp_path / "out")
    assert [(each["call"], each["parent"], each["thread"]) for each in tables["calls"]] == [
        (0, None, 1),
        (1, 0, 1),
        (2, 1, 1),
        (3, 0, 1),
        (4, None, 1),
        (5, None, 2**64 - 1),
        (6, 5, 2**64 - 1),
    ]


def test_calls_deeper_than_the_stack_are_exported(tmp_path: Path) -> None:
    records = [*NAMES, calls(1, 0, [*[(1, 1)] * 3000, *[(0, 1)] * 3000]), step(1, 0, 6000)]
    tables, _ = exported(write_run(tmp_path / "run", records), tmp_path / "out")
    assert tables["calls"][-1]["parent"] == 2998


def test_a_range_of_steps_selects_steps_and_calls(tmp_path: Path) -> None:
    records = [*NAMES]
    for n in range(1, 6):
        records += [calls(n, 100 * n, [(1, 1), (0, 1)]), step(n, 100 * n, 50), steps([50], first=n, begin=100 * n)]
    directory = write_run(tmp_path / "run", records)
    tables, _ = exported(directory, tmp_path / "out", "2:3")
    assert [each["n"] for each in tables["steps"]] == [each["n"] for each in tables["calls"]] == [2, 3]
    with pytest.raises(TcmonError, match="no such steps: the run has train steps 1 to 5"):
        exported(directory, tmp_path / "none", "6:")


@pytest.mark.parametrize("records", [None, [], [header()]])
def test_a_run_without_steps_gives_empty_tables(tmp_path: Path, records: Any) -> None:
    tables, result = exported(write_run(tmp_path / "run", records, ended=None), tmp_path / "out")
    assert tables["steps"] == tables["calls"] == []
    assert result == Exported()


def test_every_cut_trace_can_be_exported(tmp_path: Path) -> None:
    data = encode(WHOLE)
    for length in range(0, len(data), 61):
        exported(write_run(tmp_path / "run", data[:length], ended=None), tmp_path / f"out{length}")


def test_what_is_recorded_outside_of_steps_can_be_told_from_steps(tmp_path: Path) -> None:
    records = [
        *NAMES,
        exception(1, "OSError"),
        calls(1, 30, [(1, 1), (-2, 5)], role="other", loop=0),
        step(1, 30, 12, role="other", loop=0) | {"stage": "checkpointing"},
    ]
    tables, result = exported(write_run(tmp_path / "run", records), tmp_path / "out")
    assert [(each["role"], each["stage"]) for each in tables["steps"]] == [("other", "checkpointing")]
    assert [(each["role"], each["exception"]) for each in tables["calls"]] == [("other", "OSError")]
    assert (result.steps, result.recorded) == (0, 0)


def test_memory_does_not_grow_with_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcmon.export.parquet._ROWS", 500)

    def peak(repeats: int) -> int:
        records = [*NAMES]
        for n in range(1, repeats + 1):
            events = [event for _ in range(100) for event in ((1, 10), (0, 10))]
            records += [calls(n, 2500 * n, events), step(n, 2500 * n, 2200)]
            records.append(steps([2200], first=n, begin=2500 * n))
        run = open_run(write_run(tmp_path / f"run{repeats}", records))
        del records
        (tmp_path / f"out{repeats}").mkdir()
        tracemalloc.start()
        try:
            export(run, tmp_path / f"out{repeats}")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)  # imports
    assert peak(80) < 2 * peak(20)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(
        "class A:\n    def step(self): pass\n    def backward(self): pass\n"
        "optimizer = loss = A()\n"
        "for _ in range(30):\n    loss.backward(); optimizer.step()\n"
    )
    assert tcmon_run("run", "--quiet", "--out", "run", "train.py", cwd=folder).returncode == 0
    return folder


def test_the_command_writes_a_folder_and_keeps_what_is_there(run: Path, tmp_path: Path) -> None:
    arguments = ("export", str(run / "run"), "--to", "parquet")
    ended = tcmon_run(*arguments, cwd=tmp_path, PYTHONPATH=PYTHONPATH)
    assert (ended.returncode, ended.stderr) == (0, "")
    folder = tmp_path / "run.parquet"
    assert [each["n"] for each in tables_of(folder)["steps"]] == list(range(1, 31))
    assert {each["qualname"] for each in tables_of(folder)["functions"]} == {"<module>", "A.step", "A.backward"}
    ended = tcmon_run(*arguments, cwd=tmp_path, PYTHONPATH=PYTHONPATH)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "--force" in ended.stderr
    assert tcmon_run(*arguments, "--force", "--steps", "3:5", cwd=tmp_path, PYTHONPATH=PYTHONPATH).returncode == 0
    assert [each["n"] for each in tables_of(folder)["steps"]] == [3, 4, 5]
    (folder / "precious").write_text("")
    ended = tcmon_run(*arguments, "--force", cwd=tmp_path, PYTHONPATH=PYTHONPATH)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert (folder / "precious").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["run.parquet"]


@pytest.mark.parametrize(
    "options", [("-o", "-"), ("-o", "missing/out"), ("-o", "train.py", "--force"), ("--steps", "99")]
)
def test_what_cannot_be_exported_is_one_line_and_leaves_nothing(run: Path, options: tuple[str, ...]) -> None:
    before = sorted(run.iterdir())
    ended = tcmon_run("export", "run", "--to", "parquet", *options, cwd=run, PYTHONPATH=PYTHONPATH)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert sorted(run.iterdir()) == before


def test_without_pyarrow_it_is_said_what_to_install(run: Path, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    ended = tcmon_run(
        "export", "run", "--to", "parquet", cwd=run, PYTHONPATH=os.pathsep.join([str(tmp_path), str(CHECKOUT)])
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "pip install 'tcmon[parquet]'" in ended.stderr
