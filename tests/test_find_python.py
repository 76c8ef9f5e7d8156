"""The search for an interpreter that `make` starts with: what runs is found, what only looks so is passed over."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "find-python"
THIS = "{}.{}".format(*sys.version_info)
BROKEN = 'echo "pyenv: python: command not found" >&2; exit 127'
REAL = f'exec "{sys.executable}" "$@"'


def put(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def find(*args: str, path: list[Path], **env: str) -> str | None:
    """What the search prints with that PATH and nothing else around, None where it fails."""
    done = subprocess.run(
        ["/bin/sh", SCRIPT, *args],
        env={"PATH": os.pathsep.join(map(str, path)), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert (done.returncode == 0) == bool(done.stdout)
    return done.stdout.strip() or None


@pytest.mark.parametrize("name", [f"python{THIS}", "python3", "python"])
def test_an_interpreter_on_path_is_found(name, tmp_path):
    put(tmp_path / name, REAL)
    assert find(path=[tmp_path]) == sys.executable
    assert find(THIS, path=[tmp_path]) == sys.executable


def test_a_name_that_does_not_run_hides_none_behind_it(tmp_path):
    put(tmp_path / "shims" / f"python{THIS}", BROKEN)
    put(tmp_path / "shims" / "python3", BROKEN)
    put(tmp_path / "bin" / f"python{THIS}", REAL)
    assert find(path=[tmp_path / "shims", tmp_path / "bin"]) == sys.executable


def test_another_version_does_not_serve(tmp_path):
    put(tmp_path / "python3", REAL)
    assert find("3.99", path=[tmp_path]) is None


@pytest.mark.parametrize("version, serves", [((3, 11), False), ((3, 12), True)])
def test_an_old_python_does_not_serve(version, serves, tmp_path):
    pretend = f"import sys; sys.version_info = {version}"
    put(tmp_path / "python3", f'[ "$1" = -c ] && exec "{sys.executable}" -c "{pretend}$2" "$3"')
    assert find(path=[tmp_path]) == (sys.executable if serves else None)


def test_versions_under_a_pyenv_root_come_after_path(tmp_path):
    shims = tmp_path / "shims"
    put(shims / f"python{THIS}", BROKEN)
    put(tmp_path / "pyenv" / "versions" / f"{THIS}.0" / "bin" / "python3", REAL)
    assert find(path=[shims], PYENV_ROOT=str(tmp_path / "pyenv")) == sys.executable
    assert find(path=[shims]) is None

    put(shims / "pyenv", f'[ "$1" = root ] && echo "{tmp_path}/pyenv"')
    assert find(path=[shims]) == sys.executable


def test_versions_in_the_home_directory_are_found(tmp_path):
    put(tmp_path / ".pyenv" / "versions" / f"{THIS}.0" / "bin" / "python3", REAL)
    assert find(path=[tmp_path], HOME=str(tmp_path)) == sys.executable


def test_python_names_the_only_one_that_is_tried(tmp_path):
    put(tmp_path / "python3", REAL)
    chosen = put(tmp_path / "my-python", REAL)
    assert find(path=[tmp_path], PYTHON=str(chosen)) == sys.executable
    assert find(path=[tmp_path], PYTHON="my-python") == sys.executable
    put(tmp_path / "my-python", BROKEN)
    assert find(path=[tmp_path], PYTHON=str(chosen)) is None
    assert find(path=[tmp_path], PYTHON="no-such-python") is None


def test_nothing_found_fails_without_a_word(tmp_path):
    assert find(path=[tmp_path], HOME=str(tmp_path)) is None
