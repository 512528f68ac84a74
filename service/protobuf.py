"""Reads fields of Protocol Buffers messages in place; skipped fields take no memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_MOST_VARINT_BITS = 64


class DamagedError(ValueError):
    """The bytes are not a valid message."""


def fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int | None]]:
    """Each field's number, then its value and None; or, of a run of bytes, their count and where they begin."""
    at = start
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(data, at, end)
            yield number, value, None
        elif wire == _LENGTH:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise DamagedError("a field is longer than the message that contains it")
            yield number, size, at
            at += size
        elif wire in _FIXED_BYTES:
            at += _FIXED_BYTES[wire]
        else:
            raise DamagedError(f"unknown wire type {wire}")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < _MOST_VARINT_BITS:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise DamagedError("a number has no end")
