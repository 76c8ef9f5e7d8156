"""`tcmon view`: what is in the page, read without a browser."""

import importlib.util
import random
import re
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import orjson
import pytest
import trace_builder as tb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from program_runs import TCMON, run
from test_calltree import FUNCTIONS, nodes, recorded, row
from test_reader import mutations
from trace_builder import Node
from view_runs import EVALUATED, MS, RECORDED, STEP, Page, data_of, page_of, write_view_run

from tcmon.errors import TcmonError
from tcmon.trace.calltree import call_trees
from tcmon.trace.reader import open_run
from tcmon.view import gather
from tcmon.view.course import Course
from tcmon.view.flame import Paths, PathTime, largest
from tcmon.view.page import page
from tcmon.view.parameters import Grid

HOSTILE = "</script><img src=x onerror=alert(1)><!--&quot;\"'\x1b[31m{}"
MAXIMUM = 6_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    write_view_run(folder / "run")
    write_view_run(folder / "hostile", lambda text: HOSTILE + text)
    return folder


@pytest.fixture(scope="module")
def text(folder: Path) -> str:
    return page_of(folder / "run")


def test_the_page_has_every_part_and_loads_nothing(text: str) -> None:
    page = Page(text)
    assert {"findings", "steps", "recorded", "training", "functions", "run"} <= page.ids()
    assert {"times-train", "times-eval", "shares-train", "calls", "loss", "norms", "updates", "grid"} <= page.ids()
    assert {"lines-train", "calls-table", "step"} <= page.ids()
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    policies = [each for _, each in page.elements if each.get("http-equiv") == "Content-Security-Policy"]
    assert [each["content"] for each in policies if "default-src 'none'" in (each["content"] or "")]
    assert not re.search(r"url\(|@import", text.partition("</style>")[0])


def test_texts_of_the_program_are_neither_html_nor_script(folder: Path) -> None:
    text = page_of(folder / "hostile")
    page = Page(text)
    assert "img" not in page.names()
    assert [tag for tag, _ in page.elements].count("script") == 3
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    shown = "".join(page.texts)
    harmless = HOSTILE.replace("\x1b", "\\x1b")
    for name in ("train.py", "main", "optimizer.step()", "a note", "host", "Model.forward"):
        assert harmless + name in shown
    assert "\x1b" not in text
    data = data_of(text)
    assert harmless + "Model.forward" in [name for name, _, _ in data["functions"]]
    assert data["norms"]["names"] == [harmless + "head.weight", harmless + "head.bias"]


def test_times_of_all_steps_are_there_with_evaluation_apart(text: str) -> None:
    train = data_of(text)["roles"]["train"]
    assert train["count"] == 60
    assert train["course"]["first"] == list(range(1, 61))
    assert train["course"]["mean"][EVALUATED - 1] == STEP / 1000  # less the evaluation's 5 ms
    assert train["whole"] == {"n": [EVALUATED], "took": [(STEP + 5 * MS) / 1000]}
    parts = {part["name"]: part["share"] for part in train["shares"]["parts"]}
    assert parts["data wait"][0] == pytest.approx(0.25)
    assert max(parts["evaluation"]) == pytest.approx(5 / 9, abs=1e-4)
    assert data_of(text)["roles"]["eval"]["count"] == 5


def test_a_recorded_step_has_its_reason_its_calls_and_its_lines(text: str) -> None:
    data = data_of(text)
    steps = data["steps"]["train"]
    assert steps["n"] == list(RECORDED)
    assert {data["texts"][each] for each in steps["reason"]} == {"interval"}
    assert {data["texts"][each] for each in steps["stage"]} == {"training"}
    above, function = data["paths"]
    paths, total, _, calls, left_out = steps["flames"][2]
    named = {data["functions"][function[path]][0]: (path, at) for at, path in enumerate(paths)}
    assert set(named) == {"Model.forward", "Linear.<locals>.forward", "backward"}
    assert left_out == 0
    forward, linear = named["Model.forward"], named["Linear.<locals>.forward"]
    assert (above[forward[0]], above[linear[0]]) == (-1, forward[0])
    assert (calls[linear[1]], total[linear[1]]) == (2, 1500.0)
    assert steps["lineTook"][2] == [1000.0, 2000.0, 1000.0, 0.0]


