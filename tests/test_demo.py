"""`tcmon demo`, end to end: what the report says of it is what the program did."""

import json
import re
from pathlib import Path

import pytest

from tcmon.demo import train

EPOCHS, STEPS_PER_EPOCH = 3, 10
INTERVAL, WARMUP = 20, 2
SHORT = ["--epochs", str(EPOCHS), "--steps-per-epoch", str(STEPS_PER_EPOCH), "--device", "cpu"]


def recorded(steps: int) -> int:
    """How many of the steps 1 to `steps` the sampling rule of the documentation records."""
    return sum(n < WARMUP or (n - WARMUP) % INTERVAL == 0 for n in range(1, steps + 1))


def line_of(text: str, function: str) -> int:
    """The line of the one place in `function` of the demo that reads `text`."""
    lines = Path(train.__file__).read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"def {function}("))
    return next(n for n in range(start, len(lines)) if lines[n].strip() == text) + 1


@pytest.fixture(scope="module")
def demo(run_tcmon, tmp_path_factory):
    """The directory where a short demo ran, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, run_tcmon(["demo", *SHORT], folder)


@pytest.fixture(scope="module")
def report(demo, run_tcmon):
    folder, _ = demo
    (run,) = (folder / "tcmon-runs").iterdir()
    return json.loads(run_tcmon(["report", "--json", run], folder).stdout)


def test_training_steps_are_counted_and_recorded_exactly(report):
    steps = EPOCHS * STEPS_PER_EPOCH
    assert report["steps"]["train"]["count"] == steps
    assert report["steps"]["train"]["sampled"] == recorded(steps)


def test_evaluation_steps_are_those_of_the_validation_loop_alone(report):
    steps = EPOCHS * train.VALIDATION_BATCHES
    assert report["steps"]["eval"]["count"] == steps
    assert report["steps"]["eval"]["sampled"] == recorded(steps)


def test_loops_are_found_where_they_stand(report):
    found = {
        (loop["role"], Path(loop["file"]).name, loop["qualname"], loop["line"])
        for loop in report["loops"]
        if loop["role"] in ("train", "eval")
    }
    loop = "for inputs, targets in loader:"
    assert found == {
        ("train", "train.py", "train_epoch", line_of(loop, "train_epoch")),
        ("eval", "train.py", "evaluate", line_of(loop, "evaluate")),
    }


def test_generation_is_no_loop_of_the_report(report):
    assert "generate" not in {loop["qualname"] for loop in report["loops"] if loop["steps"]}


def test_step_times_are_positive_and_ordered(report):
    for role in ("train", "eval"):
        times = report["steps"][role]
        assert 0 < times["p50_ms"] <= times["p95_ms"] <= times["max_ms"]
        assert 0 <= times["data_wait_share"] < 1


def test_demo_prints_what_the_program_prints_alone(demo, run_python, tmp_path):
    _, watched = demo
    alone = run_python([train.__file__, *SHORT], tmp_path)
    assert watched.stdout == alone.stdout
    assert len(re.findall(r"^epoch ", watched.stdout, re.MULTILINE)) == EPOCHS


def test_demo_ends_with_the_summary_and_the_next_commands(demo):
    folder, done = demo
    (run,) = (folder / "tcmon-runs").iterdir()
    assert "train_epoch" in done.stderr
    assert f"tcmon report {run.relative_to(folder)}" in done.stderr
    assert "tcmon run --interval 20" in done.stderr


def test_validation_loss_falls(demo):
    _, done = demo
    losses = [float(loss) for loss in re.findall(r"validation loss ([0-9.]+)", done.stdout)]
    assert losses[-1] < losses[0]


def test_library_text_passes_over_what_it_cannot_read(monkeypatch, tmp_path):
    (tmp_path / "a.py").write_bytes(b"first = 'caf\xc3\xa9'")
    (tmp_path / "b.py").symlink_to(tmp_path / "missing")
    (tmp_path / "c.py").write_bytes(b"\xff = 3")
    monkeypatch.setattr(train.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert train.library_text() == b"first = 'caf?'\n? = 3"
