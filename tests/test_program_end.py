"""A program ends under tcmon as under python: exit code, tracebacks, and the order of what is written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from program_runs import both, environment, watched_command

INTERRUPTED = -signal.SIGINT

ENDS = {
    "at its last line": (0, "print(1)"),
    "sys.exit()": (0, "import sys; sys.exit()"),
    "sys.exit(None)": (0, "import sys; sys.exit(None)"),
    "sys.exit(3)": (3, "import sys; sys.exit(3)"),
    "sys.exit(True)": (1, "import sys; sys.exit(True)"),
    "sys.exit(-1)": (255, "import sys; sys.exit(-1)"),
    "sys.exit(256)": (0, "import sys; sys.exit(256)"),
    "sys.exit of text": (1, "import sys; sys.exit('text')"),
    "sys.exit of an object": (1, "import sys; sys.exit((1, 'two'))"),
    "exit of site": (4, "exit(4)"),
    "SystemExit's own class": (5, "class E(SystemExit): pass\nraise E(5)"),
    "SystemExit as a class": (0, "raise SystemExit"),
    "sys.exit in a handler": (7, "import sys\ntry: 1/0\nexcept Exception: sys.exit(7)"),
    "os._exit": (9, "import os; print(1, flush=True); os._exit(9)"),
    "sys.exit in a thread": (
        0,
        "import sys, threading; threading.Thread(target=sys.exit, args=(3,)).start()",
    ),
    "an error in a thread": (
        0,
        """
        import threading
        def f(): 1/0
        thread = threading.Thread(target=f, name='t')
        thread.start()
        thread.join()
        """,
    ),
    "an error": (1, "def f():\n    return 1 / 0\nf()"),
    "an error at the first line": (1, "1/0"),
    "an error with a cause": (
        1,
        """
        try:
            [][0]
        except IndexError as e:
            raise ValueError('v') from e
        """,
    ),
    "an error in a handler": (
        1,
        """
        def f():
            {}['k']
        try:
            f()
        except KeyError:
            1/0
        """,
    ),
    "an error with notes": (1, "e = ValueError('v'); e.add_note('note'); raise e"),
    "a group of errors": (
        1,
        """
        def f():
            raise TypeError('t')
        try:
            f()
        except TypeError as e:
            raise ExceptionGroup('g', [e, OSError()])
        """,
    ),
    "deep recursion": (
        1,
        """
        def f(n):
            if n: f(n - 1)
            else: 1/0
        f(500)
        """,
    ),
    "an error while importing": (1, "import helper"),
    "a missing module": (1, "import nosuchmodule"),
    "a syntax error in a module": (1, "import broken"),
    "a syntax error in exec": (1, "exec('a b')"),
    "an error that is no Exception": (1, "class E(BaseException): pass\nraise E('x')"),
    "StopIteration": (1, "next(iter(()))"),
    "a failed assertion": (1, "assert 0, 'why'"),
    "an error in an async function": (1, "import asyncio\nasync def f(): 1/0\nasyncio.run(f())"),
    "an error in a function at exit": (
        0,
        """
        import atexit
        class Callback:
            def __repr__(self): return 'callback'
            def __call__(self): 1/0
        atexit.register(Callback())
        """,
    ),
    "KeyboardInterrupt": (INTERRUPTED, "raise KeyboardInterrupt"),
    "KeyboardInterrupt with text": (INTERRUPTED, "def f():\n    raise KeyboardInterrupt('now')\nf()"),
    "KeyboardInterrupt's own class": (
        INTERRUPTED if sys.version_info >= (3, 14) else 1,
        "class K(KeyboardInterrupt): pass\nraise K",
    ),
    "SIGINT": (INTERRUPTED, "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"),
    "SIGINT that is ignored": (
        0,
        "import os, signal; signal.signal(signal.SIGINT, signal.SIG_IGN); os.kill(os.getpid(), 2)",
    ),
    "SIGINT that is handled": (
        6,
        "import os, signal, sys; signal.signal(2, lambda *_: sys.exit(6)); os.kill(os.getpid(), 2)",
    ),
    "SIGTERM": (-signal.SIGTERM, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"),
    "a hook": (
        1,
        """
        import sys
        def hook(kind, error, tb):
            print(kind, error, tb.tb_frame.f_code.co_name, tb.tb_lineno, sys.exc_info())
        sys.excepthook = hook
        1/0
        """,
    ),
    "a hook that fails": (
        1,
        """
        import sys
        def hook(*_): raise KeyError('in hook')
        sys.excepthook = hook
        1/0
        """,
    ),
    "a hook that exits": (
        8,
        """
        import atexit, sys
        atexit.register(lambda: print('__file__' in globals()))
        sys.excepthook = lambda *_: sys.exit(8)
        1/0
        """,
    ),
    "a hook that is none": (1, "import sys\nsys.excepthook = 5\n1/0"),
    "a hook for KeyboardInterrupt": (
        INTERRUPTED,
        """
        import atexit, sys
        def hook(kind, error, tb): print(kind, tb.tb_lineno)
        def at_exit(): print(sys.excepthook is hook, repr(sys.last_exc), sys.last_traceback.tb_lineno)
        sys.excepthook = hook
        atexit.register(at_exit)
        raise KeyboardInterrupt
        """,
    ),
    "sys.last_exc": (
        1,
        """
        import atexit, sys
        def at_exit():
            print(repr(sys.last_exc), sys.last_type, sys.last_value, sys.last_exc.__context__)
            print(sys.last_traceback.tb_frame.f_code.co_name, sys.last_traceback.tb_lineno)
        atexit.register(at_exit)
        1/0
        """,
    ),
}

MODULES = {"helper.py": "def f():\n    1/0\nf()\n", "broken.py": "def f(:\n"}


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    for name, source in MODULES.items():
        (work / name).write_text(source)
    return work


@pytest.mark.parametrize("program", ["script.py", "-m script"])
@pytest.mark.parametrize("exit_code, source", ENDS.values(), ids=ENDS)
def test_it_ends_as_by_python(program: str, exit_code: int, source: str, work: Path) -> None:
    (work / "script.py").write_text(dedent(source) + "\n")
    seen = both(*program.split(), cwd=work)
    assert seen.returncode == exit_code
    assert "tcmon" not in seen.stdout + seen.stderr


@pytest.mark.parametrize("end", ["an error", "sys.exit of text", "KeyboardInterrupt"])
def test_a_folder_ends_as_by_python(end: str, work: Path) -> None:
    exit_code, source = ENDS[end]
    (work / "__main__.py").write_text(source)
    assert both(".", cwd=work).returncode == exit_code


ORDERS = {
    "an error": "1/0",
    "sys.exit": "sys.exit('text')",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "its last line": "print('last')",
}

WRITER = """
import atexit, sys, threading, time, weakref
class Noisy:
    def __init__(self, name): self.name = name
    def __del__(self): print('del', self.name)