def test_all_recorded_steps_together_are_the_sum_of_each(text: str) -> None:
    data = data_of(text)
    sums: Counter[int] = Counter()
    for flame in data["steps"]["train"]["flames"]:
        for path, total in zip(flame[0], flame[1], strict=True):
            sums[path] += round(total * 10)
    merged = data["all"]["train"]
    assert merged["steps"] == len(RECORDED)
    assert merged["took"] == sum(data["steps"]["train"]["took"])
    assert dict(zip(merged["flame"][0], (round(each * 10) for each in merged["flame"][1]), strict=True)) == sums


def test_norms_of_all_parameters_and_of_each(text: str) -> None:
    norms = data_of(text)["norms"]
    assert norms["grad"]["mean"] == [5.0] * len(RECORDED)
    assert norms["update"]["high"] == [0.002] * len(RECORDED)
    assert norms["names"] == ["head.weight", "head.bias"]
    assert norms["grids"]["norm"]["mean"] == [[1.0] * 4, [2.0] * 4]
    loss = data_of(text)["loss"]["train"]
    assert (loss["first"], loss["nonfinite"]) == ([1, 2, 22], [42])


def test_source_lines_are_shown_only_as_they_were_when_the_run_began(tmp_path: Path) -> None:
    directory = write_view_run(tmp_path / "run")
    assert "loss.backward()" in "".join(Page(page_of(directory)).texts)
    source = directory / "train.py"
    source.write_text(source.read_text().replace("loss.backward()", "lose.backward()"))
    meta = orjson.loads((directory / "run.json").read_bytes())
    (directory / "run.json").write_bytes(orjson.dumps(meta | {"start_unix_ns": 10**18}))
    shown = "".join(Page(page_of(directory)).texts)
    assert "lose.backward()" not in shown
    assert "its source is gone, or was changed" in shown


def test_what_is_no_file_is_not_read_as_source(tmp_path: Path) -> None:
    functions = [tb.function(id, f"f{id}", file=file) for id, file in enumerate(("/dev/zero", "/", "\0", ""), 1)]
    lines = [
        tb.of_step("lines", 1, thread=1, function=id, body=True, line=[1, 2], hits=[1, 1], ns=[MS, MS])
        for id in range(1, 5)
    ]
    records = [tb.header(), tb.loop(1), *functions, *lines, tb.step(1, 0, MS), tb.steps([MS]), tb.end()]
    shown = "".join(Page(page_of(tb.write_run(tmp_path, records))).texts)
    assert shown.count("its source is gone, or was changed") == 4


