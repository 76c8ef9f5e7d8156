"""What a program finds when it starts is what python gives it."""

import py_compile
import zipfile
from pathlib import Path

import pytest
from program_runs import both

PROBE = """
import atexit, os, sys
def names():
    return [name for name in globals() if name.startswith("__")]
def shown(value):
    return value if isinstance(value, (str, dict, type(None))) else type(value)
print(names(), {name: shown(globals()[name]) for name in names()})
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent), __builtins__)
print(getattr(__loader__, "name", None), getattr(__loader__, "path", None))
print(sys.argv, sys.path, sys.flags, os.getcwd(), sorted(os.environ.items()))
print(sys.modules["__main__"].__dict__ is globals(), sys.gettrace(), sys.getprofile(), sys.excepthook)
print(sys.getrecursionlimit(), sys.getswitchinterval(), sys.stdout, sys.stderr, sys.stdin)
atexit.register(lambda: print(names()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same program in every form that python takes."""
    folder = tmp_path / "work"
    for place in ("probe.py", "noextension", "sub/probe.py", "package/__main__.py", "package/inner/probe.py"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(PROBE)
    (folder / "package/__init__.py").write_text("import sys; print(sys.argv, sys.path[0], __name__)")
    (folder / "link.py").symlink_to("sub/probe.py")
    (folder / "linktolink.py").symlink_to("link.py")
    (folder / "outside").symlink_to("sub")
    py_compile.compile(str(folder / "probe.py"), cfile=str(folder / "compiled.pyc"))
    py_compile.compile(str(folder / "probe.py"), cfile=str(folder / "compiled"))
    with zipfile.ZipFile(folder / "program.zip", "w") as archive:
        archive.write(folder / "probe.py", "__main__.py")
    return folder


PROGRAMS = (
    "probe.py",
    "./probe.py",
    ".//probe.py",
    "sub/../probe.py",
    "../work/probe.py",
    "noextension",
    "sub/probe.py",
    "link.py",
    "linktolink.py",
    "outside/probe.py",
    "compiled.pyc",
    "compiled",
    "package",
    "./package/",
    "program.zip",
    "-m probe",
    "-m package",
    "-m package.inner.probe",
    "-m sub.probe",
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_finds_the_same_main_module_arguments_and_import_path(program: str, folder: Path) -> None:
    seen = both(*program.split(), "one", "--two", "-m", "", cwd=folder)
    assert seen.returncode == 0
    assert "'--two'" in seen.stdout


def test_an_absolute_path_is_taken_as_it_is(folder: Path) -> None:
    assert both(str(folder / "sub/../probe.py"), cwd=folder.parent).returncode == 0


@pytest.mark.parametrize("flag", ["-P", "-O", "-OO", "-B", "-Xdev", "-Werror", "-Xutf8"])
@pytest.mark.parametrize("program", ["probe.py", "package"])
def test_flags_of_the_interpreter_hold_for_the_program(program: str, flag: str, folder: Path) -> None:
    assert both(program, cwd=folder, flags=(flag,)).returncode == 0


@pytest.mark.parametrize("program", ["probe.py", "package", "-m timeit"])
def test_pythonsafepath_keeps_the_folder_off_the_path(program: str, folder: Path) -> None:
    (folder / "timeit.py").write_text("raise AssertionError('found')")
    assert both(*program.split(), "-h", cwd=folder, PYTHONSAFEPATH="1").returncode == 0


@pytest.mark.parametrize(
    "args",
    ["--interval 3", "-m --interval 3 --quiet", "--help", "-- --out x --", "-"],
)
@pytest.mark.parametrize("program", ["show.py", "-m show"])
def test_all_that_follows_the_program_is_its_own(program: str, args: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "show.py").write_text("import sys; print(sys.argv[1:])")
    seen = both(*program.split(), *args.split(), cwd=work)
    assert seen.stdout == f"{args.split()}\n"


SOURCES = {
    "a coding cookie": b"# coding: latin-1\nprint(ascii('\xe9'))\n",
    "a byte order mark": b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\n",
    "lines that end as on Windows": b"print('''a\r\nb''')\r\nif 1:\r\n  print(2)\r\n",
    "lines that end as on old Macs": b"print(1)\rprint(2)\r",
    "no end of line": b"print(1)",
    "a form feed": b"\x0cprint(1)\n\x0c\nprint(2)\n",
    "nothing": b"",
    "a warning of the compiler": b"x = '\\d'\nprint(1 is 1)\n",
    "annotations": b"def f(a: undefined.name if 0 else 1 + 1): pass\nprint(f.__annotations__)\n",
    "a future": b"from __future__ import annotations\ndef f(a: b): pass\nprint(f.__annotations__)",
    "annotated variables": b"x: int = 1\ny: str\nprint(__annotations__)\n",
    "a docstring": b"'''Words.'''\nprint(__doc__)\n",
    "exec that inherits flags": b"exec('def f(a: nope): pass')\n",
    "assertions": b"print(__debug__)\nassert 0, 'seen'\n",
    "a main guard": b"if __name__ == '__main__':\n    print(__name__)\n",
    "an import of itself": b"import script\nimport __main__\nprint(__name__, __main__.__name__)\n",
    "a deprecation in main": b"import warnings\nwarnings.warn('old', DeprecationWarning)\n",
    "a warning shown once": b"import warnings\nfor i in range(3):\n    warnings.warn('again')\n",
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("program", ["script.py", "-m script"])
def test_source_is_read_as_by_python(program: str, source: bytes, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "script.py").write_bytes(source)
    both(*program.split(), cwd=work, PYTHONDONTWRITEBYTECODE="1")


def test_relative_files_and_stdin_are_the_programs(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "data.txt").write_text("data")
    (work / "script.py").write_text(
        "import sys; print(open('data.txt').read(), sys.stdin.readline(), input(), sys.stdin.read())"
    )
    seen = both("script.py", cwd=work, stdin="first\nsecond\nthird\nfourth\n")
    assert seen.stdout == "data first\n second third\nfourth\n\n"


def test_a_script_may_come_through_a_pipe(tmp_path: Path) -> None:
    seen = both("/dev/stdin", cwd=tmp_path, stdin="print(__file__)\n1/0\n")
    assert seen.returncode == 1
    assert seen.stdout == "/dev/stdin\n"
