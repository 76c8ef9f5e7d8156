"""`tcmon.attach()`: a process that watches itself, from any moment on, and is as it was afterwards."""

import json
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from monitored import STAND_INS

import tcmon
from tcmon.attached import Attached
from tcmon.errors import TcmonError
from tcmon.trace.reader import open_run

LOOP = (
    STAND_INS
    + """
def train(count, at, act):
    for batch in range(count):
        if batch == at:
            act()
        loss.backward()
        optimizer.step()
"""
)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = [sys.monitoring.get_tool(i) for i in range(6)]
    threads = threading.active_count()
    yield
    assert [sys.monitoring.get_tool(i) for i in range(6)] == before
    assert threading.active_count() == threads


def program(source: str = LOOP) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__", "__file__": "program.py"}
    exec(compile(source, "/somewhere/program.py", "exec"), names)
    return names


def in_thread(function: Callable[..., Any], *args: Any) -> None:
    """In a thread of its own, so that no loop of the test runner is among the callers."""
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def counted(run: Attached) -> int:
    return len(run.steps["train"].n) if "train" in run.steps else 0


def test_it_watches_what_runs_between_attach_and_detach(run_dir: Path) -> None:
    names = program()
    in_thread(names["train"], 3, -1, None)
    run = tcmon.attach(interval=2, warmup=0, out=run_dir)
    in_thread(names["train"], 7, -1, None)
    summary = run.detach()
    in_thread(names["train"], 3, -1, None)

    assert summary.data["steps"]["train"]["count"] == 7
    assert summary.data["steps"]["train"]["sampled"] == 3
    assert run.steps["train"].n.tolist() == list(range(1, 8))
    assert [loop["qualname"] for loop in run.loops] == ["train"]
    assert not run.attached
    assert run.detach() is summary


def test_a_loop_that_runs_already_counts_from_its_next_iteration_on(run_dir: Path) -> None:
    names, runs = program(), []
    in_thread(names["train"], 10, 4, lambda: runs.append(tcmon.attach(interval=1, warmup=0, out=run_dir)))
    runs[0].detach()

    assert runs[0].steps["train"].n.tolist() == [1, 2, 3, 4, 5]
    [process] = open_run(run_dir).processes
    recorded = {each.step.n: each for each in process.recorded_steps()}
    assert sorted(recorded) == [1, 2, 3, 4, 5]
    assert [call.function.qualname for call in recorded[1].calls if call.function] == [
        "Loss.backward",
        "Optimizer.step",
    ]


def test_a_loop_at_the_top_of_a_running_script_is_found(run_dir: Path) -> None:
    source = LOOP + textwrap.dedent("""
        for batch in range(9):
            if batch == 2:
                start()
            loss.backward()
            optimizer.step()
        """)
    runs: list[Attached] = []
    names: dict[str, Any] = {"__name__": "x", "start": lambda: runs.append(tcmon.attach(out=run_dir))}
    in_thread(exec, compile(source, "/somewhere/program.py", "exec"), names)
    runs[0].detach()
    assert counted(runs[0]) == 6


def test_a_loop_of_another_thread_is_found(run_dir: Path) -> None:
    names = program()
    reached, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=names["train"], args=(8, 3, wait))
    thread.start()
    assert reached.wait(60)
    with tcmon.attach(out=run_dir) as run:
        go_on.set()
        thread.join()
    assert counted(run) == 4