def test_runs_without_steps_cut_or_without_a_trace_have_a_page(tmp_path: Path) -> None:
    assert "No step is known" in page_of(tb.write_run(tmp_path / "none", None))
    assert "No training loop was found" in page_of(tb.write_run(tmp_path / "empty", [tb.header(), tb.end()]))
    directory = write_view_run(tmp_path / "cut")
    (trace,) = directory.glob("*.jsonl")
    whole = trace.read_bytes()
    for size in (10, len(whole) // 2, len(whole) - 5):
        trace.write_bytes(whole[:size])
        assert 'id="steps"' in page_of(directory)


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_trace_has_a_page_or_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    directory = tmp_path / "run"
    if not directory.exists():
        write_view_run(directory)
        (directory / "whole").write_bytes((directory / f"trace-{tb.PID}.jsonl").read_bytes())
    damaged = data.draw(mutations((directory / "whole").read_bytes()))
    (directory / f"trace-{tb.PID}.jsonl").write_bytes(damaged)
    try:
        made = page(open_run(directory), "").decode()
    except TcmonError:
        return
    assert 'id="steps"' in made
    assert data_of(made).keys() >= {"roles", "steps", "functions"}


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    from rank_runs import synchronised, write_rank

    steps = synchronised(2, 30, lambda rank, n, phase: 9_000_000 if (rank, phase) == (1, "forward") else 0)
    for rank in range(2):
        write_rank(tmp_path / "run", rank, steps[rank])
    text = page_of(tmp_path / "run")
    ranks = data_of(text)["ranks"]
    assert [each["label"] for each in ranks["courses"]] == ["rank 0", "rank 1"]
    assert "forward" in [each["name"] for each in ranks["phases"]]
    assert "rank 1 holds the others up in phase forward" in "".join(Page(text).texts)


def test_a_long_run_fits_into_six_megabytes_and_its_sums_are_of_all_steps(tmp_path: Path) -> None:
    chance = random.Random(7)
    count, every, shapes = 100_000, 20, 12
    took = [int(chance.lognormvariate(15, 0.3)) + 10**6 for _ in range(count)]
    took[77_776] = 10**9
    records = [tb.header(), tb.loop(1), *(tb.function(id, f"Layer{id}.forward", line=id) for id in range(1, 101))]
    records += [tb.parameter(id, f"layers.{id}.weight") for id in range(1, 11)]
    called: Counter[str] = Counter()
    clock = 0
    for n, each in enumerate(took, 1):
        if n % every == 0:
            events: list[tuple[int, int]] = []
            for _ in range(shapes):
                events += [(chance.randrange(1, 101), 1000), (chance.randrange(1, 101), chance.randrange(10**4))]
                events += [(0, chance.randrange(10**4)), (0, 100)]
                called["calls"] += 2
            ids = list(range(1, 11))
            records.append(tb.calls(n, clock, events))
            records.append(tb.of_step("loss", n, value=[chance.random()]))
            records.append(tb.state(n, ids, grad_norm=[chance.random() for _ in ids], update=[1e-3] * 10))
            records.append(tb.step(n, clock, each))
        clock += each
    begin = 0
    for first in range(0, count, 1000):
        records.append(tb.steps(took[first : first + 1000], first=first + 1, begin=begin))
        begin += sum(took[first : first + 1000])
    text = page_of(tb.write_run(tmp_path / "run", [*records, tb.end(clock_ns=clock)]), charts=True)
    assert len(text.encode()) < MAXIMUM
    data = data_of(text)
    course = data["roles"]["train"]["course"]
    assert len(course["first"]) <= 2000
    assert (course["first"][0], course["last"][-1]) == (1, count)
    slowest = max(range(len(course["high"])), key=course["high"].__getitem__)
    assert (course["highest"][slowest], course["high"][slowest]) == (77_777, 10**6)
    assert len(data["steps"]["train"]["n"]) == count // every
    assert data["all"]["train"]["steps"] == count // every
    assert data["all"]["train"]["took"] == pytest.approx(sum(took[every - 1 :: every]) / 1000)
    roots = [at for at, path in enumerate(data["all"]["train"]["flame"][0]) if data["paths"][0][path] == -1]
    assert sum(data["all"]["train"]["flame"][3][at] for at in roots) == called["calls"] // 2


def test_memory_does_not_grow_with_the_recorded_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "DRAWN", 60)
    monkeypatch.setattr(gather, "_SLOWEST", 20)

    def peak(count: int) -> tuple[int, int]:
        directory = tmp_path / str(count)
        directory.mkdir()
        tb.write_run(directory, [])
        with (directory / f"trace-{tb.PID}.jsonl").open("wb") as trace:
            trace.write(tb.encode([tb.header(), tb.loop(1), *(tb.function(id, f"f{id}") for id in range(1, 60))]))
            # A trace is searched for loops in blocks: both are longer than some of them.
            trace.write(tb.encode([{"kind": "of another version", "text": "x" * 100_000}]) * 40)
            for n in range(1, count + 1):
                begin = MS * (n - 1)
                events = [(1 + (at + n) % 50 if at % 2 == 0 else 0, 100 + n % 7) for at in range(800)]
                trace.write(tb.encode([tb.calls(n, begin, events), tb.step(n, begin, MS)]))
            trace.write(tb.encode([tb.steps([MS] * 2500)]))  # more than a chart has points
            size = trace.tell()
        tracemalloc.start()
        try:
            text = page(open_run(directory), "").decode()
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        data = data_of(text)
        assert data["all"]["train"]["steps"] == count
        assert len(data["steps"]["train"]["n"]) <= 60
        return most, size

    peak(5)  # what is loaded and cached once
    (short, small), (long, large) = peak(70), peak(220)
    assert long - short < 0.1 * (large - small)


