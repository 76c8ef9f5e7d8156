"""`tcmon export --to perfetto`: what it writes is read back and held against the run."""

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_runs import TCMON, environment, tcmon_run
from test_reader import WHOLE, mutations
from trace_builder import calls, encode, exception, function, header, loop, of_step, state, step, steps, write_run
from trace_events import Events, Slice, nested, read_events

from tcmon.errors import TcmonError
from tcmon.export.lanes import Lanes
from tcmon.export.perfetto import Exported, export
from tcmon.export.selection import StepRange
from tcmon.steps.phases import NOTHING
from tcmon.trace.journal import StepJournal
from tcmon.trace.reader import open_run

US = 1000
NAMES = [header(), loop(1), loop(2, "eval", line=50), *[function(id, f"f{id}") for id in range(1, 6)]]


def exported(directory: Path, steps: str | None = None, role: str = "train") -> tuple[Events, Exported]:
    written: list[bytes] = []
    chosen = None if steps is None else StepRange.parse(steps, role)
    result = export(open_run(directory), written.append, steps=chosen)
    return read_events(b"".join(written)), result


def shape(slices: list[Slice]) -> list[Any]:
    return [(one.name, one.begin, one.end, shape(one.inner)) for one in slices]


def test_steps_stages_calls_waits_and_counters_have_their_places(tmp_path: Path) -> None:
    events, result = exported(write_run(tmp_path, WHOLE))
    assert events.processes == {4242: "train.py (pid 4242)"}
    assert events.order == ["stages", "train steps", "eval steps", "calls of thread 1 (train steps)"]
    assert shape(events.tracks["train steps"]) == [
        ("train 1", 0, 50, [("data wait", 0, 5, [])]),
        ("train 2", 50, 90, [("data wait", 50, 54, [])]),
        ("train 3", 90, 120, [("data wait", 90, 93, [])]),
    ]
    assert shape(events.tracks["eval steps"]) == [("eval 1", 125, 145, [])]
    assert shape(events.tracks["stages"]) == [("training", 0, 120, []), ("evaluation", 125, 145, [])]
    assert shape(events.tracks["calls of thread 1 (train steps)"]) == [
        ("Net.forward", 6, 32, [("Linear.forward", 9, 19, []), ("Linear.forward", 20, 24, [])]),
        ("Net.forward", 131, 134, []),
    ]
    counters = {
        name: [(at, float(value["ms"]) * 1e6) for at, value in values] for name, values in events.counters.items()
    }
    assert counters == {"train steps: time": [(0, 50), (50, 40), (90, 30)], "eval steps: time": [(125, 20)]}
    assert (result.steps, result.recorded, result.calls, result.left_out) == (4, 2, 4, 0)


def test_loss_and_norms_are_counters_and_operators_have_tracks(tmp_path: Path) -> None:
    ops = {
        "name": ["gemm", "aten::mm", "aten::linear"],
        "begin": [15, 12, 10],
        "ns": [30, 8, 20],
        "device": ["cuda:0", "cpu", "cpu"],
        "thread": [7, 1, 1],
        "bytes": [0, 64, 0],
    }
    records = [
        *NAMES,
        of_step("loss", 1, value=[0.5, 1.5]),
        state(1, [1, 2], norm=[3.0, 4.0], grad_norm=[0.6, 0.8], update=[0.25, 0.75]),
        of_step("ops", 1, **ops),
        of_step("device", 1, device="cuda:0", ns=30),
        step(1, 0, 50),
        of_step("loss", 2, value=["nan"]),
        step(2, 50, 50),
        of_step("loss", 3, value=[0.25]),
        step(3, 100, 50),
        steps([50, 50, 50]),
    ]
    events, result = exported(write_run(tmp_path, records))
    counters = {
        name: [(at, *map(float, value.values())) for at, value in values] for name, values in events.counters.items()
    }
    assert counters["train: loss"] == [(50, 1.0), (150, 0.25)]
    assert counters["train: gradient norm"] == [(50, 1.0)]
    assert counters["train: parameter norm"] == [(50, 5.0)]
    assert counters["train: update ratio"] == [(50, 0.5)]
    assert counters["cuda:0: busy per step"] == [(0, 3e-05)]
    assert shape(events.tracks["ops on cpu, thread 1"]) == [("aten::linear", 10, 30, [("aten::mm", 12, 20, [])])]
    assert shape(events.tracks["ops on cuda:0, stream 7"]) == [("gemm", 15, 45, [])]
    assert result.left_out == 0


