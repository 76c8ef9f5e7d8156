"""Reads Chrome trace-event JSON back and checks it against the format, as the viewers need it.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Checked is what
tcmon uses of it: complete slices (X), counters (C) and metadata (M).
"""

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

NS = Decimal("0.001")


@dataclass
class Slice:
    name: str
    cat: str
    begin: int
    end: int
    args: dict[str, Any]
    inner: list["Slice"] = field(default_factory=list)


@dataclass
class Events:
    """What a viewer makes of a file; times are nanoseconds."""

    processes: dict[int, str]
    tracks: dict[str, list[Slice]]
    """The outermost slices by the name of their track, the process before it where there are several."""
    counters: dict[str, list[tuple[int, dict[str, float]]]]
    order: list[str]
    """Names of the tracks from top to bottom."""

    def slices(self, track: str) -> list[Slice]:
        """All slices of a track, outer ones before those in them."""
        found = []
        rest = self.tracks[track][::-1]
        while rest:
            found.append(one := rest.pop())
            rest.extend(one.inner[::-1])
        return found


def read_events(data: bytes | Path) -> Events:
    """What is in a file, which must be well-formed: phases, fields, names, nesting, order."""
    if isinstance(data, Path):
        data = gzip.decompress(data.read_bytes()) if data.suffix == ".gz" else data.read_bytes()
    whole = json.loads(data, parse_float=Decimal, parse_constant=lambda text: 1 / 0)
    assert set(whole) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert whole["displayTimeUnit"] == "ms"
    assert all(isinstance(value, str) for value in whole["otherData"].values())
    processes: dict[int, str] = {}
    names: dict[tuple[int, int], str] = {}
    orders: dict[tuple[int, int], int] = {}
    by_track: dict[tuple[int, int], list[Slice]] = defaultdict(list)
    counters: dict[str, list[tuple[int, dict[str, float]]]] = defaultdict(list)
    for event in whole["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "ts", "args"} <= set(event), event
        assert type(event["pid"]) is type(event["tid"]) is int
        assert 0 <= event["tid"] < 1 << 31, "viewers keep thread ids in 32 bits"
        assert type(event["name"]) is str
        where = event["pid"], event["tid"]
        match event["ph"]:
            case "M":
                value = event["args"]
                match event["name"]:
                    case "process_name":
                        assert event["pid"] not in processes
                        processes[event["pid"]] = value["name"]
                    case "thread_name":
                        assert where not in names
                        names[where] = value["name"]
                    case "thread_sort_index":
                        orders[where] = value["sort_index"]
                    case name:
                        assert name == "process_sort_index"
            case "X":
                assert type(event["cat"]) is str
                begin = nanoseconds(event["ts"])
                took = nanoseconds(event["dur"])
                assert took >= 0
                by_track[where].append(Slice(event["name"], event["cat"], begin, begin + took, event["args"]))
            case "C":
                assert all(isinstance(value, int | Decimal) for value in event["args"].values())
                counters[event["name"]].append((nanoseconds(event["ts"]), event["args"]))
            case phase:
                raise AssertionError(f"phase {phase!r}")
    assert by_track.keys() == names.keys(), "every track has a name, and every name a track"
    assert orders.keys() == names.keys()
    assert {pid for pid, _ in names} <= processes.keys()
    assert len({tid for _, tid in names}) == len(names), "viewers take thread ids for unique in a system"
    for values in counters.values():
        assert values == sorted(values, key=lambda value: value[0])
    if len(processes) > 1:
        names = {where: f"{where[0]} {name}" for where, name in names.items()}
    tracks = {names[where]: nested(slices) for where, slices in by_track.items()}
    assert len(tracks) == len(names)
    order = [names[where] for where in sorted(names, key=lambda where: orders[where])]
    return Events(processes, tracks, dict(counters), order)


def nested(slices: list[Slice]) -> list[Slice]:
    """The outermost ones; the others lie within them, in order."""
    outermost: list[Slice] = []
    stack: list[Slice] = []
    last = None
    for one in slices:
        assert last is None or one.begin >= last, "sorted by time"
        last = one.begin
        while stack and stack[-1].end <= one.begin:
            stack.pop()
        if stack:
            assert one.end <= stack[-1].end, f"{one} overlaps {stack[-1]}"
        (stack[-1].inner if stack else outermost).append(one)
        stack.append(one)
    return outermost


def nanoseconds(microseconds: int | Decimal) -> int:
    value = microseconds / NS
    assert value == int(value)
    # A viewer that computes with doubles gets the same.
    assert round(float(microseconds) * 1000) == int(value)
    return int(value)