@given(st.lists(st.floats(-1e6, 1e6) | st.sampled_from([float("nan"), float("inf")])), st.integers(2, 9))
def test_thinning_keeps_extremes_counts_and_sums(values: list[float], buckets: int) -> None:
    course = Course(sums=1, buckets=buckets)
    for n, value in enumerate(values, 1):
        course.add(n, value, (1.0,))
    known = [(n, value) for n, value in enumerate(values, 1) if abs(value) < 1e9]
    assert len(course) <= buckets
    assert sum(course.count) == sum(course.sums[0]) == len(known)
    assert sum(course.total) == pytest.approx(sum(value for _, value in known), abs=1e-3)
    assert course.nonfinite == [n for n, value in enumerate(values, 1) if not abs(value) < 1e9][:300]
    for at in range(len(course)):
        inside = [(n, value) for n, value in known if course.first[at] <= n <= course.last[at]]
        assert len(inside) == course.count[at]
        assert (course.low[at], course.high[at]) == (min(v for _, v in inside), max(v for _, v in inside))
        assert dict(inside)[course.highest[at]] == course.high[at]


@given(st.lists(st.lists(st.none() | st.floats(0, 1e3), min_size=3, max_size=3), max_size=500))
def test_each_parameter_keeps_its_greatest_figure_over_time(steps: list[list[float | None]]) -> None:
    grid = Grid()
    for n, figures in enumerate(steps, 1):
        assert grid.add(n, [5, 6, 7], figures) == []
    assert len(grid.first) <= 200
    for place, (means, most) in enumerate(zip(grid.means(), grid.most(), strict=True)):
        for at, (mean, greatest) in enumerate(zip(means, most, strict=True)):
            inside = [each[place] for each in steps[grid.first[at] - 1 : grid.last[at]] if each[place] is not None]
            assert greatest == (max(inside) if inside else None)
            assert mean is None if not inside else mean == pytest.approx(sum(inside) / len(inside))


@given(st.lists(nodes(), max_size=4), st.lists(nodes(), max_size=3))
def test_paths_add_up_what_the_trees_of_calls_say(program: list[Node], other: list[Node]) -> None:
    own = [event for node in program for event in node.events(3)]
    beside = [event for node in other for event in node.events(2)]
    step = recorded(0, sum(at for _, at in own) + sum(at for _, at in beside) + 5)
    rows = [row(0, own), row(1, beside, thread=2)]
    paths = Paths()
    found = paths.times(step, rows)
    expected: dict[tuple[bool, tuple[int, ...]], PathTime] = {}
    rest = [(call, (call.function.id,)) for call in call_trees(step, rows, FUNCTIONS, {})]
    while rest:
        call, path = rest.pop()
        sums = expected.setdefault((call.thread == 1, path), PathTime())
        sums.calls, sums.total, sums.own = sums.calls + 1, sums.total + call.total_ns, sums.own + call.self_ns
        rest += [(child, (*path, child.function.id)) for child in call.children]
    assert {_named(paths, path): time for path, time in found.items() if time.calls} == expected


