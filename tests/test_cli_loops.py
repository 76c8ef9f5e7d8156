"""`tcmon loops`: what it prints and how it ends; which loops it finds is in test_static_loops.py."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from program_runs import TCMON, environment, tcmon_run

PROGRAM = """import torch


def train(loader):
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()


def evaluate(val_loader):
    for batch in val_loader:
        model(batch)


for epoch in range(3):
    train(loader)
    scheduler.step()
print("it ran")
open("trace", "w").close()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def found(folder: Path, *args: str) -> list[dict[str, object]]:
    ended = tcmon_run("loops", "--json", *args, cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    loops: list[dict[str, object]] = json.loads(ended.stdout)
    return loops


def test_json_is_a_list_of_objects(folder: Path) -> None:
    assert found(folder, "train.py") == [
        {
            "file": "train.py",
            "qualname": "train",
            "line": 5,
            "role": "train",
            "evidence": ["optimizer.step() (train.py:8)", "loss.backward() (train.py:7)"],
        },
        {
            "file": "train.py",
            "qualname": "evaluate",
            "line": 12,
            "role": "eval",
            "evidence": ["in evaluate()", "over val_loader", "model(batch) (line 13)"],
        },
    ]


def test_all_gives_the_reason_against_the_others(folder: Path) -> None:
    assert found(folder, "--all", "train.py")[-1] == {
        "file": "train.py",
        "qualname": "<module>",
        "line": 16,
        "role": "other",
        "evidence": ["calls train(), which has a training loop of its own"],
    }


def test_nothing_of_the_program_is_run(folder: Path) -> None:
    ended = tcmon_run("loops", "train.py", cwd=folder)
    assert "it ran" not in ended.stdout
    assert [each.name for each in folder.iterdir()] == ["train.py"]


def test_piped_it_is_plain_and_a_line_is_never_broken(folder: Path) -> None:
    long = ", ".join(f"argument_{n}" for n in range(40))
    (folder / "long.py").write_text(f"for {long} in loader:\n    loss.backward(); optimizer.step()\n")
    ended = tcmon_run("loops", "train.py", "long.py", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    assert f"for {long} in loader:" in ended.stdout
    for shown in ("train.py:5", "in train", "for batch in loader:", "optimizer.step() (train.py:8)", "train.py:12"):
        assert shown in ended.stdout
    assert all(line == line.rstrip() for line in ended.stdout.splitlines())


@pytest.mark.parametrize(("options", "variables", "coloured"), [
    ((), {}, True),
    (("--no-color",), {}, False),
    ((), {"NO_COLOR": "1"}, False),
])  # fmt: skip
def test_colours_are_for_terminals(
    options: tuple[str, ...], variables: dict[str, str], coloured: bool, folder: Path
) -> None:
    shown = on_terminal(folder, "loops", *options, "train.py", **variables)
    assert "optimizer.step()" in shown
    assert ("\x1b[1;32m" in shown) is coloured


def on_terminal(folder: Path, *args: str, **variables: str) -> str:
    try:
        controller, terminal = pty.openpty()
    except OSError as error:
        pytest.skip(f"there are no terminals here: {error}")
    process = subprocess.Popen(
        [sys.executable, *TCMON, *args],
        cwd=folder,
        env=environment(TERM="xterm", **variables),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            read = os.read(controller, 4096)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
    os.close(controller)
    assert process.wait() == 0
    return shown.decode()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("syntax.py", b"for x in\n", "invalid syntax (line 1)"),
        ("indent.py", b"if 1:\nx\n", "(line 2)"),
        ("latin.py", b"# caf\xe9\nx = 1\n", "UTF-8"),
        ("coding.py", b"# coding: nonsense\n", "nonsense"),
        ("null.py", b"x = 1\0\n", "null byte"),
        ("deep.py", b"x = " + b"(" * 5000 + b")" * 5000 + b"\n", "parenthes"),
        ("missing.py", None, "no such file"),
        (".", None, "directory"),
        ("new\nline.py", None, "no such file"),
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_file_that_cannot_be_analysed_is_one_line_and_the_others_are_shown(
    name: str, content: bytes | None, why: str, options: tuple[str, ...], folder: Path
) -> None:
    if content is not None:
        (folder / name).write_bytes(content)
    ended = tcmon_run("loops", *options, name, "train.py", cwd=folder)
    assert ended.returncode == 1
    assert ended.stderr.startswith("tcmon: error: can't analyse ")
    assert ended.stderr.count("\n") == 1
    assert why in ended.stderr
    assert "optimizer.step()" in ended.stdout


def test_a_file_in_another_coding_that_it_names_is_read(folder: Path) -> None:
    (folder / "latin.py").write_bytes(b"# coding: latin-1\nfor caf\xe9 in loader: loss.backward(); optimizer.step()\n")
    assert [loop["line"] for loop in found(folder, "latin.py")] == [2]
    assert "for café in loader" in tcmon_run("loops", "latin.py", cwd=folder).stdout


def test_warnings_of_the_compiler_are_not_shown(folder: Path) -> None:
    (folder / "warns.py").write_text("x = 1\nassert (x, 'y')\nprint(x is 1, '\\d')\n")
    ended = tcmon_run("loops", "warns.py", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "No training or evaluation loops found; --all shows the others and why.\n"


def test_without_a_file_it_says_so(folder: Path) -> None:
    ended = tcmon_run("loops", cwd=folder)
    assert ended.returncode == 2
    assert "FILE" in ended.stderr


def test_what_a_terminal_would_act_on_is_escaped(folder: Path) -> None:
    (folder / "bell.py").write_text("for b in loader: model('\x07\x1b[2J').backward(); optimizer.step()\n")
    shown = tcmon_run("loops", "bell.py", cwd=folder).stdout
    assert "\x07" not in shown
    assert "\x1b" not in shown


def test_a_function_of_endless_length_is_left_out_and_named(folder: Path) -> None:
    lines = "\n".join(f"        x{n} = f({n}, y{n})" for n in range(8000))
    (folder / "long.py").write_text(f"def generated():\n    for b in loader:\n{lines}\n        opt.step()\n")
    ended = tcmon_run("loops", "long.py", "train.py", cwd=folder)
    assert ended.returncode == 0
    assert ended.stderr == "tcmon: warning: long.py: generated (line 1) is too long, its loops are not shown\n"
    assert "train.py:5" in ended.stdout