def test_slices_say_what_is_known_of_them(tmp_path: Path) -> None:
    events, _ = exported(write_run(tmp_path, WHOLE))
    first, second, _ = events.tracks["train steps"]
    assert first.args == {"step": 1, "recorded": "interval", "stage": "training"}
    assert second.args == {"step": 2}
    outer, done, failed, _ = events.slices("calls of thread 1 (train steps)")
    assert {key: str(value) for key, value in outer.args.items()} == {
        "module": "model",
        "line": "7",
        "self_us": "0.006",
    }
    assert "outcome" not in done.args
    assert failed.args["outcome"] == "raised StopIteration"


def test_an_evaluation_within_a_recorded_step_is_nested_in_its_calls(tmp_path: Path) -> None:
    evaluation = []
    for n in range(1, 4):
        evaluation += [
            calls(n, 20 * n, [(2, 1), (3, 1), (0, 5), (0, 2)], role="eval", loop=2),
            step(n, 20 * n, 15, role="eval", loop=2) | {"stage": "evaluation"},
        ]
    records = [
        *NAMES,
        steps([5]),
        *evaluation,
        steps([15] * 3, role="eval", loop=2, begin=20, pauses=[0, 5, 5]),
        calls(2, 10, [(4, 1), (0, 1), (1, 1)]),
        calls(2, 78, [(5, 1), (0, 2), (0, 3)]),
        step(2, 5, 95),
        steps([95, 10], first=2, begin=5),
    ]
    events, _ = exported(write_run(tmp_path, records))
    assert shape(events.tracks["calls of thread 1 (train steps)"]) == [
        ("f4", 11, 12, []),
        (
            "f1",
            13,
            84,
            [
                ("f2", 21, 29, [("f3", 22, 27, [])]),
                ("f2", 41, 49, [("f3", 42, 47, [])]),
                ("f2", 61, 69, [("f3", 62, 67, [])]),
                ("f5", 79, 81, []),
            ],
        ),
    ]
    assert shape(events.tracks["stages"]) == [
        ("training", 0, 20, []),
        ("evaluation", 20, 75, []),
        ("training", 75, 110, []),
    ]


def test_stages_follow_each_other(tmp_path: Path) -> None:
    records = [
        *NAMES,
        steps([10] * 3),
        steps([4] * 2, role="eval", loop=2, begin=30),
        steps([10] * 3, first=4, begin=40),
        steps([4] * 2, role="eval", loop=2, first=3, begin=70),
    ]
    events, _ = exported(write_run(tmp_path, records))
    assert shape(events.tracks["stages"]) == [
        ("training", 0, 30, []),
        ("evaluation", 30, 38, []),
        ("training", 40, 70, []),
        ("evaluation", 70, 78, []),
    ]


def test_what_is_recorded_outside_of_steps_is_no_step(tmp_path: Path) -> None:
    records = [
        *NAMES,
        steps([10, 10]),
        calls(1, 30, [(1, 1), (0, 5)], role="other", loop=0),
        step(1, 30, 12, role="other", loop=0) | {"stage": "checkpointing"},
        steps([10], first=3, begin=50),
    ]
    events, result = exported(write_run(tmp_path, records))
    assert events.order == ["stages", "train steps", "calls of thread 1 (outside of steps)"]
    assert [one.name for one in events.tracks["train steps"]] == ["train 1", "train 2", "train 3"]
    assert shape(events.tracks["stages"]) == [
        ("training", 0, 20, []),
        ("checkpointing", 30, 42, []),
        ("training", 50, 60, []),
    ]
    assert shape(events.tracks["calls of thread 1 (outside of steps)"]) == [("f1", 31, 36, [])]
    assert (result.steps, result.recorded) == (3, 0)


