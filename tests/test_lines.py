"""The lines of a recorded step add up to the step, and say where its time went."""

import io
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from monitored import STAND_INS, Monitored, monitored
from rich.console import Console
from trace_builder import end, function, header, loop, of_step, step, steps, write_run

from tcmon.capture.owntime import OwnTime
from tcmon.monitoring.tool import Tool, events
from tcmon.options import Options
from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.report.text import render
from tcmon.trace.details import Lines
from tcmon.trace.reader import RecordedStep, open_run
from tcmon.trace.records import Function

HEAD = STAND_INS + "import threading, time\n"


def run(program: str, folder: Path, **options: Any) -> Monitored:
    return monitored(HEAD + textwrap.dedent(program), folder, **{"interval": 1, "warmup": 0, **options})


def lines(recorded: RecordedStep) -> Lines:
    [found] = [each for each in recorded.details if isinstance(each, Lines)]
    return found


def texts(done: Monitored, folder: Path, recorded: RecordedStep) -> dict[str, tuple[int, int]]:
    """Hits and time of each line, by its text."""
    source = (folder / "program.py").read_text().splitlines()
    found = lines(recorded)
    return {
        source[line - 1].strip(): (hits, ns) for line, hits, ns in zip(found.line, found.hits, found.ns, strict=True)
    }


SHAPES = {
    "for": """
        def train():
            for batch in range(5):
                loss.backward()
                if batch % 2:
                    continue
                optimizer.step()
        train()
    """,
    "while, with a handler and finally": """
        n = 0
        while n < 6:
            n += 1
            try:
                if n % 3 == 0: raise KeyError
                loss.backward(); optimizer.step()
            except KeyError:
                pass
            finally:
                optimizer.zero_grad()
    """,
    "statements over lines and comprehensions": """
        for batch in range(4):
            values = [
                n * n
                for n in range(50)
                if n % 2
            ]
            loss.backward(
            )
            optimizer.step()
    """,
    "a generator": """
        def losses():
            for batch in range(5):
                loss.backward(); optimizer.step()
                yield batch
        for each in losses(): time.sleep(0)
    """,
    "an evaluation within, in the same frame": """
        class torch:
            class no_grad:
                def __enter__(self): pass
                def __exit__(self, *_): pass
        val_loader = range(3)
        for batch in range(4):
            loss.backward(); optimizer.step()
            with torch.no_grad():
                for held in val_loader:
                    total_loss = model(held)
    """,
    "recursion": """
        def train(depth):
            for batch in range(3):
                loss.backward(); optimizer.step()
                if depth: train(depth - 1)
        train(2)
    """,
    "threads": """
        def train():
            for batch in range(20):
                loss.backward(); optimizer.step()
                time.sleep(0.0001)
        threads = [threading.Thread(target=train) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """,
    "left by a return and by an exception": """
        def train(how):
            for batch in range(5):
                loss.backward(); optimizer.step()
                if batch == 2 and how == "return": return
                if batch == 3: raise KeyError
        train("return")
        try: train("raise")
        except KeyError: pass
    """,
}


@pytest.mark.parametrize("name", SHAPES)
def test_lines_add_up_to_the_step(name: str, tmp_path: Path) -> None:
    done = run(SHAPES[name], tmp_path)
    recorded = [*done.recorded("train").values(), *done.recorded("eval").values()]
    assert len(recorded) >= 3
    for each in recorded:
        found = lines(each)
        assert sum(found.ns) + found.own == each.step.end
        assert found.own == 0, "no other recorder has anything to do here"
        assert all(hits >= 0 for hits in found.hits)
        [watched] = [watched for watched in done.loops(each.step.role) if watched.id == each.step.loop]
        assert watched.line in found.line


