"""What a process is like is as the program left it: hooks, filters, handlers, streams, exceptions, random numbers."""

import textwrap
from pathlib import Path

import pytest
from monitored import STAND_INS
from program_runs import both

STATE = """
def state():
    import asyncio, decimal, faulthandler, gc, locale, logging, os, random, signal, socket
    import sys, threading, time, warnings
    names = {"tcmon", "tcmon.session"}
    yield "trace", sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()
    yield "filters", [repr(each) for each in warnings.filters], warnings.showwarning is warnings._showwarning_orig
    yield "handlers", [(n, repr(signal.getsignal(n)).split(" at ")[0]) for n in sorted(signal.valid_signals())]
    yield "blocked", signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.set_wakeup_fd(-1), signal.getitimer(0)
    yield "excepthook", sys.excepthook is sys.__excepthook__, sys.unraisablehook is sys.__unraisablehook__
    yield "displayhook", sys.displayhook is sys.__displayhook__, threading.excepthook is threading.__excepthook__
    yield "limits", sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits()
    yield "gc", gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks, gc.get_freeze_count()
    yield "root", logging.root.level, logging.root.handlers, logging.root.disabled, logging.root.filters
    yield "logging", logging.getLoggerClass() is logging.Logger, logging.raiseExceptions, logging.root.manager.disable
    yield "loggers", sorted(set(logging.root.manager.loggerDict) - names)
    yield "random", random.getstate()[1][:5] if seeded else None, random.random() if seeded else None
    yield "streams", sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__
    yield "buffering", sys.stdout.line_buffering, sys.stdout.encoding, sys.stderr.errors
    yield "threads", threading.active_count(), threading.current_thread().name
    yield "world", os.getcwd(), os.umask(0o22), os.getpriority(os.PRIO_PROCESS, 0), sorted(os.environ)
    yield "sockets", socket.getdefaulttimeout(), time.tzname, locale.setlocale(locale.LC_ALL)
    yield "contexts", decimal.getcontext().prec, faulthandler.is_enabled(), sys.get_asyncgen_hooks()
    yield "coroutines", sys.get_coroutine_origin_tracking_depth(), asyncio.get_event_loop_policy.__module__
    yield "flags", sys.flags, sys.dont_write_bytecode, sys.pycache_prefix, sys.argv
    yield "importing", [*map(type, sys.meta_path)], [*map(type, sys.path_hooks)], sys.path
    yield "exceptions", sys.exc_info(), getattr(sys, "last_exc", None), getattr(sys, "last_value", None)
    yield "builtins", sorted(vars(__builtins__))
"""
TRAIN = """
def inner(n):
    return n if n == 0 else inner(n - 1)

def train(count, last=lambda step: None):
    for step in range(count):
        inner(2)
        loss.backward()
        optimizer.step()
        last(step)
"""


def same(source: str, folder: Path, **env: str) -> str:
    """What `source` prints, once it was seen to do just the same under tcmon with every step recorded."""
    (folder / "program.py").write_text(STAND_INS + TRAIN + textwrap.dedent(source))
    ended = both("program.py", cwd=folder, **env)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout
    return ended.stdout


@pytest.mark.parametrize("moment", ["in a step", "at exit"])
def test_the_process_is_as_the_program_left_it(moment: str, tmp_path: Path) -> None:
    place = {
        "in a step": "train(5, lambda step: show() if step in (1, 3) else None)",
        "at exit": "import atexit\natexit.register(show)\ntrain(5)",
    }[moment]
    # Everything imported beforehand, so that no import of tcmon's comes into it.
    shown = "import random\nseeded = False\ndef show():\n    for each in state(): print(*each)\n"
    source = STATE + shown + "list(state())\nseeded = True\nrandom.seed(3)\n"
    assert "recursion" not in same(source + place, tmp_path)


def test_what_the_program_sets_stays_set(tmp_path: Path) -> None:
    source = """
        import gc, logging, random, signal, sys, threading, warnings

        def nothing(*_): return nothing

        sys.setrecursionlimit(1234)
        sys.setswitchinterval(0.01)
        sys.settrace(nothing); sys.setprofile(nothing)
        warnings.simplefilter("error", ResourceWarning)
        signal.signal(signal.SIGUSR1, nothing); signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.excepthook = sys.unraisablehook = sys.breakpointhook = nothing
        gc.disable(); gc.set_threshold(5, 6, 7)
        logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format="%(name)s %(message)s")
        random.seed(1)

        def show(step):
            print(sys.getrecursionlimit(), sys.getswitchinterval())
            print(sys.gettrace() is nothing, sys.getprofile() is nothing)
            print(warnings.filters[0], signal.getsignal(signal.SIGUSR1) is nothing, signal.getsignal(signal.SIGINT))
            print(sys.excepthook is nothing, sys.unraisablehook is nothing, sys.breakpointhook is nothing)
            print(gc.isenabled(), gc.get_threshold(), random.random())
            logging.getLogger("mine").debug("step %d", step)

        train(30, show)
        show(31)
    """
    assert "mine step 29" in same(source, tmp_path)


