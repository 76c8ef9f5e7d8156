"""`tcmon export --to traincheck`: a trace that TrainCheck's own reader and inference take."""

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from program_runs import environment, tcmon_run
from trace_builder import PID, calls, encode, exception, header, loop, parameter, state, step, write_run

from tcmon.export.traincheck import Exported, export
from tcmon.trace.reader import open_run

ZERO = 1_796_000_000_000_000_000


def torch_function(id: int, module: str, qualname: str) -> dict[str, Any]:
    return {"kind": "function", "id": id, "module": module, "qualname": qualname, "file": "x.py", "line": 1}


NAMES = [
    header(),
    loop(1),
    loop(2, "eval"),
    torch_function(1, "torch.optim.sgd", "SGD.step"),
    torch_function(2, "torch.nn.modules.linear", "Linear.forward"),
    torch_function(3, "torch.nn.functional", "linear"),
    torch_function(4, "torch.optim.sgd", "_single_tensor_sgd"),
    torch_function(5, "torch.optim.optimizer", "Optimizer.profile_hook_step.<locals>.wrapper"),
    torch_function(6, "train", "main"),
    torch_function(7, "torch.optim.optimizer", "Optimizer.zero_grad"),
    exception(1, "ValueError"),
    {"kind": "optimizer", "id": 1, "name": "torch.optim.sgd.SGD"},
    parameter(1, "fc.weight"),
    parameter(2, "fc.bias", shape=[3]),
]


def args(n: int, *, role: str = "train", loop: int = 1) -> dict[str, Any]:
    """Arguments of the calls 0 (zero_grad) and 1 (forward)."""
    values = [
        {"optimizer": "torch.optim.sgd.SGD", "id": 1},
        True,
        None,
        {"module": "torch.nn.modules.linear.Linear", "id": 7},
        {
            "tensor": [2, 3],
            "dtype": "torch.float32",
            "device": "cpu",
            "requires_grad": False,
            "leaf": True,
            "contiguous": True,
        },
    ]
    return {
        "kind": "args",
        "role": role,
        "n": n,
        "loop": loop,
        "thread": 1,
        "call": [0, 1],
        "values": values,
        "names": [["self", "set_to_none"], ["self", "input"]],
        "arguments": [[0, 0, 1], [1, 3, 4]],
        "returned": [2, 4],
    }


def training(n: int, begin: int, *, changed: bool = True) -> list[dict[str, Any]]:
    """A step: zero_grad, forward of a module, and the optimizer's step with torch's private functions in it."""
    events = [(7, 5), (0, 5), (2, 10), (3, 5), (0, 5), (0, 5), (5, 5), (1, 5), (4, 5), (0, 5), (0, 5), (0, 5)]
    hashes = [[f"{n:x}{each}", f"{n + changed:x}{each}"] for each in "ab"]
    return [
        calls(n, begin, events),
        args(n),
        state(n, [1, 2], before=[each[0] for each in hashes], after=[each[1] for each in hashes]),
        step(n, begin, 80),
    ]


def exported(directory: Path, folder: Path) -> tuple[dict[str, list[Any]], Exported]:
    folder.mkdir()
    result = export(open_run(directory), folder)
    return {
        each.name: [json.loads(line) for line in each.read_text().splitlines()] for each in folder.iterdir()
    }, result


def test_calls_have_a_record_before_and_one_after(tmp_path: Path) -> None:
    files, result = exported(write_run(tmp_path / "run", [*NAMES, *training(1, 0)]), tmp_path / "out")
    assert set(files) == {f"trace_API_{PID}_1_train.log", "proxy_log.json"}
    records = files[f"trace_API_{PID}_1_train.log"]
    short = [(each["function"].rpartition("torch.")[2], each["type"].partition(" ")[2]) for each in records]
    assert short == [
        ("optim.optimizer.Optimizer.zero_grad", "(pre)"),
        ("optim.optimizer.Optimizer.zero_grad", "(post)"),
        ("nn.modules.linear.Linear.forward", "(pre)"),
        ("nn.functional.linear", "(pre)"),
        ("nn.functional.linear", "(post)"),
        ("nn.modules.linear.Linear.forward", "(post)"),
        ("optim.sgd.SGD.step", "(pre)"),
        ("optim.sgd.SGD.step", "(post)"),
    ]
    assert [each["time"] - ZERO for each in records] == [5, 10, 20, 25, 30, 35, 45, 60]
    assert all(each["meta_vars"] == {"step": 1, "stage": "training"} for each in records)
    cleared, returned, forward, inner, after_inner, *_, stepped, _ = records
    assert (forward["args"]["0"], returned["return_values"]) == (
        {"torch.nn.modules.linear.Linear": {}},
        {"NoneType": None},
    )
    tensor = forward["args"]["1"]["torch.FloatTensor"]
    assert (tensor["shape"], tensor["dtype"], tensor["requires_grad"]) == ([2, 3], "torch.float32", False)
    assert cleared["args"]["1"] == {"bool": True}
    assert (inner["is_bound_method"], inner["obj_id"], inner["args"]) == (False, None, {})
    assert after_inner["return_values"] == [], "TrainCheck takes an empty object for a value without a type"
    assert cleared["obj_id"] == stepped["obj_id"] != forward["obj_id"]
    assert (result.steps, result.calls, result.states) == (1, 4, 6)


