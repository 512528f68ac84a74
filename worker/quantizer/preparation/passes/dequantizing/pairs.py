"""QuantizeLinear and DequantizeLinear, alone or in pairs, and operators of the QOperator format, become float ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import DEFAULT_DOMAINS, float_attribute, input_of, int_attribute, name_of, node_name
from worker.quantizer.preparation.passes.dequantizing.stored import (
    StoredConstant,
    constant_of,
    data_type,
    dequantized,
    granularity_of,
    stored,
)
from worker.quantizer.preparation.passes.dequantizing.undoing import (
    FOREIGN_INTEGERS,
    OTHER_PARAMETERS,
    SCALES_DO_NOT_FIT,
    SCALES_NOT_CONSTANT,
    Form,
    Found,
    Integers,
    Product,
    Undoing,
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


# Operators that read and write integers (QOperator format): QLinearConv, QGemm and their like become float ones.
#
# Operands come as integers, scale, zero point; behind them stand scale and zero point of the result. What integers of a
# result saturated is put back as Relu or Clip, as for Q/DQ pairs.

CHANNELS_LAST = declare("channels-last", "its channels are last, which no float operator supports")
OTHER_SOFTMAX = declare("other-softmax", "its Softmax is that of opset {opset}, the model's is another")
# From this opset on Softmax is one of a single axis.
_SOFTMAX_OPSET = 13
# Attributes that the float operator does not have.
_OF_INTEGERS = frozenset({"channels_last", "opset"})


@dataclass(frozen=True)
class _Roles:
    """What the inputs of an operator are."""

    op_type: str  # of the float operator
    # of each the index of its integers, and the axis along which it may have several scales
    operands: tuple[tuple[int, int], ...]
    result: int  # index of the scale of what it makes
    bias: int | None = None  # index of the bias, None if it takes none
    floats: int = 0  # inputs in front that are no integers


_UNARY, _BINARY = ((0, 1),), ((0, 1), (3, 1))
_ROLES = {
    "QLinearAdd": _Roles("Add", _BINARY, 6),
    "QLinearAveragePool": _Roles("AveragePool", _UNARY, 3),
    "QLinearConv": _Roles("Conv", ((0, 1), (3, 0)), 6, bias=8),
    "QLinearGlobalAveragePool": _Roles("GlobalAveragePool", _UNARY, 3),
    "QLinearLeakyRelu": _Roles("LeakyRelu", _UNARY, 3),
    # rows of the first and columns of the second may have scales of their own
    "QLinearMatMul": _Roles("MatMul", ((0, -2), (3, -1)), 6),
    "QLinearMul": _Roles("Mul", _BINARY, 6),
    "QLinearSigmoid": _Roles("Sigmoid", _UNARY, 3),
    "QLinearSoftmax": _Roles("Softmax", _UNARY, 3),
    "QLinearWhere": _Roles("Where", ((1, 1), (4, 1)), 7, floats=1),
}


def qlinear(node: ir.Node, undoing: Undoing) -> Found:
    """The float operator on the floats of the operands, by the table above."""
    return _undone(node, undoing, _ROLES[node.op_type])


def concat(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearConcat: scale and zero point of the result stand in front of any number of operands."""
    return _undone(node, undoing, _Roles("Concat", tuple((k, 1) for k in range(2, len(node.inputs), 3)), 0))


def gemm(node: ir.Node, undoing: Undoing) -> Found:
    """QGemm: its bias is optional, and so is the scale of its result, which is float without."""
    columns = 0 if int_attribute(node, "transB", 0) else 1
    return _undone(node, undoing, _Roles("Gemm", ((0, 1), (3, columns)), 7, bias=6))


def softmax(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearSoftmax, if the model's own Softmax has the same axes."""
    told = int_attribute(node, "opset", 0)
    own = max(undoing.graph.opset_imports.get(domain, 0) for domain in DEFAULT_DOMAINS)
    if (told >= _SOFTMAX_OPSET) != (own >= _SOFTMAX_OPSET) and int_attribute(node, "axis", -1) != -1:
        return OTHER_SOFTMAX(opset=told)
    return qlinear(node, undoing)


def _undone(node: ir.Node, undoing: Undoing, roles: _Roles) -> Found:
    inputs = list(node.inputs[: roles.floats])
    for k, axis in roles.operands:
        found = undoing.operand(node, k, axis=axis)
        if isinstance(found, Reason):
            return found
        inputs.append(found)
    bias = None if roles.bias is None else input_of(node, roles.bias)
    if bias is not None:
        found = _bias(node, bias, undoing)
        if isinstance(found, Reason):
            return found
        inputs.append(found)
    if int_attribute(node, "channels_last", 0):
        return CHANNELS_LAST()
    kept = [(name, attribute) for name, attribute in node.attributes.items() if name not in _OF_INTEGERS]
    made = undoing.put(node, roles.op_type, inputs, kept).outputs[0]
    scale, zero_point = (input_of(node, k) for k in (roles.result, roles.result + 1))
    if scale is not None or node.op_type != "QGemm":
        return undoing.quantized(node, made, scale, zero_point)
    undoing.replace(node, made)
    return True


def _bias(node: ir.Node, bias: ir.Value, undoing: Undoing) -> ir.Value | Reason:
    """Integers with the product of both scales, inputs 1 and 4, and of QGemm's alpha."""
    integers, first, second = (constant_of(value) for value in (bias, input_of(node, 1), input_of(node, 4)))
    if integers is None or first is None or second is None:
        return SCALES_NOT_CONSTANT()
    alpha = np.float32(float_attribute(node, "alpha", 1.0))
    scale = first.astype(np.float32).reshape(-1) * second.astype(np.float32).reshape(-1) * alpha
    if scale.size != 1 and scale.size != integers.shape[-1]:
        return SCALES_DO_NOT_FIT()
    array = integers.astype(np.float32) * scale.reshape(() if scale.size == 1 else -1)
    key = ("bias", name_of(bias), scale.tobytes())
    return undoing.weight(name_of(bias), key, lambda: array)


FORMS: dict[str, Form] = {
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "QuantizeLinear": quantize_linear,
    **dict.fromkeys(_ROLES, qlinear),
    "QGemm": gemm,
    "QLinearConcat": concat,
    "QLinearSoftmax": softmax,
}
