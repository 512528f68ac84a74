"""Constants that a quantized graph stores in pieces: what a chain of small operators makes of initializers.

Quantizers store a weight transposed, two numbers to a byte, or its scales as float16, and look up rows of a table
while they are integers. All of it is computed here on whole tables: what acts on each row alone may be done before the
lookup as well as behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.reason import declare
from service.contracts.specs import is_integer
from worker.quantizer.graph.rewriting import scalar
from worker.quantizer.graph.values import DEFAULT_DOMAINS, constant, input_of, int_attribute, name_of
from worker.quantizer.numerics.integer import PER_TENSOR, Granularity, PerAxis, PerBlock

# Whether a node has the operands and attributes that its operator takes.
#
# Operators of onnxruntime's own domain are unknown to ONNX's checker, so that nobody has looked at them before.

MALFORMED = declare(
    "malformed-operator", "an operand is missing, or an attribute has another type than its operator needs"
)
_LEAST_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("Add", "Gather", "Mul", "Pad", "Sub"), 2),
    **dict.fromkeys(("DynamicQuantizeMatMul", "GatherBlockQuantized", "MatMulNBits", "QLinearConcat"), 3),
    "DynamicQuantizeLSTM": 11,
    "MatMulIntegerToFloat": 4,
}
_OUTPUTS = {"DynamicQuantizeLinear": 3}
# A name means the same with all operators of interest.
_KINDS: Mapping[str, ir.AttributeType] = {
    **dict.fromkeys(("K", "N", "allowzero", "axis", "bits", "block_size", "channels_last"), ir.AttributeType.INT),
    **dict.fromkeys(("gather_axis", "opset", "output_dtype", "quantize_axis", "to"), ir.AttributeType.INT),
    **dict.fromkeys(("transA", "transB", "weight_prepacked"), ir.AttributeType.INT),
    **dict.fromkeys(("axes", "perm"), ir.AttributeType.INTS),
    **dict.fromkeys(("coordinate_transformation_mode", "direction", "mode"), ir.AttributeType.STRING),
    "alpha": ir.AttributeType.FLOAT,
}


def well_formed(node: ir.Node) -> bool:
    """True if the operands that a form reads are there, and the attributes have the types that it expects."""
    if len(node.inputs) < _LEAST_INPUTS.get(node.op_type, 1) or node.inputs[0] is None:
        return False
    if len(node.outputs) < _OUTPUTS.get(node.op_type, 1):
        return False
    return all(attribute.type is _KINDS.get(name, attribute.type) for name, attribute in node.attributes.items())


# Slice of Concat of BitShift of Gather: what is longer was not written by a quantizer.
_LONGEST_CHAIN = 12
# A byte holds two columns, or four.
_MOST_GROWTH = 4


@dataclass(frozen=True)
class StoredConstant:
    """A constant, or rows of one."""

    array: np.ndarray  # the constant; the whole table, if rows of it are looked up
    lookup: ir.Node | None  # the Gather of rows along the first axis, None for the constant itself
    key: Hashable  # equal where the same was done to the same initializers
    size: int  # elements of the largest initializer that it was made of

    @property
    def rows(self) -> ir.Value | None:
        """Indices of the rows, None for the constant itself."""
        return None if self.lookup is None else self.lookup.inputs[1]


def stored(value: ir.Value | None) -> StoredConstant | None:
    """What ``value`` holds, if it is made of initializers alone, or by a lookup of their rows; else None."""
    return _stored(value, {}, _LONGEST_CHAIN)


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """The array of a value that is made of initializers alone, else None."""
    found = stored(value)
    return None if found is None or found.rows is not None else found.array


def _stored(value: ir.Value | None, memo: dict[ir.Value, StoredConstant | None], depth: int) -> StoredConstant | None:
    if value is None:
        return None
    if value not in memo:
        memo[value] = _judged(value, memo, depth)
    return memo[value]


def _judged(value: ir.Value, memo: dict[ir.Value, StoredConstant | None], depth: int) -> StoredConstant | None:
    array, node = constant(value), value.producer()
    if array is not None:
        return StoredConstant(array, None, name_of(value), array.size)
    if node is None or not depth or node.domain not in DEFAULT_DOMAINS or not well_formed(node):
        return None
    if node.op_type == "Gather":
        return _looked_up(node, memo, depth)
    compute = _COMPUTE.get(node.op_type)
    if compute is None:
        return None
    found = [_stored(operand, memo, depth - 1) for operand in node.inputs]
    operands = [operand for operand in found if operand is not None]
    if len(operands) != len(found):
        return None
    lookups = [operand for operand in operands if operand.rows is not None]
    if lookups and not _goes_with_rows(node, operands, lookups):
        return None
    size = max(operand.size for operand in operands)
    try:
        result = compute(node, [operand.array for operand in operands])
    except (TypeError, ValueError):  # operands that the operator does not take
        return None
    if result is None or result.size > _MOST_GROWTH * size:
        return None
    attributes = tuple(sorted((name, str(attribute.value)) for name, attribute in node.attributes.items()))
    key = (node.op_type, attributes, *(operand.key for operand in operands))
    return StoredConstant(result, lookups[0].lookup if lookups else None, key, size)


def _looked_up(node: ir.Node, memo: dict[ir.Value, StoredConstant | None], depth: int) -> StoredConstant | None:
    table = _stored(node.inputs[0], memo, depth - 1)
    if table is None or table.rows is not None or table.array.ndim == 0 or int_attribute(node, "axis", 0) != 0:
        return None
    return StoredConstant(table.array, node, table.key, table.size)


def _goes_with_rows(node: ir.Node, operands: Sequence[StoredConstant], lookups: Sequence[StoredConstant]) -> bool:
    """True if a node does the same to each row, whatever the shape of the indices."""
    if any(one.rows is not lookups[0].rows or one.array.ndim != lookups[0].array.ndim for one in lookups):
        return False
    width = lookups[0].array.ndim - 1  # of a row
    if node.op_type in _ELEMENTWISE:
        return all(one.rows is not None or one.array.ndim <= width for one in operands)
    if node.op_type in ("Concat", "Slice"):
        axis = int_attribute(node, "axis", 0) if node.op_type == "Concat" else scalar(input_of(node, 3))
        return axis == -1 and width > 0 and (node.op_type == "Slice" or len(lookups) == len(operands))
    if node.op_type == "Unsqueeze":
        return scalar(input_of(node, 1)) == -1
    return False


def _cast(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    wanted = data_type(int_attribute(node, "to", 0))
    return None if wanted is None or wanted is ir.DataType.STRING else arrays[0].astype(wanted.numpy())


def _elementwise(
    operation: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Callable[[ir.Node, Sequence[np.ndarray]], np.ndarray | None]:
    def compute(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
        if len(arrays) != 2 or not _spreads(arrays[1].shape, arrays[0].shape):
            return None
        return operation(*arrays)

    return compute


def _spreads(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """True if an operand of ``shape`` broadcasts to one of the other shape, which stays as it is."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _shift(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    direction = node.attributes.get("direction")
    if direction is None or direction.as_string() != "RIGHT" or not _spreads(arrays[1].shape, arrays[0].shape):
        return None
    result: np.ndarray = np.right_shift(arrays[0], arrays[1])
    return result


