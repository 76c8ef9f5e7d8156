"""Operators of recorded steps, by torch's profiler, which is the program's whenever the program wants it."""

import io
from pathlib import Path
from typing import Any

import pytest
from monitored import Monitored, monitored
from rich.console import Console

from tcmon.report.onestep import one_step
from tcmon.report.onestep_text import render_step
from tcmon.trace.details import Ops
from tcmon.trace.reader import RecordedStep

pytest.importorskip("torch")

PROGRAM = """
import torch
torch.set_num_threads(1)
weight = torch.ones(64, 64, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-6)
model = torch.nn.Linear(64, 2)
def evaluate(loader):
    model.eval()
    with torch.no_grad():
        for batch in loader:
            model(batch).erf()
batches = [torch.ones(1, 64)] * 2
for step in range(1, 9):
    optimizer.zero_grad()
    loss = torch.sigmoid(torch.ones(8, 64) @ weight).sum()
    loss.backward()
    optimizer.step()
    BODY
"""


def ran(folder: Path, body: str = "pass", **options: Any) -> Monitored:
    return monitored(
        PROGRAM.replace("BODY", body), folder, **{"warmup": 0, "record": ("calls", "state", "ops"), **options}
    )


def ops(recorded: RecordedStep) -> list[Ops]:
    return [each for each in recorded.details if isinstance(each, Ops)]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Monitored:
    return ran(tmp_path_factory.mktemp("ops"), interval=3)


def test_recorded_steps_hold_their_operators(done: Monitored) -> None:
    steps = done.recorded("train")
    assert sorted(steps) == [3, 6]
    for recorded in steps.values():
        [found] = ops(recorded)
        assert found.name.count("aten::sigmoid") == 1
        assert found.name.count("aten::mm") == 2  # forward, and backward by the weight
        assert set(found.device) == {"cpu"}
        assert max(found.bytes) >= 8 * 64 * 4
        assert min(found.bytes) < 0


def test_operators_lie_within_their_step_and_below_the_calls_that_made_them(done: Monitored) -> None:
    for recorded in done.recorded("train").values():
        step = recorded.step
        [found] = ops(recorded)
        assert list(found.begin) == sorted(found.begin)
        for begin, ns in zip(found.begin, found.ns, strict=True):
            assert step.begin <= begin
            assert begin + ns <= step.begin + step.end + 1_000_000  # two clocks
        [backward] = [
            c for root in recorded.calls for c in root.walk() if c.function.qualname == "_engine_run_backward"
        ]
        at = found.name.index("SigmoidBackward0")
        assert backward.start_ns - 200_000 <= found.begin[at] <= backward.end_ns + 200_000


def test_what_recorders_compute_is_not_among_the_operators(done: Monitored) -> None:
    for recorded in done.recorded("train").values():
        [found] = ops(recorded)
        assert "aten::_foreach_norm" not in found.name
        assert found.name.count("aten::cat") == 0
        assert "tcmon" not in found.name


def test_the_report_of_a_step_shows_its_operators(done: Monitored) -> None:
    text = io.StringIO()
    render_step(one_step(done.run, "train", 3), Console(width=120, file=text), most=5)
    [line] = [line for line in text.getvalue().splitlines() if line.endswith("aten::mm")]
    assert line.split()[-3:] == ["2", "cpu", "aten::mm"]
    assert "[memory]" not in text.getvalue()


def test_evaluation_within_a_step_keeps_its_operators_for_itself(tmp_path: Path) -> None:
    found = ran(tmp_path, "evaluate(batches)", interval=1, eval_interval=1)
    assert len(found.recorded("eval")) == 16
    for recorded in found.recorded("eval").values():
        assert [name for each in ops(recorded) for name in each.name].count("aten::erf") == 1
    for recorded in found.recorded("train").values():
        names = [name for each in ops(recorded) for name in each.name]
        assert "aten::erf" not in names
        assert names.count("aten::sigmoid") == 1


@pytest.mark.parametrize(
    "use",
    [
        "with torch.profiler.profile() as p: torch.sin(weight)",
        "with torch.autograd.profiler.profile() as p: torch.sin(weight)",
    ],
)
def test_a_profiler_of_the_program_has_precedence(use: str, tmp_path: Path) -> None:
    body = f"{use}\n    told = {{each.key for each in p.key_averages()}}"
    found = ran(tmp_path, body, interval=1)
    assert "aten::sin" in found.names["told"]
    names = {
        n: {name for each in ops(recorded) for name in each.name} for n, recorded in found.recorded("train").items()
    }
    assert "aten::sigmoid" in names[1]
    assert "aten::sin" not in names[1]
    assert not any(names[n] for n in range(2, 9))


def test_a_scheduled_profiler_of_the_program_sees_what_it_would(tmp_path: Path) -> None:
    source = (
        PROGRAM.replace(
            "for step in",
            "told = []\n"
            """\
prof = torch.profiler.profile(
    schedule=torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda p: told.append(sum(e.count for e in p.key_averages() if e.key == "aten::sigmoid")),
)
prof.start()
for step in""",
        ).replace("BODY", "prof.step()")
        + "prof.stop()\n"
    )
    found = monitored(source, tmp_path, interval=1, warmup=0, record=("ops",))
    assert found.names["told"] == [2]
    assert {n for n, recorded in found.recorded("train").items() if ops(recorded)} == {1, 2}
