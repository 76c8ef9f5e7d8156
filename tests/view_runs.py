"""A run directory with everything that a view shows, and what is in its page."""

import gzip
import re
from base64 import b64decode
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import orjson
import pytest
import trace_builder as tb

from tcmon.trace.reader import open_run
from tcmon.view.page import charts_library, page

MS = 1_000_000
STEP = 4 * MS
RECORDED = (1, 2, 22, 42)
EVALUATED = 30

SOURCE = """\
def main():
    for batch in loader:
        loss = model(batch)
        loss.backward()
        optimizer.step()
"""


def write_view_run(directory: Path, named: Callable[[str], str] = lambda text: text, steps: int = 60) -> Path:
    """Training of `steps` steps of 4 ms, step 30 with five evaluation steps of 1 ms more; all texts by `named`."""
    directory.mkdir(parents=True)
    source = directory / "train.py"
    source.write_text(SOURCE)
    records = [
        tb.header(),
        tb.loop(1, file=str(source), qualname=named("main"), line=2, evidence=[named("optimizer.step()")]),
        tb.loop(2, "eval", file=str(source), qualname=named("test"), line=9, evidence=[named("no_grad")]),
        tb.function(1, named("main"), file=str(source), line=1),
        tb.function(2, named("Model.forward")),
        tb.function(3, named("Linear.<locals>.forward")),
        tb.function(4, named("backward"), file="/venv/site-packages/torch/autograd/graph.py"),
        {"kind": "optimizer", "id": 1, "name": named("torch.optim.SGD")},
        tb.parameter(1, named("head.weight")),
        tb.parameter(2, named("head.bias")),
    ]
    clock = 0
    begins, durations = [], []
    for n in range(1, steps + 1):
        took = STEP + (5 * MS if n == EVALUATED else 0)
        if n == EVALUATED:
            at = clock + MS
            records.append(tb.calls(1, at, [(2, 0), (0, MS)], role="eval", loop=2))
            records.append(tb.step(1, at, MS, role="eval", loop=2))
            records.append(tb.steps([MS] * 5, role="eval", loop=2, begin=at))
        if n in RECORDED:
            extra = MS if n == 42 else 0
            took += extra
            events = [(2, MS), (3, 1000), (0, MS), (3, 1000), (0, MS // 2), (0, 0), (4, 0), (0, MS + extra)]
            records += [
                tb.calls(n, clock, events),
                tb.of_step("lines", n, thread=1, function=1, body=True, line=[2, 3, 4, 5], hits=[1] * 4, own=0)
                | {"ns": [MS, MS * 2, MS + extra, 0]},
                tb.of_step("loss", n, value=["nan" if n == 42 else 3.0 / n]),
                tb.state(n, [1, 2], grad_norm=[3.0, 4.0], norm=[1.0, 2.0], update=[0.001, 0.002]),
                tb.step(n, clock, took) | {"reason": named("interval"), "stage": named("training")},
            ]
        begins.append(clock)
        durations.append(took)
        clock += took
    records.append(tb.steps(durations, waits=[MS] * steps))
    records += [tb.note(named("a note")), tb.end(hint=named("a hint"), clock_ns=clock)]
    start = {"start_unix_ns": int(source.stat().st_mtime + 60) * 10**9}
    facts = {"script": named("train.py"), "command": ["python", named("train.py")], "host": named("host")}
    return tb.write_run(directory, records, **start, **facts)


def page_of(directory: Path, *, charts: bool = False) -> str:
    """The page of a run; with `charts` it can draw them, which needs plotly."""
    library = ""
    if charts:
        pytest.importorskip("plotly", reason="plotly is not installed")
        library = charts_library()
    return page(open_run(directory), library).decode()


def data_of(text: str) -> Any:
    """What the charts are drawn from."""
    packed = re.search(r'<script id="data" type="application/gzip\+base64">([A-Za-z0-9+/=]+)</script>', text)
    assert packed is not None
    return orjson.loads(gzip.decompress(b64decode(packed[1])))


class Page(HTMLParser):
    """Elements and visible texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)

    def names(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def ids(self) -> set[str | None]:
        return {attributes["id"] for _, attributes in self.elements if "id" in attributes}
