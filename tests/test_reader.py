"""Reading run directories: whole ones, cut ones, damaged ones, hostile ones."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import (
    PID,
    calls,
    encode,
    end,
    exception,
    finding,
    function,
    header,
    loop,
    meta,
    note,
    of_step,
    overhead,
    parameter,
    state,
    step,
    steps,
    write_run,
)

from tcmon.errors import TcmonError
from tcmon.trace import details
from tcmon.trace.fields import Damaged
from tcmon.trace.index import TraceIndex
from tcmon.trace.reader import Process, Reading, open_run
from tcmon.trace.records import Function, Record, Steps, read_record

WHOLE = [
    header(),
    loop(1),
    loop(2, role="eval"),
    function(1, "Net.forward"),
    function(2, "Linear.forward"),
    exception(1, "StopIteration"),
    calls(1, 5, [(1, 1), (2, 3), (0, 10), (2, 1), (-2, 4)]),
    calls(1, 30, [(0, 2)]),
    step(1, 0, 50),
    steps([50, 40, 30], waits=[5, 4, 3]),
    calls(1, 130, [(1, 1), (0, 3)], role="eval"),
    step(1, 125, 20, role="eval", loop=2),
    steps([20], role="eval", loop=2, begin=125),
    overhead(callback_ns=10),
    note("a warning"),
    end(),
]


def read(trace: Path) -> tuple[list[Record], Reading]:
    reading = Process(trace, PID).read()
    return list(reading), reading


def trace_of(tmp_path: Path, records: list[dict[str, Any]] | bytes) -> Path:
    return write_run(tmp_path, records) / f"trace-{PID}.jsonl"


def test_a_whole_trace_gives_every_record_in_order(tmp_path: Path) -> None:
    found, reading = read(trace_of(tmp_path, WHOLE))
    assert [type(each).__name__ for each in found] == [
        "Header",
        "Loop",
        "Loop",
        "Function",
        "Function",
        "ExceptionType",
        "Calls",
        "Calls",
        "Step",
        "Steps",
        "Calls",
        "Step",
        "Steps",
        "Overhead",
        "Note",
        "End",
    ]
    assert found[3] == Function(1, "model", "Net.forward", "/home/somebody/project/model.py", 7)
    assert reading.complete
    assert (reading.damaged, reading.unknown, reading.cut) == (0, 0, 0)
    assert reading.size == len(encode(WHOLE))


def test_begins_of_steps_are_clock_values(tmp_path: Path) -> None:
    found, _ = read(trace_of(tmp_path, [header(), steps([50, 40, 30], begin=100, first=7, pauses=[0, 0, 15])]))
    assert isinstance(found[1], Steps)
    assert list(found[1].begin) == [100, 150, 205]
    assert list(found[1].end) == [50, 40, 30]


def test_every_prefix_of_a_trace_gives_a_prefix_of_its_records(tmp_path: Path) -> None:
    data = encode(WHOLE)
    trace = trace_of(tmp_path, data)
    everything, _ = read(trace)
    for length in range(len(data) + 1):
        trace.write_bytes(data[:length])
        found, reading = read(trace)
        assert found == everything[: len(found)]
        # A record counts from its last brace on; the line's end adds nothing.
        whole = data[:length].count(b"\n") + (data[length : length + 1] == b"\n")
        assert len(found) == whole
        assert reading.complete == (len(found) == len(everything))
        assert reading.damaged == 0
        rest = data[:length].rpartition(b"\n")[2]
        assert reading.cut == (0 if data[length : length + 1] == b"\n" else len(rest))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\x00\x00\x00\x00",
        b"not json",
        b"[]",
        b"17",
        b'{"kind":"note","level":"warning"',
        b'{"kind":7}',
        b'{"level":"warning","text":"no kind"}',
        b'{"kind":"note","level":"warning","text":"\xff"}',
        b'{"kind":"note","level":"warning","text":null}',
        b'{"kind":"function","id":0,"module":"m","qualname":"f","file":"f","line":1}',
        b'{"kind":"function","id":1.0,"module":"m","qualname":"f","file":"f","line":1}',
        b'{"kind":"function","id":true,"module":"m","qualname":"f","file":"f","line":1}',
        b'{"kind":"steps","role":"train","loop":1,"first":1,"begin":[0],"wait":[0],"end":[1,2]}',
        b'{"kind":"steps","role":"train","loop":1,"first":1,"begin":[0],"wait":[0],"end":[true]}',
        b'{"kind":"steps","role":"train","loop":1,"first":1,"begin":[0],"wait":[0],"end":[-1]}',
        b'{"kind":"steps","role":"train","loop":1,"first":1,"begin":[0],"wait":[2],"end":[1]}',
        b'{"kind":"steps","role":"train","loop":1,"first":0,"begin":[0],"wait":[0],"end":[1]}',
        b'{"kind":"steps","role":"train","loop":1,"first":1,"begin":[5,-6],"wait":[0,0],"end":[1,1]}',
        b'{"kind":"steps","role":"train","loop":1,"first":1,"begin":[9223372036854775807],"wait":[0],"end":[1]}',
        b'{"kind":"steps","role":"training","loop":1,"first":1,"begin":[0],"wait":[0],"end":[1]}',
        b'{"kind":"calls","role":"train","n":1,"thread":1,"begin":0,"what":[1],"at":[]}',
        b'{"kind":"calls","role":"train","n":1,"thread":1,"begin":0,"what":[1],"at":[1e3]}',
        b'{"kind":"calls","role":"train","n":1,"thread":1,"begin":0,"what":{"1":1},"at":[1]}',
        b'{"kind":"calls","role":"train","n":1,"thread":1,"begin":0,"what":[18446744073709551615],"at":[1]}',
        b'{"kind":"overhead","callbacks":' + b"[" * 900 + b"]" * 900 + b"}",
        b"[" * 100_000,
    ],
    ids=lambda line: repr(line[:110]),
)
def test_a_damaged_line_is_counted_and_passed_over(tmp_path: Path, line: bytes) -> None:
    data = encode(WHOLE).splitlines(keepends=True)
    everything, _ = read(trace_of(tmp_path, WHOLE))
    found, reading = read(trace_of(tmp_path, b"".join([*data[:5], line + b"\n", *data[5:]])))
    assert found == everything
    assert (reading.damaged, reading.cut, reading.complete) == (1, 0, True)


def test_records_of_an_unknown_kind_and_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    later = {"kind": "phases", "step": 1}
    found, reading = read(trace_of(tmp_path, [header(), later, note("known") | {"color": "red"}]))
    assert len(found) == 2
    assert (reading.unknown, reading.damaged) == (1, 0)


def test_an_empty_trace_has_no_records(tmp_path: Path) -> None:
    found, reading = read(trace_of(tmp_path, b""))
    assert found == []
    assert not reading.complete


def test_the_first_process_leads_and_each_trace_is_one(tmp_path: Path) -> None:
    for pid in (7, PID, 99):
        write_run(tmp_path, [header(pid)], trace_of=pid)
    write_run(tmp_path, None)
    (tmp_path / "trace-x.jsonl").write_text("no trace")
    (tmp_path / "notes.txt").write_text("no trace either")
    assert [process.pid for process in open_run(tmp_path).processes] == [PID, 7, 99]


def test_a_run_without_a_trace_or_a_journal_opens(tmp_path: Path) -> None:
    assert open_run(write_run(tmp_path / "a", None)).processes == ()
    (process,) = open_run(write_run(tmp_path / "b", WHOLE)).processes
    assert process.unwritten_steps() == []


def test_the_facts_of_a_run_are_those_of_run_json(tmp_path: Path) -> None:
    facts = open_run(write_run(tmp_path, None, torch=None, ended=None, loops=[loop(3)])).meta
    assert facts.command == ("python", "train.py", "--epochs", "3")
    assert facts.torch is None
    assert facts.ended is None
    assert facts.options["record"] == ("calls",)
    assert facts.loops[0].id == 3


def no_directory(path: Path) -> Path:
    return path / "nowhere"


def a_file(path: Path) -> Path:
    (path / "file").write_text("")
    return path / "file"


def nothing_in_it(path: Path) -> Path:
    return path


def a_later_format(path: Path) -> Path:
    (path / "run.json").write_bytes(orjson.dumps({"format": 2, "all": "different"}))
    return path


def run_json(data: bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        (path / "run.json").write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    "make, message",
    [
        (no_directory, "no such directory: "),
        (a_file, "not a directory: "),
        (nothing_in_it, " holds no tcmon run (no run.json)"),
        (a_later_format, " was written by a newer tcmon (format 2; this one reads format 1)"),
        (run_json(b""), "run.json is damaged in "),
        (run_json(b"\xff\xfe"), "is damaged in "),
        (run_json(b"[]"), "not a JSON object"),
        (run_json(b"{}"), "format is None, not a whole number"),
        (run_json(orjson.dumps(meta(format=0))), "format is out of range: 0"),
        (run_json(orjson.dumps(meta(pid="many"))), "pid is 'many', not a whole number"),
        (run_json(orjson.dumps(meta(command="python x"))), "command is not a list of texts"),
        (
            run_json(orjson.dumps(meta(loops=[loop(1, role="cook")]))),
            "role is 'cook', not one of train, eval, other",
        ),
        (run_json(orjson.dumps(meta(options={"interval": {}}))), "option 'interval' is a dict"),
        (
            run_json(orjson.dumps(meta(ended={"reason": "exit", "exit_code": "0", "clock_ns": 1}))),
            "exit_code is '0'",
        ),
        (run_json(orjson.dumps(meta())[:-40]), "not JSON: "),
    ],
)
def test_what_is_no_run_is_said_in_one_line(tmp_path: Path, make: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(TcmonError) as caught:
        open_run(make(tmp_path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_with_line_breaks_still_makes_one_line(tmp_path: Path) -> None:
    with pytest.raises(TcmonError) as caught:
        open_run(tmp_path / "a\nb")
    assert str(caught.value).isprintable()


def test_a_trace_of_a_later_format_is_refused(tmp_path: Path) -> None:
    (process,) = open_run(write_run(tmp_path, [header(format=2)])).processes
    with pytest.raises(TcmonError, match="newer tcmon"):
        list(process.read())


def test_a_trace_that_is_no_file_is_said_in_one_line(tmp_path: Path) -> None:
    (write_run(tmp_path, None) / f"trace-{PID}.jsonl").mkdir()
    (process,) = open_run(tmp_path).processes
    with pytest.raises(TcmonError, match="can't be read"):
        list(process.read())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_without_permission_is_said_in_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "run", WHOLE)
    (tmp_path / "run").chmod(0)
    try:
        with pytest.raises(TcmonError, match="can't be read: Permission denied"):
            open_run(tmp_path / "run")
    finally:
        (tmp_path / "run").chmod(0o700)


@st.composite
def mutations(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with some bytes replaced, removed, put in, or copied from elsewhere in it."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(changed)))
        length = draw(st.integers(0, 12))
        source = draw(st.integers(0, len(data)))
        piece = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from(
                    [b"0", b"-1", b"1.5", b"9" * 19, b"null", b"true", b"[]", b"{}", b'"', b"\n", b",", b"}"]
                ),
                st.just(data[source : source + length]),
            )
        )
        changed[at : at + draw(st.sampled_from([0, 1, len(piece)]))] = piece
    return bytes(changed)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations(encode(WHOLE)))
def test_a_trace_with_changed_bytes_never_breaks_the_reader(tmp_path: Path, data: bytes) -> None:
    trace = trace_of(tmp_path, data)
    process = Process(trace, PID)
    reading = process.read()
    try:
        found = list(reading)
        list(process.recorded_steps())
    except TcmonError as error:
        complaint = str(error)  # of a later format, with luck
    else:
        complaint = ""
        lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        assert len(found) + reading.damaged + reading.unknown + bool(reading.cut) == lines
        assert reading.size == len(data)
    assert complaint.isprintable()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutations(orjson.dumps(meta(loops=[loop(1)]))))
def test_a_run_json_with_changed_bytes_opens_or_is_said_in_one_line(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run.json").write_bytes(data)
    try:
        open_run(tmp_path)
        complaint = ""
    except TcmonError as error:
        complaint = str(error)
    assert complaint.isprintable()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_may_stand_in_a_journal(tmp_path: Path, data: bytes) -> None:
    write_run(tmp_path, WHOLE)
    (tmp_path / f"trace-{PID}.journal").write_bytes(data)
    (process,) = open_run(tmp_path).processes
    for times in process.unwritten_steps():
        assert times.n > 0
        assert 0 <= times.wait <= times.end


DETAILS: list[dict[str, Any]] = [
    of_step("lines", 3, thread=1, function=1, body=True, line=[31, 33], hits=[1, 1], ns=[40, 60]),
    of_step("args", 3, thread=1, call=[0], names=[["x"]], values=[1], arguments=[[0, 0]], returned=[-1]),
    {"kind": "module", "id": 1, "name": "layers.0", "class": "model.Layer"},
    of_step("owners", 3, thread=1, call=[0], module=[1]),
    of_step("loss", 3, value=[0.5, "nan", "-inf", None]),
    {"kind": "optimizer", "id": 1, "name": "torch.optim.sgd.SGD"},
    parameter(1, "fc.weight"),
    parameter(2, "old.bias", optimizer=None, group=None, index=None),
    state(3, [1, 2], update=[None, "inf"], nonfinite=[0, 7], state={"exp_avg": [0.5, None]}),
    of_step("modes", 3, module=["model.Net"], training=[True], mixed=[["bn1", "…"]], sensitive=[2], stepped=[True]),
    of_step("buffers", 3, name=["bn1.running_mean"], norm=[1.5], nonfinite=[0], hash=["ab"]),
    of_step("inputs", 3, module=["model.Net"], hash=["ab"], reused=[False], logits=1, probabilities=0),
    of_step("signs", 3, graphs_kept=0, states_kept=1, broadcast=0, losses=2, roots=1, with_grad=0),
    of_step("ops", 3, name=["aten::mm"], begin=[5], ns=[7], device=["cpu"], thread=[1], bytes=[-64]),
    of_step("device", 3, device="cuda:0", ns=900),
    finding("gradients-never-cleared", 3),
]
"""A record of each kind that recorders and checks write."""


def test_details_of_a_step_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    assert {record["kind"] for record in DETAILS} == set(details.READERS)
    run = open_run(write_run(tmp_path / "run", [header(), *DETAILS, step(3, 0, 100), end()]))
    assert [type(record).__name__ for record in run.processes[0].read()] == ["Header", "Step", "End"]
    assert len(list(run.processes[0].read(details=True))) == len(DETAILS) + 3
    [recorded] = run.processes[0].recorded_steps()
    kept = [type(record).__name__ for record in recorded.details]
    assert kept == [
        "Lines",
        "Args",
        "Owners",
        "Loss",
        "State",
        "Modes",
        "Buffers",
        "Inputs",
        "Signs",
        "Ops",
        "DeviceTime",
    ]
    index = TraceIndex(run.processes[0].trace)
    with run.processes[0].trace.open("rb") as file:
        # repr: nan differs from itself
        assert repr(index.load(file, 0)) == repr(recorded)


@pytest.mark.parametrize("record", DETAILS, ids=lambda record: f"{record['kind']}{record.get('id', '')}")
@pytest.mark.parametrize("value", [None, -1, "x", [], [[]], {}, 1.5, True, [None], ["x"], [1, 2, 3]])
def test_details_with_a_wrong_field_are_damage_or_read(record: dict[str, Any], value: object) -> None:
    for name in record.keys() - {"kind"}:
        try:
            read_record(orjson.dumps({**record, name: value}))
        except Damaged:
            pass


def test_phases_are_columns_of_steps_and_no_longer_than_these() -> None:
    row = steps([100, 200], waits=[10, 10])
    good = read_record(orjson.dumps({**row, "phases": {"forward": [50, 60], "later-version": [1]}}))
    assert isinstance(good, Steps)
    assert good.phases == {"forward": [50, 60]}
    for bad in ({"forward": [50]}, {"forward": [91, 0]}, {"forward": [50, 60], "backward": [41, 0]}, [1]):
        with pytest.raises(Damaged):
            read_record(orjson.dumps({**row, "phases": bad}))
