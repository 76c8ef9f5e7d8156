"""`tcmon export --to tensorboard`: event files hold the figures of each step, as another implementation reads them."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from program_runs import tcmon_run
from test_export_parquet import NAMES
from trace_builder import encode, of_step, parameter, state, step, steps, write_run

from tcmon.export.events import EventFile
from tcmon.export.tensorboard import export
from tcmon.trace.reader import open_run

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
crc32c = pytest.importorskip("tensorboardX.record_writer").masked_crc32c

ZERO = 1_796_000_000
RECORDS = [
    *NAMES,
    {"kind": "optimizer", "id": 1, "name": "torch.optim.adam.Adam"},
    parameter(1, "fc.weight"),
    parameter(2, "fc.bias"),
    of_step("loss", 1, value=[0.5, 1.5, None]),
    state(1, [1, 2], norm=[3.0, 4.0], grad_norm=[0.6, 0.8], update=[0.01, 0.03], groups=[{"lr": 0.25}]),
    step(1, 0, 2_000_000),
    of_step("loss", 2, value=["nan"]),
    step(2, 2_000_000, 1_000_000),
    steps([2_000_000, 1_000_000, 4_000_000], waits=[500_000, 0, 1_000_000])
    | {"phases": {"backward": [0, 0, 2_000_000]}},
    steps([10_000_000], role="eval", loop=2, begin=7_000_000),
]


def events(data: bytes) -> Iterator[Any]:
    """The events in an event file; every length and every checksum has to be right."""
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        content = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 8) == (crc32c(data[at : at + 8]),)
        assert struct.unpack_from("<I", data, at + 12 + length) == (crc32c(content),)
        yield event_pb2.Event.FromString(content)
        at += 16 + length
    assert at == len(data)


def scalars(file: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Step, value and time of each value, by tag."""
    first, *rest = events(file.read_bytes())
    assert (first.file_version, first.wall_time) == ("brain.Event:2", ZERO)
    found: dict[str, list[tuple[int, float, float]]] = {}
    for event in rest:
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, value.simple_value, event.wall_time))
    return found


def values(found: dict[str, list[tuple[int, float, float]]], tag: str) -> list[tuple[int, float]]:
    return [(n, round(value, 6)) for n, value, _ in found[tag]]


def test_event_files_hold_the_figures_of_each_step(tmp_path: Path) -> None:
    write_run(tmp_path / "run", RECORDS)
    ended = tcmon_run("export", "run", "--to", "tensorboard", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "tensorboard --logdir run.tensorboard" in ended.stdout
    (file,) = (tmp_path / "run.tensorboard").iterdir()
    assert file.name == f"events.out.tfevents.{ZERO}.elsewhere"
    found = scalars(file)
    assert values(found, "train/step_ms") == [(1, 2.0), (2, 1.0), (3, 4.0)]
    assert [at for *_, at in found["train/step_ms"]] == pytest.approx([ZERO + 0.002, ZERO + 0.003, ZERO + 0.007])
    assert values(found, "train/wait_share") == [(1, 0.25), (2, 0.0), (3, 0.25)]
    assert values(found, "train/backward_share") == [(3, 0.5)]
    assert values(found, "eval/step_ms") == [(1, 10.0)]
    (first, second) = values(found, "train/loss")
    assert (first, second[0], math.isnan(second[1])) == ((1, 1.0), 2, True)
    assert values(found, "train/norm") == [(1, 5.0)]
    assert values(found, "train/grad_norm") == [(1, 1.0)]
    assert values(found, "train/update_ratio") == [(1, 0.02)]
    assert values(found, "train/lr/1.0") == [(1, 0.25)]
    assert values(found, "grad_norm/fc.weight") == [(1, 0.6)]
    assert values(found, "norm/fc.bias") == [(1, 4.0)]
    assert values(found, "update_ratio/fc.bias") == [(1, 0.03)]


def test_steps_can_be_chosen_and_an_export_be_replaced(tmp_path: Path) -> None:
    write_run(tmp_path / "run", RECORDS)
    arguments = ("export", "run", "--to", "tensorboard")
    assert tcmon_run(*arguments, cwd=tmp_path).returncode == 0
    ended = tcmon_run(*arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert tcmon_run(*arguments, "--force", "--steps", "2:3", cwd=tmp_path).returncode == 0
    (file,) = (tmp_path / "run.tensorboard").iterdir()
    assert [n for n, _ in values(scalars(file), "train/step_ms")] == [2, 3]


def test_each_rank_has_a_folder(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", None)
    for rank in (0, 1):
        (directory / f"trace-rank{rank}.0-{50 + rank}.jsonl").write_bytes(encode(RECORDS))
    (tmp_path / "out").mkdir()
    exported = export(open_run(directory), tmp_path / "out")
    assert (exported.steps, exported.recorded) == (8, 4)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["rank0", "rank1"]
    (file,) = (tmp_path / "out" / "rank1").iterdir()
    assert len(scalars(file)["train/step_ms"]) == 3


def test_parameters_beyond_the_bound_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tcmon.export.tensorboard.PARAMETERS", 1)
    write_run(tmp_path / "run", RECORDS)
    (tmp_path / "out").mkdir()
    assert export(open_run(tmp_path / "run"), tmp_path / "out").left_out == 1
    (file,) = (tmp_path / "out").iterdir()
    assert {tag for tag in scalars(file) if tag.startswith("norm/")} == {"norm/fc.weight"}


def test_every_cut_trace_can_be_exported(tmp_path: Path) -> None:
    data = encode(RECORDS)
    for length in range(0, len(data), 97):
        (tmp_path / f"out{length}").mkdir()
        run = open_run(write_run(tmp_path / "run", data[:length], ended=None))
        export(run, tmp_path / f"out{length}")
        for file in (tmp_path / f"out{length}").iterdir():
            assert list(events(file.read_bytes()))


@pytest.mark.parametrize("value", [0.0, -1.5, 1e39, -1e300, 1e-50, math.inf, math.nan, 3.4028235e38])
@pytest.mark.parametrize("step", [0, 1, 127, 128, 2**47])
def test_any_number_is_written(value: float, step: int) -> None:
    data = bytearray()
    EventFile(data.extend, 1.5).scalar(2.5, step, "ü/tag", value)
    _, event = events(bytes(data))
    (written,) = event.summary.value
    assert (event.step, event.wall_time, written.tag) == (step, 2.5, "ü/tag")
    if math.isnan(value):
        assert math.isnan(written.simple_value)
    else:
        in_range = abs(value) < 3.4028235e38
        expected = struct.unpack("f", struct.pack("f", value))[0] if in_range else math.copysign(math.inf, value)
        assert written.simple_value == expected
