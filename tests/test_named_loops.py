"""Loops that the user names by file and line."""

import textwrap
from pathlib import Path

import pytest
from conftest import Run
from monitored import STAND_INS

from tcmon.trace.reader import open_run

PROGRAM = STAND_INS + textwrap.dedent("""
    names = ["a", "b", "c"]
    for name in names:
        str(name)

    def work(
        items,
    ):
        for item in items:
            for part in range(3):
                loss.backward()
                optimizer.step()

    n = 0
    while (
        n < 4
    ):
        n += 1
    work(range(5))
    """)


def line_of(text: str) -> int:
    return PROGRAM.splitlines().index(text) + 1


NAMES = line_of("for name in names:")
ITEMS = line_of("    for item in items:")
PARTS = line_of("        for part in range(3):")
WHILE = line_of("while (")


def counts(run: Path) -> dict[str, int]:
    meta = open_run(run).meta
    assert all(loop.found == "manual" for loop in meta.loops if loop.role == "train")
    process = open_run(run).processes[0]
    found = {"train": 0, "eval": 0}
    for record in process.read():
        if type(record).__name__ == "Steps":
            found[record.role] += len(record.end)  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize(("line", "steps"), [(NAMES, 3), (ITEMS, 5), (PARTS, 15), (WHILE, 4)])
def test_the_named_loop_is_the_training_loop_and_no_other(
    line: int, steps: int, run_tcmon: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    run_tcmon(["run", "--quiet", "--out", "out", "--train-loop", f"train.py:{line}", "train.py"], tmp_path)

    assert counts(tmp_path / "out") == {"train": steps, "eval": 0}


def test_an_evaluation_loop_is_named_beside_a_training_loop(run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    options = ["--train-loop", f"train.py:{ITEMS}", "--eval-loop", f"./train.py:{NAMES}"]
    run_tcmon(["run", "--quiet", "--out", "out", *options, "train.py"], tmp_path)

    assert counts(tmp_path / "out") == {"train": 5, "eval": 3}


@pytest.mark.parametrize("option", ["--train-loop", "--eval-loop"])
@pytest.mark.parametrize(
    ("place", "words"),
    [
        (f"train.py:{ITEMS + 2}", [f"no for or while in line {ITEMS + 2} of train.py", str(ITEMS), str(PARTS)]),
        ("train.py:9999", ["no for or while in line 9999", str(WHILE)]),
        ("train.py", ["takes FILE:LINE"]),
        ("train.py:x", ["takes FILE:LINE"]),
        ("other.py:3", ["can't read other.py"]),
        ("empty.py:1", ["holds no loop"]),
        ("text.py:1", ["is no Python source"]),
    ],
)
def test_a_place_without_a_loop_is_refused(
    option: str, place: str, words: list[str], run_tcmon: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "text.py").write_text("this is no program")

    done = run_tcmon(["run", option, place, "train.py"], tmp_path, exit_code=2)

    assert done.stderr.startswith("tcmon: error: ")
    assert done.stderr.count("\n") == 1
    assert all(word in done.stderr for word in words)
    assert not (tmp_path / "tcmon-runs").exists()
