"""The time of evaluation within training steps is told apart."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from trace_builder import end, header, loop, steps, write_run

from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.report.text import render
from tcmon.trace.reader import open_run

MS = 1_000_000


def run(folder: Path, evaluation_begins: int) -> Path:
    records = [
        header(),
        loop(1),
        loop(2, role="eval"),
        # Ten steps of 10 ms; the fifth lasts 40 ms longer.
        steps([10 * MS] * 4 + [50 * MS] + [10 * MS] * 5),
        steps([15 * MS, 15 * MS], role="eval", loop=2, begin=evaluation_begins),
        end(),
    ]
    return write_run(folder, records)


def test_training_steps_are_shown_with_and_without_the_evaluation_in_them(tmp_path: Path) -> None:
    summary = summarise(open_run(run(tmp_path, evaluation_begins=45 * MS)))

    training = as_json(summary)["steps"]["train"]  # type: ignore[index, call-overload]
    assert training["max_ms"] == pytest.approx(50)
    assert training["without_evaluation"] == pytest.approx(
        {"p50_ms": 10, "p95_ms": 15.5, "max_ms": 20, "evaluation_ms": 30}
    )
    text = io.StringIO()
    render(summary, Console(file=text, width=100))
    [line] = [line for line in text.getvalue().splitlines() if "less eval" in line]
    assert line.split() == ["less", "eval", "10.0", "ms", "15.5", "ms", "20.0", "ms"]


def test_evaluation_between_training_steps_takes_nothing_from_them(tmp_path: Path) -> None:
    summary = summarise(open_run(run(tmp_path, evaluation_begins=500 * MS)))

    assert as_json(summary)["steps"]["train"]["without_evaluation"] is None  # type: ignore[index, call-overload]
