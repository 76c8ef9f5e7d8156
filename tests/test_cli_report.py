"""`tcmon report`: what it shows is in test_report*.py; here, that it finds a run and says where it doesn't."""

import json
from pathlib import Path

import pytest
from program_runs import tcmon_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "script.py").write_text(
        "class A:\n    def step(self): pass\n    def backward(self): pass\n"
        "optimizer = loss = A()\n"
        "for _ in range(30):\n    loss.backward(); optimizer.step()\n"
    )
    assert tcmon_run("run", "--quiet", "--out", "run", "script.py", cwd=folder).returncode == 0
    (folder / "empty").mkdir()
    (folder / "damaged").mkdir()
    (folder / "damaged" / "run.json").write_text("{")
    (folder / "newer").mkdir()
    meta = json.loads((folder / "run" / "run.json").read_text())
    (folder / "newer" / "run.json").write_text(json.dumps({**meta, "format": 99}))
    return folder


def test_it_shows_the_summary_on_stdout(folder: Path) -> None:
    ended = tcmon_run("report", "run", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "script.py:5" in ended.stdout
    assert "optimizer.step()" in ended.stdout


def test_json_is_one_object(folder: Path) -> None:
    ended = tcmon_run("report", "--json", "run", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    report = json.loads(ended.stdout)
    assert report["steps"]["train"]["count"] == 30
    assert report["steps"]["train"]["sampled"] == 3
    assert report["loops"][0]["line"] == 5


@pytest.mark.parametrize("run", ["missing", "script.py", "empty", "damaged", "newer", "run/run.json"])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_is_no_run_is_one_line(run: str, options: tuple[str, ...], folder: Path) -> None:
    ended = tcmon_run("report", *options, run, cwd=folder)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("tcmon: error: ")
    assert ended.stderr.count("\n") == 1
