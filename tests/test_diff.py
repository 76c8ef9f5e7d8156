"""`tcmon diff`: what was changed is found, and what is noise is not claimed."""

import io
import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_runs import tcmon_run
from rich.console import Console
from test_reader import WHOLE
from trace_builder import calls, end, function, header, loop, step, steps, write_run

from tcmon.report.diff import Diff, diff
from tcmon.report.diff_json import diff_as_json
from tcmon.report.diff_text import render_diff
from tcmon.report.noise import Batches, batches_for, chance_of_absence, compare, two_sided
from tcmon.trace.reader import open_run

US = 1000
USUAL = {f"f{each}": 10 * each * US for each in range(1, 13)}


def noisy_run(
    directory: Path,
    seed: int,
    functions: Mapping[str, int] = USUAL,
    *,
    count: int = 60,
    times: Mapping[str, int] | None = None,
    rarely: Sequence[str] = (),
    speed: float = 1.0,
    noise: float = 0.1,
    **changes: Any,
) -> Path:
    """A run whose recorded steps call functions that take so long, give or take, with a pause in one step of 20.

    Every second step is recorded; the machine's speed drifts.
    """
    dice = random.Random(seed)
    ids = {name: id for id, name in enumerate(functions, 1)}
    records: list[dict[str, Any]] = [header(), loop(1), *[function(id, name) for name, id in ids.items()]]
    drift, clock = 0.0, 0
    for n in range(1, 2 * count + 1):
        drift = 0.9 * drift + dice.gauss(0, noise / 5)
        factor = speed * (1 + drift)
        begin = clock
        if n % 2:
            events: list[tuple[int, int]] = []
            for name, took in functions.items():
                if name in rarely and dice.random() > 0.03:
                    continue
                for _ in range((times or {}).get(name, 1)):
                    events += [(ids[name], 100), (0, max(1, int(took * factor * dice.lognormvariate(0, noise))))]
            if dice.random() < 0.05 or n == 1:
                events.append((0, 5_000_000))
                at = dice.randrange(0, len(events) - 1, 2) + 1
                events[at] = 0, events[at][1] + 5_000_000
            took = sum(at for _, at in events)
            records += [calls(n, begin, events), step(n, begin, took)]
        else:
            took = int(sum(functions.values()) * factor * dice.lognormvariate(0, noise))
        records.append(steps([took], first=n, begin=begin, waits=[took // 10]))
        clock += took
    return write_run(directory, [*records, end()], **changes)


def found(a: Path, b: Path, **how: Any) -> Diff:
    return diff(open_run(a), open_run(b), **how)


def claimed(result: Diff) -> list[str]:
    return [each.function.qualname for role in result.roles for each in role.functions if each.claimed]


def calls_claimed(result: Diff) -> list[str]:
    return [each.function.qualname for role in result.roles for each in role.functions if each.calls_claimed]


def text_of(result: Diff, *, top: int = 10, width: int = 80) -> str:
    written = io.StringIO()
    render_diff(result, Console(file=written, width=width), top=top)
    return written.getvalue()


def test_a_run_does_not_differ_from_itself(tmp_path: Path) -> None:
    directory = noisy_run(tmp_path, 1)
    result = found(directory, directory)
    assert result.nothing_claimed
    assert result.facts == ()
    assert {each.self_ns.change for each in result.roles[0].functions} == {0.0}
    assert len(result.roles[0].functions) == len(USUAL)
    assert "The same command, options and versions." in text_of(result)
    assert "No difference beyond noise" in text_of(result)


def test_noise_is_not_claimed(tmp_path: Path) -> None:
    runs = [noisy_run(tmp_path / str(seed), seed, noise=0.3) for seed in range(8)]
    for a, b in pairwise(runs):
        result = found(a, b)
        assert (claimed(result), calls_claimed(result), result.nothing_claimed) == ([], [], True)


@pytest.mark.parametrize("factor", [0.5, 1.4, 3.0])
def test_the_function_that_changed_is_found_and_no_other(tmp_path: Path, factor: float) -> None:
    changed = USUAL | {"f7": int(USUAL["f7"] * factor)}
    result = found(noisy_run(tmp_path / "a", 1), noisy_run(tmp_path / "b", 2, changed))
    assert claimed(result) == ["f7"]
    (f7,) = (each for each in result.roles[0].functions if each.claimed)
    assert f7.self_ns.ratio == pytest.approx(factor, rel=0.1)
    assert f7.self_ns.low < USUAL["f7"] * (factor - 1) < f7.self_ns.high
    assert "f7" in text_of(result)
    assert "f6" not in text_of(result)


def test_steps_that_are_slower_are_found(tmp_path: Path) -> None:
    result = found(noisy_run(tmp_path / "a", 1), noisy_run(tmp_path / "b", 2, speed=1.3))
    train, evaluation = result.steps
    assert train.claimed
    assert train.time is not None
    assert train.time.ratio == pytest.approx(1.3, rel=0.1)
    assert (evaluation.time, evaluation.claimed) == (None, False)
    assert "slower" in text_of(result)


def test_a_machine_that_is_slower_throughout_is_no_change_of_any_function(tmp_path: Path) -> None:
    changed = USUAL | {"f7": USUAL["f7"] * 2}
    result = found(noisy_run(tmp_path / "a", 1), noisy_run(tmp_path / "b", 2, changed, speed=1.3))
    assert claimed(result) == ["f7"]
    assert result.roles[0].common == pytest.approx(1.3, rel=0.05)


def test_a_change_that_is_real_but_small_is_left_out_unless_asked_for(tmp_path: Path) -> None:
    changed = USUAL | {"f7": int(USUAL["f7"] * 1.04)}
    a, b = noisy_run(tmp_path / "a", 1, noise=0.001), noisy_run(tmp_path / "b", 2, changed, noise=0.001)
    assert claimed(found(a, b)) == []
    assert claimed(found(a, b, least_change=0.01)) == ["f7"]


def test_functions_that_appear_and_vanish_are_found(tmp_path: Path) -> None:
    with_old, with_new = USUAL | {"old": 30 * US}, USUAL | {"new": 20 * US}
    result = found(noisy_run(tmp_path / "a", 1, with_old), noisy_run(tmp_path / "b", 2, with_new))
    train = result.roles[0]
    assert [(each.function.qualname, each.steps, each.of) for each in train.appeared] == [("new", 59, 59)]
    assert [each.function.qualname for each in train.vanished] == ["old"]
    assert claimed(result) == []
    shown = text_of(result)
    assert shown.index("Called in B only") < shown.index("new") < shown.index("Called in A only") < shown.index("old")


def test_a_function_that_is_called_now_and_then_may_be_missing_by_chance(tmp_path: Path) -> None:
    rare = USUAL | {"rare": 10 * US}
    result = found(noisy_run(tmp_path / "a", 1, rare, rarely=["rare"]), noisy_run(tmp_path / "b", 2))
    assert result.nothing_claimed


def test_functions_that_are_called_more_often_are_found(tmp_path: Path) -> None:
    often = {"f3": 2, "f4": 5}
    result = found(noisy_run(tmp_path / "a", 1), noisy_run(tmp_path / "b", 2, times=often))
    assert set(calls_claimed(result)) == {"f3", "f4"}
    shown = text_of(result)
    assert "Calls per recorded step" in shown


def test_functions_are_the_same_wherever_they_stand(tmp_path: Path) -> None:
    a = noisy_run(tmp_path / "a", 1)
    b = noisy_run(tmp_path / "b", 1)
    trace = b / "trace-4242.jsonl"
    moved = trace.read_bytes().replace(b'"line":7', b'"line":99').replace(b"/home/somebody", b"/elsewhere")
    trace.write_bytes(moved)
    assert found(a, b).nothing_claimed
    assert len(found(a, b).roles[0].functions) == len(USUAL)


def test_options_and_versions_that_differ_are_named(tmp_path: Path) -> None:
    a = noisy_run(tmp_path / "a", 1, torch="2.14.0")
    options = {"interval": 10, "warmup": 2, "eval_interval": 20, "eval_warmup": 2, "record": ["calls"]}
    b = noisy_run(tmp_path / "b", 1, options=options, torch="2.15.0", command=["python", "x y.py"])
    result = found(a, b)
    assert [(fact.name, fact.a, fact.b) for fact in result.facts][1:] == [
        ("torch", "2.14.0", "2.15.0"),
        ("option interval", 20, 10),
    ]
    shown = text_of(result, width=200)
    assert "torch: 2.14.0 in A, 2.15.0 in B" in shown
    assert "command: python train.py --epochs 3 in A, python 'x y.py' in B" in shown
    assert result.nothing_claimed


@pytest.mark.parametrize("records", [None, [], [header()], WHOLE])
def test_too_little_is_not_compared(tmp_path: Path, records: Any) -> None:
    few, many = write_run(tmp_path / "few", records), noisy_run(tmp_path / "many", 1)
    for a, b in ((few, many), (many, few), (few, few)):
        result = found(a, b)
        assert result.nothing_claimed
        assert all(each.time is None for each in result.steps)
        text_of(result)
        json.dumps(diff_as_json(result), allow_nan=False)
    assert "6 needed" in text_of(found(few, many))


def test_top_bounds_every_list(tmp_path: Path) -> None:
    new = {f"new{each}": 10 * US for each in range(20)}
    result = found(noisy_run(tmp_path / "a", 1), noisy_run(tmp_path / "b", 2, USUAL | new))
    shown = text_of(result, top=3)
    assert shown.count("new") == 3
    assert "17 more (--top)" in shown


@pytest.mark.parametrize("width", [20, 80, 200])
def test_every_width_can_be_had(tmp_path: Path, width: int) -> None:
    changed = USUAL | {"f7": USUAL["f7"] * 2, "new": 50 * US}
    result = found(noisy_run(tmp_path / "a", 1), noisy_run(tmp_path / "b", 2, changed))
    shown = text_of(result, width=width)
    assert all(len(line) <= max(width, 80) for line in shown.splitlines() if line.startswith("    ")), shown
    assert "f7" in shown


def test_the_command_compares_real_runs(tmp_path: Path) -> None:
    program = (
        "def work(): return sum(range(20000))\n"
        "class A:\n    def step(self): pass\n    def backward(self): REPEATED\n"
        "optimizer = loss = A()\n"
        "for _ in range(60):\n    work(); loss.backward(); optimizer.step()\n"
    )
    for name, repeated in (("a", "work()"), ("b", "work(); work(); work()")):
        (tmp_path / "train.py").write_text(program.replace("REPEATED", repeated))
        done = tcmon_run("run", "--quiet", "--interval", "2", "--out", name, "train.py", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    same = tcmon_run("diff", "a", "a", "--no-color", cwd=tmp_path, FORCE_COLOR="1")
    assert (same.returncode, same.stderr) == (0, "")
    assert "No difference beyond noise" in same.stdout
    assert "\x1b" not in same.stdout
    shown = tcmon_run("diff", "a", "b", "--json", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    result = json.loads(shown.stdout)
    (work,) = (each for each in result["functions"] if each["qualname"] == "work")
    assert work["calls"] == [2, 4]
    assert work["calls_claimed"]
    assert result["differs"]
    assert {fact["name"] for fact in result["facts"]} == {"command"}


@pytest.mark.parametrize("arguments, code", [(("a",), 2), (("missing", "b"), 1), (("a", "b", "--least", "-1"), 2)])
def test_what_cannot_be_compared_is_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int) -> None:
    ended = tcmon_run("diff", *arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (code, "", 1)


@pytest.mark.parametrize(
    "t, freedom, expected",
    [
        (0, 5, 1.0),
        (2.776445, 4, 0.05),
        (12.7062, 1, 0.05),
        (1.959964, 1e9, 0.05),
        (3.646, 30, 0.001),
        (31.5991, 2, 0.001),
    ],
)
def test_tails_are_those_of_students_distribution(t: float, freedom: float, expected: float) -> None:
    assert two_sided(t, freedom) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("counts", [(100, 100), (100, 40), (600, 12)])
def test_intervals_are_left_as_rarely_as_they_say(counts: tuple[int, int]) -> None:
    dice = random.Random(1)
    outside = 0
    for _ in range(400):
        a, b = (
            batches.levels([int(dice.lognormvariate(10, 0.5)) for _ in range(batches.count)])
            for batches in batches_for(*counts)
        )
        outside += compare(a, b, 0.05).beyond_noise
    assert 6 <= outside <= 36


def test_one_wild_batch_decides_nothing() -> None:
    a = [10.0, 10.1, 9.9, 10.0, 10.2, 9.8, 10.0]
    assert compare(a, [*a[:-1], 1e6], 0.05).b == pytest.approx(10, abs=0.1)


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_batches_are_alike_in_size_and_keep_the_order(count_a: int, count_b: int) -> None:
    a, b = batches_for(count_a, count_b)
    assert a.size == b.size
    for batches in (a, b):
        sizes = batches.levels(range(batches.count), len)
        assert set(sizes) <= {batches.size}
        levels = batches.levels(range(batches.count))
        assert levels == sorted(levels)
    if min(count_a, count_b) >= 6:
        assert min(a.number, b.number) >= 6
        assert max(a.number, b.number) <= 200


def test_where_batches_are_many_none_is_left_out() -> None:
    assert sum(Batches(100, 4, 25).levels(range(100), len)) == 100


def test_the_chance_of_absence_is_that_of_drawing_without_replacement() -> None:
    assert chance_of_absence(0, 10, 10) == 1
    assert chance_of_absence(1, 10, 10) == pytest.approx(1 / 2)
    assert chance_of_absence(2, 2, 2) == pytest.approx(1 / 6)