def test_parameters_change_within_the_optimizers_step(tmp_path: Path) -> None:
    files, _ = exported(write_run(tmp_path / "run", [*NAMES, *training(1, 0), *training(2, 100)]), tmp_path / "out")
    weight = [each for each in files["proxy_log.json"] if each["var_name"] == "fc.weight"]
    assert [each["time"] - ZERO for each in weight] == [9, 44, 59, 109, 144, 159]
    data = [each["attributes"]["data"] for each in weight]
    assert [a != b for a, b in pairwise(data)] == [False, True, False, False, True]
    assert [each["attributes"]["grad"] for each in weight] == [None, 0.5, 0.5] * 2
    assert (weight[0]["var_type"], weight[0]["attributes"]["shape"]) == ("torch.nn.Parameter", [2, 3])


def test_evaluation_has_a_number_of_its_own_and_calls_end_as_they_did(tmp_path: Path) -> None:
    records = [
        *NAMES,
        *training(4, 0),
        calls(1, 100, [(2, 1), (3, 1), (-2, 1), (-2, 1), (2, 1)], role="eval", loop=2),
        step(1, 100, 50, role="eval", loop=2) | {"stage": "evaluation"},
    ]
    files, result = exported(write_run(tmp_path / "run", records), tmp_path / "out")
    evaluation = files[f"trace_API_{PID}_1_eval.log"]
    assert all(each["meta_vars"] == {"step": 4, "stage": "evaluation", "eval_step": 1} for each in evaluation)
    assert [each["type"].partition(" ")[2] for each in evaluation] == [
        "(pre)",
        "(pre)",
        "(post) (exception)",
        "(post) (exception)",
    ]
    assert evaluation[-1]["exception"] == "ValueError"
    assert result.without_state == 0


def test_every_cut_trace_gives_pairs(tmp_path: Path) -> None:
    data = encode([*NAMES, *training(1, 0), *training(2, 100)])
    for length in range(0, len(data), 150):
        files, _ = exported(write_run(tmp_path / "run", data[:length], ended=None), tmp_path / f"out{length}")
        counts: dict[str, int] = {}
        for name, records in files.items():
            if name.startswith("trace_"):
                for each in records:
                    counts[each["func_call_id"]] = counts.get(each["func_call_id"], 0) + 1
        assert set(counts.values()) <= {2}


def test_the_command_says_when_nothing_is_known_of_parameters(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [*NAMES, calls(1, 0, [(1, 1), (0, 1)]), step(1, 0, 9)])
    ended = tcmon_run("export", "run", "--to", "traincheck", cwd=tmp_path)
    assert ended.returncode == 0
    assert "1 recorded training steps tell nothing of parameters" in ended.stderr
    assert "traincheck-infer -f run.traincheck" in ended.stdout


@pytest.mark.skipif(importlib.util.find_spec("traincheck") is None, reason="traincheck is not installed (it is heavy)")
def test_traincheck_infers_that_steps_change_parameters_and_finds_the_run_where_they_do_not(tmp_path: Path) -> None:
    for name, changed in (("good", True), ("again", True), ("frozen", False)):
        records = [record for n in range(1, 13) for record in training(n, 1000 * n, changed=changed)]
        exported(write_run(tmp_path / f"run-{name}", [*NAMES, *records]), tmp_path / name)

    def traincheck(module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"traincheck.{module}", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    traincheck("infer_engine", "-f", "good", "-o", "invariants.json")
    told = [json.loads(line)["text_description"] for line in (tmp_path / "invariants.json").read_text().splitlines()]
    changes = [each for each in told if "SGD.step() changes Parameter.data" in each]
    assert changes
    for name, violated in (("again", False), ("frozen", True)):
        traincheck("checker", "-f", name, "-i", "invariants.json", "-o", f"checked-{name}")
        failed = "".join(each.read_text() for each in (tmp_path / f"checked-{name}").rglob("failed*"))
        assert (changes[0] in failed) == violated
