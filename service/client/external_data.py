"""Which files beside an ONNX file hold its weights: read off the file itself, where no package for ONNX is installed.

A model is a message of Protocol Buffers. Only the fields on the way to the tensors' locations are looked into, the
weights themselves are passed over; so a large file takes no memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from service.contracts.errors import ExternalDataError
from service.protobuf import DamagedError, fields

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
# Messages that wait to be looked into: what is no model must not take the memory of one.
_MOST_WAITING = 1_000_000


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
        except DamagedError:
            return set()


def _external(data: mmap.mmap) -> Iterator[str]:
    waiting = [("model", 0, len(data))]
    while waiting:
        kind, start, end = waiting.pop()
        if kind == "tensor":
            yield from _location(data, start, end)
            continue
        for number, value, at in fields(data, start, end):
            inner = _INSIDE[kind].get(number)
            if inner is not None and at is not None:
                waiting.append((inner, at, at + value))
                if len(waiting) > _MOST_WAITING:
                    raise DamagedError("there are more messages than any model has")


def _location(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    """Where a tensor's bytes are, if they are not in the tensor."""
    external, location = False, None
    for number, value, at in fields(data, start, end):
        if number == _DATA_LOCATION and at is None:
            external = value == _EXTERNAL
        elif at is not None and _INSIDE["tensor"].get(number) == "entry":
            texts = {inner: data[place : place + size] for inner, size, place in fields(data, at, at + value) if place}
            if texts.get(_ENTRY_KEY) == b"location":
                location = texts.get(_ENTRY_VALUE, b"")
    if external and location is not None:
        yield location.decode(errors="surrogateescape")
