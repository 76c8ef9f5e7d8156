"""The page of `tcmon view` in a real browser: Chromium without a window, from the distribution's packages."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trace_builder as tb
from view_runs import MS, RECORDED, page_of, write_view_run

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")

HOSTILE = "</script><img src=x onerror=document.title='broken'><b>&lt;i&gt;"
_PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
pytestmark = pytest.mark.skipif(
    not all(_PROGRAMS.values()),
    reason=f"not installed: {', '.join(name for name, path in _PROGRAMS.items() if not path)}",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = _PROGRAMS["chromium"]
    # Tests often run as root and in containers with little shared memory, where Chromium's sandbox doesn't start.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(_PROGRAMS["chromedriver"]))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    file = folder / "run.html"
    file.write_text(page_of(write_view_run(folder / "run", lambda text: HOSTILE + text), charts=True))
    return file


def until(condition: Callable[[], Any], what: str) -> Any:
    """What `condition` gives once it is true. Charts are drawn when the browser comes to it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within a minute: {what}")


def opened(browser: Any, page: Path, *, width: int = 1200, dark: bool = False, hash: str = "") -> Any:
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    in_colours(browser, dark=dark)
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(page.as_uri() + hash)
    until(lambda: browser.execute_script("return document.body.dataset.ready") == "yes", "the page is ready")
    return browser


