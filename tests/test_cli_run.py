"""`tcmon run`: its options, what it says, and what it leaves alone."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from program_runs import Ended, tcmon_run

OUT = ("--out", "run")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    for place in ("script.py", "package/__init__.py", "package/mod.py"):
        (tmp_path / place).write_text("import sys\nif __name__ == '__main__': print(sys.argv[1:])\n")
    return tmp_path


def recorded(work: Path, run: str = "run") -> Any:
    return json.loads((work / run / "run.json").read_text())


def assert_refused(ended: Ended, *words: str, exit_code: int = 2) -> None:
    """One line for people, nothing else."""
    assert ended.returncode == exit_code
    assert ended.stdout == ""
    assert re.fullmatch(r"tcmon: error: .+\n", ended.stderr), ended.stderr
    for word in words:
        assert word in ended.stderr


class TestOptions:
    def test_those_before_the_program_are_tcmons_and_those_after_are_the_programs(self, work: Path) -> None:
        ended = tcmon_run(
            *("run", *OUT, "--interval", "20", "-m", "package.mod", "--interval", "3", "--out", "x", "--", "-h"),
            cwd=work,
        )
        assert ended.stdout == "['--interval', '3', '--out', 'x', '--', '-h']\n"
        assert recorded(work)["options"]["interval"] == 20
        assert not (work / "x").exists()

    def test_two_dashes_end_those_of_tcmon(self, work: Path) -> None:
        assert tcmon_run("run", *OUT, "--", "script.py", "--quiet", cwd=work).stdout == "['--quiet']\n"

    def test_without_any_the_documented_defaults_hold(self, work: Path) -> None:
        tcmon_run("run", "script.py", cwd=work)
        (run,) = (work / "tcmon-runs").iterdir()
        assert recorded(work, f"tcmon-runs/{run.name}")["options"] == {
            "interval": 20,
            "warmup": 2,
            "eval_interval": 20,
            "eval_warmup": 2,
            "record": ["calls", "lines", "state", "loss"],
        }

    @pytest.mark.parametrize(
        "program, name",
        [
            ("script.py", "script"),
            ("./noextension", "noextension"),
            ("package/../script.py", "script"),
            ("./package/", "package"),
            ("-m package.mod", "package.mod"),
        ],
    )
    def test_runs_are_kept_in_the_current_folder_under_the_programs_name(
        self, program: str, name: str, work: Path
    ) -> None:
        for place in ("noextension", "package/__main__.py"):
            (work / place).write_text("pass")
        assert tcmon_run("run", "--quiet", *program.split(), cwd=work).returncode == 0
        (run,) = (work / "tcmon-runs").iterdir()
        assert re.fullmatch(rf"{name}-\d{{8}}-\d{{6}}-\d+", run.name)

    @pytest.mark.parametrize(
        "names",
        [
            ("--interval", "--warmup", "--eval-interval", "--eval-warmup"),
            ("--sampling-interval", "--warm-up-steps", "--eval-interval", "--eval-warmup"),
        ],
    )
    def test_all_are_recorded_under_one_name(self, names: tuple[str, ...], work: Path) -> None:
        values = [argument for n, name in enumerate(names) for argument in (name, str(n + 5))]
        tcmon_run("run", *OUT, *values, "--record", "calls", "script.py", "a b", cwd=work)
        meta = recorded(work)
        assert meta["options"] == {
            "interval": 5,
            "warmup": 6,
            "eval_interval": 7,
            "eval_warmup": 8,
            "record": ["calls"],
        }
        assert meta["command"] == ["tcmon", "run", *OUT, *values, "--record", "calls", "script.py", "a b"]

    def test_log_level_decides_what_is_said_while_the_program_runs(self, work: Path) -> None:
        (work / "script.py").write_text(
            "import logging; logging.basicConfig(level=0)\n"
            "class A:\n    def step(self): pass\n    def backward(self): pass\n"
            "optimizer = loss = A()\n"
            "for _ in range(3):\n    loss.backward(); optimizer.step()\n"
        )
        said = tcmon_run("run", "--quiet", "--log-level", "debug", *OUT, "script.py", cwd=work).stderr
        assert [line for line in said.splitlines() if "step " in line] == [
            "tcmon: Warm-up step 1",
            "tcmon: Interval step 2",
            "tcmon: Skipping step 3",
        ]
        assert tcmon_run("run", "--quiet", "script.py", cwd=work).stderr == ""


BAD_OPTIONS = {
    "--interval 0": ("--interval", "0", "at least 1"),
    "--interval -1": ("--interval", "-1", "at least 1"),
    "--interval abc": ("--interval", "abc", "whole number"),
    "--interval 1.5": ("--interval", "1.5", "whole number"),
    "--sampling-interval 0": ("--sampling-interval", "at least 1"),
    "--warmup -1": ("--warmup", "at least 0"),
    "--warm-up-steps x": ("--warm-up-steps", "whole number"),
    "--eval-interval 0": ("--eval-interval", "at least 1"),
    "--eval-warmup -2": ("--eval-warmup", "at least 0"),
    "--record dreams": ("'dreams'", "available: calls, "),
    "--record calls,kernels": ("'kernels'", "available: calls"),
    "--record=": ("available: calls",),
    "--log-level loud": ("'loud'", "debug"),
    "--nonsense": ("--nonsense",),
}


@pytest.mark.parametrize("options, words", BAD_OPTIONS.items())
def test_a_bad_option_is_refused_before_anything_is_made(options: str, words: tuple[str, ...], work: Path) -> None:
    ended = tcmon_run("run", *OUT, *options.split(), "script.py", cwd=work)
    assert_refused(ended, *words, "tcmon run --help")
    assert not (work / "run").exists()


@pytest.mark.parametrize("args", ["", "-m", "--interval 3", "--"])
def test_no_program_at_all_is_refused(args: str, work: Path) -> None:
    assert_refused(tcmon_run("run", *args.split(), cwd=work), "no program to run")


def test_an_option_without_its_value_is_refused(work: Path) -> None:
    assert_refused(tcmon_run("run", "--interval", cwd=work), "--interval")


BAD_PROGRAMS = {
    "missing.py": ("'missing.py'", "No such file"),
    "script.py/x.py": ("'script.py/x.py'", "Not a directory"),
    "empty": ("'empty'", "__main__.py"),
    "zip.zip": ("'zip.zip'", "__main__.py"),
    "binary": ("'binary'", "Python source", "null bytes"),
    "latin.py": ("'latin.py'", "Python source", "encoding"),
    "cookie.py": ("'cookie.py'", "Python source", "nope"),
    "old.pyc": ("'old.pyc'", "bytecode of this Python"),
    "damaged.pyc": ("'damaged.pyc'", "damaged"),
    "-m missing": ("'missing'",),
    "-m missing.mod": ("'missing'",),
    "-m .mod": ("relative",),
    "-m script.py": ("script.py",),
    "-m package.missing": ("package.missing",),
    "-m package": ("package",),
}


@pytest.fixture
def bad(work: Path) -> Path:
    import importlib.util
    import zipfile

    (work / "empty").mkdir()
    with zipfile.ZipFile(work / "zip.zip", "w") as archive:
        archive.writestr("other.py", "")
    (work / "binary").write_bytes(Path(sys.executable).read_bytes()[:5000])
    (work / "latin.py").write_bytes(b"print('\xe9')")
    (work / "cookie.py").write_bytes(b"# coding: nope\n")
    (work / "old.pyc").write_bytes(b"\x42\x0d\x0d\x0a" + bytes(12))
    (work / "damaged.pyc").write_bytes(importlib.util.MAGIC_NUMBER + bytes(12) + b"\xe3\x00")
    return work


@pytest.mark.parametrize("program, words", BAD_PROGRAMS.items())
def test_a_program_that_is_none_is_refused(program: str, words: tuple[str, ...], bad: Path) -> None:
    ended = tcmon_run("run", "--quiet", *OUT, *program.split(), "arg", cwd=bad)
    # What is in a package shows only when python runs the package, so tcmon is at work then, and the code python's.
    found_late = program in ("-m package", "-m package.missing", "-m script.py")
    assert_refused(ended, *words, exit_code=1 if found_late else 2)
    assert (bad / "run").exists() is found_late


def test_a_syntax_error_leaves_no_run_behind(work: Path) -> None:
    (work / "script.py").write_text("def f(:\n")
    ended = tcmon_run("run", *OUT, "script.py", cwd=work)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith("SyntaxError: invalid syntax\n")
    assert not (work / "run").exists()


class TestOut:
    def test_a_directory_that_holds_a_run_is_refused_and_kept(self, work: Path) -> None:
        tcmon_run("run", *OUT, "script.py", cwd=work)
        before = {path: path.read_bytes() for path in (work / "run").iterdir()}
        assert_refused(tcmon_run("run", *OUT, "script.py", cwd=work), "run", "--out")
        assert {path: path.read_bytes() for path in (work / "run").iterdir()} == before

    @pytest.mark.parametrize("out", ["script.py", "script.py/run", "/proc/run", "/dev/null"])
    def test_one_that_cannot_be_made_is_refused(self, out: str, work: Path) -> None:
        assert_refused(tcmon_run("run", "--out", out, "script.py", cwd=work), out, "--out")

    def test_missing_parents_are_made(self, work: Path) -> None:
        assert tcmon_run("run", "--out", "a/b c/run", "script.py", cwd=work).returncode == 0
        assert recorded(work, "a/b c/run")["ended"]["exit_code"] == 0


class TestSummary:
    def test_it_goes_to_stderr_and_stdout_is_the_programs(self, work: Path) -> None:
        ended = tcmon_run("run", *OUT, "script.py", cwd=work)
        assert ended.stdout == "[]\n"
        assert "script.py" in ended.stderr
        assert "Traceback" not in ended.stderr

    def test_quiet_leaves_it_out(self, work: Path) -> None:
        assert tcmon_run("run", "--quiet", *OUT, "script.py", cwd=work).stderr == ""

    def test_it_comes_after_all_that_the_program_writes(self, work: Path) -> None:
        (work / "script.py").write_text(
            "import atexit, threading, time\n"
            "atexit.register(print, 'from atexit')\n"
            "threading.Thread(target=lambda: (time.sleep(0.3), print('from a thread'))).start()\n"
            "print('from main')\n1/0\n"
        )
        ended = tcmon_run("run", *OUT, "script.py", cwd=work, merge=True)
        texts = ("from main", "ZeroDivisionError", "from a thread", "from atexit", "tcmon report")
        places = [ended.stdout.index(text) for text in texts]
        assert places == sorted(places)
        assert ended.returncode == 1

    def test_one_that_fails_is_one_line_and_the_exit_code_stays(self, work: Path) -> None:
        (work / "script.py").write_text("import shutil, sys; shutil.rmtree('run'); print(1); sys.exit(5)")
        ended = tcmon_run("run", *OUT, "script.py", cwd=work)
        assert (ended.returncode, ended.stdout) == (5, "1\n")
        assert "Traceback" not in ended.stderr
        assert all(line.startswith("tcmon: warning: ") for line in ended.stderr.splitlines())
        assert "summary" in ended.stderr

    @pytest.mark.parametrize(
        "change",
        [
            "sys.stderr = open('log', 'w')",
            "sys.stdout = open('log', 'w')",
            "sys.stdout = None",
            "sys.stdout.close()",
            "import os; os.chdir('/')",
            "sys.path.clear()",
            "sys.modules.pop('tcmon'); sys.modules.pop('logging')",
            "import logging; logging.disable()",
        ],
    )
    def test_it_comes_whatever_the_program_has_changed(self, change: str, work: Path) -> None:
        (work / "script.py").write_text(f"import sys\n{change}\n")
        ended = tcmon_run("run", *OUT, "script.py", cwd=work)
        assert ended.returncode == 0
        assert "script.py" in ended.stderr
        assert "tcmon report" in ended.stderr

    @pytest.mark.parametrize("end", ["", "sys.exit(3)", "1/0"])
    def test_a_fork_prints_none_and_leaves_the_run_to_its_parent(self, end: str, work: Path) -> None:
        (work / "script.py").write_text(
            f"import os, sys\nif not os.fork():\n    {end or 'pass'}\nelse:\n    os.wait()\n    sys.exit(4)\n"
        )
        ended = tcmon_run("run", *OUT, "script.py", cwd=work)
        assert ended.returncode == 4
        assert ended.stderr.count("tcmon report") == 1
        assert recorded(work)["ended"]["exit_code"] == 4


ENDS = {
    "pass": ("exit", 0),
    "import sys; sys.exit()": ("exit", 0),
    "import sys; sys.exit(3)": ("exit", 3),
    "import sys; sys.exit('text')": ("exit", 1),
    "import sys; sys.exit(-1)": ("exit", 255),
    "1/0": ("exception", 1),
    "import sys; sys.excepthook = lambda *_: sys.exit(7)\n1/0": ("exception", 7),
    "raise KeyboardInterrupt": ("interrupt", None),
}


@pytest.mark.parametrize("source, end", ENDS.items())
def test_the_run_says_how_the_program_ended(source: str, end: tuple[str, int | None], work: Path) -> None:
    (work / "script.py").write_text(source)
    tcmon_run("run", "--quiet", *OUT, "script.py", cwd=work)
    ended = recorded(work)["ended"]
    assert (ended["reason"], ended["exit_code"]) == end


def test_a_run_ends_when_the_last_thread_ends(work: Path) -> None:
    (work / "script.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(0.5,)).start()\n"
    )
    tcmon_run("run", "--quiet", *OUT, "script.py", cwd=work)
    assert recorded(work)["ended"]["clock_ns"] > 500_000_000
