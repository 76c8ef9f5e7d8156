"""tcmon in a notebook, with a real kernel: loops in cells, cells that run again, `%run`, `%%tcmon`."""

import os
from pathlib import Path
from typing import Any

import pytest
from monitored import STAND_INS
from program_runs import CHECKOUT

from tcmon.trace.reader import open_run

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

TRAIN = "for batch in range({}):\n    loss.backward()\n    optimizer.step()\n"
AGAIN = "run.steps['train'].n.tolist()"

CELLS = {
    "define": STAND_INS + "import tcmon\nrun = tcmon.attach(interval=2, warmup=0, out='attached')",
    "loop": TRAIN.format(4),
    "loop again": TRAIN.format(4),
    "numbers": AGAIN,
    "%run": "%run -i train.py",
    "numbers after %run": AGAIN,
    "same cell": "run.detach();\nrun = tcmon.attach(out='second')\n" + TRAIN.format(3) + "len(run.steps['train'].n)",
    "detach": "run.detach()",
    "load": "%load_ext tcmon",
    "magic": "%%tcmon --interval 3 --warmup 0 --out magic\n" + TRAIN.format(7) + "batch + 100",
    "afterwards": "batch",
    "bad option": "%%tcmon --interval 0\n" + TRAIN.format(7),
    "no option": "%%tcmon faster\n" + TRAIN.format(7),
    "fails": "%%tcmon --out failed\n" + TRAIN.format(2) + "1 / 0",
    "not attached": "import sys\n[sys.monitoring.get_tool(i) for i in range(6)]",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("notebook")
    (work / "train.py").write_text(TRAIN.format(5))
    return work


@pytest.fixture(scope="module")
def outputs(work: Path) -> dict[str, list[Any]]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS.values()])
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    client = nbclient.NotebookClient(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": work}})
    client.execute(env=environment)
    return dict(zip(CELLS, (cell.outputs for cell in notebook.cells), strict=True))


def text(outputs: list[Any]) -> str:
    return "\n".join(each["data"]["text/plain"] for each in outputs if "data" in each)


def error(outputs: list[Any]) -> str:
    [found] = [each for each in outputs if each["output_type"] == "error"]
    return f"{found['ename']}: {found['evalue']}"


@pytest.mark.parametrize("cell", ["define", "loop", "loop again", "%run", "load"])
def test_cells_print_nothing_of_it(cell: str, outputs: dict[str, list[Any]]) -> None:
    assert outputs[cell] == []


def test_loops_of_cells_and_cells_that_run_again_are_counted(outputs: dict[str, list[Any]], work: Path) -> None:
    assert text(outputs["numbers"]) == str(list(range(1, 9)))
    recorded = [each.step.n for each in open_run(work / "attached").processes[0].recorded_steps()]
    assert recorded == [2, 4, 6, 8, 10, 12]


def test_a_script_that_is_run_is_counted(outputs: dict[str, list[Any]]) -> None:
    assert text(outputs["numbers after %run"]) == str(list(range(1, 14)))


def test_a_loop_in_the_cell_that_attaches_is_counted(outputs: dict[str, list[Any]]) -> None:
    assert text(outputs["same cell"]) == "3"


def test_a_summary_as_the_last_value_is_html(outputs: dict[str, list[Any]]) -> None:
    [shown] = outputs["detach"]
    assert "3 steps, 2 recorded" in shown["data"]["text/plain"]
    assert shown["data"]["text/html"].startswith("<pre")


def test_the_magic_watches_a_cell_and_shows_its_value_and_the_summary(
    outputs: dict[str, list[Any]], work: Path
) -> None:
    value, summary = outputs["magic"]
    assert value["data"]["text/plain"] == "106"
    assert "7 steps, 2 recorded" in summary["data"]["text/plain"]
    assert "text/html" in summary["data"]
    assert text(outputs["afterwards"]) == "6"
    assert open_run(work / "magic").meta.ended is not None


def test_mistakes_of_the_magic_are_named_and_nothing_runs(outputs: dict[str, list[Any]]) -> None:
    assert "--sampling-interval': 0 is not a whole number of at least 1" in error(outputs["bad option"])
    assert error(outputs["no option"]) == "ValueError: 'faster' is no option of %%tcmon"


def test_an_error_in_a_cell_is_the_cell_s_and_the_process_is_watched_no_more(
    outputs: dict[str, list[Any]], work: Path
) -> None:
    assert error(outputs["fails"]) == "ZeroDivisionError: division by zero"
    assert open_run(work / "failed").meta.ended is not None
    assert "tcmon" not in text(outputs["not attached"])