def test_threads_and_loops_have_tracks_of_their_own(tmp_path: Path) -> None:
    records = [
        *NAMES,
        loop(3, line=99),
        calls(1, 0, [(1, 1), (0, 5)]),
        calls(1, 0, [(2, 2), (3, 1), (0, 9), (0, 1)], thread=140_000_000_000_000),
        step(1, 0, 20),
        steps([20]),
        steps([20], first=2, loop=3, begin=20),
    ]
    events, _ = exported(write_run(tmp_path, records))
    assert events.order[1:] == [
        "train steps",
        "train steps, train.py:99",
        "calls of thread 1 (train steps)",
        "calls of thread 2 (beside the steps)",
    ]
    assert shape(events.tracks["calls of thread 2 (beside the steps)"]) == [("f2", 2, 13, [("f3", 3, 12, [])])]


def test_steps_that_overlap_are_side_by_side(tmp_path: Path) -> None:
    records = [header(), steps([10, 10], begin=0), steps([10, 10], first=3, begin=5)]
    events, result = exported(write_run(tmp_path, records))
    assert [len(events.slices(track)) for track in ("train steps", "train steps [2]")] == [2, 2]
    assert result.left_out == 0


def test_times_are_exact_after_days(tmp_path: Path) -> None:
    begin = 5 * 24 * 3600 * 10**9 + 123_456_789
    records = [*NAMES, calls(1, begin, [(1, 1), (0, 1)]), step(1, begin, 3), steps([3, 1], begin=begin)]
    events, _ = exported(write_run(tmp_path, records))
    assert shape(events.slices("calls of thread 1 (train steps)")) == [("f1", begin + 1, begin + 2, [])]


def test_processes_are_on_one_clock(tmp_path: Path) -> None:
    directory = write_run(tmp_path, [header(), steps([10])])
    later = header(77) | {"start_unix_ns": header()["start_unix_ns"] + 1000}
    write_run(directory, [later, loop(1), steps([10, 20])], trace_of=77)
    events, _ = exported(directory)
    assert list(events.processes) == [4242, 77]
    assert [one.begin for one in events.tracks["4242 train steps"]] == [0]
    assert [one.begin for one in events.tracks["77 train steps"]] == [1000, 1010]


@pytest.mark.parametrize(
    "range_, numbers",
    [("2:3", [2, 3]), ("2:", [2, 3, 4]), (":2", [1, 2]), ("3", [3]), ("3:3", [3]), ("4:99", [4]), (" 1:2 ", [1, 2])],
)
def test_a_range_of_steps_has_both_ends_in_it(tmp_path: Path, range_: str, numbers: list[int]) -> None:
    records = [
        *NAMES,
        calls(2, 100, [(1, 1), (0, 5)]),
        step(2, 100, 100),
        calls(4, 300, [(2, 1), (0, 5)]),
        step(4, 300, 100),
        steps([100] * 4),
        steps([10] * 8, role="eval", loop=2, begin=0, pauses=[0, *[40] * 7]),
    ]
    events, result = exported(write_run(tmp_path, records), range_)
    assert [one.args["step"] for one in events.tracks["train steps"]] == numbers
    assert [one.args["step"] for one in events.tracks["eval steps"]] == [
        n for number in numbers for n in (2 * number - 1, 2 * number)
    ]
    assert result.recorded == len({2, 4} & set(numbers))


def test_a_range_of_evaluation_steps_holds_what_happened_in_their_time(tmp_path: Path) -> None:
    records = [header(), steps([100] * 4), steps([10] * 3, role="eval", loop=2, begin=210)]
    events, _ = exported(write_run(tmp_path, records), "2:3", "eval")
    assert events.order == ["stages", "eval steps"]


