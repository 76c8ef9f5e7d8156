"""Which modules' calls are recorded: `include=` and `exclude=`."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from tcmon.capture.modulefilter import ModuleFilter
from tcmon.trace.reader import open_run

PACKAGE = {
    "train.py": """
import layers.attention, layers.mlp, losses

class Optimizer:
    def step(self): pass

class Loss:
    def backward(self): pass

def numbers():
    yield 1
    yield 2

def caught():
    try:
        losses.fails(numbers())
    except ValueError:
        pass

optimizer, loss = Optimizer(), Loss()
for batch in range(6):
    layers.attention.forward(layers.mlp.forward)
    caught()
    loss.backward()
    optimizer.step()
""",
    "layers/__init__.py": "",
    "layers/attention.py": "def forward(inner):\n    return inner()\n",
    "layers/mlp.py": "def forward():\n    return None\n",
    "losses.py": """
def parts(numbers):
    yield from numbers

def fails(numbers):
    list(parts(numbers))
    raise ValueError
""",
}
ALL = [
    *("0 layers.attention.forward", "1 layers.mlp.forward"),
    *("0 __main__.caught", "1 losses.fails", "2 losses.parts", "3 __main__.numbers"),
    *("0 __main__.Loss.backward", "0 __main__.Optimizer.step"),
]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("modules")
    for name, text in PACKAGE.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    return work


def shown(calls: Any, depth: int = 0) -> list[str]:
    """Each call that began, in order, with its depth; resumptions of generators aside."""
    found: list[str] = []
    for call in calls:
        if call.function is not None:
            line = f"{depth} {call.function.module}.{call.function.qualname}"
            found += [line] if line not in found else []
            found += [each for each in shown(call.children, depth + 1) if each not in found]
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ALL),
        (["--include", "layers"], ALL[:2]),
        (["--include", "layers.m*, losses"], ["0 layers.mlp.forward", "0 losses.fails", "1 losses.parts"]),
        (["--exclude", "losses,layers"], ["0 __main__.caught", "1 __main__.numbers", *ALL[-2:]]),
        (["--include", "train"], ["0 __main__.caught", "1 __main__.numbers", *ALL[-2:]]),
        (["--include", "layers", "--exclude", "layers.mlp"], ALL[:1]),
        (["--exclude", "*"], []),
    ],
)
def test_calls_of_chosen_modules_are_recorded(
    options: list[str], expected: list[str], work: Path, tmp_path: Path, run_tcmon: Run
) -> None:
    out = tmp_path / "run"
    run_tcmon(["run", "--quiet", "--record", "calls", "--interval", "1", "--out", out, *options, "train.py"], work)
    steps = list(open_run(out).processes[0].recorded_steps())
    assert len(steps) == 6
    for step in steps:
        assert shown(step.calls) == expected
        assert all(call.outcome is not None for call in step.calls)


def test_a_list_of_nothing_is_refused(work: Path, run_tcmon: Run) -> None:
    done = run_tcmon(["run", "--include", "a,,b", "train.py"], work, exit_code=2)
    assert "'a,,b' is no list of modules" in done.stderr


@pytest.mark.parametrize(
    ("file", "leaves_out"),
    [("/x/a/b.py", False), ("/x/a/c.py", True), ("/x/train.py", False), ("/x/unknown.py", True)],
)
def test_a_module_is_named_by_its_package_or_the_script_s_file(file: str, leaves_out: bool) -> None:
    modules = {"/x/a/b.py": "a.b", "/x/a/c.py": "a.c", "/x/train.py": "__main__"}
    chosen = ModuleFilter(["a", "train"], ["*.c"], modules.get)
    assert chosen.leaves_out(compile("1", file, "exec")) is leaves_out
