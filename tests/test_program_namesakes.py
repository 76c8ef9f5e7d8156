"""Modules of the program may be named like modules of tcmon, its libraries, or the standard library."""

from pathlib import Path

import pytest
from program_runs import both, run, watched_command

LIBRARIES = ("click", "orjson", "bytecode", "rich", "markdown_it", "pygments", "typing_extensions")
STANDARD = ("logging", "inspect", "dataclasses", "atexit", "json", "typing", "contextlib", "runpy", "os")

SHOW = """
for name in {names}:
    try:
        module = __import__(name)
    except ImportError as error:
        print(error)
    else:
        print(name, module.__spec__.origin, getattr(module, "own", None))
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    """The command `tcmon` as an installer writes it."""
    script = tmp_path / "bin" / "tcmon"
    script.parent.mkdir()
    script.write_text("import sys\nfrom tcmon.__main__ import main\nsys.exit(main())\n")
    return (str(script),)


def make_own(names: tuple[str, ...], kind: str, work: Path) -> None:
    for name in names:
        if kind == "module":
            (work / f"{name}.py").write_text(f"own = {name!r}")
            continue
        (work / name).mkdir()
        (work / name / "data.py").write_text("x = 1")
        if kind == "package":
            (work / name / "__init__.py").write_text(f"from {name}.data import x as own")


@pytest.mark.parametrize("program", ["script.py", "-m script", "."])
@pytest.mark.parametrize("kind", ["module", "package", "folder"])
def test_the_program_gets_its_own(kind: str, program: str, work: Path, command: tuple[str, ...]) -> None:
    names = (*LIBRARIES, "tcmon")
    make_own(names, kind, work)
    for place in ("script.py", "__main__.py"):
        (work / place).write_text(SHOW.format(names=names))
    seen = both(*program.split(), cwd=work, tcmon=command)
    assert (f"{work}/" in seen.stdout) is (kind != "folder")


@pytest.mark.parametrize("kind", ["module", "package"])
def test_python_m_tcmon_takes_no_libraries_from_the_current_folder(kind: str, work: Path) -> None:
    make_own(LIBRARIES, kind, work)
    (work / "script.py").write_text(SHOW.format(names=LIBRARIES))
    both("script.py", cwd=work)


@pytest.mark.parametrize("kind", ["module", "package"])
def test_the_summary_is_made_with_tcmons_own_libraries(kind: str, work: Path, command: tuple[str, ...]) -> None:
    names = (*LIBRARIES, "tcmon")
    make_own(names, kind, work)
    (work / "script.py").write_text(
        SHOW.format(names=names) + "import atexit, sys; atexit.register(lambda: print(sys.modules['rich'].own))"
    )
    plain = run(watched_command("script.py", tcmon=command, quiet=True), cwd=work)
    summed = run(watched_command("script.py", tcmon=command, quiet=False), cwd=work)
    assert summed.stdout == plain.stdout
    assert plain.stderr == ""
    assert "warning" not in summed.stderr
    assert ".watched-" in summed.stderr


@pytest.mark.parametrize("name", STANDARD)
def test_the_program_gets_what_python_gives_for_a_name_of_the_standard_library(name: str, work: Path) -> None:
    (work / f"{name}.py").write_text("own = True")
    (work / "script.py").write_text(f"import {name}\nprint(hasattr({name}, 'own'))")
    both("script.py", cwd=work)


def test_what_the_program_lacks_is_the_installed_one(work: Path) -> None:
    (work / "script.py").write_text(SHOW.format(names=(*LIBRARIES[:4], "logging", "tcmon")))
    both("script.py", cwd=work)