def test_time_goes_to_the_line_that_spends_it(tmp_path: Path) -> None:
    done = run(
        """
        def slow(): time.sleep(0.05)
        def data():
            for n in range(3):
                time.sleep(0.03)
                yield n
        def train():
            for batch in data():
                loss.backward()
                slow()
                optimizer.step()
        train()
        """,
        tmp_path,
    )
    for each in done.recorded("train").values():
        found = texts(done, tmp_path, each)
        assert set(found) == {"for batch in data():", "loss.backward()", "slow()", "optimizer.step()"}
        assert [hits for hits, _ in found.values()] == [1, 1, 1, 1]
        assert found["slow()"][1] >= 50_000_000
        assert found["for batch in data():"][1] >= 30_000_000
        assert found["loss.backward()"][1] + found["optimizer.step()"][1] < 50_000_000


def test_an_evaluation_in_another_function_counts_for_the_line_that_calls_it(tmp_path: Path) -> None:
    done = run(
        """
        def evaluate(val_loader):
            for batch in val_loader:
                total_loss = model(batch)
                time.sleep(0.01)
        def train():
            for batch in range(3):
                loss.backward(); optimizer.step()
                evaluate([1, 2, 3])
        train()
        """,
        tmp_path,
    )
    assert len(done.recorded("eval")) == 9
    for each in done.recorded("train").values():
        assert texts(done, tmp_path, each)["evaluate([1, 2, 3])"][1] >= 30_000_000


def test_steps_that_are_no_iterations_have_no_lines(tmp_path: Path) -> None:
    done = run(
        """
        import tcmon
        for n in range(4):
            tcmon.start_step()
            loss.backward(); optimizer.step()
        """,
        tmp_path,
    )
    assert len(done.recorded("train")) == 4
    assert not any(isinstance(detail, Lines) for each in done.recorded("train").values() for detail in each.details)


def made_up(folder: Path, file: Path) -> Path:
    records = [
        header(),
        loop(1, file=str(file)),
        function(1, "main", str(file)),
        *(
            record
            for n in (1, 2)
            for record in (
                of_step("lines", n, thread=1, function=1, body=True, line=[1, 2], hits=[1, 2], ns=[250, 750]),
                step(n, 1000 * n, 1000),
            )
        ),
        steps([1000] * 4),
        end(),
    ]
    return write_run(folder, records)


def shown(run_dir: Path) -> str:
    text = io.StringIO()
    render(summarise(open_run(run_dir)), Console(width=100, file=text))
    return text.getvalue()


def test_the_report_shows_the_source_of_the_lines_unless_it_was_changed(tmp_path: Path) -> None:
    source = tmp_path / "train.py"
    source.write_text("for batch in loader:\n    step(batch)\n")
    os.utime(source, (1_700_000_000, 1_700_000_000))  # long before the run
    run_dir = made_up(tmp_path / "run", source)
    assert "750 ns  75.0 %  2     step(batch)" in shown(run_dir)
    assert as_json(summarise(open_run(run_dir)))["lines"][0] == {  # type: ignore[index, call-overload]
        "role": "train",
        "file": str(source),
        "function": "main",
        "line": 2,
        "ms": 0.00075,
        "share": 0.75,
        "hits": 2.0,
        "recorded_steps": 2,
    }
    os.utime(source, (1_900_000_000, 1_900_000_000))
    assert "step(batch)" not in shown(run_dir)
    assert "changed since the run began" in shown(run_dir)
    source.unlink()
    assert "its source is gone" in shown(run_dir)


