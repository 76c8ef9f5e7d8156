"""A watched training is the same training: the same output, the same parameters to the last bit."""

from pathlib import Path

import pytest
import torch

from tcmon.report.as_json import as_json
from tcmon.report.summary import summarise
from tcmon.trace.reader import open_run

WORKLOADS = Path(__file__).parent.parent / "bench" / "workloads"
SHORT = {  # options, and the training steps that they make
    "cnn": (["--epochs", "2", "--steps", "12"], 24),
    "deepnet": (["--steps", "3", "--modules", "40"], 3),
    "loader": (["--epochs", "1", "--steps", "6", "--decode-ms", "0"], 6),
    "dcgan": (["--epochs", "2", "--steps", "6"], 12),
    "gcn": (["--epochs", "25"], 25),
    "mlp": (["--epochs", "2", "--steps", "40"], 80),
    "transformer": (["--steps", "6", "--validate-every", "2"], 6),
    "vae": (["--epochs", "2", "--steps", "12"], 24),
}
BY_OTHERS = {"ddp", "trainer"}
"""Whose loops are in a library or in processes of their own; see the tests of trainers and ranks."""


def test_every_workload_is_tried():
    assert {path.stem for path in WORKLOADS.glob("*.py")} == set(SHORT) | BY_OTHERS


def bits(path):
    """All tensors of a saved state, by name, as bytes."""

    def flatten(state, prefix=""):
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                yield prefix + name, (value.dtype, tuple(value.shape), value.numpy().tobytes())
            else:
                yield from flatten(value, f"{prefix}{name}.")

    return dict(flatten(torch.load(path)))


@pytest.mark.parametrize("workload", sorted(SHORT))
def test_training_is_unchanged(workload, run_python, run_tcmon, tmp_path):
    options, steps = SHORT[workload]
    command = [WORKLOADS / f"{workload}.py", *options, "--save"]
    plain = run_python([*command, "plain.pt"], tmp_path)
    parameters = bits(tmp_path / "plain.pt")
    assert parameters

    for name, sampling in (("default", []), ("every-step", ["--interval", "1"])):
        watched = run_tcmon(["run", "--quiet", "--out", name, *sampling, *command, f"{name}.pt"], tmp_path)
        assert watched.stdout == plain.stdout
        assert watched.stderr == plain.stderr
        assert bits(tmp_path / f"{name}.pt") == parameters
        training = as_json(summarise(open_run(tmp_path / name)))["steps"]["train"]
        assert training["count"] == steps
        assert training["sampled"] == (steps if sampling else 1 + len(range(2, steps + 1, 20)))
