"""What happens in the program has the next steps recorded: losses, calls, waits, requests from another process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from monitored import STAND_INS
from program_runs import environment

import tcmon
from tcmon.trace.journal import is_request_open
from tcmon.trace.reader import open_run
from tcmon.trace.records import Note

type Run = Callable[..., "subprocess.CompletedProcess[str]"]

TRAINS = """
import sys, time
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
def checkpoint(): pass
class Trainer:
    def save(self): pass
def train(count, at, what):
    model.reset_parameters()
    for n in range(1, count + 1):
        loss = model(torch.ones(4, 2)).sum() * 0 + 1 + 0.01 * (n % 3)
        if n == at: loss = what(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if n == at: checkpoint(); Trainer().save()
"""


@pytest.fixture(scope="module")
def program() -> dict[str, object]:
    names: dict[str, object] = {"__name__": "program"}
    exec(compile(TRAINS, "program.py", "exec"), names)
    return names


def reasons(run_dir: Path) -> dict[int, str]:
    [process] = open_run(run_dir).processes
    return {each.step.n: each.step.reason for each in process.recorded_steps() if each.step.role == "train"}


def happened(run_dir: Path) -> list[str]:
    [process] = open_run(run_dir).processes
    return [record.text for record in process.read() if isinstance(record, Note)]


def times_nan(loss: object) -> object:
    return loss * float("nan")  # type: ignore[operator]


def times_thousand(loss: object) -> object:
    return loss * 1000  # type: ignore[operator]


@pytest.mark.parametrize(
    ("trigger", "what", "word"),
    [
        (lambda names: tcmon.samplers.NonFinite(2), times_nan, "nonfinite"),
        (lambda names: tcmon.samplers.LossSpike(steps=2), times_thousand, "loss-spike"),
        (lambda names: tcmon.samplers.OnCall(names["checkpoint"], 2), None, "call"),
        (lambda names: tcmon.samplers.OnCall("checkpoint", 2), None, "call"),
        (lambda names: tcmon.samplers.OnCall("Trainer.save", 2), None, "call"),
        (lambda names: tcmon.samplers.OnCall(names["Trainer"].save, 2), None, "call"),
    ],
    ids=["nonfinite", "spike", "function", "function's name", "method's name", "method"],
)
@pytest.mark.parametrize("record", [(), ("state", "loss")])
def test_a_trigger_has_the_next_steps_recorded_beside_the_interval(
    trigger: Callable[[dict[str, object]], object],
    what: Callable[[object], object] | None,
    word: str,
    record: tuple[str, ...],
    program: dict[str, object],
    tmp_path: Path,
) -> None:
    options = {"interval": 20, "warmup": 0, "trigger": trigger(program), "record": record}
    with tcmon.attach(**options, out=tmp_path / "run"):
        program["train"](45, 30, what or (lambda loss: loss))  # type: ignore[operator]
    assert reasons(tmp_path / "run") == {20: "interval", 31: word, 32: word, 40: "interval"}


def test_parameters_that_become_nonfinite_are_noticed_in_a_recorded_step(
    program: dict[str, object], tmp_path: Path
) -> None:
    def poisons(loss: object) -> object:
        program["model"].weight.data[0, 0] = float("nan")  # type: ignore[attr-defined]
        return loss

    with tcmon.attach(interval=10, warmup=0, trigger=[tcmon.samplers.NonFinite(2)], out=tmp_path / "run"):
        program["train"](12, 10, poisons)  # type: ignore[operator]
    assert reasons(tmp_path / "run") == {10: "interval", 11: "nonfinite", 12: "nonfinite"}


BY_HAND = TRAINS.replace(
    "loss.backward()",
    "model.weight.grad, = torch.autograd.grad(loss, [model.weight]); REPORT",
)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True")  # it is the program's float()
@pytest.mark.parametrize("report", ["loss.item()", "float(loss)", "print_(loss.item())"])
def test_a_loss_of_which_the_program_makes_a_number_is_heard_without_a_backward_pass(
    report: str, tmp_path: Path
) -> None:
    names: dict[str, object] = {"__name__": "program", "print_": lambda value: None}
    exec(compile(BY_HAND.replace("REPORT", report), "by_hand.py", "exec"), names)
    with tcmon.attach(interval=1000, warmup=0, trigger=tcmon.samplers.NonFinite(), record=(), out=tmp_path / "run"):
        names["train"](20, 10, times_nan)  # type: ignore[operator]
    assert reasons(tmp_path / "run") == {11: "nonfinite"}


LOOP = (
    STAND_INS
    + """
import time, sys
def batches():
    for n in range(1, 41):
        if n == 30: time.sleep(0.5)
        yield n
def save(): pass
def train():
    for n in batches():
        time.sleep(0.01)
        if n == 20: save()
        loss.backward()
        optimizer.step()
train()
"""
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--trigger", "stall=10:2"], {31: "stall", 32: "stall"}),
        (["--trigger", "call=save:3"], {21: "call", 22: "call", 23: "call"}),
        (["--trigger", "slow=10", "--trigger", "call=save"], {21: "call", 31: "slow"}),
        (["--steps", "5", "--trigger", "call=save"], {5: "window", 21: "call"}),
    ],
)
def test_triggers_of_the_command_line(
    options: list[str], expected: dict[int, str], run_tcmon: Run, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    interval = ["--interval", "1000", "--warmup", "0"]
    run_tcmon(["run", "--quiet", "--out", "run", *interval, *options, "train.py"], tmp_path)
    # A busy machine may make other steps slow or wait.
    assert expected.items() <= reasons(tmp_path / "run").items()
    assert len(reasons(tmp_path / "run")) < 20
    recorded = json.loads((tmp_path / "run" / "run.json").read_bytes())["options"]["trigger"]
    assert recorded.startswith(("Stall(", "OnCall(save", "Slow(factor=10.0, steps=1), OnCall(save"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "quick",
        "slow=",
        "slow=x",
        "slow=1",
        "slow=3:0",
        "nonfinite=2",
        "signal=NONE",
        "signal=KILL",
        "call",
        "call=",
    ],
)
def test_a_trigger_that_is_none_is_refused(text: str, run_tcmon: Run, tmp_path: Path) -> None:
    done = run_tcmon(["run", "--out", "run", "--trigger", text, "train.py"], tmp_path, exit_code=2)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--trigger" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [3, "slow", tcmon.samplers.Slow, [tcmon.samplers.Slow], [None]], ids=str)
def test_a_trigger_that_is_no_sampler_is_refused(wrong: object, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="trigger must be a sampler"):
        tcmon.attach(trigger=wrong, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_with_a_flight_recorder_the_steps_before_and_after_are_written(run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    run_tcmon(["run", "--quiet", "--out", "run", "--flight", "3", "--trigger", "call=save:2", "train.py"], tmp_path)
    assert reasons(tmp_path / "run") == {18: "always", 19: "always", 20: "always", 21: "call", 22: "call"}
    assert ["because of a call of save()" in each for each in happened(tmp_path / "run")] == [True]


ENDLESS = (
    STAND_INS
    + """
import sys, time
def train():
    n = 0
    while True:
        n += 1
        time.sleep(float(sys.argv[1]))
        loss.backward()
        optimizer.step()
        if n == 3: print("there", flush=True)
train()
"""
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts a run that goes on until the end of the test; its process number."""
    processes = []

    def start(pause: str, *options: str) -> int:
        (tmp_path / "train.py").write_text(ENDLESS)
        options = ("--quiet", "--interval", "1000000", "--warmup", "0", *options)
        command = [sys.executable, "-m", "tcmon", "run", "--out", "run", *options, "train.py", pause]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        return process.pid

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("by", ["pid", "run"])
@pytest.mark.parametrize("options", [(), ("--flight", "2")], ids=["plain", "flight"])
def test_another_terminal_asks_for_the_next_steps(
    by: str, options: tuple[str, ...], running: Callable[..., int], run_tcmon: Run, tmp_path: Path
) -> None:
    pid = running("0.01", *options)
    done = run_tcmon(["record", str(pid) if by == "pid" else "run", "--steps", "5"], tmp_path)
    assert f"process {pid} records its next 5 steps in " in done.stdout

    def asked() -> list[int]:
        return [n for n, reason in reasons(tmp_path / "run").items() if reason == "request"]

    assert within(30, lambda: len(asked()) == 5)
    numbers = asked()
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    assert bool(options) == any("because of a request" in each for each in happened(tmp_path / "run"))


def test_a_request_waits_for_the_end_of_a_long_step(
    running: Callable[..., int], run_tcmon: Run, tmp_path: Path
) -> None:
    pid = running("2")
    done = run_tcmon(["record", str(pid), "--wait", "0"], tmp_path)
    assert f"process {pid} has not ended a step for 0 s; it will record its next step when it has" in done.stdout
    [journal] = (tmp_path / "run").glob("*.journal")
    assert within(30, lambda: not is_request_open(journal))
    assert within(30, lambda: list(reasons(tmp_path / "run").values()) == ["request"])


def no_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("kind", ["gone", "unwatched", "ended", "none", "foreign"])
def test_what_can_not_be_asked_is_said_in_one_line(kind: str, run_tcmon: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    asked, text = {
        "gone": (str(no_process()), "there is no process"),
        "unwatched": (str(os.getpid()), "is not watched by tcmon"),
        "ended": ("run", "is a run of which no process runs here"),
        "none": ("nothing", "holds no run"),
        "foreign": ("1", "process 1"),
    }[kind]
    if kind == "ended":
        (tmp_path / "train.py").write_text(STAND_INS)
        (tmp_path / "run").rmdir()
        run_tcmon(["run", "--quiet", "--out", "run", "train.py"], tmp_path)
    done = run_tcmon(["record", asked], tmp_path, exit_code=2)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert text in done.stderr
