"""Which files beside an ONNX file hold its weights: read off the file itself, where no package for ONNX is installed.

A model is a message of Protocol Buffers. Only the fields on the way to the tensors' locations are looked into, the
weights themselves are passed over; so a large file takes no memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from service.contracts.errors import ExternalDataError

# Of each kind of message: which fields hold messages that matter, and of which kind (onnx.proto3).
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_DATA_LOCATION, _EXTERNAL = 14, 1
_VARINT, _LENGTH = 0, 2
_FIXED_BYTES = {1: 8, 5: 4}
_MOST_VARINT_BITS = 64


class _DamagedError(ValueError):
    """These bytes are no message."""


def external_files(model: Path) -> list[Path]:
    """The files of a model's external data, by name. A file that is no model has none: the service says what it is.

    Raises:
        ExternalDataError: one is missing, or lies elsewhere than beside the model.
    """
    found = []
    for location in sorted(_locations(model)):
        path = model.parent / location
        if "/" in location or location in ("", ".", ".."):
            raise ExternalDataError(
                f"The model keeps weights in {location!r}; a service takes external data beside the model only.",
                hint="Save the model again with its external data in the same folder.",
            )
        if not path.is_file():
            raise ExternalDataError(
                f"The model's weights are in {location!r}, which is not beside {model.name}.",
                hint="Put it there under this name, or save the model again in one file.",
            )
        found.append(path)
    return found


def _locations(model: Path) -> set[str]:
    if model.stat().st_size == 0:
        return set()
    with model.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return set(_external(data))
        except _DamagedError:
            return set()


def _external(data: mmap.mmap) -> Iterator[str]:
    waiting = [("model", 0, len(data))]
    while waiting:
        kind, start, end = waiting.pop()
        if kind == "tensor":
            yield from _location(data, start, end)
            continue
        for number, value, at in _fields(data, start, end):
            inner = _INSIDE[kind].get(number)
            if inner is not None and at is not None:
                waiting.append((inner, at, at + value))


def _location(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    """Where a tensor's bytes are, if they are not in the tensor."""
    external, location = False, None
    for number, value, at in _fields(data, start, end):
        if number == _DATA_LOCATION and at is None:
            external = value == _EXTERNAL
        elif at is not None and _INSIDE["tensor"].get(number) == "entry":
            texts = {inner: data[place : place + size] for inner, size, place in _fields(data, at, at + value) if place}
            if texts.get(_ENTRY_KEY) == b"location":
                location = texts.get(_ENTRY_VALUE, b"")
    if external and location is not None:
        yield location.decode(errors="surrogateescape")


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int | None]]:
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
                raise _DamagedError("a field is longer than what holds it")
            yield number, size, at
            at += size
        elif wire in _FIXED_BYTES:
            at += _FIXED_BYTES[wire]
        else:
            raise _DamagedError(f"there is no wire type {wire}")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < _MOST_VARINT_BITS:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise _DamagedError("a number does not end")
