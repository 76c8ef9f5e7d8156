"""Fixtures for tests that run commands as users do."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest
from program_runs import TCMON, environment


class Run(Protocol):
    def __call__(
        self, args: Sequence[str | Path], cwd: Path, *, exit_code: int = 0, timeout: float = 300, **env: str
    ) -> subprocess.CompletedProcess[str]: ...


def _run(
    args: Sequence[str | Path], cwd: Path, *, exit_code: int = 0, timeout: float = 300, **env: str
) -> subprocess.CompletedProcess[str]:
    __tracebackhide__ = True
    command = [sys.executable, *map(str, args)]
    # One thread: more of them wait for each other where the cores are busy.
    variables = environment(**{"OMP_NUM_THREADS": "1", **env})
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired as expired:
        output = b"\n".join(filter(None, (expired.stdout, expired.stderr))).decode(errors="replace")
        pytest.fail(f"{' '.join(command)}\ndid not end within {timeout} s; so far:\n{output}", pytrace=False)
    if done.returncode != exit_code:
        pytest.fail(
            f"{' '.join(command)}\nended with {done.returncode}, not {exit_code}\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}",
            pytrace=False,
        )
    return done


@pytest.fixture(scope="session")
def run_python() -> Run:
    """Runs `python ARGS` and fails the test, with all output, unless it ends with `exit_code` in time."""
    return _run


@pytest.fixture(scope="session")
def run_tcmon() -> Run:
    """Runs `tcmon ARGS` in the same way."""

    def run(args: Sequence[str | Path], cwd: Path, **how: object) -> subprocess.CompletedProcess[str]:
        __tracebackhide__ = True
        return _run([*TCMON, *args], cwd, **how)  # type: ignore[arg-type]

    return run
