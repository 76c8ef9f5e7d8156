"""One log line a step, as TrainCheck's users know them: what was decided for it, and why."""

import textwrap
from pathlib import Path

import pytest
from conftest import Run
from monitored import STAND_INS

PROGRAM = STAND_INS + textwrap.dedent("""
    val_loader = range(5)

    def evaluate():
        for batch in val_loader:
            model(batch)

    for epoch in range(5):
        for batch in range(5):
            loss.backward()
            optimizer.step()
        evaluate()
    """)


def expected(interval: int, warmup: int, steps: int) -> list[str]:
    return [
        f"Warm-up step {n}"
        if n < warmup
        else f"Interval step {n}"
        if (n - warmup) % interval == 0
        else f"Skipping step {n}"
        for n in range(1, steps + 1)
    ]


@pytest.mark.parametrize(("interval", "warmup"), [(1, 0), (2, 0), (10, 2), (20, 5)])
@pytest.mark.parametrize("names", [("--interval", "--warmup"), ("--sampling-interval", "--warm-up-steps")])
def test_each_step_has_its_line(
    interval: int, warmup: int, names: tuple[str, str], run_tcmon: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    options = [names[0], str(interval), names[1], str(warmup)]
    done = run_tcmon(["run", "--log-level", "debug", "--quiet", *options, "train.py"], tmp_path)

    lines = [line.removeprefix("tcmon: ") for line in done.stderr.splitlines() if " step " in line]
    assert [line for line in lines if not line.startswith("Eval")] == expected(interval, warmup, 25)
    assert [line.removeprefix("Eval: ") for line in lines if line.startswith("Eval")] == expected(interval, warmup, 25)
    # In the order of the program: five steps of training, five of evaluation, and so on.
    assert [line.startswith("Eval") for line in lines] == ([False] * 5 + [True] * 5) * 5


def test_evaluation_may_have_an_interval_of_its_own(run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    options = ["--interval", "10", "--warmup", "2", "--eval-interval", "3", "--eval-warmup", "4"]
    done = run_tcmon(["run", "--log-level", "debug", "--quiet", *options, "train.py"], tmp_path)

    lines = [line.removeprefix("tcmon: ") for line in done.stderr.splitlines() if " step " in line]
    assert [line for line in lines if not line.startswith("Eval")] == expected(10, 2, 25)
    assert [line.removeprefix("Eval: ") for line in lines if line.startswith("Eval")] == expected(3, 4, 25)


def test_no_line_a_step_unless_asked_for(run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)

    assert run_tcmon(["run", "--quiet", "train.py"], tmp_path).stderr == ""