@given(st.lists(nodes(), max_size=4), st.integers(1, 6))
def test_the_largest_paths_hang_together(program: list[Node], most: int) -> None:
    events = [event for node in program for event in node.events(3)]
    paths = Paths()
    times = paths.times(recorded(0, sum(at for _, at in events)), [row(0, events)])
    flame = largest(times, most)
    roots = set(paths.roots.values())
    assert all(paths.parent[path] in roots or paths.parent[path] in flame.path for path in flame.path)
    left = [time.total for path, time in times.items() if time.calls and path not in flame.path]
    assert len(left) == flame.left_out
    assert not left or max(left) <= min(flame.total)


def test_calls_too_deep_or_too_many_to_be_told_apart_are_time_of_those_above() -> None:
    deep = [(1 + at % 5, 10) for at in range(50)] + [(0, 10)] * 50
    paths = Paths(depth=7)
    times = paths.times(recorded(0, 1000), [row(0, deep)])
    assert sum(time.own for time in times.values()) == 1000
    assert max(time.total for time in times.values()) == 1000 - 10
    assert sum(time.calls for time in times.values()) + paths.folded == 50
    wide = [event for id in range(1, 400) for event in ((id, 1), (0, 1))]
    paths = Paths(paths=100)
    times = paths.times(recorded(0, 1000), [row(0, wide)])
    assert len(paths.parent) == 100
    assert sum(time.own for time in times.values()) == 1000


needs_plotly = pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="plotly is not installed")


@needs_plotly
def test_the_command_writes_beside_where_it_is_called_and_says_where(folder: Path, tmp_path: Path) -> None:
    written = run(_command("view", str(folder / "run")), cwd=tmp_path)
    assert (written.returncode, written.stderr) == (0, "")
    assert written.stdout.startswith("run.html (")
    assert Page((tmp_path / "run.html").read_text()).ids() >= {"steps"}
    again = run(_command("view", str(folder / "run")), cwd=tmp_path)
    assert again.returncode == 0, again.stderr


@needs_plotly
def test_it_is_opened_in_the_browser_that_the_user_has(folder: Path, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    (tmp_path / "browser").write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    (tmp_path / "browser").chmod(0o755)
    ended = run(_command("view", str(folder / "run"), "--open"), cwd=tmp_path, BROWSER=f"{tmp_path}/browser %s")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert opened.read_text() == (tmp_path / "run.html").as_uri()
    refused = run(_command("view", str(folder / "run"), "--open", "-o", "-"), cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")


@needs_plotly
def test_another_file_is_not_replaced_unasked(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    command = _command("view", str(folder / "run"), "-o", "mine.html")
    refused = run(command, cwd=tmp_path)
    assert refused.returncode == 1
    assert "mine.html' exists" in refused.stderr
    assert (tmp_path / "mine.html").read_text() == "mine"
    assert run([*command, "--force"], cwd=tmp_path).returncode == 0


def test_without_plotly_one_line_says_what_to_install(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plotly").mkdir()
    (tmp_path / "plotly" / "__init__.py").write_text("raise ImportError('not here')")
    ended = run(_command("view", str(folder / "run")), cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    assert ended.returncode == 1
    assert ended.stderr == "tcmon: error: the view needs plotly: pip install 'tcmon[view]'\n"
    assert not (tmp_path / "run.html").exists()


def _command(*args: str) -> list[str]:
    return [sys.executable, *TCMON, *args]


def _named(paths: Paths, path: int) -> tuple[bool, tuple[int, ...]]:
    names: list[int] = []
    while paths.parent[path] >= 0:
        names.insert(0, paths.function[path])
        path = paths.parent[path]
    return path == paths.roots.get(("train", True)), tuple(names)
