"""A summary as text: all of it on one screen, and nothing on it that a terminal would act on."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from test_reader import WHOLE
from trace_builder import (
    calls,
    encode,
    end,
    function,
    header,
    loop,
    note,
    overhead,
    step,
    steps,
    write_run,
)

from tcmon.report import wording
from tcmon.report.summary import summarise
from tcmon.report.text import render
from tcmon.trace.reader import open_run

MS = 1_000_000


def text_of(
    directory: Path,
    *,
    width: int = 80,
    terminal: bool = False,
    encoding: str = "utf-8",
    all_loops: bool = False,
) -> str:
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = Console(file=written, width=width, force_terminal=terminal)
    render(summarise(open_run(directory)), console, all_loops=all_loops)
    written.seek(0)
    return written.read()


def typical() -> list[dict[str, Any]]:
    """200 training steps, every 20th recorded, and 30 evaluation steps."""
    durations = [500 * MS, *[8 * MS] * 199]
    records = [
        header(),
        loop(1),
        loop(2, role="eval", qualname="evaluate", line=50),
        loop(3, role="other", qualname="elsewhere"),
        *[function(id, f"Layer{id}.forward") for id in range(1, 16)],
    ]
    begin = 0
    for n, took in enumerate(durations, 1):
        if n in (1, 2) or (n - 2) % 20 == 0:
            events = [event for id in range(1, 16) for event in ((id, 1000), (0, id * 10_000))]
            records += [calls(n, begin, events), step(n, begin, took)]
        begin += took
    records += [
        steps(durations, waits=[took // 4 for took in durations]),
        calls(1, begin, [(1, 10), (-2, MS)], role="eval"),
        step(1, begin, 2 * MS, role="eval", loop=2),
        steps([2 * MS] * 30, role="eval", loop=2, begin=begin),
        overhead(callback_ns=MS, dispatch_ns=MS // 2, write_ns=2 * MS),
        end(),
    ]
    return records


def test_a_run_is_shown_on_one_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = text_of(write_run(tmp_path / "runs" / "a", typical()))
    lines = shown.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    for expected in (
        "train.py  ended after 3.00 s, exit code 0",
        "python train.py --epochs 3",
        "2026-12-01 03:30 UTC",
        "train.py:31 in main  200 steps, 11 recorded",
        "optimizer.step() (train.py:38)",
        "train.py:50 in evaluate  30 steps, 1 recorded",
        "train      200        11  8.00 ms  8.00 ms   500 ms            25.0 %",
        "Layer15.forward",
        "1 of 166 calls ended by an exception",
        "train steps took 1.00 times as long as those around them (10",
        "Dropped   nothing",
        "Trace     runs/a (",
        "Next      tcmon report runs/a --json",
    ):
        assert expected in shown
    assert "elsewhere" not in shown.replace("on elsewhere,", "")
    assert "Layer5.forward" not in shown


def test_recorded_steps_are_marked_in_the_course_of_step_times(tmp_path: Path) -> None:
    durations = [10 * MS] * 50
    durations[20] = 40 * MS
    shown = text_of(write_run(tmp_path, [header(), loop(1), steps(durations), step(3, 0, 10), step(50, 0, 10)]))
    lines = shown.splitlines()
    bars = next(line for line in lines if "▅" in line)
    marks = lines[lines.index(bars) + 1]
    assert bars == "  " + "▅" * 20 + "█" + "▅" * 29
    assert [at - 1 for at, char in enumerate(marks) if char == "•"][:2] == [3, 50]


def test_piped_text_has_no_escapes_and_a_terminal_gets_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    directory = write_run(tmp_path, typical())
    assert "\x1b" not in text_of(directory)
    assert "\x1b[36m" in text_of(directory, terminal=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in text_of(directory, terminal=True)


def test_an_ascii_terminal_gets_ascii(tmp_path: Path) -> None:
    records = [*typical(), loop(1, qualname="entraîner", evidence=["étape"])]
    shown = text_of(write_run(tmp_path, records), encoding="ascii")
    assert "entra\\xeener" in shown
    assert "^" in shown


def test_texts_of_the_program_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    nasty = "[red]x[/red]\x1b[2J\r\n\x07\u202e"
    records = [
        header(),
        loop(1, qualname=nasty, file=nasty, evidence=[nasty]),
        function(1, nasty, file=nasty),
        calls(1, 0, [(1, 0), (0, 5)]),
        step(1, 0, 10),
        note(nasty),
        end(hint=nasty),
    ]
    shown = text_of(write_run(tmp_path, records, command=[nasty], script=nasty, python=nasty, started=nasty), width=200)
    assert "[red]x[/red]\\x1b[2J\\r\\n\\x07\\u202e" in shown
    assert all(char == "\n" or char.isprintable() for char in shown)
    assert shown.isascii()


def test_no_training_loop_is_said_with_what_was_seen_and_what_to_do(tmp_path: Path) -> None:
    shown = text_of(write_run(tmp_path, [header(), end(hint="Mark the loop with tcmon.steps().")]))
    assert "No training loop was found." in shown
    assert "7,700 code objects ran; 61 of them were analysed, with 14 loops in them." in shown
    assert "Mark the loop with tcmon.steps()." in shown
    assert "so far" in text_of(write_run(tmp_path, [header()], ended=None))


def test_loops_that_count_no_steps_are_shown_when_asked_for(tmp_path: Path) -> None:
    directory = write_run(tmp_path, typical())
    assert "in elsewhere" not in text_of(directory)
    assert "in elsewhere" in text_of(directory, all_loops=True)


@pytest.mark.parametrize(
    "changes, expected",
    [
        (
            {"ended": {"reason": "exit", "exit_code": 3, "clock_ns": 90 * MS}},
            "ended after 90.0 ms, exit code 3",
        ),
        (
            {"ended": {"reason": "exception", "exit_code": 1, "clock_ns": 90 * MS}},
            "ended by an exception after 90.0 ms, exit code 1",
        ),
        (
            {"ended": {"reason": "interrupt", "exit_code": None, "clock_ns": 90 * MS}},
            "was interrupted after 90.0 ms",
        ),
        ({"ended": None}, "running or killed, elsewhere can tell; known up to 145 ns"),
    ],
)
def test_how_the_run_ended_is_in_the_first_line(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    assert expected in text_of(write_run(tmp_path, WHOLE[:-1], **changes)).splitlines()[0]


def test_what_the_trace_lacks_is_said(tmp_path: Path) -> None:
    data = encode([header(), loop(1), step(1, 0, 10, dropped=1200)]) + b"garbage\n" + b'{"kind'
    shown = text_of(write_run(tmp_path, data), width=200)
    assert (
        "Dropped   1,200 calls beyond the bound of a step; 1 damaged line in the trace;"
        " 6 bytes of a record cut off at the end"
    ) in shown


def test_overhead_without_steps_is_no_share_of_anything(tmp_path: Path) -> None:
    shown = text_of(write_run(tmp_path, [header(), overhead(callback_ns=2000, write_ns=3000)]))
    assert "Overhead  callbacks 2.00 us, writing 3.00 us\n" in shown
    assert "Overhead  not measured yet\n" in text_of(write_run(tmp_path, [header()]))


def test_only_some_notes_are_shown(tmp_path: Path) -> None:
    shown = text_of(write_run(tmp_path, [header(), *[note(f"trouble {n}") for n in range(9)]]))
    assert "trouble 4" in shown
    assert "trouble 5" not in shown
    assert "4 more notes in the trace" in shown


def test_other_processes_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, [header(7), steps([1, 1, 1])], trace_of=7)
    assert "Also      process 7: 3 train steps" in text_of(write_run(tmp_path, typical()))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_every_width_can_be_had(tmp_path: Path, width: int) -> None:
    shown = text_of(write_run(tmp_path, typical()), width=width)
    assert "8.00 ms" in shown


@pytest.mark.parametrize(
    "nanoseconds, expected",
    [
        (None, "-"),
        (0, "0"),
        (7, "7.00 ns"),
        (999.6, "1.00 us"),
        (1234, "1.23 us"),
        (99_960, "100 us"),
        (8_120_000, "8.12 ms"),
        (81_200_000, "81.2 ms"),
        (999_600_000, "1.00 s"),
        (12_345_000_000, "12.3 s"),
        (4_000_000_000_000, "4,000 s"),
    ],
)
def test_durations_have_three_digits_and_the_unit_that_suits_them(nanoseconds: float | None, expected: str) -> None:
    assert wording.duration(nanoseconds) == expected


@pytest.mark.parametrize(
    "number, expected",
    [(0, "0"), (0.01, "<0.1"), (2.0, "2"), (2.25, "2.2"), (384.4, "384"), (12345, "12,345")],
)
def test_mean_counts_have_a_decimal_where_it_tells_something(number: float, expected: str) -> None:
    assert wording.count(number) == expected


@pytest.mark.parametrize(
    "fraction, expected",
    [(None, "-"), (0, "0.00 %"), (0.00001, "<0.01 %"), (0.0021, "0.21 %"), (0.031, "3.1 %"), (1, "100.0 %")],
)
def test_shares_are_percentages(fraction: float | None, expected: str) -> None:
    assert wording.share(fraction) == expected


@pytest.mark.parametrize(
    "file, expected",
    [
        ("/home/me/project/src/train.py", "src/train.py"),
        ("/home/me/projector/train.py", "/home/me/projector/train.py"),
        ("/venv/lib/python3.12/site-packages/torch/nn/linear.py", "torch/nn/linear.py"),
        ("<string>", "<string>"),
        ("", ""),
    ],
)
def test_paths_are_shown_as_short_as_they_are_clear(file: str, expected: str) -> None:
    assert wording.path(file, Path("/home/me/project")) == expected


def test_a_path_that_is_too_long_loses_its_first_names() -> None:
    assert wording.cropped_path("torch/nn/modules/linear.py", 19, "…") == "modules/linear.py"
    assert wording.cropped_path("torch/nn/modules/linear.py", 6, "…") == "…ar.py"
