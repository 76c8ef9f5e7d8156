"""A flight recorder: the last recorded steps, held in memory until something happens that makes them worth writing."""

from __future__ import annotations

import threading
from collections import deque

MOST_BYTES = 64 << 20
"""What is held at most, whatever the number of steps."""


class Flight:
    """Holds what was recorded of the last `steps` steps, as it would stand in the trace; about 64 MB at most."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._held: deque[bytes] = deque()
        self._bytes = 0
        self._lost = 0
        self._lock = threading.RLock()

    def hold(self, data: bytes) -> None:
        """Keep one more step, and forget the oldest ones that there is no room for."""
        with self._lock:
            self._held.append(data)
            self._bytes += len(data)
            while len(self._held) > self._steps or (self._bytes > MOST_BYTES and len(self._held) > 1):
                self._bytes -= len(self._held.popleft())
                self._lost += 1

    def take(self) -> tuple[bytes, int, int]:
        """What is held, how many steps that is, and how many were forgotten; nothing is held afterwards."""
        with self._lock:
            data, count, lost = b"".join(self._held), len(self._held), self._lost
            self._held.clear()
            self._bytes = self._lost = 0
        return data, count, lost
