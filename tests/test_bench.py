"""The machinery of `python -m bench`: no figure is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.figures import against_neighbours, interval

ROOT = Path(__file__).parent.parent


def test_a_section_is_written_as_whole_json_and_as_a_table(tmp_path):
    command = [sys.executable, "-m", "bench", "--quick", "--only", "steps", "--out", tmp_path]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "bench.json").read_text())
    assert set(found) == {"machine", "figures", "peers", "growth"}
    assert found["machine"]["python"] == sys.version.split()[0]
    [figure] = found["figures"]
    assert figure["low"] <= figure["median"] <= figure["high"]
    assert figure["pairs"] == 4
    assert figure["command"].startswith("python -m bench.steps")
    assert figure["name"] in (tmp_path / "bench.md").read_text()


def test_a_block_is_set_against_the_mean_of_its_neighbours():
    assert against_neighbours([1.0, 3.0, 5.0], [4.0, 8.0]) == [(4.0, 2.0), (8.0, 4.0)]


@pytest.mark.parametrize("values", [[2.0], [1.0, 2.0, 9.0], [3.0] * 7])
def test_the_interval_holds_the_median_and_stays_within_the_values(values):
    low, high = interval(values)
    assert min(values) <= low <= sorted(values)[len(values) // 2] <= high <= max(values)