def _concat(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    axis = int_attribute(node, "axis", 0)
    ranks = {array.ndim for array in arrays}
    if len(ranks) != 1 or not -arrays[0].ndim <= axis < arrays[0].ndim or len(arrays) > _MOST_GROWTH:
        return None
    others = {tuple(np.delete(array.shape, axis)) for array in arrays}
    return np.concatenate(arrays, axis) if len(others) == 1 else None


def _slice(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    if len(arrays) != 4 or any(array.size != 1 for array in arrays[1:]):
        return None
    start, end, axis = (int(array.reshape(-1)[0]) for array in arrays[1:])
    if not -arrays[0].ndim <= axis < arrays[0].ndim:
        return None
    return np.moveaxis(np.moveaxis(arrays[0], axis, 0)[start:end], 0, axis)


def _transpose(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    order = node.attributes.get("perm")
    axes = None if order is None else tuple(order.as_ints())
    if axes is not None and sorted(axes) != list(range(arrays[0].ndim)):
        return None
    return np.transpose(arrays[0], axes)


def _reshape(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    old, wanted = arrays[0].shape, [int(length) for length in arrays[1].reshape(-1)]
    if not int_attribute(node, "allowzero", 0):
        if any(not length and k >= len(old) for k, length in enumerate(wanted)):
            return None
        wanted = [length or old[k] for k, length in enumerate(wanted)]
    return arrays[0].reshape(wanted)


def _unsqueeze(node: ir.Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    if len(arrays) != 2 or arrays[1].size != 1:
        return None
    axis = int(arrays[1].reshape(-1)[0])
    return np.expand_dims(arrays[0], axis) if -arrays[0].ndim - 1 <= axis <= arrays[0].ndim else None


_ELEMENTWISE = frozenset({"Cast", "BitwiseAnd", "BitShift", "Sub", "Mul"})
_COMPUTE: Mapping[str, Callable[[ir.Node, Sequence[np.ndarray]], np.ndarray | None]] = {
    "BitShift": _shift,
    "BitwiseAnd": _elementwise(np.bitwise_and),
    "Cast": _cast,
    "Concat": _concat,
    "Identity": lambda _, arrays: arrays[0],
    "Mul": _elementwise(np.multiply),
    "Reshape": _reshape,
    "Slice": _slice,
    "Sub": _elementwise(np.subtract),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}


def dequantized(
    integers: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None, granularity: Granularity
) -> np.ndarray:
    """(q - zero_point) * scale in float32, as DequantizeLinear defines it.

    Args:
        integers: of any integer or float8 type.
        scale: one value, one per index of ``axis``, or one per block along ``axis``.
        zero_point: of the same shape; None for 0.
        granularity: what shares a scale.
    """
    # Differences of 32-bit integers need more than 32 bits; float8 has no zero point but 0.
    exact = np.float32 if not holds_integers(integers.dtype) else np.int64
    difference = integers.astype(exact)
    if zero_point is not None:
        difference = difference - granularity.spread(zero_point.astype(exact), integers.shape)
    result: np.ndarray = difference.astype(np.float32) * granularity.spread(scale.astype(np.float32), integers.shape)
    return result


def granularity_of(shape: tuple[int, ...], scale: np.ndarray, axis: int, block_size: int = 0) -> Granularity | None:
    """What shares a scale in a tensor of ``shape``; None where the scales do not fit it."""
    if not block_size and scale.size == 1:
        return PER_TENSOR
    if not -len(shape) <= axis < len(shape):
        return None
    # A block longer than the axis is as long as the axis: its length is a number that anyone may write.
    size = min(block_size, shape[axis])
    found = PerBlock(axis, size) if size > 0 else PerAxis(axis)
    wanted = found.scale_shape(shape)
    return found if scale.shape == wanted else None


def data_type(number: int) -> ir.DataType | None:
    """The type that an attribute tells; None for 0 and for numbers that are none."""
    return ir.DataType(number) if number and number in ir.DataType.__members__.values() else None


def holds_integers(dtype: np.dtype) -> bool:
    """True for the integer types of numpy and those of few bits."""
    return dtype.kind in "iu" or is_integer(dtype.name)
