"""A tensor's bytes against its type and shape, told before anything is allocated for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from service.contracts.errors import ModelError

MAX_ELEMENTS = 1 << 40
_MAX_RANK = 64
_SHOWN_NAME_CHARACTERS = 200
_BIT63, _BIT64 = 1 << 63, 1 << 64
_T = onnx.TensorProto
# Where typed data lies when raw_data is not used, and how many entries one element takes there.
_TYPED_FIELDS: dict[int, tuple[str, int]] = {
    _T.FLOAT: ("float_data", 1),
    _T.COMPLEX64: ("float_data", 2),
    _T.DOUBLE: ("double_data", 1),
    _T.COMPLEX128: ("double_data", 2),
    _T.INT64: ("int64_data", 1),
    _T.UINT32: ("uint64_data", 1),
    _T.UINT64: ("uint64_data", 1),
    _T.STRING: ("string_data", 1),
}


def signed(value: int) -> int:
    """The int64 that a varint stands for."""
    return value - _BIT64 if value >= _BIT63 else value


def impossible_dimension(value: int) -> bool:
    """True for a dimension beyond what anything can hold; some exporters write -1 for one that is not known."""
    return signed(value) > MAX_ELEMENTS


def tensor_bytes(data_type: int, dims: Sequence[int], name: str) -> int:
    """Bytes that the elements take; 0 for strings, whose size is not fixed.

    Raises:
        ModelError: unknown type, negative or impossible dimensions.
    """
    try:
        dtype = ir.DataType(data_type)
    except ValueError:
        raise bad_tensor(name, f"unknown data type {data_type}") from None
    if dtype == ir.DataType.UNDEFINED:
        raise bad_tensor(name, "its data type is undefined")
    bad = len(dims) > _MAX_RANK or any(not 0 <= axis <= MAX_ELEMENTS for axis in dims)
    if bad or math.prod(dims) > MAX_ELEMENTS:
        raise bad_tensor(name, f"impossible shape {list(dims[:_MAX_RANK])}")
    if dtype == ir.DataType.STRING:
        return 0
    bits: int = math.prod(dims) * dtype.bitwidth
    return (bits + 7) // 8


def bad_tensor(name: str, why: str, offset: int | None = None) -> ModelError:
    """The error for a tensor whose bytes do not match its type and shape."""
    return ModelError(
        f"tensor {name!r} is damaged: {why}",
        hint="Export the model again, with its weights.",
        tensor=name,
        offset=offset,
    )


class Tensor:
    """What the walk has met of one TensorProto.

    Attributes:
        name: as it is stored, perhaps cut.
        raw_bytes: length of raw_data; None: there is none.
    """

    def __init__(self) -> None:
        self.name = b""
        self.raw_bytes: int | None = None
        self._dims: list[int] = []
        self._values = {"data_type": 0, "data_location": 0}
        self._entries: Counter[str] = Counter()

    def set(self, field: str, value: int) -> None:
        """Take in a number that is there once; the last one counts."""
        self._values[field] = value

    def add_one(self, field: str, value: int) -> None:
        """Take in one value of a repeated field."""
        if field == "dims":
            self._add_dimension(value)
        else:
            self._entries[field] += 1

    def add(self, field: str, count: int, data: object, start: int, end: int) -> None:
        """Take in ``count`` values of a repeated field, which lie at [start, end) of ``data``."""
        if field != "dims":
            self._entries[field] += count
            return
        value = shift = 0
        for byte in data[start:end]:  # type: ignore[index]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self._add_dimension(value)
                value = shift = 0
            elif shift > 63:
                break  # the parser says so

    def check(self, offset: int) -> None:
        """Hold the bytes against type and shape; those of external data are somewhere else.

        Raises:
            ModelError: naming the tensor; a file of a few bytes must not make anyone allocate gigabytes.
        """
        name = self.name.decode(errors="replace")[:_SHOWN_NAME_CHARACTERS]
        data_type, dims = self._values["data_type"], self._dims
        expected = tensor_bytes(data_type, dims, name)
        if self._values["data_location"] == _T.EXTERNAL:
            return
        if self.raw_bytes is not None:
            got, unit = self.raw_bytes, "bytes"
            if data_type == _T.STRING:
                raise bad_tensor(name, "strings cannot be raw bytes", offset)
        else:
            field, per_element = _TYPED_FIELDS.get(data_type, ("int32_data", 1))
            got, unit = self._entries[field], f"entries in {field}"
            bits = ir.DataType(data_type).bitwidth if data_type != _T.STRING else 8
            count = math.prod(dims) * per_element
            expected = -(-count * bits // 8) if bits < 8 else count
        if got != expected:
            raise bad_tensor(name, f"its shape {dims} needs {expected} {unit}, the file holds {got}", offset)

    def _add_dimension(self, value: int) -> None:
        if len(self._dims) <= _MAX_RANK:
            self._dims.append(signed(value))
