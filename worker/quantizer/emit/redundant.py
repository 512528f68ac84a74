"""What an emitted file need not hold: limits that saturation gives anyway, constants of a graph that shrank."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    DeduplicateHashedInitializersPass,
    DeduplicateInitializersPass,
)

from service.contracts.specs import has_integer_kernels
from worker.quantizer.graph.serialized import copy_of
from worker.quantizer.graph.values import (
    Names,
    activation_limits,
    add_initializer,
    constant,
    name_of,
    node_name,
    users,
)
from worker.quantizer.numerics.integer import IntegerGrid, onnx_integers
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.plan.weights import limited_operand

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
