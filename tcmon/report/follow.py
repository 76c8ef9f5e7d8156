"""Shows a run again and again while it goes on."""

import io
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tcmon.report.layout import FAINT
from tcmon.report.state import Condition, State

_PAUSE_S: Final = 2.0

# A long trace takes long to read: no more than this share of one core's time goes into it.
_SHARE: Final = 0.2

_OVER: Final = frozenset({Condition.ENDED, Condition.KILLED})


def follow(draw: Callable[[Console], State], console: Console) -> None:
    """Fill a terminal's screen with what `draw` prints, until the state that it returns is an end.

    What doesn't fit is cut off at the bottom. Elsewhere than on a terminal, it only waits for the end. Then, and after
    an interrupt, all of it is printed once.
    """
    try:
        if console.is_terminal:
            _redraw(draw, console)
        else:
            until_over(lambda: draw(Console(file=io.StringIO())))
    except KeyboardInterrupt:
        pass
    draw(console)


def until_over(state: Callable[[], State]) -> None:
    """Ask for the state of a run until it is an end."""
    began = time.monotonic()
    while state().condition not in _OVER:
        time.sleep(_pause(began))
        began = time.monotonic()


def _redraw(draw: Callable[[Console], State], console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began = time.monotonic()
            screen, state = _drawn(draw, console)
            live.update(screen, refresh=True)
            if state.condition in _OVER:
                return
            time.sleep(_pause(began))


def _pause(began: float) -> float:
    """For how long nothing is read after a reading that began then."""
    return max(_PAUSE_S, (time.monotonic() - began) / _SHARE)


def _drawn(draw: Callable[[Console], State], console: Console) -> tuple[Text, State]:
    """As many lines as the screen has, the last one saying what this is."""
    width, height = console.size
    paper = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=True,
        color_system=console.color_system,  # type: ignore[arg-type]
        no_color=console.no_color,
    )
    state = draw(paper)
    text: str = paper.file.getvalue()  # type: ignore[attr-defined]
    lines = text.splitlines()
    shown = [Text.from_ansi(line, no_wrap=True, overflow="ellipsis") for line in lines[: height - 2]]
    more = f", {len(lines) - len(shown)} more lines at the end" if len(lines) > len(shown) else ""
    shown.append(Text(f"redrawn while the run goes on; Ctrl-C ends this{more}", FAINT))
    return Text("\n").join(shown), state
