"""Where the zero of a session's clock lies on the wall clock."""

import time
from time import perf_counter_ns

_TRIES = 16


def zero_on_wall_clock(origin: int) -> tuple[int, int]:
    """The Unix time at which `perf_counter_ns()` was `origin`, and how far off it may be; both in nanoseconds.

    The wall clock is read between two readings of the session's clock, several times, and the closest pair counts. How
    far the wall clocks of two hosts are apart is not in the second figure.
    """
    best, unix = 1 << 62, 0
    for _ in range(_TRIES):
        before = perf_counter_ns()
        now = time.time_ns()
        after = perf_counter_ns()
        if after - before < best:
            best, unix = after - before, now - ((before + after) // 2 - origin)
    return unix, (best + 1) // 2
