"""A tensor's bytes against its type and shape, told before anything is allocated for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from service.contracts.errors import ModelError

MAX_ELEMENTS = 1 << 40
_MAX_RANK = 64
_SHOWN_NAME_CHARACTERS = 200
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


def check_tensor(tensor: onnx.TensorProto) -> None:
    """Hold the bytes against type and shape; those of external data are somewhere else.

    Raises:
        ModelError: naming the tensor; a file of a few bytes must not make anyone allocate gigabytes.
    """
    expected = tensor_bytes(tensor.data_type, tensor.dims, tensor.name)
    if tensor.data_location == _T.EXTERNAL:
        return
    if tensor.HasField("raw_data"):
        got, unit = len(tensor.raw_data), "bytes"
        if tensor.data_type == _T.STRING:
            raise _bad_tensor(tensor.name, "strings cannot be raw bytes")
    else:
        name, per_element = _TYPED_FIELDS.get(tensor.data_type, ("int32_data", 1))
        got, unit = len(getattr(tensor, name)), f"entries in {name}"
        bits = ir.DataType(tensor.data_type).bitwidth if tensor.data_type != _T.STRING else 8
        count = math.prod(tensor.dims) * per_element
        expected = -(-count * bits // 8) if bits < 8 else count
    if got != expected:
        raise _bad_tensor(tensor.name, f"its shape {list(tensor.dims)} needs {expected} {unit}, the file holds {got}")


def tensor_bytes(data_type: int, dims: Sequence[int], name: str) -> int:
    """Bytes that the elements take; 0 for strings, whose size is not fixed.

    Raises:
        ModelError: unknown type, negative or impossible dimensions.
    """
    try:
        dtype = ir.DataType(data_type)
    except ValueError:
        raise _bad_tensor(name, f"unknown data type {data_type}") from None
    if dtype == ir.DataType.UNDEFINED:
        raise _bad_tensor(name, "its data type is undefined")
    bad = len(dims) > _MAX_RANK or any(not 0 <= axis <= MAX_ELEMENTS for axis in dims)
    if bad or math.prod(dims) > MAX_ELEMENTS:
        raise _bad_tensor(name, f"impossible shape {list(dims[:_MAX_RANK])}")
    if dtype == ir.DataType.STRING:
        return 0
    bits: int = math.prod(dims) * dtype.bitwidth
    return (bits + 7) // 8


def _bad_tensor(name: str, why: str) -> ModelError:
    shown = name[:_SHOWN_NAME_CHARACTERS]
    return ModelError(
        f"tensor {shown!r} is damaged: {why}", hint="Export the model again, with its weights.", tensor=shown
    )
