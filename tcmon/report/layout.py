"""What the pages of a report share: tables, labels, and lines without blanks at their ends."""

from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

HEADING: Final = "bold"
FAINT: Final = "dim"
GOOD: Final = "green"
MARKED: Final = "cyan"
BAD: Final = "yellow"

LEAST_WIDTH: Final = 72
"""Columns that tables take at least; a narrower terminal breaks their lines itself."""


def width_of(console: Console) -> int:
    """How many columns there are for a table."""
    return max(console.width, LEAST_WIDTH)


def ellipsis_of(console: Console) -> str:
    """What stands for text that was left out, in a character that the console's encoding has."""
    return "~" if console.options.ascii_only else "…"


def table() -> Table:
    """A table without lines, its columns two blanks apart."""
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=HEADING)


def show(part: RenderableType, console: Console) -> None:
    """Print `part` without the blanks that rich fills its lines with."""
    for line in _lines(part, console):
        show_line(line, console)


def show_line(line: Text, console: Console) -> None:
    """Print a line as it is; paths and commands to be copied are not broken."""
    console.print(line, highlight=False, soft_wrap=True)


def _lines(part: RenderableType, console: Console) -> Iterator[Text]:
    options = console.options.update(width=width_of(console))
    for segments in console.render_lines(part, options, pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        yield line
