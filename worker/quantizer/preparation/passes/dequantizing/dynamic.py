"""Integer products that are rescaled behind: MatMulInteger or ConvInteger -> Cast -> Mul by both scales.

The Mul becomes the product of floats. onnxruntime's fused forms of com.microsoft are the same in one node.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import only_reader, other_operand, producer
from worker.quantizer.graph.values import input_of, int_attribute, node_name
from worker.quantizer.preparation.passes.dequantizing.stored import (
    StoredConstant,
    constant_of,
    data_type,
    holds_integers,
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
    equal,
    stem_of,
)

NO_PAIR = declare("no-qdq-pair", "it is not part of a Q/DQ pair")
NOT_RESCALED = declare("not-rescaled", "its product is not multiplied by the scales of its operands")

# Scales are multiplied among each other first, in one node or two.
_DEEPEST_SCALES = 4

Operand = Integers | tuple[StoredConstant, np.ndarray | None]


def integer_product(node: ir.Node, undoing: Undoing) -> Found:
    """What it makes is a product that waits for its scales."""
    operands: list[Operand] = []
    waiting: list[ir.Value] = []
    for k in range(2):
        found = _operand(node, k, undoing)
        if isinstance(found, Reason):
            return found
        operands.append(found)
        if isinstance(found, Integers) and found.scale is not None:
            waiting.append(found.scale)
    if not waiting and not any(isinstance(one, tuple) and one[0].lookup for one in operands):
        return NO_PAIR()
    undoing.give(node.outputs[0], Product(node, tuple(operands), tuple(waiting)))
    return True


def _operand(node: ir.Node, k: int, undoing: Undoing) -> Operand | Reason:
    value, zero_point = input_of(node, k), input_of(node, k + 2)
    known = undoing.integers(value)
    if known is not None:
        fits = known.same(known.scale, zero_point)
        return known if fits else OTHER_PARAMETERS(maker=known.maker)
    held, zeros = stored(value), constant_of(zero_point)
    if held is None or not holds_integers(held.array.dtype):
        return FOREIGN_INTEGERS()
    return SCALES_NOT_CONSTANT() if zero_point is not None and zeros is None else (held, zeros)


def cast(node: ir.Node, undoing: Undoing) -> Found:
    """A product as floats is still one."""
    found = undoing.meaning(node.inputs[0])
    wanted = data_type(int_attribute(node, "to", 0))
    if isinstance(found, Product) and wanted is not None and wanted.is_floating_point():
        undoing.give(node.outputs[0], found)
        return True
    return undoing.computed_on(node)


def rescaled(node: ir.Node, undoing: Undoing) -> Found:
    """Mul of a product by its scales: the product of floats, once all of them are in."""
    found = [undoing.meaning(value) for value in node.inputs]
    products = [meaning for meaning in found if isinstance(meaning, Product)]
    if len(products) != 1:
        return undoing.computed_on(node)
    product = products[0]
    scales = node.inputs[1 - found.index(product)]
    left, factors = list(product.waiting), list(product.factors)
    for scale in _factors(scales, _DEEPEST_SCALES):
        known = next((one for one in left if equal(one, scale)), None)
        if known is not None:
            left.remove(known)
            continue
        array = constant_of(scale)
        if array is None:
            return NOT_RESCALED()
        factors.append(array.astype(np.float32))
    # Constant scales may have been multiplied beforehand.
    for scale in list(left):
        array = constant_of(scale)
        if array is not None and array.size == 1 and len(factors) > len(product.factors):
            factors[-1] = factors[-1] / array.reshape(()).astype(np.float32)
            left.remove(scale)
    rest = replace(product, waiting=tuple(left), factors=tuple(factors))
    if left or not (factors or all(isinstance(one, Integers) for one in product.operands)):
        undoing.give(node.outputs[0], rest)
        return True
    return _multiplied(node, rest, undoing)


def _factors(value: ir.Value | None, depth: int) -> list[ir.Value]:
    """Those that a tree of Mul nodes multiplies."""
    if value is None:
        return []
    node = producer(value, "Mul")
    if node is None or not depth:
        return [value]
    return [factor for operand in node.inputs for factor in _factors(operand, depth - 1)]


def _multiplied(node: ir.Node, product: Product, undoing: Undoing) -> Found:
    """The product of floats in the place of ``node``."""
    integer = product.node
    is_conv = integer.op_type == "ConvInteger"
    factors = _shared_out(product)
    if factors is None:
        return NOT_RESCALED()
    inputs: list[ir.Value | None] = []
    for k, (operand, factor) in enumerate(zip(product.operands, factors, strict=True)):
        if isinstance(operand, Integers):
            inputs.append(operand.real)
            continue
        held, zeros = operand
        spread = _spread(factor, held.array, is_conv, left=k == 0)
        zero = None if zeros is None else _spread(zeros, held.array, is_conv, left=k == 0)
        if spread is None or (zeros is not None and zero is None):
            return SCALES_DO_NOT_FIT()
        if held.lookup is not None and (spread.size != 1 or (zero is not None and zero.size != 1)):
            return SCALES_DO_NOT_FIT()
        weight = _weight(undoing, stem_of(integer.inputs[k], held), held, zero, spread)
        inputs.append(weight if held.lookup is None else undoing.gathered(integer, held.lookup, weight))
    undoing.operators[integer.op_type] += 1
    made = undoing.put(
        node, "Conv" if is_conv else "MatMul", inputs, integer.attributes.items(), name=node_name(integer)
    )
    made.name = node_name(integer)  # which goes
    undoing.replace(node, made.outputs[0])
    if is_conv:
        _take_bias(made, undoing)
    return True


def _shared_out(product: Product) -> list[np.ndarray] | None:
    """The scale of each operand, 1 for those that are floats; None if there are more than can be told apart."""
    one = np.ones((), np.float32)
    constants = [k for k, operand in enumerate(product.operands) if not isinstance(operand, Integers)]
    factors = list(product.factors)
    found = [one, one]
    if len(constants) == 2 and len(factors) == 2:
        found = factors  # quantizers multiply in the order of the operands
    elif constants:
        # what was multiplied beforehand is left with the weight
        place = next((k for k in reversed(constants) if product.operands[k][0].lookup is None), constants[-1])  # type: ignore[index]
        try:
            found[place] = functools.reduce(np.multiply, factors, one)
        except ValueError:
            return None
    elif any(np.any(factor != 1) for factor in factors):
        return None
    return found


def _weight(undoing: Undoing, stem: str, held: StoredConstant, zero: np.ndarray | None, scale: np.ndarray) -> ir.Value:
    """(q - zero_point) * scale, whose parameters broadcast to the integers."""

    def compute() -> np.ndarray:
        difference = held.array.astype(np.int32)
        if zero is not None:
            difference = difference - zero.astype(np.int32)
        result: np.ndarray = difference.astype(np.float32) * scale.astype(np.float32)
        return result

    zeros = None if zero is None else (zero.shape, zero.tobytes())
    return undoing.weight(stem, (held.key, zeros, scale.shape, scale.tobytes()), compute)


def _spread(parameter: np.ndarray, weight: np.ndarray, is_conv: bool, *, left: bool) -> np.ndarray | None:
    """A scale of the result, or a zero point of the weight, in a form that broadcasts to the weight; None if none does.

    Args:
        parameter: one value, or one per output channel, as it lies in the result or flat.
        weight: [outputs, inputs, ...] of a convolution, else a factor of a matrix product.
        is_conv: of a convolution.
        left: the weight is the first factor, whose rows are the outputs.
    """
    if parameter.size == 1:
        return parameter.reshape(())
    if is_conv:
        fits = parameter.size == weight.shape[0] and parameter.size in parameter.shape[-weight.ndim + 1 :][:1]
        flat = parameter.ndim == 1 and parameter.size == weight.shape[0]
        return parameter.reshape(-1, *[1] * (weight.ndim - 1)) if fits or flat else None
    if left:
        if parameter.ndim == 1:
            parameter = parameter[:, None]
        shared = parameter.shape[-1] == 1
    else:
        shared = parameter.ndim < 2 or parameter.shape[-2] == 1
    while parameter.ndim > weight.ndim and parameter.shape[0] == 1:
        parameter = parameter[0]
    try:
        return parameter if shared and np.broadcast_shapes(parameter.shape, weight.shape) == weight.shape else None
    except ValueError:
        return None


def _take_bias(conv: ir.Node, undoing: Undoing) -> None:
    """Let a Conv have the bias that is added behind it, along the channels."""
    add = only_reader(conv.outputs[0], "Add")
    if add is not None and len(add.inputs) != 2:
        return
    bias = None if add is None else constant_of(other_operand(add, conv.outputs[0]))
    weight = conv.inputs[1]
    if add is None or bias is None or weight is None or weight.const_value is None:
        return
    channels, rank = weight.const_value.shape[0], len(weight.const_value.shape)
    wanted = [channels, *[1] * (rank - 2)]
    if bias.dtype != np.float32 or list(bias.shape) not in (wanted, [1, *wanted]):
        return
    conv.resize_inputs(3)
    conv.replace_input_with(2, undoing.small(f"{node_name(conv)}_bias", bias.reshape(-1)))
    graph = conv.graph
    assert graph is not None  # noqa: S101 - it was found in one
    graph.remove(conv)
    graph.insert_before(add, conv)
    undoing.replace(add, conv.outputs[0], renames=True)


def dynamic_quantize_matmul(node: ir.Node, undoing: Undoing) -> Found:
    """com.microsoft: A float, B integers, b_scale, b_zero_point, bias."""
    return _fused(node, undoing, node.inputs[0], scale=2, zero_point=3, bias=4)


def matmul_integer_to_float(node: ir.Node, undoing: Undoing) -> Found:
    """com.microsoft: A, B integers, a_scale, b_scale, a_zero_point, b_zero_point, bias."""
    known = undoing.integers(node.inputs[0])
    if known is None:
        return FOREIGN_INTEGERS()
    if not known.same(input_of(node, 2), input_of(node, 4)):
        return OTHER_PARAMETERS(maker=known.maker)
    return _fused(node, undoing, known.real, scale=3, zero_point=5, bias=6)


def _fused(node: ir.Node, undoing: Undoing, real: ir.Value | None, *, scale: int, zero_point: int, bias: int) -> Found:
    scales, zero = constant_of(input_of(node, scale)), input_of(node, zero_point)
    held, zeros = stored(node.inputs[1]), constant_of(zero)
    if held is None or held.rows is not None:
        return FOREIGN_INTEGERS()
    if scales is None or (zero is not None and zeros is None):
        return SCALES_NOT_CONSTANT()
    spread = _spread(scales, held.array, False, left=False)
    shift = None if zeros is None else _spread(zeros, held.array, False, left=False)
    if spread is None or (zeros is not None and shift is None):
        return SCALES_DO_NOT_FIT()
    weight = _weight(undoing, stem_of(node.inputs[1], held), held, shift, spread)
    made = undoing.put(node, "MatMul", [real, weight])
    added = input_of(node, bias)
    if added is not None:
        made = undoing.put(node, "Add", [made.outputs[0], added], name=f"{node_name(node)}_Add")
    undoing.replace(node, made.outputs[0])
    return True


def dynamic_quantize_lstm(node: ir.Node, undoing: Undoing) -> Found:
    """com.microsoft: W and R are [directions, inputs, 4 * hidden], where LSTM has its last two axes the other way."""
    weights = []
    for k, at in ((1, 8), (2, 10)):
        held, scales = stored(node.inputs[k]), constant_of(input_of(node, at))
        zero = input_of(node, at + 1)
        zeros = constant_of(zero)
        if held is None or held.rows is not None or held.array.ndim != 3:
            return FOREIGN_INTEGERS()
        if scales is None or (zero is not None and zeros is None):
            return SCALES_NOT_CONSTANT()
        spread = [None if one is None else _of_gates(one, held.array.shape) for one in (scales, zeros)]
        if spread[0] is None or (zeros is not None and spread[1] is None):
            return SCALES_DO_NOT_FIT()
        turned = StoredConstant(held.array.transpose(0, 2, 1), None, ("turned", held.key), held.size)
        weights.append(_weight(undoing, stem_of(node.inputs[k], held), turned, spread[1], spread[0]))
    inputs = [node.inputs[0], *weights, *(input_of(node, k) for k in range(3, 8))]
    while inputs[-1] is None:
        inputs.pop()
    made = undoing.put(node, "LSTM", inputs, node.attributes.items())
    for k, value in enumerate(made.outputs):
        if value.name:
            undoing.replace(node, value, k)
    return True


def _of_gates(parameter: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """[directions] or [directions, 4 * hidden] in a form that broadcasts to [directions, 4 * hidden, inputs]."""
    directions, _, gates = shape
    if parameter.size == 1:
        return parameter.reshape(())
    if parameter.size == directions:
        return parameter.reshape(directions, 1, 1)
    return parameter.reshape(directions, gates, 1) if parameter.size == directions * gates else None


FORMS: dict[str, Form] = {
    "Cast": cast,
    "ConvInteger": integer_product,
    "DynamicQuantizeLSTM": dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "MatMulInteger": integer_product,
    "MatMulIntegerToFloat": matmul_integer_to_float,
}
