"""Writes the JSON of Chrome's trace-event format, event by event.

Only phases that stand alone are used: complete slices (X), counters (C) and metadata (M). Times are microseconds
with three decimals, so no nanosecond is lost.
"""

from collections.abc import Callable, Mapping
from typing import Final

import orjson

_BUFFERED: Final = 2000  # events


class ChromeTrace:
    """Formats events and hands text to `write`; `close` ends the file's JSON."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._pending: list[str] = []
        self._flushed = 0

    def process(self, pid: int, name: str, order: int) -> None:
        """Name a process; a lower `order` stands higher."""
        self._add(f'{{"ph":"M","name":"process_name","pid":{pid},"tid":0,"ts":0,"args":{{"name":{encoded(name)}}}}}')
        self._add(
            f'{{"ph":"M","name":"process_sort_index","pid":{pid},"tid":0,"ts":0,"args":{{"sort_index":{order}}}}}'
        )

    def thread(self, pid: int, tid: int, name: str, order: int) -> None:
        """Name a thread, or a track that is shown like one."""
        self._add(f'{{"ph":"M","name":"thread_name","pid":{pid},"tid":{tid},"ts":0,"args":{{"name":{encoded(name)}}}}}')
        self._add(
            f'{{"ph":"M","name":"thread_sort_index","pid":{pid},"tid":{tid},"ts":0,"args":{{"sort_index":{order}}}}}'
        )

    def slice(self, track: str, begin: int, end: int, what: str) -> None:
        """Something on a track (see `track_of`) between two times in nanoseconds; for `what` see `described`."""
        at, took = f"{begin // 1000}.{begin % 1000:03d}" if begin >= 0 else _us(begin), end - begin
        self._add(f'{{"ph":"X","ts":{at},"dur":{took // 1000}.{took % 1000:03d},{track},{what}}}')

    def counter(self, pid: int, name: str, at: int, value: str) -> None:
        """A number that holds from a time in nanoseconds on; `value` is JSON for its name and itself."""
        self._add(f'{{"ph":"C","ts":{_us(at)},"pid":{pid},"tid":0,"name":{name},"args":{{{value}}}}}')

    def close(self, facts: Mapping[str, str]) -> None:
        """End the JSON, with `facts` about the whole."""
        self._flush()
        self._write(b'\n],"displayTimeUnit":"ms","otherData":' + orjson.dumps(dict(facts)) + b"}\n")

    @property
    def events(self) -> int:
        """How many there are so far."""
        return self._flushed + len(self._pending)

    def _add(self, event: str) -> None:
        self._pending.append(event)
        if len(self._pending) >= _BUFFERED:
            self._flush()

    def _flush(self) -> None:
        if not self._flushed:
            self._write(b'{"traceEvents":[')
        if self._pending:
            self._write((",\n" if self._flushed else "\n").encode() + ",\n".join(self._pending).encode())
            self._flushed += len(self._pending)
            self._pending.clear()


def track_of(pid: int, tid: int) -> str:
    """The JSON that puts an event on a track."""
    return f'"pid":{pid},"tid":{tid}'


def described(name: str, category: str, args: str = "") -> str:
    """The JSON that says what a slice is; `args` is JSON of pairs that are shown with it."""
    return f'"name":{encoded(name)},"cat":{encoded(category)},"args":{{{args}}}'


def encoded(text: str) -> str:
    """A text as JSON."""
    return orjson.dumps(text).decode()


def _us(nanoseconds: int) -> str:
    if nanoseconds < 0:
        return "-" + _us(-nanoseconds)
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
