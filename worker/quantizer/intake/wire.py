"""Looks at the protobuf bytes of an ONNX file before a parser builds objects from them.

Tells a file that is cut short from one that is no ONNX file at all, and counts nodes: each costs hundreds of bytes once
parsed, but only two in the file.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import onnx
from google.protobuf.message import DecodeError

from service.contracts.errors import NotOnnxError, UnsupportedModelError

_MODEL_FIELDS = {field.number: field.name for field in onnx.ModelProto.DESCRIPTOR.fields}
_GRAPH, _METADATA, _FUNCTIONS = 7, 14, 25
_GRAPH_NODE, _FUNCTION_NODE, _NODE_ATTRIBUTE = 1, 7, 5
_ATTRIBUTE_GRAPHS = (6, 11)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class _BadTagError(Exception):
    """A field number or wire type that protobuf does not have."""


class _CutShortError(Exception):
    """A field reaches beyond the end of its message."""

    def __init__(self, field: int, missing: int) -> None:
        super().__init__(field, missing)
        self.field = field
        self.missing = missing


def scan_model(data: bytes, *, max_nodes: int) -> None:
    """Check the outer structure of an ONNX file and count its nodes, sub-graphs and functions included.

    Args:
        data: the whole file.
        max_nodes: largest accepted number of nodes.

    Raises:
        NotOnnxError: no ONNX file, or one that is cut short.
        UnsupportedModelError: more nodes than ``max_nodes``.
    """
    try:
        found = list(_model_fields(data))
    except _BadTagError:
        raise not_onnx() from None
    except _CutShortError as error:
        name = _MODEL_FIELDS.get(error.field)
        if name is None:
            raise not_onnx() from None
        raise NotOnnxError(
            f"the file is cut short: {error.missing} bytes are missing at its end, in field {name!r}",
            hint="Upload the file again; compare its size and sha256 with the original.",
            field=name,
            offset=len(data),
        ) from None
    if not any(field == _GRAPH for field, *_ in found):
        raise not_onnx()
    nodes = 0
    try:
        for field, start, end in found:
            if field in (_GRAPH, _FUNCTIONS):
                for _ in _nodes(data, start, end, _GRAPH_NODE if field == _GRAPH else _FUNCTION_NODE):
                    nodes += 1
                    if nodes > max_nodes:
                        raise UnsupportedModelError(
                            f"the model has more than {max_nodes} nodes",
                            hint="Split the model, or simplify its export.",
                        )
    except (_BadTagError, _CutShortError):
        raise NotOnnxError(
            "the file is damaged: its graph cannot be read", hint="Export the model again and upload it anew."
        ) from None


def model_metadata(data: bytes | mmap.mmap) -> dict[str, str]:
    """The entries of ``metadata_props``, without parsing or copying anything else of the model.

    Args:
        data: the whole file; may be mapped into memory.

    Raises:
        NotOnnxError: no ONNX file, or one that is cut short.
    """
    view = memoryview(data)
    try:
        fields = list(_model_fields(view))
        if not any(field == _GRAPH for field, *_ in fields):
            raise not_onnx()
        found = [view[start:end].tobytes() for field, start, end in fields if field == _METADATA]
        entries = [onnx.StringStringEntryProto.FromString(item) for item in found]
    except (_BadTagError, _CutShortError, DecodeError):
        raise not_onnx() from None
    finally:
        view.release()
    return {entry.key: entry.value for entry in entries}


def _model_fields(data: bytes | memoryview) -> Iterator[tuple[int, int, int]]:
    for field, start, end in _fields(data, 0, len(data)):
        if field not in _MODEL_FIELDS:
            raise _BadTagError
        yield field, start, end


def not_onnx() -> NotOnnxError:
    """The error for a file of another kind."""
    return NotOnnxError(
        "the file is not an ONNX model",
        hint="Upload a model exported to ONNX (for PyTorch: torch.onnx.export), not a checkpoint or an archive.",
    )


def _nodes(data: bytes, start: int, end: int, node_field: int) -> Iterator[None]:
    """One item per node within the graph or function at [start, end), those of its sub-graphs included."""
    work = [(start, end, node_field)]
    while work:
        graph_start, graph_end, number = work.pop()
        for field, node_start, node_end in _fields(data, graph_start, graph_end):
            if field != number:
                continue
            yield None
            for inner, attribute_start, attribute_end in _fields(data, node_start, node_end):
                if inner == _NODE_ATTRIBUTE:
                    work += [
                        (sub_start, sub_end, _GRAPH_NODE)
                        for item, sub_start, sub_end in _fields(data, attribute_start, attribute_end)
                        if item in _ATTRIBUTE_GRAPHS
                    ]


def _fields(data: bytes | memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the payload of every field of the message at [at, end)."""
    while at < end:
        tag, at = _varint(data, at, end, 0)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise _BadTagError
        if kind == _BYTES:
            size, at = _varint(data, at, end, field)
        elif kind == _VARINT:
            _, stop = _varint(data, at, end, field)
            size = stop - at
        elif kind == _FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise _BadTagError
        if at + size > end:
            raise _CutShortError(field, at + size - end)
        yield field, at, at + size
        at += size


def _varint(data: bytes | memoryview, at: int, end: int, field: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise _BadTagError
    raise _CutShortError(field, 1)