def late():
    time.sleep(0.2)
    print('thread', threading.main_thread().is_alive())
print('one')
sys.stderr.write('two\\n')
noisy = Noisy('global')
atexit.register(print, 'atexit first')
atexit.register(lambda: print('atexit', '__file__' in globals(), noisy.name, sys.exc_info()[0]))
threading.Thread(target=late).start()
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def end():
    local = Noisy('local')
    sys.stdout.write('no end of line')
    {end}
end()
"""


@pytest.mark.parametrize("program", ["script.py", "-m script"])
@pytest.mark.parametrize("end", ORDERS.values(), ids=ORDERS)
def test_output_threads_and_functions_at_exit_come_in_the_same_order(program: str, end: str, work: Path) -> None:
    (work / "script.py").write_text(WRITER.format(end=end))
    seen = both(*program.split(), cwd=work, merge=True)
    assert "atexit first" in seen.stdout


SYNTAX_ERRORS = {
    "a wrong token": "x = 1\ndef f(:\n    pass\n",
    "an open string": 'x = """abc\n',
    "an open line": "class A:\n  x = 'a",
    "an open bracket": "x = (1,\n",
    "indentation": "if 1:\n  x\n y\n",
    "tabs": "def f():\n\tif 1:\n        x\n",
    "return outside": "x = 1\nreturn 3\n",
    "a late future": "print(1)\nfrom __future__ import division\n",
    "no such future": "from __future__ import nope\n",
    "another encoding": "# coding: latin-1\nx = 'é'\nx = (\n",
    "nesting": "x = " + "(" * 300 + "\n",
    "a literal": "x = '\\N{nope}'\n",
}


@pytest.mark.parametrize("program", ["script.py", "-m script", "./folder"])
@pytest.mark.parametrize("source", SYNTAX_ERRORS.values(), ids=SYNTAX_ERRORS)
def test_a_syntax_error_looks_as_by_python(program: str, source: str, work: Path) -> None:
    (work / "folder").mkdir()
    for place in ("script.py", "folder/__main__.py"):
        (work / place).write_text(source, encoding="latin-1")
    seen = both(*program.split(), cwd=work)
    assert seen.returncode == 1
    assert "Error: " in seen.stderr


def test_control_c_from_outside_ends_it_by_the_signal(work: Path) -> None:
    (work / "script.py").write_text(
        "import atexit, time\natexit.register(print, 'atexit')\n"
        "def wait():\n    print('ready', flush=True)\n    time.sleep(60)\nwait()\n"
    )
    ends = []
    for command in ([sys.executable, "script.py"], watched_command("script.py")):
        with subprocess.Popen(
            command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(1)  # or the signal may arrive in the line that prints
            process.send_signal(signal.SIGINT)
            ends.append((*process.communicate(timeout=60), process.returncode))
    assert ends[0] == ends[1]
    assert ends[0][2] == -signal.SIGINT


@pytest.mark.parametrize("end", ["", "1/0", "sys.exit('text')"])
def test_a_reader_that_has_gone_is_told_as_by_python(end: str, work: Path) -> None:
    (work / "script.py").write_text(f"import sys\nprint('lost')\n{end}\n")
    ends = []
    for command in ([sys.executable, "script.py"], watched_command("script.py")):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(command, cwd=work, stdout=write, stderr=subprocess.PIPE, text=True, env=environment())
        os.close(write)
        ends.append((done.stderr, done.returncode))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("child_end", ["", "sys.exit(3)", "os._exit(4)", "1/0", "raise KeyboardInterrupt"])
def test_a_fork_ends_as_by_python(child_end: str, work: Path) -> None:
    (work / "script.py").write_text(
        "import os, sys\npid = os.fork()\nif not pid:\n"
        f"    print('child', flush=True)\n    {child_end or 'pass'}\n"
        "else:\n    print('ended', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert both("script.py", cwd=work).returncode == 0
