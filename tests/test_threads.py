"""Which threads' calls a recorded step holds: those of the loop's thread, or of all."""

from collections import Counter
from pathlib import Path

import pytest
from monitored import STAND_INS, monitored

import tcmon
from tcmon.trace.calltree import Call

TWO_LOOPS = (
    STAND_INS
    + """
import sys, threading
sys.setswitchinterval(1e-5)

def first(n):
    return n if n == 0 else first(n - 1)

def second(n):
    return n if n == 0 else second(n - 1)

def loop(function, together):
    together.wait()
    for batch in range(40):
        function(20)
        loss.backward()
        optimizer.step()

first(1), second(1), loss.backward(), optimizer.step()  # met before two threads run them
together = threading.Barrier(2)
threads = [threading.Thread(target=loop, args=(each, together)) for each in (first, second)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
)
BESIDE = (
    STAND_INS
    + """
import threading
asked, answered = threading.Event(), threading.Event()

def beside():
    while asked.wait():
        asked.clear()
        helps()
        answered.set()

def helps():
    pass

def own():
    pass

threading.Thread(target=beside, daemon=True).start()
for batch in range(4):
    own()
    asked.set()
    answered.wait()
    answered.clear()
    loss.backward()
    optimizer.step()
"""
)


def names(calls: tuple[Call, ...]) -> list[str]:
    found: list[str] = []
    for call in calls:
        if call.function is not None and call.function.file.endswith("program.py"):
            found.append(call.function.qualname)
        found += names(call.children)
    return found


@pytest.mark.parametrize("record", [("calls",), ("calls", "args")])
def test_each_of_two_threads_that_record_at_once_has_its_own_calls(record: tuple[str, ...], tmp_path: Path) -> None:
    found = monitored(TWO_LOOPS, tmp_path, interval=1, warmup=0, record=record)
    steps = found.recorded("train")
    assert sorted(steps) == list(range(1, 81))
    by_thread: dict[int, Counter[str]] = {}
    for each in steps.values():
        called = Counter(names(each.calls))
        # CPython may stop telling of a function that two threads meet at once, but it tells of nothing twice.
        of_thread = by_thread.setdefault(each.step.thread, Counter())
        of_thread |= called
        assert all(count in (0, 1, 21) for count in called.values())
    assert len(by_thread) == 2
    assert not {"first", "second"} & set.intersection(*map(set, by_thread.values()))
    whole = {"Loss.backward": 1, "Optimizer.step": 1}
    assert any(dict(each) in ({"first": 21, **whole}, {"second": 21, **whole}) for each in by_thread.values())


@pytest.mark.parametrize(
    ("threads", "expected"),
    [
        ("loop", {"own", "Loss.backward", "Optimizer.step"}),
        ("all", {"own", "helps", "Loss.backward", "Optimizer.step"}),
    ],
)
def test_calls_of_other_threads_are_recorded_when_asked_for(threads: str, expected: set[str], tmp_path: Path) -> None:
    found = monitored(BESIDE, tmp_path, interval=1, warmup=0, threads=threads)
    for each in found.recorded("train").values():
        assert set(names(each.calls)) == expected


def test_hooks_that_run_within_backward_are_calls_of_the_step(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = """
import torch
model = torch.nn.Linear(4, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)

def hook(gradient):
    return gradient

model.weight.register_hook(hook)
for batch in torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2):
    sgd.zero_grad()
    model(batch).sum().backward()
    sgd.step()
"""
    found = monitored(source, tmp_path, interval=1, warmup=0, record=("calls",))
    assert found.numbers("train") == [1, 2, 3, 4]
    for each in found.recorded("train").values():
        assert "hook" in names(each.calls)


@pytest.mark.parametrize(("value", "error"), [("some", ValueError), (2, TypeError)])
def test_a_bad_choice_is_named(value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="threads must be 'loop' or 'all', not "):
        tcmon.attach(threads=value)
