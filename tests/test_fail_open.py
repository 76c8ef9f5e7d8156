"""Whatever goes wrong in tcmon, the program goes on as if nothing had: same results, one warning, a trace to read."""

import errno
import os
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import monitored as running
import pytest
from monitored import STAND_INS, monitored
from program_runs import both, run

from tcmon.analysis.roles import RoleFinder
from tcmon.capture.calls import CallLog, CallRecorder
from tcmon.recording import Recording
from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.session import Session
from tcmon.steps import codebase, discovery, sampler, tracker
from tcmon.trace import journal, names, writer
from tcmon.trace.reader import open_run

TRAINING = (
    STAND_INS
    + """
import threading
steps, evals, done, caught = 0, 0, [], []

def noisy(n):
    if n % 3 == 0:
        raise LookupError(n)
    return n

def losses(count):
    for batch in range(count):
        yield batch

def evaluate():
    global evals
    with torch.no_grad():
        for batch in losses(3):
            evals += 1
            model(batch)

def train(epochs):
    global steps
    for epoch in range(epochs):
        for batch in losses(12):
            steps += 1
            try:
                noisy(batch)
            except LookupError as error:
                caught.append((type(error), error.args, error.__context__, error.__traceback__.tb_next.tb_lineno))
            loss.backward()
            optimizer.step()
            done.append((epoch, batch))
        evaluate()

def generated():
    for batch in range(4):
        loss.backward()
        optimizer.step()
        yield batch

class torch:
    class no_grad:
        def __enter__(self): pass
        def __exit__(self, *_): pass

train(2)
other = threading.Thread(target=train, args=(1,))
other.start()
other.join()
done.extend(generated())
"""
)
RESULTS = ("steps", "evals", "done", "caught")
ALL_STEPS = 3 * 12 + 4