@pytest.mark.parametrize("range_", ["", ":", "a", "1-2", "0:5", "5:4", "1:2:3", "-1", "1.5", "9" * 16])
def test_what_is_no_range_is_refused(range_: str) -> None:
    with pytest.raises(ValueError, match="is no range of steps"):
        StepRange.parse(range_, "train")


def test_steps_that_are_not_there_are_refused_with_those_that_are(tmp_path: Path) -> None:
    directory = write_run(tmp_path, [header(), steps([10] * 4, first=3)])
    with pytest.raises(TcmonError, match="no such steps: the run has train steps 3 to 6"):
        exported(directory, "7:")
    with pytest.raises(TcmonError, match="no such steps: the run has no eval step"):
        exported(directory, "1", "eval")


@pytest.mark.parametrize("records", [None, [], [header()], [header(), loop(1), steps([])]])
def test_a_run_without_steps_is_a_file_without_slices(tmp_path: Path, records: Any) -> None:
    events, result = exported(write_run(tmp_path, records, ended=None))
    assert events.tracks == {}
    assert result.steps == result.calls == 0


def test_steps_in_the_journal_are_there_once(tmp_path: Path) -> None:
    directory = write_run(tmp_path, [header(), steps([10] * 5)], ended=None)
    journal = StepJournal(directory / "trace-4242.journal", 0, lambda: None, lambda _: None)
    for n in range(4, 9):
        journal.add(1, 0, n, 10 * n - 10, 10 * n - 8, 10 * n, NOTHING)
    events, _ = exported(directory)
    assert shape(events.tracks["train steps"])[5:] == [
        (f"train {n}", 10 * n - 10, 10 * n, [("data wait", 10 * n - 10, 10 * n - 8, [])]) for n in (6, 7, 8)
    ]
    assert [one.args["step"] for one in events.tracks["train steps"]] == list(range(1, 9))


def test_a_recorded_step_whose_row_was_cut_off_is_there(tmp_path: Path) -> None:
    data = encode([*NAMES, steps([10] * 5), calls(6, 50, [(1, 1), (0, 1)]), step(6, 50, 10), steps([10], first=6)])
    events, _ = exported(write_run(tmp_path, data[:-9], ended=None))
    assert events.tracks["train steps"][-1].args == {"step": 6, "recorded": "interval", "stage": "training"}


def test_every_cut_trace_can_be_exported(tmp_path: Path) -> None:
    data = encode(WHOLE)
    for length in range(0, len(data), 7):
        exported(write_run(tmp_path, data[:length], ended=None))


def test_damaged_rows_of_calls_are_counted(tmp_path: Path) -> None:
    bad = calls(1, 0, [(1, 1), (0, 1)]) | {"at": [1]}
    events, result = exported(write_run(tmp_path, [*NAMES, bad, calls(1, 0, [(2, 1), (0, 1)]), step(1, 0, 10)]))
    assert result.damaged_calls == 1
    assert [one.name for one in events.slices("calls of thread 1 (train steps)")] == ["f2"]


@given(mutations(encode(WHOLE)))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
def test_no_damage_makes_a_file_that_is_not_of_the_format(tmp_path: Path, data: bytes) -> None:
    directory = write_run(tmp_path, data)
    with suppress(TcmonError):  # damage can make the format a later one
        exported(directory)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12))), st.integers(1, 4))
