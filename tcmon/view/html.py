"""HTML from texts that may hold anything: everything is escaped unless it is HTML already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Final

from tcmon.report.wording import printable

_EMPTY: Final = frozenset({"br", "meta", "input"})


class Html(str):
    """A text that is HTML already."""

    __slots__ = ()


def element(tag: str, /, *content: str, **attributes: str | float | bool | None) -> Html:
    """An element. Attributes that are None or False are left out; `class_` and `data_n` mean `class` and `data-n`."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _EMPTY:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{joined(content)}</{tag}>")


def joined(content: Iterable[str]) -> Html:
    """Pieces one after another, escaped unless they are HTML already."""
    return Html("".join(map(escaped, content)))


def escaped(text: str) -> Html:
    """A text as HTML."""
    return text if isinstance(text, Html) else Html(escape(printable(text)))


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], *, left: Iterable[int] = (), **attributes: str) -> Html:
    """A table that scrolls sideways where it is too wide; the columns `left` hold texts, the others figures."""
    texts = frozenset(left)

    def cells(name: str, row: Iterable[str]) -> list[Html]:
        scope = "col" if name == "th" else None
        return [element(name, cell, class_="text" if at in texts else None, scope=scope) for at, cell in enumerate(row)]

    head = element("thead", element("tr", *cells("th", heads)))
    body = element("tbody", *(element("tr", *cells("td", row)) for row in rows))
    return element("div", element("table", head, body, **attributes), class_="wide", tabindex=0)
