"""The command line as such: help, versions, what it needs and what it costs to start."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from program_runs import CHECKOUT, environment, run, tcmon_run

import tcmon


def test_version_is_the_packages(tmp_path: Path) -> None:
    assert tcmon_run("--version", cwd=tmp_path).stdout == f"tcmon {tcmon.__version__}\n"


@pytest.mark.parametrize("args", ["", "--help"])
def test_help_lists_the_commands_in_the_order_of_use(args: str, tmp_path: Path) -> None:
    ended = tcmon_run(*args.split(), cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    places = [ended.stdout.index(f"\n  {name} ") for name in ("run", "report", "demo")]
    assert places == sorted(places)


@pytest.mark.parametrize("command", ["run", "report", "demo"])
def test_every_command_has_help_with_examples(command: str, tmp_path: Path) -> None:
    ended = tcmon_run(command, "--help", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"Usage: tcmon {command}" in ended.stdout
    assert f"\n    tcmon {command}" in ended.stdout


@pytest.mark.parametrize("args", ["frobnicate", "--frobnicate", "report", "report --frobnicate x", "report a b"])
def test_a_mistake_on_the_command_line_is_one_line(args: str, tmp_path: Path) -> None:
    ended = tcmon_run(*args.split(), cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("tcmon: error: ")
    assert ended.stderr.count("\n") == 1
    assert "--help)" in ended.stderr


def test_an_old_python_is_told_what_is_needed(tmp_path: Path) -> None:
    # What an old Python lacks is taken away from this one, which then finds none of tcmon's libraries either.
    code = "import sys; del sys.monitoring; from tcmon.__main__ import main; main()"
    ended = run([sys.executable, "-S", "-c", code, "run", "script.py"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("tcmon: error: tcmon needs CPython 3.12 or newer, and ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["__init__.py", "__main__.py"])
def test_an_old_python_can_compile_what_tells_it(module: str) -> None:
    ast.parse((CHECKOUT / "tcmon" / module).read_text(), feature_version=(3, 7))


def test_the_programs_start_waits_for_no_library_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys; print(sorted({name.partition('.')[0] for name in sys.modules} & {'rich', 'torch', 'numpy'}))"
    )
    assert tcmon_run("run", "--quiet", "script.py", cwd=tmp_path).stdout == "[]\n"


def test_a_reader_of_the_report_may_leave(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tcmon", "--help"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