def test_slices_in_a_lane_are_sorted_and_nested(slices: list[tuple[int, int]], most: int) -> None:
    lanes = Lanes(most)
    placed: dict[int, list[Slice]] = {}
    for begin, took in slices:
        lane = lanes.place(begin, begin + took)
        if lane is not None:
            placed.setdefault(lane, []).append(Slice("", "", begin, begin + took, {}))
    assert len(placed) <= most
    for lane in placed.values():
        nested(lane)


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Recorded steps of which some lie in others, in the order in which they end, of two threads."""
    records: list[dict[str, Any]] = [*NAMES]
    clock, numbers = 0, {"train": 0, "eval": 0}

    def stretch(n: int, role: str) -> Iterator[dict[str, Any]]:
        nonlocal clock
        for thread in draw(st.sampled_from([(1,), (1, 2)])):
            events = draw(st.lists(st.tuples(st.integers(-2, 5), st.integers(0, 3)), max_size=8))
            yield calls(n, clock, events, role=role, thread=thread, loop=1 + (role == "eval"))
        clock += 30

    for _ in range(draw(st.integers(1, 4))):
        numbers["train"] += 1
        begin, n = clock, numbers["train"]
        own = [*stretch(n, "train")]
        for _ in range(draw(st.integers(0, 3))):
            numbers["eval"] += 1
            inner = clock
            records += stretch(numbers["eval"], "eval")
            records.append(step(numbers["eval"], inner, clock - inner, role="eval", loop=2))
        records += [*own, *stretch(n, "train"), step(n, begin, clock - begin)]
        records.append(steps([clock - begin], first=n, begin=begin))
    return records


@given(runs())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_calls_of_all_recorded_steps_are_nested_whatever_they_are(tmp_path: Path, records: list[Any]) -> None:
    directory = write_run(tmp_path, records)
    events, result = exported(directory)
    (process,) = open_run(directory).processes
    expected = [call for each in process.recorded_steps() for root in each.calls for call in root.walk()]
    found = [one for track in events.tracks for one in events.slices(track) if one.cat == "call"]
    assert sorted((one.name, one.begin, one.end) for one in found) == sorted(
        (call.function.qualname, call.start_ns, call.end_ns) for call in expected
    )
    assert result.left_out == 0
    assert sum(track.startswith("calls") for track in events.tracks) <= 2, "one track a thread is enough"


def test_memory_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    def peak(repeats: int) -> int:
        records = [*NAMES]
        for n in range(1, repeats + 1):
            events = [event for _ in range(100) for event in ((1, 10), (0, 10))]
            records += [calls(n, 2500 * n, events), step(n, 2500 * n, 2200)]
            records.append(steps([2200], first=n, begin=2500 * n))
        run = open_run(write_run(tmp_path, records))
        del records
        tracemalloc.start()
        try:
            export(run, lambda _: None)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(80) < 2 * peak(20)


PROGRAM = """
class Optimizer:
    def step(self): pass

def layer(depth):
    return layer(depth - 1) if depth else 0

def validate(model, loader):
    for batch in loader:
        model(1)

def main(steps):
    optimizer = Optimizer()
    for batch in range(steps):
        layer(2)
        optimizer.step()
        if batch in (10, 21, 30):
            validate(layer, [1, 2, 3])
        if batch == HANG:
            print("waiting", flush=True)
            input()

main(40)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(PROGRAM.replace("HANG", "-1"))
    ended = tcmon_run("run", "--quiet", "--interval", "10", "--out", "run", "train.py", cwd=folder)
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder


def test_a_real_run_is_exported_whole(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json.gz"
    ended = tcmon_run("export", "run", "--to", "perfetto", "-o", str(target), cwd=run)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask()
    events = read_events(target)
    assert [one.args["step"] for one in events.tracks["train steps"]] == list(range(1, 41))
    recorded = [one.args["step"] for one in events.tracks["train steps"] if "recorded" in one.args]
    assert recorded == [1, 2, 12, 22, 32]
    (calls_track,) = (track for track in events.order if track.startswith("calls"))
    for one in events.tracks["train steps"]:
        if one.args["step"] in (11, 22, 31):
            continue  # evaluations, some of whose steps are recorded
        inside = [call.name for call in events.tracks[calls_track] if one.begin <= call.begin and call.end <= one.end]
        assert inside[:2] == (["layer", "Optimizer.step"] if "recorded" in one.args else [])


def umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def test_a_file_that_exists_is_kept_unless_forced(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("precious")
    arguments = ("export", "run", "--to", "perfetto", "-o", str(target))
    ended = tcmon_run(*arguments, cwd=run)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)
    assert "--force" in ended.stderr
    assert target.read_text() == "precious"
    assert tcmon_run(*arguments, "--force", cwd=run).returncode == 0
    read_events(target)
    assert list(tmp_path.iterdir()) == [target]


def test_an_export_that_fails_leaves_nothing(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("precious")
    for steps_ in ("999", "x"):
        ended = tcmon_run("export", "run", "--to", "perfetto", "--force", "--steps", steps_, "-o", str(target), cwd=run)
        assert (ended.returncode != 0, ended.stdout, ended.stderr.count("\n")) == (True, "", 1)
    assert target.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("target", [".", "missing/out.json", "/dev/full"])
def test_where_nothing_can_be_written_is_said_in_one_line(run: Path, target: str) -> None:
    ended = tcmon_run("export", "run", "--to", "perfetto", "-o", target, cwd=run)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1)


def test_without_a_name_the_file_is_named_after_the_run(run: Path, tmp_path: Path) -> None:
    ended = tcmon_run("export", str(run / "run"), "--to", "perfetto", cwd=tmp_path)
    assert ended.returncode == 0
    assert [each.name for each in tmp_path.iterdir()] == ["run.perfetto.json.gz"]
    read_events(tmp_path / "run.perfetto.json.gz")


def test_a_dash_writes_to_standard_output(run: Path) -> None:
    ended = tcmon_run("export", "run", "--to", "perfetto", "-o", "-", "--steps", "20:25", cwd=run)
    assert (ended.returncode, ended.stderr) == (0, "")
    events = read_events(ended.stdout.encode())
    assert [one.args["step"] for one in events.tracks["train steps"]] == list(range(20, 26))


def test_a_reader_that_has_seen_enough_ends_it_quietly(run: Path) -> None:
    command = [sys.executable, *TCMON, "export", "run", "--to", "perfetto", "-o", "-"]
    with subprocess.Popen(
        command, cwd=run, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_run_that_goes_on_and_one_that_was_killed_are_exported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM.replace("HANG", "25"))
    command = [sys.executable, *TCMON, "run", "--interval", "10", "--out", "run", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        running, _ = exported(tmp_path / "run")
        process.send_signal(signal.SIGKILL)
    killed, _ = exported(tmp_path / "run")
    for events in (running, killed):
        assert [one.args["step"] for one in events.tracks["train steps"]] == list(range(1, 26))


@pytest.mark.parametrize("name, packed", [("a.json.gz", True), ("a.json", False), ("a.gz.txt", False)])
def test_the_name_says_whether_it_is_compressed(run: Path, tmp_path: Path, name: str, packed: bool) -> None:
    assert tcmon_run("export", "run", "--to", "perfetto", "-o", str(tmp_path / name), cwd=run).returncode == 0
    data = (tmp_path / name).read_bytes()
    assert json.loads(gzip.decompress(data) if packed else data)["traceEvents"]


@pytest.mark.parametrize(
    "arguments", [("export", "run"), ("export", "run", "--to", "vinyl"), ("export", "--to", "perfetto")]
)
def test_what_is_not_understood_is_one_line(run: Path, arguments: tuple[str, ...]) -> None:
    ended = tcmon_run(*arguments, cwd=run)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)


def test_names_with_any_character_are_legal_json(tmp_path: Path) -> None:
    nasty = 'a"\\\n\x00\u2028é😀'
    records = [header(), function(1, nasty), exception(1, nasty), calls(1, 0, [(1, 1), (-2, 1)]), step(1, 0, 9)]
    events, _ = exported(write_run(tmp_path, records, script=nasty, command=[nasty]))
    (one,) = events.slices("calls of thread 1 (train steps)")
    assert (one.name, one.args["outcome"]) == (nasty, f"raised {nasty}")


def test_a_damaged_start_does_not_move_steps_out_of_sight(tmp_path: Path) -> None:
    records = [{**header(), "start_unix_ns": 796_000_000_000_000_000}, loop(1), steps([1000] * 3)]
    exported(write_run(tmp_path / "run", records))