def test_exceptions_of_recorded_steps_are_the_same(tmp_path: Path) -> None:
    source = """
        import traceback

        class Own(Exception):
            def __init__(self, text, **more):
                super().__init__(text)
                self.more = more

        def fail(step):
            try:
                try:
                    {}[step]
                except KeyError as error:
                    if step % 3 == 0: raise Own("chained", step=step) from error
                    if step % 3 == 1: raise Own("in a handler", step=step)
                    raise
            finally:
                inner(2)

        def generator(step):
            try:
                yield step
                fail(step)
            finally:
                inner(1)

        def describe(error, depth=0):
            frames = [(f.name, f.lineno, f.line) for f in traceback.extract_tb(error.__traceback__)]
            print(" " * depth, type(error), error, error.args, vars(error), error.__suppress_context__, frames)
            for other in (error.__cause__, error.__context__):
                if other is not None: describe(other, depth + 1)

        for use in (fail, lambda step: list(generator(step)), lambda step: [*map(fail, [step])]):
            for epoch in range(7):
                try:
                    train(9, lambda step: use(epoch) if step == epoch else None)
                except (Own, KeyError) as error:
                    describe(error)
        try:
            raise ValueError("outer")
        except ValueError:
            try: train(3, fail)
            except Exception as error: describe(error)
        import sys
        print(sys.exc_info())
        group = ExceptionGroup("several", [Own("a"), KeyError("b")])
        def both(step): raise group
        try: train(2, both)
        except* Own as own: describe(own)
        except* KeyError as key: describe(key)
    """
    assert "in a handler" in same(source, tmp_path)


def test_an_exception_that_ends_the_program_shows_the_same(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STAND_INS + TRAIN + "def fail(step): 1 / (step - 4)\ntrain(9, fail)\n")
    ended = both("program.py", cwd=tmp_path)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


@pytest.mark.parametrize("how", ["", "error", "always"])
def test_warnings_are_the_same(how: str, tmp_path: Path) -> None:
    source = r"""
        import warnings
        exec(compile("def own():\n for _ in range(3):\n  loss.backward(); optimizer.step()\nown()", "<x>", "exec"))

        def old(step):
            try: warnings.warn("old", DeprecationWarning, stacklevel=3)
            except DeprecationWarning as error: print(error)

        train(5, old)
        print(len(globals().get("__warningregistry__", ())))
    """
    same(source, tmp_path, PYTHONWARNINGS=how)


def test_sources_that_warn_when_they_are_parsed_warn_once(tmp_path: Path) -> None:
    # Once by the compiler, and not again when tcmon reads the source.
    (tmp_path / "program.py").write_text(
        STAND_INS
        + r"""
for step in range(5):
    pattern, octal, accent, raw = "\d", "\777", "\é", r"\d"
    formatted, number, quoted = f"\d{step}\w", b"\q", "\\\d\"\'"
    loss.backward(); optimizer.step()
print(pattern, octal == chr(511), accent, raw, formatted, number, quoted)
"""
    )
    ended = both("program.py", cwd=tmp_path)
    assert ended.stderr.count("SyntaxWarning") > 4


def test_standard_input_is_the_programs(tmp_path: Path) -> None:
    source = """
        import sys
        code = compile("for line in sys.stdin:\\n loss.backward(); optimizer.step(); print(line)", "/dev/stdin", "exec")
        exec(code)
    """
    (tmp_path / "program.py").write_text(STAND_INS + textwrap.dedent(source))
    assert both("program.py", cwd=tmp_path, stdin="first\nsecond\n").stdout == "first\n\nsecond\n\n"


@pytest.mark.parametrize("flags", [("-O",), ("-X", "dev"), ("-W", "error", "-b", "-b", "-u", "-B")])
def test_options_of_python_hold(flags: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STAND_INS + TRAIN + "import sys\nprint(sys.flags, __debug__)\ntrain(9)\n")
    assert both("program.py", flags=flags, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONHASHSEED": "7"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        {"TZ": "Asia/Tokyo"},
    ],
)
def test_settings_of_python_hold(env: dict[str, str], tmp_path: Path) -> None:
    source = r"""
        import locale, sys, time
        print(hash("x"), sys.stdout.encoding, locale.getpreferredencoding(False), time.strftime("%Z"))
        train(9)
        print(ascii("\xe9"), "\xe9".encode(sys.stdout.encoding, "replace"))
    """
    same(source, tmp_path, **({"PYTHONHASHSEED": "3"} | env))