def test_real_optimizers_tell_of_a_running_loop_that_names_do_not(run_dir: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    runs: list[Attached] = []

    def go() -> None:
        for i in range(9):
            if i == 3:
                runs.append(tcmon.attach(out=run_dir, interval=1, warmup=0))
            getattr(model(torch.ones(1, 2)).sum(), "back" + "ward")()
            getattr(sgd, "st" + "ep")()

    in_thread(go)
    runs[0].detach()
    [loop] = [loop for loop in runs[0].loops if loop["role"] == "train"]
    assert (loop["qualname"].rpartition(".")[2], loop["found"]) == ("go", "dynamic")
    # The iteration that was under way when it was attached is counted: the optimizer was seen to step in it.
    assert counted(runs[0]) == 6


def test_attaching_twice_says_where_the_first_was(run_dir: Path, tmp_path: Path) -> None:
    said = r"watched already, since .*test_attach\.py:\d+; detach\(\)"
    with tcmon.attach(out=run_dir), pytest.raises(TcmonError, match=said):
        tcmon.attach(out=tmp_path / "second")
    assert not (tmp_path / "second").exists()
    tcmon.attach(out=tmp_path / "third").detach()


def test_without_a_free_tool_id_nothing_is_made(run_dir: Path) -> None:
    taken = [tool for tool in range(6) if sys.monitoring.get_tool(tool) is None][:-1]
    for tool in taken:
        sys.monitoring.use_tool_id(tool, "somebody else")
    try:
        with pytest.raises(TcmonError, match=r"all sys\.monitoring tool ids are taken .*somebody else"):
            tcmon.attach(out=run_dir)
    finally:
        for tool in taken:
            sys.monitoring.free_tool_id(tool)
    assert not run_dir.exists()
    tcmon.attach(out=run_dir).detach()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"interval": 0}, ValueError, "interval must be at least 1, not 0"),
        ({"warmup": 1.5}, TypeError, "warmup must be a whole number, not 1.5"),
        ({"record": "calls,dreams"}, ValueError, "record can't hold 'dreams'"),
        ({"record": 3}, TypeError, "record must be a list of names, not 3"),
        ({"out": 3}, TypeError, "out must be a path, not 3"),
        ({"sampler": 3}, TypeError, "sampler must be an object with the methods"),
        ({"sampler": tcmon.samplers.Always}, TypeError, "sampler must be an object with the methods"),
        ({"include": 3}, TypeError, "include must be a list of patterns of modules' names, not 3"),
        ({"exclude": ["torch", 3]}, TypeError, "exclude must be a list of patterns of modules' names, not"),
        ({"exclude": "torch,"}, ValueError, "exclude must be a list of patterns"),
        ({"speed": 3}, TypeError, r"attach\(\) has no option 'speed'"),
    ],
)
def test_bad_options_are_named_before_anything_is_done(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        tcmon.attach(**options)
    assert list(tmp_path.iterdir()) == []


def test_recording_is_paused_and_resumed(run_dir: Path) -> None:
    names = program()
    run = tcmon.attach(interval=1, warmup=0, out=run_dir)
    in_thread(names["train"], 2, -1, None)
    run.pause()
    in_thread(names["train"], 3, -1, None)
    run.resume()
    in_thread(names["train"], 1, -1, None)
    run.detach()
    recorded = [each.step.n for each in open_run(run_dir).processes[0].recorded_steps()]
    assert recorded == [1, 2, 6]
    assert counted(run) == 6


def test_the_next_steps_are_recorded_when_asked_for(run_dir: Path) -> None:
    names = program()
    with tcmon.attach(sampler=tcmon.samplers.Never(), out=run_dir) as run:
        in_thread(names["train"], 9, 4, lambda: run.record_next(2))
        for bad, error in ((0, ValueError), ("2", TypeError)):
            with pytest.raises(error, match="count must be"):
                run.record_next(bad)  # type: ignore[arg-type]
    recorded = {each.step.n: each.step.reason for each in open_run(run_dir).processes[0].recorded_steps()}
    assert recorded == {6: "request", 7: "request"}


def test_a_sampler_that_fails_is_switched_off_with_one_warning(run_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def reason(self, n: int) -> str | None:
            if n == 4:
                raise LookupError
            return "mine"

        def next_after(self, n: int) -> int:
            return n + 1

    names = program()
    with caplog.at_level("WARNING", "tcmon"), tcmon.attach(sampler=Failing(), interval=2, warmup=0, out=run_dir) as run:
        in_thread(names["train"], 9, -1, None)
    assert len([record for record in caplog.records if "sampler failed" in record.getMessage()]) == 1
    assert counted(run) == 9
    recorded = {each.step.n: each.step.reason for each in open_run(run_dir).processes[0].recorded_steps()}
    assert recorded == {1: "mine", 2: "mine", 3: "mine", 4: "interval", 6: "interval", 8: "interval"}


class Mine:
    """A sampler of the user's, that also looks at steps and at what recording costs."""

    def __init__(self, fails: str) -> None:
        self.fails = fails

    def reason(self, n: int) -> str | None:
        return "mine" if n == 3 else None

    def next_after(self, n: int) -> int:
        return n + 1

    def watch(self, n: int, took_ns: int, wait_ns: int, recorded: bool) -> bool:
        if self.fails == "watch" and n == 5:
            raise LookupError
        return False

    def observe(self, n: int, took_ns: int, spent_ns: int, counting_ns: int, others_ns: list[int]) -> None:
        if self.fails == "observe":
            raise LookupError


@pytest.mark.parametrize(("fails", "after"), [("watch", [6, 8]), ("observe", [4, 6, 8])])
@pytest.mark.parametrize("combined", [False, True])
def test_a_sampler_that_fails_to_look_is_switched_off_too(
    fails: str, after: list[int], combined: bool, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sampler = Mine(fails) | tcmon.samplers.Never() if combined else Mine(fails)
    names = program()
    with caplog.at_level("WARNING", "tcmon"), tcmon.attach(sampler=sampler, interval=2, warmup=0, out=run_dir) as run:
        in_thread(names["train"], 9, -1, None)
    assert [f"{fails}(" in each.getMessage() for each in caplog.records] == [True]
    assert counted(run) == 9
    recorded = {each.step.n: each.step.reason for each in open_run(run_dir).processes[0].recorded_steps()}
    assert recorded == {3: "mine", **dict.fromkeys(after, "interval")}


class Heard(Exception):
    """Raised by the program's handler."""


@pytest.mark.parametrize("method", ["reason", "next_after", "watch", "observe"])
def test_what_a_handler_raises_within_a_sampler_reaches_the_program(
    method: str, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(number: int, frame: object) -> None:
        raise Heard

    sampler, sent = Mine("-"), []
    before = signal.signal(signal.SIGUSR2, handler)

    def interrupted(n: int, *rest: object) -> object:
        if (method == "observe" or n >= 3) and not sent:
            sent.append(n)
            os.kill(os.getpid(), signal.SIGUSR2)
            for _ in range(1000):  # a handler runs at one of these at the latest
                pass
        return original(n, *rest)

    original = getattr(sampler, method)
    setattr(sampler, method, interrupted)
    names = program()
    try:
        attached = tcmon.attach(sampler=sampler, out=run_dir)
        with caplog.at_level("WARNING", "tcmon"), attached, pytest.raises(Heard):
            names["train"](9, -1, None)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert sent
    assert not [each for each in caplog.records if "sampler failed" in each.getMessage()]


def test_a_budget_goes_on_after_a_pause(run_dir: Path) -> None:
    names = program()
    with tcmon.attach(sampler=tcmon.samplers.Budget(1), out=run_dir) as run:
        run.pause()
        in_thread(names["train"], 10, -1, None)
        run.resume()
        in_thread(names["train"], 10, -1, None)
    assert [each.step.n for each in open_run(run_dir).processes[0].recorded_steps()][:1] == [11]


def test_outside_the_main_thread_it_says_that_signals_are_not_heard(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = signal.getsignal(signal.SIGUSR1)

    def watched() -> None:
        tcmon.attach(sampler=tcmon.samplers.OnSignal(), out=run_dir).detach()

    with caplog.at_level("WARNING", "tcmon"):
        in_thread(watched)
    assert [each.getMessage() for each in caplog.records] == ["can't record on SIGUSR1: this is not the main thread"]
    assert signal.getsignal(signal.SIGUSR1) is before


def test_no_event_is_left_on(run_dir: Path) -> None:
    names = program()
    run = tcmon.attach(interval=1, warmup=0, out=run_dir)
    in_thread(names["train"], 3, -1, None)
    run.detach()
    for tool in range(6):
        if sys.monitoring.get_tool(tool) is None:
            sys.monitoring.use_tool_id(tool, "test")
            try:
                assert sys.monitoring.get_events(tool) == 0
                assert sys.monitoring.get_local_events(tool, names["train"].__code__) == 0
            finally:
                sys.monitoring.free_tool_id(tool)


def test_the_summary_is_text_json_and_html(run_dir: Path) -> None:
    names = program()
    with tcmon.attach(out=run_dir) as run:
        in_thread(names["train"], 30, -1, None)
        assert run.summary().data["steps"]["train"]["count"] == 30, "also while it runs"
    summary = run.summary()
    assert "30 steps, 3 recorded" in str(summary)
    assert "\x1b" not in str(summary)
    assert json.dumps(summary.data)
    assert "30 steps, 3 recorded" in summary._repr_html_()
    assert summary._repr_html_().startswith("<pre")


def test_under_tcmon_run_it_says_that_the_process_is_watched(run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tcmon\ntry: tcmon.attach()\nexcept Exception as error: print(error)\n")
    done = run_tcmon(["run", "--quiet", "train.py"], tmp_path)
    assert "watched already, since tcmon run" in done.stdout


def test_a_script_that_attaches_and_ends_leaves_a_whole_trace(run_python: Run, tmp_path: Path) -> None:
    source = LOOP + "import tcmon\nrun = tcmon.attach(out='run')\ntrain(5, -1, None)\n"
    (tmp_path / "train.py").write_text(source)
    done = run_python(["train.py"], tmp_path)
    assert (done.stdout, done.stderr) == ("", "")
    run = open_run(tmp_path / "run")
    assert run.meta.ended is not None
    assert run.meta.script.endswith("train.py")


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        (["--steps", "2,4:5"], {2: "window", 4: "window", 5: "window"}),
        (["--every", "3600"], {1: "every"}),
        (["--ratio", "1"], dict.fromkeys(range(1, 8), "ratio")),
        (["--steps", "3", "--every", "3600"], {1: "every", 3: "window"}),
    ],
)
def test_samplers_of_the_command_line(
    options: list[str], reasons: dict[int, str], run_tcmon: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LOOP + "train(7, -1, None)\n")
    run_tcmon(["run", "--quiet", "--out", "run", *options, "train.py"], tmp_path)
    recorded = open_run(tmp_path / "run").processes[0].recorded_steps()
    assert {each.step.n: each.step.reason for each in recorded} == reasons


def test_a_budget_says_what_it_spent(run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP + "train(500, -1, None)\n")
    done = run_tcmon(["run", "--out", "run", "--budget", "5%", "train.py"], tmp_path)
    assert "budget 5.0 %, spent " in " ".join(done.stderr.split())
    budget = json.loads(run_tcmon(["report", "run", "--json"], tmp_path).stdout)["overhead"]["budget"]
    assert budget["target"] == 0.05
    assert 0 < budget["achieved"] < 1
    recorded = {each.step.n: each.step.reason for each in open_run(tmp_path / "run").processes[0].recorded_steps()}
    assert min(recorded) == 3
    assert set(recorded.values()) == {"budget"}
    assert len(recorded) < 50


def test_steps_after_a_slow_one_are_recorded(run_dir: Path) -> None:
    source = LOOP.replace("loss.backward()", "time.sleep(0.03 if batch in (15, 30) else 0.001); loss.backward()", 1)
    names = program("import time\n" + source)
    with tcmon.attach(sampler=tcmon.samplers.Slow(factor=6, steps=2) | tcmon.samplers.Steps("3"), out=run_dir):
        in_thread(names["train"], 40, -1, None)
    recorded = {each.step.n: each.step.reason for each in open_run(run_dir).processes[0].recorded_steps()}
    # Step 16 is the slow one. A busy machine may make others slow.
    assert recorded[3] == "window"
    assert {17, 18, 32, 33} <= {n for n, reason in recorded.items() if reason == "slow"}
    assert len(recorded) < 30


SIGNALLED = (
    LOOP
    + """
import os, signal, sys
heard = []
signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
import tcmon
run = tcmon.attach(sampler=tcmon.samplers.OnSignal(steps=2), out="run")
train(30, 9, lambda: os.kill(os.getpid(), signal.SIGUSR1))
run.detach()
os.kill(os.getpid(), signal.SIGUSR1)
print(heard == [signal.SIGUSR1] * 2, signal.getsignal(signal.SIGUSR1).__name__)
"""
)


def test_a_signal_asks_for_the_next_steps_and_still_reaches_the_program(run_python: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SIGNALLED)
    assert run_python(["train.py"], tmp_path).stdout == "True <lambda>\n"
    recorded = {each.step.n: each.step.reason for each in open_run(tmp_path / "run").processes[0].recorded_steps()}
    assert recorded == {11: "signal", 12: "signal"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [("Slow", {"factor": 1}), ("Slow", {"steps": 0}), ("OnSignal", {"number": 999}), ("OnSignal", {"steps": 0})],
)
def test_senseless_triggers_are_refused(kind: str, values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        getattr(tcmon.samplers, kind)(**values)
