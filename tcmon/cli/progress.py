"""How far a long reading of traces is, where somebody looks at it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], object]]:
    """Shows on a terminal's stderr how many of `total` bytes are read; yields what is to be told of bytes read."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=total)
        untold = 0

        def advance(size: int) -> None:
            nonlocal untold
            untold += size
            if untold >= 1 << 20:
                shown.advance(task, untold)
                untold = 0

        yield advance
