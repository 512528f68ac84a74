"""Operators that read and write integers (QOperator format): QLinearConv, QGemm and their like become float ones.

Operands come as integers, scale, zero point; behind them stand scale and zero point of the result. What integers of a
result saturated is put back as Relu or Clip, as for Q/DQ pairs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    float_attribute,
    int_attribute,
    name_of,
    node_name,
)
from worker.quantizer.preparation.passes.dequantizing.stored import constant_of
from worker.quantizer.preparation.passes.dequantizing.undoing import (
    SCALES_DO_NOT_FIT,
    SCALES_NOT_CONSTANT,
    Form,
    Found,
    Undoing,
    input_of,
)

CHANNELS_LAST = declare("channels-last", "its channels lie behind, for which there is no float operator")
OTHER_SOFTMAX = declare("other-softmax", "its Softmax is that of opset {opset}, the model's is another")

# From this opset on Softmax is one of a single axis, and from this one ReduceMean has its axes as an input.
_SOFTMAX_OPSET, _REDUCE_OPSET = 13, 18


def conv(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearConv: data, weight, result, bias."""
    inputs = _operands(undoing.operand(node, 0), undoing.operand(node, 3, axis=0))
    if isinstance(inputs, Reason):
        return inputs
    bias = input_of(node, 8)
    if bias is not None:
        found = _bias(node, bias, 1.0, undoing)
        if isinstance(found, Reason):
            return found
        inputs.append(found)
    return _finish(node, undoing, "Conv", inputs, node.attributes.items(), 6)


def _bias(node: ir.Node, bias: ir.Value, alpha: float, undoing: Undoing) -> ir.Value | Reason:
    """Integers with the product of both scales, inputs 1 and 4."""
    integers, first, second = (constant_of(value) for value in (bias, input_of(node, 1), input_of(node, 4)))
    if integers is None or first is None or second is None:
        return SCALES_NOT_CONSTANT()
    scale = first.astype(np.float32).reshape(-1) * second.astype(np.float32).reshape(-1) * np.float32(alpha)
    if scale.size != 1 and scale.size != integers.shape[-1]:
        return SCALES_DO_NOT_FIT()
    array = integers.astype(np.float32) * scale.reshape(() if scale.size == 1 else -1)
    key = ("bias", name_of(bias), scale.tobytes())
    return undoing.weight(name_of(bias), key, lambda: array)