@pytest.mark.parametrize("record", [("calls", "lines"), ("calls", "lines", "state", "loss")])
def test_what_recorders_spend_is_in_no_line_and_no_call(record: tuple[str, ...], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = monitored(
        textwrap.dedent("""
        import torch
        torch.set_num_threads(1)
        net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(60)))
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for n in range(6):
            opt.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            opt.step()
        """),
        tmp_path,
        interval=1,
        warmup=0,
        record=record,
    )
    for each in list(done.recorded("train").values())[1:]:
        found = lines(each)
        assert sum(found.ns) + found.own == each.step.end
        assert found.own > 0  # calls are asked whose forward they are
        called = sum(call.end_ns - call.start_ns for call in each.calls)
        assert called <= sum(found.ns)


def test_a_loop_found_in_the_code_of_a_recorded_step_leaves_its_lines_alone() -> None:
    def code() -> None: ...

    tracking, capturing = Tool("test"), Tool("test capture")
    try:
        capturing.watch(code.__code__, events.LINE)
        tracking.watch_instructions(code.__code__, events.INSTRUCTION | events.PY_RETURN, capturing)
        assert sys.monitoring.get_local_events(capturing.id, code.__code__) == events.LINE
        assert sys.monitoring.get_local_events(tracking.id, code.__code__) == events.INSTRUCTION | events.PY_RETURN
    finally:
        tracking.release()
        capturing.release()
    for tool in (tracking, capturing):
        sys.monitoring.use_tool_id(tool.id, "test")
        assert sys.monitoring.get_local_events(tool.id, code.__code__) == 0
        sys.monitoring.free_tool_id(tool.id)


@given(st.lists(st.integers(0, 1000)), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=20))
def test_own_time_is_taken_from_what_comes_after_it(moments: list[int], gaps: list[tuple[int, int]]) -> None:
    own, at, stretches = OwnTime(), 0, []
    for gap, length in gaps:
        stretches.append((at + gap, at + gap + length))
        own.note(*stretches[-1])
        at += gap + length
    moments.sort()
    expected = [
        moment - sum(end - begin for begin, end in stretches if begin < moment and begin >= 5) for moment in moments
    ]
    assert own.without(moments, 5) == expected


NAMED = """
import threading, time
import torch

class Model:
    def forward(self, x):
        try:
            self.part(x)
        except KeyError:
            x += 1
        return self.deep(3)

    def part(self, x):
        time.sleep(0.002)
        if x % 2:
            raise KeyError
        return x

    def deep(self, n):
        if n:
            self.deep(n - 1)
        return n

def other(): return [each for each in range(3)]

w = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
model = Model()
for step in range(4):
    model.forward(step)
    beside = threading.Thread(target=model.part, args=(0,))
    beside.start()
    beside.join()
    other()
    w.sum().backward()
    optimizer.step()
"""


def test_lines_of_named_functions_are_recorded_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    named = ("Model.forward", "Model.part", "Model.deep")
    done = monitored(NAMED, tmp_path, interval=1, record=("calls", "lines"), lines=named)
    steps = done.recorded("train")
    assert sorted(steps) == [1, 2, 3, 4]
    functions = {each.id: each for each in done.run.processes[0].read() if isinstance(each, Function)}
    for n, each in steps.items():
        found = {}
        for detail in each.details:
            if isinstance(detail, Lines) and not detail.body:
                found[functions[detail.function].qualname, detail.thread == each.step.thread] = detail
        assert set(found) == {
            ("Model.forward", True),
            ("Model.part", True),
            ("Model.part", False),
            ("Model.deep", True),
        }
        forward, part, deep = (found[name, True] for name in named)
        raised = n % 2 == 0
        assert dict(zip(part.line, part.hits, strict=True)) == {14: 1, 15: 1, (16 if raised else 17): 1}
        assert dict(zip(deep.line, deep.hits, strict=True)) == {20: 4, 21: 3, 22: 4}
        assert (10 in forward.line) == raised
        sleeping = dict(zip(part.line, part.ns, strict=True))[14]
        calling = dict(zip(forward.line, forward.ns, strict=True))[8]
        assert 2_000_000 <= sleeping <= calling <= each.step.end
        # A function's own calls hold its lines' time, and nothing else.
        [call] = [c for root in each.calls for c in root.walk() if c.function.qualname == "Model.forward"]
        assert sum(forward.ns) <= call.total_ns
    text = shown(done.run.path)
    assert "Lines of Model.forward" in text
    assert "Lines of other" not in text


def test_lines_of_functions_need_lines() -> None:
    with pytest.raises(ValueError, match="record holds 'lines'"):
        Options(record=("calls",), lines=("main",))
    with pytest.raises(TypeError, match="list of names"):
        Options(lines="main")  # type: ignore[arg-type]
