"""The outermost fields of an ONNX file: tells one that is cut short from one that is no ONNX file at all."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import onnx
from google.protobuf.message import DecodeError

from service.contracts.errors import NotOnnxError

_MODEL_FIELDS = {field.number: field.name for field in onnx.ModelProto.DESCRIPTOR.fields}
_GRAPH, _METADATA = 7, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadTagError(Exception):
    """A field number or wire type that protobuf does not have."""


class CutShortError(Exception):
    """A field reaches beyond the end of its message.

    Attributes:
        name: of the field, of those of ModelProto; None: there is none of its number.
        missing: bytes.
    """

    def __init__(self, field: int, missing: int) -> None:
        super().__init__(field, missing)
        self.name = _MODEL_FIELDS.get(field)
        self.missing = missing


def model_metadata(data: bytes | mmap.mmap) -> dict[str, str]:
    """The entries of ``metadata_props``, without parsing or copying anything else of the model.

    Args:
        data: the whole file; may be mapped into memory.

    Raises:
        NotOnnxError: no ONNX file, or one that is cut short.
    """
    view = memoryview(data)
    try:
        fields = list(model_fields(view))
        if not any(field == _GRAPH for field, *_ in fields):
            raise not_onnx()
        found = [view[start:end].tobytes() for field, start, end in fields if field == _METADATA]
        entries = [onnx.StringStringEntryProto.FromString(item) for item in found]
    except (BadTagError, CutShortError, DecodeError):
        raise not_onnx() from None
    finally:
        view.release()
    return {entry.key: entry.value for entry in entries}


def check_outline(data: bytes) -> None:
    """Refuse a file that is cut short, or of another kind, in words that its owner can use.

    Raises:
        NotOnnxError: the outermost fields are not those of a whole ONNX file.
    """
    try:
        graphs = sum(number == _GRAPH for number, _, _ in model_fields(data))
    except BadTagError:
        raise not_onnx() from None
    except CutShortError as error:
        if error.name is None:
            raise not_onnx() from None
        raise NotOnnxError(
            f"the file is cut short: {error.missing} bytes are missing at its end, in field {error.name!r}",
            hint="Upload the file again; compare its size and sha256 with the original.",
            rule="length",
            field=error.name,
            offset=len(data),
        ) from None
    if not graphs:
        raise not_onnx()
    if graphs > 1:
        raise damaged("field 'graph' is given twice", "repetition")


def model_fields(data: bytes | memoryview | mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the payload of every field of a model.

    Raises:
        BadTagError: of another message, or of none.
        CutShortError: the file ends within a field.
    """
    for field, start, end in _fields(data, 0, len(data)):
        if field not in _MODEL_FIELDS:
            raise BadTagError
        yield field, start, end


def not_onnx() -> NotOnnxError:
    """The error for a file of another kind."""
    return NotOnnxError(
        "the file is not an ONNX model",
        hint="Upload a model exported to ONNX (for PyTorch: torch.onnx.export), not a checkpoint or an archive.",
        rule="outermost-fields",
    )


def damaged(why: str, rule: str) -> NotOnnxError:
    """The error for bytes that no writer of ONNX makes.

    Args:
        why: in words.
        rule: of the wire format or of ONNX that is broken.
    """
    return NotOnnxError(f"the file is damaged: {why}", hint="Export the model again and upload it anew.", rule=rule)


def _fields(data: bytes | memoryview | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the payload of every field of the message at [at, end)."""
    while at < end:
        tag, at = _varint(data, at, end, 0)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise BadTagError
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
            raise BadTagError
        if at + size > end:
            raise CutShortError(field, at + size - end)
        yield field, at, at + size
        at += size


def _varint(data: bytes | memoryview | mmap.mmap, at: int, end: int, field: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise BadTagError
    raise CutShortError(field, 1)
