"""Writes TensorBoard's event files: scalars as protocol buffers (Event, Summary) in the records of TFRecord files.

A record is its length, data, and a masked CRC-32C (Castagnoli) of each. The format is stable since TensorFlow 1, and so
small that no package is needed for it.
"""

import struct
from collections.abc import Callable
from typing import Final

_VERSION: Final = b"brain.Event:2"
_POLYNOMIAL: Final = 0x82F63B78
_LARGEST: Final = 3.4028234e38

type Write = Callable[[bytes], object]


class EventFile:
    """Formats events of a file and hands them to `write`."""

    def __init__(self, write: Write, wall_time: float) -> None:
        self._write = write
        self.scalars = 0
        # wall_time = 1, file_version = 3
        self._record(struct.pack("<Bd", 0x09, wall_time) + b"\x1a" + _sized(_VERSION))

    def scalar(self, wall_time: float, step: int, tag: str, value: float) -> None:
        """A value at a step, which is single precision in the file."""
        if abs(value) > _LARGEST:
            value = value * float("inf")
        # Summary.value = 1 with tag = 1 and simple_value = 2; Event: wall_time = 1, step = 2, summary = 5
        content = b"\x0a" + _sized(tag.encode("utf-8", "replace")) + struct.pack("<Bf", 0x15, value)
        summary = b"\x0a" + _sized(content)
        self._record(struct.pack("<Bd", 0x09, wall_time) + b"\x10" + _varint(step) + b"\x2a" + _sized(summary))
        self.scalars += 1

    def _record(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        self._write(length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data)))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE: Final = _table()


def _masked(data: bytes) -> int:
    table, crc = _TABLE, 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
