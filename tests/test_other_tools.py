"""Other tools that watch the same program: both work, or one line says which tool id is taken and by whom."""

import json
import re
from pathlib import Path

import pytest
from conftest import Run
from monitored import STAND_INS

from tcmon.trace.reader import open_run

PROGRAM = (
    STAND_INS
    + """
def prepare_batch(batch):
    return batch + 1

def train():
    for batch in range(12):
        prepare_batch(batch)
        loss.backward()
        optimizer.step()

train()
"""
)
CALLS = ["prepare_batch", "Loss.backward", "Optimizer.step"]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def check_run(run_dir: Path, calls: list[str] = CALLS) -> None:
    """12 steps were counted, and the calls of those that were recorded are there."""
    [process] = open_run(run_dir).processes
    recorded = list(process.recorded_steps())
    assert [each.step.n for each in recorded] == [4, 8, 12]
    for each in recorded:
        assert [call.function.qualname for call in each.calls if call.function] == calls


OPTIONS = ["--quiet", "--interval", "4", "--warmup", "0", "--out", "run"]


@pytest.mark.parametrize("core", ["sysmon", "ctrace"])
def test_coverage_of_a_program_that_is_watched(core: str, work: Path, run_python: Run) -> None:
    pytest.importorskip("coverage")
    command = ["-m", "coverage", "run", "--include", work / "train.py", "-m", "tcmon", "run", *OPTIONS, "train.py"]
    run_python(command, work, COVERAGE_CORE=core)
    check_run(work / "run")
    run_python(["-m", "coverage", "json", "-q", "-o", "found.json"], work)
    [found] = json.loads((work / "found.json").read_text())["files"].values()
    text = PROGRAM.splitlines()
    missing = [text[line - 1].strip() for line in found["missing_lines"]]
    assert missing == ["def zero_grad(self): pass", "return Loss()"] or missing == ["return Loss()"]


def test_cprofile_around_tcmon(work: Path, run_python: Run) -> None:
    run_python(["-m", "cProfile", "-o", "profile", "-m", "tcmon", "run", *OPTIONS, "train.py"], work)
    check_run(work / "run")
    shows = "import pstats; print({n[2]: s[1] for n, s in pstats.Stats('profile').stats.items()}['prepare_batch'])"
    assert run_python(["-c", shows], work).stdout == "12\n"


def test_cprofile_within_a_program_that_is_watched(work: Path, run_tcmon: Run) -> None:
    (work / "train.py").write_text(
        PROGRAM.removesuffix("train()\n")
        + "import cProfile, pstats\nprofile = cProfile.Profile()\nprofile.runcall(train)\n"
        + "print({n[2]: s[1] for n, s in pstats.Stats(profile).stats.items()}['prepare_batch'])\n"
    )
    assert run_tcmon(["run", *OPTIONS, "train.py"], work).stdout == "12\n"
    check_run(work / "run")


def test_viztracer_within_a_program_that_is_watched(work: Path, run_tcmon: Run) -> None:
    pytest.importorskip("viztracer")
    (work / "train.py").write_text(
        PROGRAM.removesuffix("train()\n")
        + "import viztracer\nwith viztracer.VizTracer(output_file='traced.json', verbose=0):\n    train()\n"
    )
    run_tcmon(["run", *OPTIONS, "--exclude", "viztracer", "train.py"], work)
    check_run(work / "run")
    events = json.loads((work / "traced.json").read_text())["traceEvents"]
    assert len([each for each in events if each["name"].startswith("prepare_batch ")]) == 12


@pytest.mark.parametrize("tracer", ["sys.settrace", "sys.setprofile"])
def test_a_tracing_function_of_the_program(tracer: str, work: Path, run_tcmon: Run) -> None:
    (work / "train.py").write_text(
        "import sys\nseen = []\ndef tracer(frame, event, arg):\n    if event == 'call':\n"
        "        seen.append(frame.f_code.co_name)\n    return tracer\n"
        + PROGRAM.removesuffix("train()\n")
        + f"{tracer}(tracer)\ntrain()\n{tracer}(None)\nprint(seen.count('prepare_batch'))\n"
    )
    assert run_tcmon(["run", *OPTIONS, "train.py"], work).stdout == "12\n"
    check_run(work / "run")


def test_a_debugger_stops_in_a_program_that_is_watched(work: Path, run_tcmon: Run) -> None:
    (work / "train.py").write_text(
        PROGRAM.removesuffix("train()\n")
        + "import io, pdb, sys\n"
        + "commands = 'break prepare_batch, batch == 7', 'continue', 'p batch', 'clear 1', 'continue', ''\n"
        + "steps = io.StringIO('\\n'.join(commands))\n"
        + "pdb.Pdb(stdin=steps, stdout=sys.stdout, nosigint=True, readrc=False).runcall(train)\n"
    )
    done = run_tcmon(["run", *OPTIONS, "train.py"], work)
    assert re.search(r"^\(Pdb\) 7$", done.stdout, re.MULTILINE), done.stdout
    check_run(work / "run")


def test_tool_ids_that_others_hold_are_left_to_them(work: Path, run_python: Run) -> None:
    taken = "import sys\nfor tool in (0, 1, 2, 3):\n    sys.monitoring.use_tool_id(tool, f'tool {tool} of others')\n"
    begins = "import tcmon\nrun = tcmon.attach(interval=4, warmup=0, record='calls', out='run')\n"
    names = "run.detach()\nprint([sys.monitoring.get_tool(tool) for tool in range(6)])\n"
    (work / "train.py").write_text(taken + begins + PROGRAM + names)
    done = run_python(["train.py"], work).stdout
    assert "[" + ", ".join(repr(f"tool {tool} of others") for tool in range(4)) + ", None, None]" in done
    check_run(work / "run")


def test_where_no_tool_id_is_left_one_line_says_who_has_them(work: Path, run_python: Run) -> None:
    taken = "import sys\nfor tool in range(6):\n    sys.monitoring.use_tool_id(tool, f'tool {tool}')\n"
    (work / "sitecustomize.py").write_text(taken)
    command = ["-m", "tcmon", "run", *OPTIONS, "train.py"]
    path = f"{work}:{Path(__file__).parents[1]}"
    done = run_python(command, work, exit_code=2, PYTHONPATH=path)
    owners = ", ".join(f"tool {tool}" for tool in range(6))
    assert done.stderr == (
        f"tcmon: error: all sys.monitoring tool ids are taken (by {owners}): stop one of these tools\n"
    )
    assert not (work / "run").exists()
