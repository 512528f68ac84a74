"""Nodes that stand between Q/DQ pairs, and that onnxruntime must not compute on integers all the same.

From one pair to the next it computes on integers whatever it has a kernel for (1.31):

    AveragePool                 its QLinearAveragePool knows no dilations, and divides by other counts where windows
                                that count pads reach beyond them (qdq_selectors.cc)
    Conv, ConvTranspose, Gemm   a weight in float is rounded to int8, with one scale for all of it; a bias in float16 to
                                int32 at the product of scales in float16, which is 0 (weight_bias_quantization.cc)

    MatMul                      with all lengths known and a bias of rank 1 added, it becomes a Gemm between Reshapes
                                with pairs of their own; of these, since opset 21, one of int8 or 16 bits is not
                                valid (matmul_add_fusion.cc, qdq_propagation.cc). So are those that it puts behind
                                nodes which move values.

Behind the first two stands an operator that no optimization takes away, and that changes nothing: Max. Such a bias is
added behind its layer, where TensorRT finds it as well as inside. The last one's bias gets the rank of what it is added
to. What else the plan names is kept apart likewise.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import only_reader, other_operand, rank_of, scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    constant,
    is_constant,
    is_float32,
    name_of,
    node_name,
    users,
)
from worker.quantizer.ops.channels import MOVERS
from worker.quantizer.ops.linear import linear_view
from worker.quantizer.ops.table import named, operator
from worker.quantizer.ops.windows import counts_beyond, has_gaps

_LINEAR = named(lambda record: record.bias is not None)
_GEMM_RANK = 2
# From here on QuantizeLinear names its type.
TYPED_OPSET = 21
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def can_be_kept(value: ir.Value) -> bool:
    """True if a value can be kept apart by name."""
    maker = value.producer()
    is_first = maker is not None and maker.outputs[0] is value
    return is_first and value.dtype in _FLOATS and not value.is_graph_output()


def keep_apart(graph: ir.Graph, names: Names, further: Collection[str] = ()) -> None:
    """Keep such nodes from being made integer ones, and those that make the tensors ``further``. Dilations of 1 in a
    pool say nothing, and go.
    """
    for node in list(graph):
        if node.outputs and node.outputs[0].name in further:
            made = _unrounded(node)
            if made is not None and can_be_kept(made.outputs[0]):
                _put_behind(graph, made, "Max", "lowest", _lowest(made.outputs[0]), names)
            continue
        if node.domain not in DEFAULT_DOMAINS or node.op_type not in ("AveragePool", *_LINEAR):
            continue
        if node.op_type == "AveragePool" and not has_gaps(node):
            node.attributes.pop("dilations", None)
        last = _before_quantizers(node)
        if last is None:
            continue
        bias = _half_bias(node)
        if bias is not None:
            node.resize_inputs(2)
            _put_behind(graph, node, "Add", "bias", bias, names)
        elif _is_taken(node):
            _put_behind(graph, last, "Max", "lowest", _lowest(last.outputs[0]), names)


def lengthen_biases(graph: ir.Graph, names: Names) -> None:
    """Give biases of products the rank of what they are added to, where the runtime would make a Gemm of both that is
    not valid. Since opset 21.
    """
    for node in list(graph):
        add = only_reader(node.outputs[0], "Add") if node.op_type == "MatMul" else None
        pair = node.inputs[0].producer() if add is not None and node.inputs[0] is not None else None
        if add is None or pair is None or pair.op_type != "DequantizeLinear" or pair.inputs[0] is None:
            continue
        if pair.inputs[0].dtype != ir.DataType.UINT8 and _lengths_known(pair.outputs[0]):
            _lengthen(graph, add, other_operand(add, node.outputs[0]), names)


def leave_out_zero_points(graph: ir.Graph) -> None:
    """Of pairs of int8 or 16 bits around 0 whose values a node moves, and hands on as floats: the runtime puts another
    pair behind that node, with a type that is not valid beside a zero point. Since opset 21.
    """
    for node in graph:
        if node.op_type != "DequantizeLinear" or len(node.inputs) < 3 or node.inputs[0] is None:
            continue
        zero_point, maker = constant(node.inputs[2]), node.inputs[0].producer()
        around_0 = zero_point is not None and zero_point.dtype != np.uint8 and not zero_point.any()
        if around_0 and maker is not None and any(_moves_floats(reader) for reader in users(node.outputs[0])):
            node.resize_inputs(2)


def _moves_floats(node: ir.Node) -> bool:
    """True if a node only moves values, and something reads them that does not make integers of them."""
    readers = [reader for value in node.outputs for reader in users(value)]
    given = any(value.is_graph_output() for value in node.outputs)
    return node.op_type in MOVERS and (given or any(reader.op_type != "QuantizeLinear" for reader in readers))


def _lengthen(graph: ir.Graph, add: ir.Node, bias: ir.Value | None, names: Names) -> None:
    """Give a constant of rank 1, restored or not, the rank of the sum."""
    maker, rank = None if bias is None else bias.producer(), rank_of(add.outputs[0])
    if maker is not None and (maker.op_type != "DequantizeLinear" or scalar(maker.inputs[1]) is None):
        return
    reader, held = (add, bias) if maker is None else (maker, maker.inputs[0])
    array = constant(held)
    if held is None or array is None or array.ndim != 1 or rank is None or rank <= _GEMM_RANK:
        return
    if maker is not None and len(maker.outputs[0].uses()) > 1:
        return
    longer = array.reshape(*[1] * (rank - 1), -1)
    value = add_initializer(graph, names.free(f"{name_of(held)}_of_rank_{rank}"), longer)
    reader.replace_input_with(list(reader.inputs).index(held), value)
    if maker is not None:
        maker.outputs[0].shape = value.shape
    if not held.uses():
        graph.initializers.pop(name_of(held), None)


def _lengths_known(value: ir.Value) -> bool:
    """True if all axes of a value have lengths that are known."""
    return value.shape is not None and all(isinstance(length, int) for length in value.shape)


def _unrounded(node: ir.Node) -> ir.Node | None:
    """The node, or what makes the values that it restores: an output has the name that the restored one gave it."""
    if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return node
    rounding = node.inputs[0].producer()
    value = None if rounding is None else rounding.inputs[0]
    return None if value is None else value.producer()


def _lowest(value: ir.Value) -> np.ndarray:
    """The least finite number of a value's type."""
    return np.asarray(np.finfo(np.float16 if value.dtype == ir.DataType.FLOAT16 else np.float32).min)