def in_colours(browser: Any, *, dark: bool) -> None:
    """Without motion, so that nothing moves away under the mouse."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    motion = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, motion]})


def labels(browser: Any) -> list[str]:
    """What is written in the boxes of the calls."""
    script = "return [...document.querySelectorAll('#calls .slicetext')].map((each) => each.textContent)"
    return browser.execute_script(script)


def text_of(browser: Any, id: str) -> str:
    return browser.execute_script("return document.getElementById(arguments[0]).textContent", id)


def point(browser: Any, chart: str, trace: str, number: int) -> tuple[int, int]:
    """Where in the window a point of a chart is."""
    found = browser.execute_script(
        """
        const box = document.getElementById(arguments[0]);
        box.scrollIntoView({block: "center", behavior: "instant"});
        const trace = box.data.find((each) => each.meta === arguments[1]);
        const layout = box._fullLayout, at = box.getBoundingClientRect();
        return [at.x + layout.xaxis._offset + layout.xaxis.l2p(trace.x[arguments[2]]),
                at.y + layout.yaxis._offset + layout.yaxis.l2p(trace.y[arguments[2]])];
        """,
        chart,
        trace,
        number,
    )
    return round(found[0]), round(found[1])


def mouse(browser: Any, kind: str, x: float, y: float, **more: int) -> None:
    button = "none" if kind == "mouseMoved" and not more else "left"
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": button, **more})
    time.sleep(0.03)


def test_it_opens_without_errors_and_all_charts_are_drawn(browser: Any, page: Path) -> None:
    opened(browser, page)
    charts = browser.execute_script(
        "return [...document.querySelectorAll('.chart')].map((each) => [each.id, !!each.querySelector('svg.main-svg'),"
        " each.clientWidth])"
    )
    assert {id for id, _, _ in charts} == {
        *("times-train", "times-eval", "shares-train", "calls", "loss", "norms", "updates", "grid")
    }
    assert all(drawn and width > 500 for _, drawn, width in charts)
    drawn = {
        "times-train": ".scatterlayer .trace",
        "shares-train": ".scatterlayer .trace",
        "calls": ".iciclelayer .slice",
        "grid": ".heatmaplayer image",
    }
    for id, part in drawn.items():
        assert browser.execute_script(f"return document.querySelectorAll('#{id} {part}').length"), id
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


def test_a_click_on_a_recorded_step_shows_its_calls_and_lines(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert "All 4 recorded training steps together" in text_of(browser, "chosen")
    x, y = point(browser, "times-train", "recorded", RECORDED.index(42))
    mouse(browser, "mouseMoved", x, y)
    hover = (
        "return [...document.querySelectorAll('#times-train .hoverlayer .hovertext')].map((e) => e.textContent).join()"
    )
    told = until(lambda: browser.execute_script(hover), "the step under the mouse is described")
    for expected in (
        "step 42: 5.00 ms",
        "data wait 1.00 ms",
        f"stage {HOSTILE}training",
        f"because of {HOSTILE}interval",
    ):
        assert expected in told
    mouse(browser, "mousePressed", x, y, clickCount=1)
    mouse(browser, "mouseReleased", x, y, clickCount=1)
    until(lambda: text_of(browser, "chosen").startswith("Training step 42: 5.00 ms"), "step 42 is chosen")
    assert f"recorded because of {HOSTILE}interval" in text_of(browser, "chosen")
    until(lambda: any(label.startswith("step 42") for label in labels(browser)), "the calls are labelled")
    assert any(label.endswith("backward") for label in labels(browser))
    table = text_of(browser, "calls-table")
    assert HOSTILE + "Linear.<locals>.forward" in table
    assert browser.execute_script("return document.querySelector('#lines-train .took').textContent") == "1.00 ms"
    assert text_of(browser, "lines-train").count("Of step 42") == 1
    assert browser.execute_script("return [document.title.endsWith(' - tcmon'), document.images.length]") == [True, 0]
    assert browser.get_log("browser") == []


def test_steps_are_chosen_by_list_buttons_keys_and_links(browser: Any, page: Path) -> None:
    opened(browser, page, hash="#train-20")
    assert "Step 20 is not among the recorded ones shown" in text_of(browser, "chosen")
    assert "Training step 22" in text_of(browser, "chosen")
    browser.execute_script(
        "const list = document.getElementById('step'); list.value = '2'; list.dispatchEvent(new Event('change'))"
    )
    assert text_of(browser, "chosen").startswith("Training step 2:")
    browser.find_element("id", "later").click()
    assert text_of(browser, "chosen").startswith("Training step 22:")
    browser.find_element("id", "slowest").click()
    assert text_of(browser, "chosen").startswith("Training step 42:")
    assert not browser.find_element("id", "later").is_enabled()
    browser.find_element("id", "times-train").send_keys("[")
    assert text_of(browser, "chosen").startswith("Training step 22:")
    calls = browser.find_element("id", "calls")
    calls.send_keys("\ue015")  # arrow down
    until(lambda: HOSTILE + "Model.forward" in text_of(browser, "focus"), "the longest call is told")
    whole = f"{HOSTILE}Model.forward  1.50 ms"
    until(lambda: whole in labels(browser), "its name has all the room")
    calls.send_keys("\ue015")
    until(lambda: HOSTILE + "Linear.<locals>.forward" in text_of(browser, "focus"), "the call below it is told")
    browser.find_element("id", "merged").click()
    assert text_of(browser, "chosen").startswith("All 4 recorded training steps")
    browser.execute_script(
        "const list = document.getElementById('role'); list.value = 'eval'; list.dispatchEvent(new Event('change'))"
    )
    assert text_of(browser, "chosen").startswith("The one recorded evaluation step")
    assert browser.get_log("browser") == []


def test_charts_of_steps_zoom_together_by_keys_and_mouse(browser: Any, page: Path) -> None:
    opened(browser, page)
    ranges = (
        "return ['times-train', 'shares-train', 'loss', 'norms', 'grid']"
        ".map((id) => document.getElementById(id).layout.xaxis.range.map(Number))"
    )
    whole = browser.execute_script(ranges)
    browser.find_element("id", "loss").send_keys("+")
    until(lambda: browser.execute_script(ranges)[0] != whole[0], "the other charts follow")
    zoomed = browser.execute_script(ranges)
    assert len({tuple(each) for each in zoomed}) == 1
    assert zoomed[0][1] - zoomed[0][0] == pytest.approx((whole[0][1] - whole[0][0]) / 2)
    browser.find_element("id", "times-train").send_keys("0")
    until(lambda: browser.execute_script(ranges) == whole, "all steps are seen again")
    # By a mouse too; a double click is no click on a step.
    shown = "return document.getElementById('loss').layout.xaxis.range.map(Number)"
    whole = browser.execute_script(shown)
    x, y = point(browser, "times-train", "recorded", RECORDED.index(22))
    mouse(browser, "mouseMoved", x - 30, y)
    mouse(browser, "mousePressed", x - 30, y)
    for at in range(x - 20, x + 40, 10):
        mouse(browser, "mouseMoved", at, y + 1, buttons=1)
    mouse(browser, "mouseReleased", x + 30, y + 1)
    low, high = until(lambda: (now := browser.execute_script(shown)) != whole and now, "the loss is zoomed too")
    assert whole[0] < low < 22 < high < whole[1]
    for _ in range(20):
        # Two clicks may be too far apart for a double click where the machine is busy: they choose the step then.
        x, y = point(browser, "times-train", "recorded", 0)
        before = text_of(browser, "chosen")
        for count in (1, 2):
            mouse(browser, "mousePressed", x, y, clickCount=count)
            mouse(browser, "mouseReleased", x, y, clickCount=count)
        time.sleep(1)
        if browser.execute_script(shown) == whole:
            break
    assert browser.execute_script(shown) == whole
    assert text_of(browser, "chosen") == before
    assert browser.get_log("browser") == []


def test_runs_that_lack_most_things_open_without_errors(browser: Any, tmp_path: Path) -> None:
    start = [tb.header(), tb.loop(1), tb.function(1, "f"), tb.function(2, "g"), tb.parameter(1, "a")]
    body = {"thread": 1, "function": 1, "body": True, "line": [1, 2], "hits": [1, 1], "ns": [MS, MS]}
    nan = {"norm": ["nan"], "grad_norm": ["inf"], "update": [None], "nonfinite": [2], "grad_nonfinite": [3]}
    nothing = [tb.of_step("lines", 1, **body), tb.of_step("loss", 1, value=["nan"]), tb.state(1, [1], **nan)]
    calls = tb.calls(1, 0, [(1, 0), (0, MS)])
    kinds = {
        "no steps": [],
        "no calls, no time, nothing finite": [*nothing, tb.step(1, 0, 0), tb.steps([0, 0])],
        "evaluation only": [calls | {"role": "eval"}, tb.step(1, 0, MS, role="eval"), tb.steps([MS] * 3, role="eval")],
        "threads": [calls, tb.calls(1, 0, [(2, 0), (0, 3 * MS)], thread=7), tb.step(1, 0, MS)],
    }
    for name, records in kinds.items():
        file = tmp_path / f"{name}.html"
        file.write_text(page_of(tb.write_run(tmp_path / name, [*start, *records, tb.end()]), charts=True))
        opened(browser, file)
        assert (name, browser.get_log("browser")) == (name, [])
    browser.execute_script(
        "const list = document.getElementById('thread'); list.value = '1'; list.dispatchEvent(new Event('change'))"
    )
    assert "other threads3.00 ms" in text_of(browser, "calls-table")
    assert browser.get_log("browser") == []


def test_it_fits_a_phone_and_follows_the_systems_colours(browser: Any, page: Path) -> None:
    opened(browser, page, width=360)
    content, window = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert content <= window
    colours = (
        "const style = getComputedStyle(document.body);"
        "return [style.backgroundColor, style.color,"
        " getComputedStyle(document.querySelector('#times-train .legendtext')).fill].map((each) =>"
        " each.match(/[0-9.]+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0))"
    )
    for dark in (False, True):
        in_colours(browser, dark=dark)
        until(
            lambda dark=dark: (found := browser.execute_script(colours))[1] == found[2] and (found[0] < 200) == dark,
            "the charts take the system's colours",
        )
        back, text, axis = browser.execute_script(colours)
        assert abs(back - text) > 400
        assert abs(back - axis) > 400
    assert browser.get_log("browser") == []
