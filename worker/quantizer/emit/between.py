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
added behind its layer, where TensorRT finds it as well as inside. A product's bias gets the rank of what it is added
to. Before the last ones the zero point is left out if it is 0, else stands Max, too. What else the plan names is kept
apart likewise.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    DeduplicateHashedInitializersPass,
    DeduplicateInitializersPass,
)

from service.contracts.specs import has_integer_kernels
from worker.quantizer.graph.rewriting import only_reader, other_operand, rank_of, scalar
from worker.quantizer.graph.serialized import copy_of
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    activation_limits,
    add_initializer,
    constant,
    is_constant,
    is_float32,
    name_of,
    node_name,
    users,
)
from worker.quantizer.numerics.integer import IntegerGrid, onnx_integers
from worker.quantizer.ops.linear import linear_view
from worker.quantizer.ops.table import named, operator
from worker.quantizer.ops.windows import counts_beyond, has_gaps
from worker.quantizer.plan.grids import limited_operand
from worker.quantizer.plan.types import QuantizationPlan, Role

_LINEAR = named(lambda record: record.bias is not None)
_GEMM_RANK = 2
# From here on QuantizeLinear names its type.
TYPED_OPSET = 21
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
# Behind these the runtime puts the pair that stands before them.
_PASSED = ("MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")


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


def shield_moved(graph: ir.Graph, names: Names) -> None:
    """Keep pairs of int8 from being put behind nodes that move their values, and hand them on as floats: they would be
    of two types. Since opset 21.
    """
    for node in list(graph):
        if node.op_type != "DequantizeLinear" or len(node.inputs) < 3 or node.inputs[0] is None:
            continue
        zero_point, restored = constant(node.inputs[2]), node.outputs[0]
        if zero_point is None or zero_point.dtype != np.int8 or node.inputs[0].producer() is None:
            continue
        movers = [reader for reader in users(restored) if _moves_floats(reader)]
        if movers and not zero_point.any():
            node.resize_inputs(2)
        elif movers:
            _put_between(graph, node, movers, names)


def _moves_floats(node: ir.Node) -> bool:
    """True if pairs are put behind a node, and something reads it that does not make integers of what it reads."""
    readers = [reader for value in node.outputs for reader in users(value)]
    given = any(value.is_graph_output() for value in node.outputs)
    return node.op_type in _PASSED and (given or any(reader.op_type != "QuantizeLinear" for reader in readers))


def _put_between(graph: ir.Graph, node: ir.Node, readers: Collection[ir.Node], names: Names) -> None:
    """Let some readers of a node read what Max makes of it, which is the same."""
    value, stem = node.outputs[0], f"{node_name(node)}_lowest"
    lowest = add_initializer(graph, names.free(stem), _lowest(value))
    between = ir.node("Max", [value, lowest], name=names.free(f"{stem}_Max"))
    made = between.outputs[0]
    made.name, made.type, made.shape = names.free(f"{value.name}_kept"), value.type, value.shape
    for usage in [usage for usage in value.uses() if usage.node in readers]:
        usage.node.replace_input_with(usage.idx, made)
    graph.insert_after(node, between)


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
    return value.shape is not None and all(isinstance(length, int) for length in value.shape)


def _unrounded(node: ir.Node) -> ir.Node | None:
    """The node, or what makes the values that it restores: an output has the name that the restored one gave it."""
    if node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return node
    rounding = node.inputs[0].producer()
    value = None if rounding is None else rounding.inputs[0]
    return None if value is None else value.producer()


def _lowest(value: ir.Value) -> np.ndarray:
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


# Limits of activations at Q/DQ pairs: what saturation gives is dropped, what it does not is put where integers are.
_FEW_BIT_TYPES = (ir.DataType.UINT4, ir.DataType.INT4)


def _only_quantizer(value: ir.Value) -> ir.Node | None:
    """The QuantizeLinear that alone reads ``value``, else None."""
    readers = users(value)
    alone = len(readers) == 1 and readers[0].op_type == "QuantizeLinear" and not value.is_graph_output()
    return readers[0] if alone else None


def limit_integers(graph: ir.Graph, plan: QuantizationPlan, names: Names) -> None:
    """Move fused limits per channel between QuantizeLinear and DequantizeLinear, where nothing else changes.

    The runtime then fuses the node before with its pairs as if there were no limit.
    """
    for node in list(graph):
        index = limited_operand(node) if plan.role_of(node) is Role.FUSED else None
        quantize, grid = _only_quantizer(node.outputs[0]), _integer_grid(node.outputs[0], plan)
        if index is not None and quantize is not None and grid is not None and has_integer_kernels(grid.dtype):
            _limit_behind(graph, node, index, quantize, grid.at_run_time(), names)


