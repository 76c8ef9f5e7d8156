"""A summary as JSON: the objects that programs count on, and null for what can't be known."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_reader import WHOLE
from trace_builder import PID, header, loop, write_run

from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.trace.reader import open_run

MS = 1_000_000


def report(directory: Path, **options: Any) -> Any:
    """The report after a trip through a JSON writer that takes no NaN."""
    return json.loads(json.dumps(as_json(summarise(open_run(directory)), **options), allow_nan=False))


def test_the_object_has_the_documented_parts(tmp_path: Path) -> None:
    found = report(write_run(tmp_path, WHOLE))
    assert {"run", "loops", "steps", "overhead", "dropped", "ranks", "findings"} <= found.keys()
    assert found["loops"][0] == {
        "file": "/home/somebody/project/train.py",
        "qualname": "main",
        "line": 31,
        "role": "train",
        "found": "static",
        "evidence": ["optimizer.step() (train.py:38)"],
        "steps": 3,
        "sampled": 1,
    }
    assert found["steps"]["train"] == {
        "count": 3,
        "sampled": 1,
        "p50_ms": 40 / MS,
        "p95_ms": 49 / MS,
        "max_ms": 50 / MS,
        "data_wait_share": 0.1,
        "without_evaluation": None,
        "phases": {},
    }
    assert found["run"]["directory"] == str(tmp_path)
    assert found["run"]["trace"] == str(tmp_path / f"trace-{PID}.jsonl")
    assert (found["run"]["state"], found["run"]["exit_code"]) == ("ended", 0)
    assert found["overhead"]["share"] == pytest.approx(10 / (120 + 20))
    assert found["ranks"][0]["steps"] == found["steps"]


def test_no_check_ran_and_none_is_claimed(tmp_path: Path) -> None:
    found = report(write_run(tmp_path, WHOLE))
    assert (found["findings"], found["checks"]) == ([], "not run")


def test_times_are_in_milliseconds(tmp_path: Path) -> None:
    first, second, third = report(write_run(tmp_path, WHOLE))["functions"]
    assert (first["qualname"], first["role"], first["calls"], first["raised"]) == (
        "Linear.forward",
        "train",
        2,
        1,
    )
    assert first["self_ms_per_step"] == first["self_ms"] == first["total_ms"] == 14 / MS
    assert (second["qualname"], second["self_ms"], second["total_ms"]) == ("Net.forward", 6 / MS, 26 / MS)
    assert (third["qualname"], third["role"], third["self_ms"]) == ("Net.forward", "eval", 3 / MS)


def test_what_cannot_be_known_is_null(tmp_path: Path) -> None:
    found = report(write_run(tmp_path, None, ended=None, torch=None))
    assert found["steps"]["train"] == {
        "count": 0,
        "sampled": 0,
        "p50_ms": None,
        "p95_ms": None,
        "max_ms": None,
        "data_wait_share": None,
        "without_evaluation": None,
        "phases": {},
    }
    assert found["steps"].keys() == {"train", "eval"}
    run, overhead = found["run"], found["overhead"]
    for unknown in (
        run["trace"],
        run["torch"],
        run["exit_code"],
        run["duration_ms"],
        run["seen"],
        run["hint"],
    ):
        assert unknown is None
    for unknown in (
        overhead["callbacks"],
        overhead["write_ms"],
        overhead["share"],
        overhead["recorded_ratio"]["train"],
    ):
        assert unknown is None
    assert run["state"] == "running or killed"


def test_loops_that_count_no_steps_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    directory = write_run(tmp_path, [header(), loop(1), loop(2, role="other")])
    assert [each["role"] for each in report(directory)["loops"]] == ["train"]
    assert [each["role"] for each in report(directory, all_loops=True)["loops"]] == ["train", "other"]