# Every place of tcmon's work in a callback, by where it is looked up.
PLACES: dict[str, tuple[object, str]] = {
    f"{getattr(owner, '__name__', owner)}.{name}": (owner, name)
    for owner, names_of_it in (
        (tracker.WatchedLoop, ("back_edge", "start", "entry", "exit")),
        (tracker.Tracker, ("enter", "leave", "decide", "begin", "end_recorded", "watch", "_place", "_push", "_remove")),
        (discovery.Discovery, ("_look_at", "_watch")),
        (codebase.Codebase, ("source", "is_torch")),
        (RoleFinder, ("__init__",)),
        (CallRecorder, ("start", "pause", "finish")),
        (CallLog, ("start", "stop")),
        (names.NameTable, ("numbers", "take_new", "_add", "module_of")),
        (journal.StepJournal, ("take",)),
        (writer.TraceWriter, ("write", "_flush")),
        (Recording, ("start", "pause", "finish_recorded", "_write_with_times", "_overhead")),
        (Session, ("_loop_found", "_overhead", "_write_meta")),
        (sampler.Interval, ("reason", "next_after")),
    )
    for name in names_of_it
}
FAULTS: dict[str, Callable[[], Exception]] = {
    "a bug": lambda: AttributeError("'NoneType' object has no attribute 'x'"),
    "no memory": MemoryError,
    "a full disk": lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    "no stack": lambda: RecursionError("maximum recursion depth exceeded"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    path = tmp_path_factory.mktemp("plain") / "program.py"
    exec(compile(TRAINING, str(path), "exec"), names)
    return {name: names[name] for name in RESULTS}


def from_the_start_on(patch: pytest.MonkeyPatch, instead: Callable[[str], None]) -> None:
    """Call `instead` before each call of a place, with its name, once a session has started."""
    started = False

    def start(*args: Any, **more: Any) -> Session:
        nonlocal started
        session = Session(*args, **more)
        started = True
        return session

    patch.setattr(running, "start", start)
    for place, (owner, name) in PLACES.items():
        original = getattr(owner, name)

        def watched(*args: Any, _place: str = place, _original: Any = original, **more: Any) -> Any:
            if started:
                instead(_place)
            return _original(*args, **more)

        patch.setattr(owner, name, watched)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Counter[str]:
    """How often each place is called in an undisturbed session."""
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        from_the_start_on(patch, lambda place: counts.update([place]))
        monitored(TRAINING, tmp_path_factory.mktemp("counting"), interval=4)
    assert set(counts) == set(PLACES), "a place of tcmon's work that this program doesn't come to"
    return counts


@pytest.mark.parametrize("moment", ["first", "tenth", "last"])
@pytest.mark.parametrize("place", PLACES)
def test_a_fault_ends_monitoring_and_nothing_else(
    place: str,
    moment: str,
    calls: Counter[str],
    undisturbed: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    at = {"first": 1, "tenth": min(10, calls[place]), "last": calls[place]}[moment]
    kinds = list(FAULTS)
    fault = FAULTS[kinds[(list(PLACES).index(place) + at) % len(kinds)]]
    seen = 0

    def fail(called: str) -> None:
        nonlocal seen
        seen += called == place
        if called == place and seen == at:
            raise fault()

    from_the_start_on(monkeypatch, fail)
    done = monitored(TRAINING, tmp_path, interval=4)

    assert seen >= at
    warnings = [record.getMessage() for record in caplog.records]
    assert {name: done.names[name] for name in RESULTS} == undisturbed
    assert len(warnings) <= 1
    summary = as_json(summarise(done.run))
    assert summary["dropped"]["damaged_lines"] == 0
    numbers = sorted(done.numbers("train"))
    assert numbers == list(range(1, len(numbers) + 1)), "steps before the fault are all there"
    assert set(done.recorded("train")) <= set(numbers)
    if not warnings:
        assert len(numbers) == ALL_STEPS, "a loss without a word"


# With real limits, through the command.

PROGRAM = (
    STAND_INS
    + """
import os, resource, shutil, sys

def work(n):
    return n if n == 0 else work(n - 1)

def train(count):
    total = 0
    for step in range(count):
        total += work(9)
        loss.backward()
        optimizer.step()
        print("step", step)
    return total
"""
)


def both_ways(source: str, folder: Path, *, out: Path, lost: str | None, least: int, recorded: int = 2) -> None:
    """The program does by tcmon what it does by python, but for one warning; the trace holds its first steps."""
    script = folder / "program.py"
    script.write_text(PROGRAM + textwrap.dedent(source))
    plain = run([sys.executable, str(script)], cwd=folder, RUN=str(folder / "none"))
    options = ["--quiet", "--interval", str(recorded), "--out", str(out)]
    watched = run([sys.executable, "-m", "tcmon", "run", *options, str(script)], cwd=folder, RUN=str(out))

    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    told = [line for line in watched.stderr.splitlines() if line not in plain.stderr.splitlines()]
    assert len(told) == (lost is not None), told
    if lost is not None:
        assert told[0].startswith("tcmon: warning: ")
        assert lost in told[0]
    if least:
        summary = as_json(summarise(open_run(out)))
        assert summary["steps"]["train"]["count"] >= least
        assert summary["dropped"]["damaged_lines"] == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 220 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=220k", "tcmon-test", str(folder)], stderr=subprocess.PIPE, text=True
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    both_ways("train(1000)", tmp_path, out=small_disk / "run", lost="No space left on device", least=100)


def test_a_full_disk_that_has_room_again_at_the_end(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(30_000))
    source = """
        train(1000)
        ballast = os.environ["RUN"] + "/../ballast"
        if os.path.exists(ballast): os.unlink(ballast)
    """
    both_ways(source, tmp_path, out=small_disk / "run", lost="No space left on device", least=100)
    assert open_run(small_disk / "run").meta.ended is not None


def test_the_run_directory_is_removed(tmp_path: Path) -> None:
    source = """
        train(10)
        shutil.rmtree(os.environ["RUN"], ignore_errors=True)
        train(20)
    """
    both_ways(source, tmp_path, out=tmp_path / "run", lost="No such file or directory", least=0)


def test_the_run_directory_is_replaced_by_a_file(tmp_path: Path) -> None:
    source = """
        train(10)
        if os.path.exists(os.environ["RUN"]):
            os.rename(os.environ["RUN"], os.environ["RUN"] + ".moved")
            open(os.environ["RUN"], "x").close()
        train(20)
    """
    both_ways(source, tmp_path, out=tmp_path / "run", lost="Not a directory", least=0)
    assert as_json(summarise(open_run(tmp_path / "run.moved")))["steps"]["train"]["count"] == 30


def test_files_may_grow_no_longer(tmp_path: Path) -> None:
    source = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        train(1000)
    """
    both_ways(source, tmp_path, out=tmp_path / "run", lost="File too large", least=50)


def test_no_file_can_be_opened_any_more(tmp_path: Path) -> None:
    source = """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True: held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        print(train(100))
    """
    both_ways(source, tmp_path, out=tmp_path / "run", lost=None, least=100)


def test_no_run_starts_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "program.py").write_text("print('ran')")
    ended = run([sys.executable, "-m", "tcmon", "run", "--out", "file/run", "program.py"], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert len(ended.stderr.splitlines()) == 1


# Odd programs.

HOSTILE = """
    import types

    class Hostile:
        def __getattribute__(self, name): raise ZeroDivisionError(f"asked for {name}")
        def __len__(self): raise ZeroDivisionError("asked for the length")
        def __bool__(self): raise ZeroDivisionError("asked for the truth")
        def __eq__(self, other): raise ZeroDivisionError("compared")
        def __hash__(self): raise ZeroDivisionError("hashed")
        def __repr__(self): raise ZeroDivisionError("shown")

    class Meta(type):
        def __getattribute__(cls, name): raise ZeroDivisionError(f"class asked for {name}")
        def __instancecheck__(cls, other): raise ZeroDivisionError("class asked for instances")
        def __eq__(cls, other): raise ZeroDivisionError("class compared")
        def __hash__(cls): raise ZeroDivisionError("class hashed")

    class Strange(Exception, metaclass=Meta):
        def __str__(self): raise ZeroDivisionError("error shown")
        def __repr__(self): raise ZeroDivisionError("error shown")

    class LazyModule(types.ModuleType):
        def __getattribute__(self, name): raise ZeroDivisionError(f"module asked for {name}")
        @property
        def __dict__(self): raise ZeroDivisionError("module asked for its dictionary")
        @property
        def __class__(self): raise ZeroDivisionError("module asked for its class")

    class Text(str):
        def __eq__(self, other): raise ZeroDivisionError("text compared")
        def __hash__(self): return 1
        def __str__(self): raise ZeroDivisionError("text shown")
        def __format__(self, how): raise ZeroDivisionError("text shown")

    sys.modules["hostile"] = Hostile()
    sys.modules["lazy"] = LazyModule("lazy")
    sys.modules["none"] = None
    sys.modules[5] = types.ModuleType("five")
    sys.modules["strange"] = types.ModuleType("strange")
    sys.modules["strange"].__file__ = Hostile()
    sys.modules["torch"] = TORCH
"""


@pytest.mark.parametrize("torch", ["Hostile()", "LazyModule('torch')", "types.ModuleType('torch')", "None"])
def test_objects_that_must_not_be_touched(torch: str, tmp_path: Path) -> None:
    source = (
        HOSTILE.replace("TORCH", torch)
        + """
    def hostile_step(model, batch, text):
        try:
            raise Strange(model)
        except (Strange, ZeroDivisionError):
            loss.backward()
            optimizer.step()

    def train(count):
        for step in range(count):
            hostile_step(Hostile(), Hostile(), Text("x"))
            print("step", step)
    train(30)
    """
    )
    both_ways(source, tmp_path, out=tmp_path / "run", lost=None, least=30)


CODE = {
    "without a file": "compile(source, '', 'exec')",
    "from a name with lone surrogates": "compile(source, b'/tmp/caf\\xe9.py', 'exec')",
    "from a name with a null": "compile(source, 'x', 'exec').replace(co_filename='nul\\0nul')",
    "from a Windows path": "compile(source, 'C:\\\\train\\\\main.py', 'exec')",
    "from standard input": "compile(source, '/dev/stdin', 'exec')",
    "from a file without an end": "compile(source, '/dev/zero', 'exec')",
    "from a directory": "compile(source, '/', 'exec')",
    "from a file of something else": "compile(source, sys.executable, 'exec')",
    "from a very long name": "compile(source, 'x' * 100_000, 'exec')",
    "from a line far down": "compile('\\n' * 200_000 + source, '<generated>', 'exec')",
    "with a strange name": "compile(source, '<s>', 'exec').replace(co_name='\\ud800', co_qualname='\\n\\0' * 9)",
}


@pytest.mark.parametrize("code", CODE)
def test_code_from_anywhere(code: str, tmp_path: Path) -> None:
    source = f"""
    source = 'for step in range(30):\\n  print(step); work(3)\\n  loss.backward(); optimizer.step()\\n'
    exec({CODE[code]})
    print(sys.stdin.read())
    """.replace("\\\\n", "\\n")
    both_ways(source, tmp_path, out=tmp_path / "run", lost=None, least=30)
    [process] = open_run(tmp_path / "run").processes
    [training] = [step for step in process.recorded_steps() if step.step.n == 2 and step.step.role == "train"]
    assert {call.function.qualname for call in training.calls if call.function} >= {"work", "Loss.backward"}


def test_a_function_of_fifty_thousand_instructions(tmp_path: Path) -> None:
    source = "def long():\n  for step in range(5):\n" + "    a = step + 1\n" * 12_500
    source += "    loss.backward()\n    optimizer.step()\nlong()\n"
    both_ways(source, tmp_path, out=tmp_path / "run", lost="too long", least=0)


def test_logging_that_the_program_has_broken_or_switched_off(small_disk: Path, tmp_path: Path) -> None:
    source = """
        import logging, logging.config
        logging.config.dictConfig({"version": 1})
        logging.disable(logging.CRITICAL)
        logging.setLogRecordFactory(None)
        train(1000)
    """
    both_ways(source, tmp_path, out=small_disk / "run", lost="No space left on device", least=100)


def test_standard_error_is_closed(small_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM + "sys.stderr.close()\ntrain(1000)\n")
    plain = run([sys.executable, "program.py"], cwd=tmp_path)
    out = str(small_disk / "run")
    watched = run([sys.executable, "-m", "tcmon", "run", "--interval", "2", "--out", out, "program.py"], cwd=tmp_path)
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    # As libraries do that freeze time for tests: they replace it wherever a module has it.
    source = """
        import itertools, time
        real, backwards = time.perf_counter_ns, itertools.count(10**6, -1000)
        for module in list(sys.modules.values()):
            if getattr(module, "perf_counter_ns", None) is real:
                module.perf_counter_ns = lambda: next(backwards)
        train(100)
    """
    both_ways(source, tmp_path, out=tmp_path / "run", lost=None, least=100)
    assert len(list(open_run(tmp_path / "run").processes[0].recorded_steps())) == 51


def test_recursion_to_the_limit(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        PROGRAM
        + textwrap.dedent("""
            def deep(n):
                def never_seen_before():
                    for batch in range(2):
                        loss.backward()
                        optimizer.step()
                never_seen_before()
                return deep(n + 1)

            for step in range(3):
                try: deep(0)
                except RecursionError as error: print(type(error), error)
            train(20)
        """)
    )
    both("program.py", cwd=tmp_path)