def _limit_behind(
    graph: ir.Graph, node: ir.Node, index: int, quantize: ir.Node, grid: IntegerGrid, names: Names
) -> None:
    before, limit, name = node.inputs[index], constant(node.inputs[1 - index]), name_of(node.outputs[0])
    if before is None or limit is None:
        return
    stored = add_initializer(graph, names.free(f"{name}_limit"), onnx_integers(grid.quantize(limit), grid.dtype))
    rounded = quantize.outputs[0]
    limited = ir.node(node.op_type, [rounded, stored], name=node_name(node))
    made = limited.outputs[0]
    made.name, made.type, made.shape = names.free(f"{name}_limited"), rounded.type, rounded.shape
    for usage in [usage for usage in rounded.uses() if usage.node is not limited]:
        usage.node.replace_input_with(usage.idx, made)
    graph.insert_after(quantize, limited)
    quantize.replace_input_with(0, before)
    graph.remove(node, safe=True)
    before.name = name


def drop_implied_activations(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Remove a fused Relu or Clip whose effect the saturation of the QuantizeLinear behind it gives exactly.

    q(clip(x, lo, hi)) = q(x) for every x if q(lo) is the smallest and q(hi) the largest integer.
    """
    for node in list(graph):
        if plan.role_of(node) is not Role.FUSED or not operator(node.op_type).limits:
            continue
        before, value = node.inputs[0], node.outputs[0]
        quantize, grid = _only_quantizer(value), _integer_grid(value, plan)
        if before is None or quantize is None or grid is None or not _implied(node, grid):
            continue
        name = name_of(value)
        quantize.replace_input_with(0, before)
        graph.remove(node, safe=True)
        before.name = name


def limit_by_operands(graph: ir.Graph, names: Names) -> None:
    """Let Max and Min do what Relu and Clip do before a QuantizeLinear to 4 bits.

    onnxruntime 1.31 looks at Relu and Clip there and refuses the model (clip_quantizelinear.cc).
    """
    for node in list(graph):
        if not operator(node.op_type).limits:
            continue
        source, made = node.inputs[0], node.outputs[0]
        limits = _operands(node)
        read = any(
            reader.op_type == "QuantizeLinear" and reader.outputs[0].dtype in _FEW_BIT_TYPES for reader in users(made)
        )
        if source is None or not read or not limits:
            continue
        name, stem = made.name, node_name(node)
        for op_type, at in limits:
            limit = at
            if not isinstance(limit, ir.Value):
                limit = add_initializer(graph, names.free(f"{stem}_{op_type}"), np.asarray(at, np.float32))
            put = ir.node(op_type, [source, limit], name=names.free(f"{stem}_{op_type}"))
            put.outputs[0].name = names.free(f"{stem}_{op_type}_Output")
            put.outputs[0].type, put.outputs[0].shape = made.type, made.shape
            graph.insert_before(node, put)
            source = put.outputs[0]
        ir.convenience.replace_all_uses_with(made, source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        source.name = name


def _integer_grid(value: ir.Value, plan: QuantizationPlan) -> IntegerGrid | None:
    entry = plan.activations.get(value.name or "")
    return entry.quantization if entry is not None and isinstance(entry.quantization, IntegerGrid) else None


def _operands(node: ir.Node) -> list[tuple[str, ir.Value | float]]:
    """What does to x what a Relu or Clip does: Max and Min with numbers, or with values that are known at run time."""
    limits = activation_limits(node)
    if limits is None:
        return [(op, at) for op, at in zip(("Max", "Min"), node.inputs[1:], strict=False) if at is not None]
    return [(op, at) for op, at in zip(("Max", "Min"), limits, strict=True) if np.isfinite(at)]


def _implied(node: ir.Node, grid: IntegerGrid) -> bool:
    limits = activation_limits(node)
    if limits is None:
        return False
    saturating = grid.at_run_time()
    reached = saturating.quantize(np.array(limits, np.float32))
    return tuple(reached.tolist()) == saturating.limits


# What a file need not hold: where only weights were quantized, the graph around them may be half of what is left.

# Constants of up to so many elements are compared as they are, larger ones by a hash first.
_SMALL_ELEMENTS = 1024
_LARGEST_ELEMENTS = 1 << 32


def tidied(model: ir.Model) -> ir.Model:
    """A copy that computes the same: equal constants are held once, equal nodes stand once, inner shapes are left out.

    Runtimes infer the shapes when they load a model.
    """
    tidy = copy_of(model)
    DeduplicateInitializersPass(size_limit=_SMALL_ELEMENTS)(tidy)
    DeduplicateHashedInitializersPass(size_limit=_LARGEST_ELEMENTS)(tidy)
    CommonSubexpressionEliminationPass()(tidy)
    for node in tidy.graph:
        for value in node.outputs:
            if not value.is_graph_output():
                value.type = value.shape = None
    for value in tidy.graph.initializers.values():
        if not value.is_graph_input() and not value.is_graph_output():
            value.type = value.shape = None  # the constant tells
    return tidy
