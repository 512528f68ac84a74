"""Stored weights that become float: MatMulNBits, GatherBlockQuantized, and integers restored by Cast, Sub and Mul.

Values of less than 8 bits are packed along the last axis, the first in the low bits of a byte. They are unsigned;
where no zero point is given it is the middle of the type.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import producer
from worker.quantizer.graph.values import input_of, int_attribute, name_of, node_name
from worker.quantizer.preparation.passes.dequantizing.dynamic import rescaled
from worker.quantizer.preparation.passes.dequantizing.stored import (
    StoredConstant,
    data_type,
    granularity_of,
    holds_integers,
    stored,
    well_formed,
)
from worker.quantizer.preparation.passes.dequantizing.undoing import (
    FOREIGN_INTEGERS,
    SCALES_DO_NOT_FIT,
    SCALES_NOT_CONSTANT,
    Form,
    Found,
    Undoing,
)

GROUPED_INPUTS = declare("grouped-inputs", "g_idx groups its inputs in another order")
PREPACKED = declare("prepacked-weight", "its weight is packed for the kernels of one device")
OTHER_BITS = declare("other-bits", "{bits} bits per value are not known")
_BYTE, _PACKED_BITS = 8, (2, 4, 8)


def matmul(node: ir.Node, undoing: Undoing) -> Found:
    """MatMulNBits: A, B [N, blocks, bytes], scales, zero_points, g_idx, bias; the weight becomes [K, N]."""
    if int_attribute(node, "weight_prepacked", 0):
        return PREPACKED()
    if input_of(node, 4) is not None:
        return GROUPED_INPUTS()
    weight = _product_weight(node, undoing)
    if isinstance(weight, Reason):
        return weight
    made = undoing.put(node, "MatMul", [node.inputs[0], weight])
    bias = input_of(node, 5)
    if bias is not None:
        made = undoing.put(node, "Add", [made.outputs[0], bias], name=f"{node_name(node)}_Add")
    undoing.replace(node, made.outputs[0])
    return True


def _product_weight(node: ir.Node, undoing: Undoing) -> ir.Value | Reason:
    bits, size = int_attribute(node, "bits", 4), int_attribute(node, "block_size", 0)
    inputs, outputs = int_attribute(node, "K", 0), int_attribute(node, "N", 0)
    if bits not in _PACKED_BITS:
        return OTHER_BITS(bits=bits)
    parts = _constants(node, (1, 2, 3))
    if isinstance(parts, Reason):
        return parts
    held, scales, points = parts
    if size <= 0 or inputs <= 0 or outputs <= 0:
        return SCALES_DO_NOT_FIT()
    blocks = -(-inputs // size)
    if scales.array.size != outputs * blocks or held.array.size * _BYTE // bits != outputs * blocks * size:
        return SCALES_DO_NOT_FIT()
    zeros = _points(points, bits, outputs, blocks)
    if zeros is None:
        return SCALES_DO_NOT_FIT()

    def compute() -> np.ndarray:
        values = unpacked(held.array.reshape(outputs, -1), bits).astype(np.float32).reshape(outputs, blocks, size)
        floats = (values - zeros[..., None]) * scales.array.astype(np.float32).reshape(outputs, blocks, 1)
        whole = floats.reshape(outputs, -1)[:, :inputs]
        return np.ascontiguousarray(whole.T).astype(scales.array.dtype)

    key = ("nbits", held.key, scales.key, None if points is None else points.key, bits, size, inputs)
    return undoing.weight(name_of(node.inputs[1]), key, compute)  # type: ignore[arg-type]


def _constants(
    node: ir.Node, places: tuple[int, int, int]
) -> tuple[StoredConstant, StoredConstant, StoredConstant | None] | Reason:
    """Integers, scales and zero points, which may be left out."""
    held, scales, points = (stored(input_of(node, k)) for k in places)
    if held is None or held.rows is not None or not holds_integers(held.array.dtype):
        return FOREIGN_INTEGERS()
    known = scales is not None and (points is not None or input_of(node, places[2]) is None)
    if scales is None or not known or any(one is not None and one.rows is not None for one in (scales, points)):
        return SCALES_NOT_CONSTANT()
    return held, scales, points


def _points(points: StoredConstant | None, bits: int, rows: int, blocks: int) -> np.ndarray | None:
    """float32 [rows, blocks]; packed row by row, unless they are floats. None if they do not fit."""
    if points is None:
        return np.full((rows, blocks), 1 << (bits - 1), np.float32)
    array = points.array
    if array.dtype != np.uint8:
        return array.astype(np.float32).reshape(rows, blocks) if array.size == rows * blocks else None
    if array.size != rows * -(-blocks * bits // _BYTE):
        return None
    return unpacked(array.reshape(rows, -1), bits)[:, :blocks].astype(np.float32)


def unpacked(values: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [..., n * 8 / bits] of uint8 [..., n]."""
    if bits == _BYTE:
        return values
    shifts = np.arange(0, _BYTE, bits, dtype=np.uint8)
    parts: np.ndarray = (values[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return parts.reshape(*values.shape[:-1], -1)


def gather(node: ir.Node, undoing: Undoing) -> Found:
    """GatherBlockQuantized: data, indices, scales, zero_points; becomes a Gather from a table of floats."""
    parts = _constants(node, (0, 2, 3))
    if isinstance(parts, Reason):
        return parts
    held, scales, points = parts
    is_byte = held.array.dtype == np.uint8
    bits = int_attribute(node, "bits", 4) if is_byte else _BYTE
    if bits not in _PACKED_BITS:
        return OTHER_BITS(bits=bits)
    rank, size = held.array.ndim, int_attribute(node, "block_size", 128)
    axis = int_attribute(node, "quantize_axis", 1)
    if not rank or size <= 0:
        return SCALES_DO_NOT_FIT()
    width = held.array.shape[-1] * (_BYTE // bits)
    shape = (*held.array.shape[:-1], width) if is_byte else held.array.shape
    granularity = granularity_of(shape, scales.array, axis, size)
    if granularity is None:
        return SCALES_DO_NOT_FIT()
    zeros = _gather_points(points, bits, scales.array.shape, is_byte=is_byte)
    if zeros is None:
        return SCALES_DO_NOT_FIT()

    def compute() -> np.ndarray:
        values = unpacked(held.array, bits) if is_byte else held.array
        difference = values.astype(np.float32) - granularity.spread(zeros, shape)
        result: np.ndarray = difference * granularity.spread(scales.array.astype(np.float32), shape)
        return result.astype(scales.array.dtype)

    key = ("gather", held.key, scales.key, None if points is None else points.key, bits, size, axis)
    table = undoing.weight(name_of(node.inputs[0]), key, compute)  # type: ignore[arg-type]
    made = undoing.put(node, "Gather", [table, node.inputs[1]], {"axis": int_attribute(node, "gather_axis", 0)})
    undoing.replace(node, made.outputs[0])
    return True


def _gather_points(
    points: StoredConstant | None, bits: int, shape: tuple[int, ...], *, is_byte: bool
) -> np.ndarray | None:
    """float32, of the shape of the scales; None if they do not fit."""
    if points is None:
        return np.full(shape, 1 << (bits - 1) if is_byte else 0, np.float32)
    array = unpacked(points.array, bits)[..., : shape[-1]] if is_byte else points.array
    return array.astype(np.float32) if array.shape == shape else None


# Integers restored by hand: Cast (-> Sub zero point) -> Mul by the scale, of a constant or of rows of a table.
#
# A Mul is also where integer products are rescaled (``dynamic``).

# Wider ones are numbers of their own, such as positions.
_MOST_BYTES = 2


def multiplied(node: ir.Node, undoing: Undoing) -> Found:
    """Mul: integers that it restores become floats, an integer product becomes one of floats."""
    for k in range(2):
        if _restored(node, node.inputs[k], node.inputs[1 - k], undoing):
            return True
    return rescaled(node, undoing)


def _restored(node: ir.Node, value: ir.Value | None, scale: ir.Value | None, undoing: Undoing) -> bool:
    sub = producer(value, "Sub")
    if sub is not None and not well_formed(sub):
        return False
    cast = producer(value if sub is None else sub.inputs[0], "Cast")
    if cast is None or not well_formed(cast):
        return False
    dtype = data_type(int_attribute(cast, "to", 0))
    if dtype is None or not dtype.is_floating_point():
        return False
    held = stored(cast.inputs[0])
    if held is None or held.array.dtype.itemsize > _MOST_BYTES or not holds_integers(held.array.dtype):
        return False
    scales, zeros = stored(scale), None if sub is None else stored(sub.inputs[1])
    if scales is None or (sub is not None and zeros is None):
        return False
    parameters = [one for one in (scales, zeros) if one is not None]
    if not all(_goes_along(one, held) for one in parameters):
        return False

    def compute() -> np.ndarray:
        floats = held.array.astype(np.float32)
        if zeros is not None:
            floats = floats - zeros.array.astype(np.float32)
        result: np.ndarray = (floats * scales.array.astype(np.float32)).astype(dtype.numpy())
        return result

    if held.rows is None:
        undoing.fold(node, compute())
    else:
        key = ("Mul", held.key, scales.key, None if zeros is None else zeros.key, str(dtype))
        undoing.look_up(node, held, key, compute)
    return True


def _goes_along(parameter: StoredConstant, held: StoredConstant) -> bool:
    """True if a parameter broadcasts to the integers: to every row alike, or row by row."""
    array, shape = parameter.array, held.array.shape
    if parameter.rows is not None:
        if parameter.rows is not held.rows or array.ndim != len(shape):
            return False
    elif held.rows is not None and array.ndim >= len(shape):
        return False
    try:
        return np.broadcast_shapes(array.shape, shape) == shape
    except ValueError:
        return False


FORMS: dict[str, Form] = {
    "GatherBlockQuantized": gather,
    "MatMulNBits": matmul,
    "Mul": multiplied,
}