def _before_quantizers(node: ir.Node) -> ir.Node | None:
    """The node, or the Relu or Clip behind it, if QuantizeLinear nodes alone read its result."""
    while True:
        value, readers = node.outputs[0], users(node.outputs[0])
        if value.is_graph_output() or not readers:
            return None
        if all(reader.op_type == "QuantizeLinear" for reader in readers):
            return node
        if len(readers) != 1 or not operator(readers[0].op_type).limits:
            return None
        node = readers[0]


def _is_taken(node: ir.Node) -> bool:
    """True if the integer kernel of the node computes something else."""
    if node.op_type == "AveragePool":
        return has_gaps(node) or counts_beyond(node)
    return is_constant(node.inputs[1]) and is_float32(node.inputs[1])


def _half_bias(node: ir.Node) -> np.ndarray | None:
    """What is to be added behind a layer with a quantized weight and a bias of float16, as float16; else None."""
    linear = linear_view(node) if node.op_type in _LINEAR and len(node.inputs) > 2 else None
    bias = node.inputs[2] if linear is not None else None
    if linear is None or bias is None or bias.dtype != ir.DataType.FLOAT16 or is_constant(node.inputs[1]):
        return None
    maker = bias.producer()
    array = constant(maker.inputs[0] if maker is not None and maker.op_type == "Cast" else bias)
    if array is None or array.ndim != 1:
        return None
    scaled = (array.astype(np.float32) * linear.beta).astype(np.float16)
    return scaled.reshape(-1, *[1] * len(linear.kernel))


def _put_behind(graph: ir.Graph, node: ir.Node, op_type: str, word: str, operand: np.ndarray, names: Names) -> None:
    """Let an operator with a constant make what the node made, for all that read it."""
    value, stem, name = node.outputs[0], f"{node_name(node)}_{word}", node.outputs[0].name
    value.name = names.free(f"{name}_without_{word}")
    other = add_initializer(graph, names.free(stem), operand)
    behind = ir.node(op_type, [value, other], name=names.free(f"{stem}_{op_type}"))
    made = behind.outputs[0]
    made.name, made.type, made.shape = name, value.type, value.shape
    for usage in [usage for usage in value.uses() if usage.node is not behind]:
        usage.node.replace_input_with(usage.idx, made)
    graph.insert_after(node, behind)
