"""QuantizeLinear and DequantizeLinear: pairs, and constants or rows of tables behind DequantizeLinear alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import int_attribute, node_name
from worker.quantizer.preparation.passes.dequantizing.stored import (
    StoredConstant,
    data_type,
    dequantized,
    granularity_of,
    stored,
)
from worker.quantizer.preparation.passes.dequantizing.undoing import (
    FOREIGN_INTEGERS,
    OTHER_PARAMETERS,
    SCALES_DO_NOT_FIT,
    Form,
    Found,
    Integers,
    Product,
    Undoing,
    input_of,
)

_DEFAULT_AXIS = 1


def quantize_linear(node: ir.Node, undoing: Undoing) -> Found:
    """Its integers stand for what it read, behind a Relu or Clip where one is missing."""
    source, scale, zero_point = (input_of(node, k) for k in range(3))
    result = node.outputs[0]
    if source is None or not (result.uses() or result.is_graph_output()):
        return False
    real = undoing.activated(node, source, scale, zero_point)
    axis, block_size = int_attribute(node, "axis", _DEFAULT_AXIS), int_attribute(node, "block_size", 0)
    undoing.give(result, Integers(real, scale, zero_point, node_name(node), axis, block_size))
    return True


def dynamic_quantize_linear(node: ir.Node, undoing: Undoing) -> Found:
    """Its integers stand for what it read, with the scale and zero point that it finds at run time."""
    source = node.inputs[0]
    if source is None:
        return False
    undoing.give(node.outputs[0], Integers(source, node.outputs[1], node.outputs[2], node_name(node), whole=True))
    undoing.operators[node.op_type] += 1
    return True


def dequantize_linear(node: ir.Node, undoing: Undoing) -> Found:
    """The floats that its integers stand for, an initializer, or a lookup in a table of floats."""
    integers, scale, zero_point = (input_of(node, k) for k in range(3))
    axis, block_size = int_attribute(node, "axis", _DEFAULT_AXIS), int_attribute(node, "block_size", 0)
    known = undoing.meaning(integers)
    if isinstance(known, Integers):
        along = known.one_scale or (known.axis, known.block_size) == (axis, block_size)
        if not along or not known.same(scale, zero_point):
            return OTHER_PARAMETERS(maker=known.maker)
        undoing.replace(node, known.real)
        undoing.counts["pairs"] += 1
        return True
    if isinstance(known, Product):
        return undoing.computed_on(node)
    held, scales, zeros = stored(integers), stored(scale), stored(zero_point)
    if held is None or scales is None or (zero_point is not None and zeros is None):
        return FOREIGN_INTEGERS()
    return _restored(node, undoing, held, scales, zeros, axis, block_size)


def _restored(
    node: ir.Node,
    undoing: Undoing,
    held: StoredConstant,
    scales: StoredConstant,
    zeros: StoredConstant | None,
    axis: int,
    block_size: int,
) -> Found:
    array, scale, zero_point = held.array, scales.array, None if zeros is None else zeros.array
    parameters = [one for one in (scales, zeros) if one is not None]
    if held.rows is None:
        if any(one.rows is not None for one in parameters):
            return FOREIGN_INTEGERS()
    else:
        along = [one.rows is not None for one in parameters]
        if any(along) and not (all(along) and block_size and all(one.rows is held.rows for one in parameters)):
            return FOREIGN_INTEGERS()
        rank = rank_of(held.rows)
        if scale.size != 1 and rank is not None and axis == rank + array.ndim - 2:
            axis = -1
        if (scale.size != 1 or block_size) and (axis != -1 or array.ndim < 2):
            return FOREIGN_INTEGERS()
    granularity = granularity_of(array.shape, scale, axis, block_size)
    if granularity is None:
        return SCALES_DO_NOT_FIT()
    if zero_point is not None and zero_point.shape != scale.shape and (block_size or zero_point.size != 1):
        return SCALES_DO_NOT_FIT()
    wanted = data_type(int_attribute(node, "output_dtype", 0))
    dtype = scale.dtype if wanted is None else wanted.numpy()

    def compute() -> np.ndarray:
        return dequantized(array, scale, zero_point, granularity).astype(dtype)

    if held.rows is None:
        undoing.fold(node, compute())
    else:
        key = (held.key, scales.key, None if zeros is None else zeros.key, axis, block_size, str(dtype))
        undoing.look_up(node, held, key, compute)
    return True


FORMS: dict[str, Form] = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "QuantizeLinear": quantize_linear,
}