def matmul(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearMatMul: two factors, rows of the first and columns of the second may have scales of their own."""
    factors = [undoing.operand(node, 0, axis=-2), undoing.operand(node, 3, axis=-1)]
    return _joined(node, undoing, "MatMul", factors, 6)


def gemm(node: ir.Node, undoing: Undoing) -> Found:
    """QGemm: its bias is optional, and so is the scale of its result, which is float without."""
    turned = int_attribute(node, "transB", 0)
    inputs = _operands(undoing.operand(node, 0), undoing.operand(node, 3, axis=0 if turned else 1))
    if isinstance(inputs, Reason):
        return inputs
    bias = input_of(node, 6)
    if bias is not None:
        found = _bias(node, bias, float_attribute(node, "alpha", 1.0), undoing)
        if isinstance(found, Reason):
            return found
        inputs.append(found)
    if input_of(node, 7) is not None:
        return _finish(node, undoing, "Gemm", inputs, node.attributes.items(), 7)
    undoing.replace(node, undoing.put(node, "Gemm", inputs, node.attributes.items()).outputs[0])
    return True


def add(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearAdd."""
    return _joined(node, undoing, "Add", [undoing.operand(node, k) for k in (0, 3)], 6)


def mul(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearMul."""
    return _joined(node, undoing, "Mul", [undoing.operand(node, k) for k in (0, 3)], 6)


def concat(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearConcat: scale and zero point of the result stand in front."""
    operands = [undoing.operand(node, k) for k in range(2, len(node.inputs), 3)]
    return _joined(node, undoing, "Concat", operands, 0, node.attributes.items())


def where(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearWhere: the condition stands in front."""
    inputs = _operands(undoing.operand(node, 1), undoing.operand(node, 4))
    return inputs if isinstance(inputs, Reason) else _finish(node, undoing, "Where", [node.inputs[0], *inputs], (), 7)


def average_pool(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearAveragePool."""
    return _joined(node, undoing, "AveragePool", [undoing.operand(node, 0)], 3, node.attributes.items())


def global_average_pool(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearGlobalAveragePool."""
    return _joined(node, undoing, "GlobalAveragePool", [undoing.operand(node, 0)], 3, node.attributes.items())


def sigmoid(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearSigmoid."""
    return _joined(node, undoing, "Sigmoid", [undoing.operand(node, 0)], 3)


def leaky_relu(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearLeakyRelu."""
    return _joined(node, undoing, "LeakyRelu", [undoing.operand(node, 0)], 3, node.attributes.items())


def softmax(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearSoftmax, if the model's own Softmax has the same axes."""
    axis, told = int_attribute(node, "axis", -1), int_attribute(node, "opset", 0)
    if (told >= _SOFTMAX_OPSET) != (_opset(undoing) >= _SOFTMAX_OPSET) and axis != -1:
        return OTHER_SOFTMAX(opset=told)
    kept = [item for item in node.attributes.items() if item[0] == "axis"]
    return _joined(node, undoing, "Softmax", [undoing.operand(node, 0)], 3, kept)


def reduce_mean(node: ir.Node, undoing: Undoing) -> Found:
    """QLinearReduceMean."""
    data = undoing.operand(node, 0)
    if isinstance(data, Reason):
        return data
    inputs: list[ir.Value | None] = [data]
    kept = dict(node.attributes.items())
    if _opset(undoing) >= _REDUCE_OPSET and "axes" in kept:
        axes = np.asarray(kept.pop("axes").as_ints(), np.int64)
        inputs.append(undoing.small(f"{node_name(node)}_axes", axes))
    return _finish(node, undoing, "ReduceMean", inputs, kept.items(), 3)


def _opset(undoing: Undoing) -> int:
    return max(undoing.graph.opset_imports.get(domain, 0) for domain in DEFAULT_DOMAINS)


def _joined(
    node: ir.Node,
    undoing: Undoing,
    op_type: str,
    operands: list[ir.Value | Reason],
    result: int,
    attributes: Iterable[tuple[str, ir.Attr]] = (),
) -> Found:
    inputs = _operands(*operands)
    return inputs if isinstance(inputs, Reason) else _finish(node, undoing, op_type, inputs, attributes, result)


def _operands(*found: ir.Value | Reason) -> list[ir.Value | None] | Reason:
    """All of them, or the first reason."""
    values: list[ir.Value | None] = []
    for one in found:
        if isinstance(one, Reason):
            return one
        values.append(one)
    return values


def _finish(
    node: ir.Node,
    undoing: Undoing,
    op_type: str,
    inputs: list[ir.Value | None],
    attributes: Iterable[tuple[str, ir.Attr]],
    result: int,
) -> Found:
    """Put the float operator in; scale and zero point of what ``node`` makes are inputs from ``result`` on."""
    if int_attribute(node, "channels_last", 0):
        return CHANNELS_LAST()
    kept = [item for item in attributes if item[0] != "channels_last"]
    made = undoing.put(node, op_type, inputs, kept)
    return undoing.quantized(node, made.outputs[0], input_of(node, result), input_of(node, result + 1))


FORMS: dict[str, Form] = {
    "QGemm": gemm,
    "QLinearAdd": add,
    "QLinearAveragePool": average_pool,
    "QLinearConcat": concat,
    "QLinearConv": conv,
    "QLinearGlobalAveragePool": global_average_pool,
    "QLinearLeakyRelu": leaky_relu,
    "QLinearMatMul": matmul,
    "QLinearMul": mul,
    "QLinearReduceMean": reduce_mean,
    "QLinearSigmoid": sigmoid,
    "QLinearSoftmax": softmax,
    "QLinearWhere": where,
}
