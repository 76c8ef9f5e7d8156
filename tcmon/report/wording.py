"""How a report words figures, paths and texts that come from the watched program."""

from datetime import datetime
from pathlib import PurePath
from typing import Final

_UNITS: Final = (("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0))
_SIZES: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def duration(nanoseconds: float | None) -> str:
    """Three significant digits and the unit that suits them: "8.12 ms"; "-" for None."""
    if nanoseconds is None:
        return "-"
    for unit, size in _UNITS:
        # Below half a unit of the last digit shown, so that nothing reads "1000 us".
        if nanoseconds >= size * 0.9995:
            return f"{_digits(nanoseconds / size)} {unit}"
    return f"{_digits(nanoseconds)} ns" if nanoseconds else "0"


def share(fraction: float | None) -> str:
    """A percentage: "3.1 %", "<0.01 %"; "-" for None."""
    if fraction is None:
        return "-"
    percent = fraction * 100
    if 0 < percent < 0.01:
        return "<0.01 %"
    return f"{percent:.2f} %" if percent < 1 else f"{percent:.1f} %"


def figure(value: float) -> str:
    """A figure without a unit in three digits: "0.0123", "1.50", "2.1e-06"."""
    if value and not 0.001 <= abs(value) < 100_000:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def count(number: float) -> str:
    """A number with thousands set apart; one decimal for small fractions."""
    if 0 < number < 0.1:
        return "<0.1"
    return f"{number:,.1f}" if number != round(number) and number < 100 else f"{number:,.0f}"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number and what it counts: "1 step", "1,200 steps"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def size(number: int) -> str:
    """A size in bytes: "1.2 MB"."""
    for unit, of in _SIZES:
        if number >= of:
            return f"{number / of:.1f} {unit}"
    return f"{number} bytes"


def moment(written: str) -> str:
    """A time in ISO 8601 as people write it, "2026-12-01 03:30 UTC"; anything else as it is."""
    try:
        return f"{datetime.fromisoformat(written):%Y-%m-%d %H:%M %Z}".rstrip()
    except ValueError:
        return written


def printable(text: str, encoding: str = "utf-8") -> str:
    """`text` with everything that a terminal would act on, or that `encoding` lacks, written as an escape."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def path(file: str, cwd: PurePath) -> str:
    """A path, relative to `cwd` below it, and from the package on for an installed one."""
    pure = PurePath(file)
    if pure.is_relative_to(cwd):
        return str(pure.relative_to(cwd))
    parts = pure.parts
    for index in range(len(parts) - 1, 0, -1):
        if parts[index - 1] in ("site-packages", "dist-packages"):
            return str(PurePath(*parts[index:]))
    return file


def cropped(text: str, width: int, ellipsis: str) -> str:
    """The end of `text`, which tells most about a name, in at most `width` characters."""
    return text if len(text) <= width else ellipsis + text[len(text) - max(width - len(ellipsis), 0) :]


def cropped_path(file: str, width: int, ellipsis: str) -> str:
    """The last names of a path that fit into `width` characters, of the very last one at least the end."""
    parts = file.split("/")
    while len(parts) > 1 and len("/".join(parts)) > width:
        del parts[0]
    return cropped("/".join(parts), width, ellipsis)


def place(file: str, line: int, cwd: PurePath, width: int, ellipsis: str, encoding: str) -> str:
    """Where a function stands, in at most `width` characters; "" where its file isn't known."""
    if not file:
        return ""
    number = f":{line}"
    return cropped_path(printable(path(file, cwd), encoding), width - len(number), ellipsis) + number


def _digits(value: float) -> str:
    for decimals, limit in ((2, 9.995), (1, 99.95)):
        if value < limit:
            return f"{value:.{decimals}f}"
    return f"{value:,.0f}"
