"""Dynamic quantization: weights are stored as int8, activations are quantized by the range they have at run time.

LSTM becomes onnxruntime's DynamicQuantizeLSTM; a recurrent layer that has no such kernel has its weights restored in
front of it and computes in float. All else becomes standard operators:

x -> DynamicQuantizeLinear -> MatMulInteger or ConvInteger -> Cast -> Mul by the scales -> Add the bias, in the form
that onnxruntime fuses (DynamicQuantizeMatMul, MatMulIntegerToFloat).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.errors import EngineError
from service.contracts.reason import Reason, declare
from service.contracts.specs import ActivationSpec, WeightSpec, has_integer_kernels
from worker.quantizer.emit import BLOCKS_OPSET, PRODUCER, Emitted, restore_weights, write_moved
from worker.quantizer.emit.contrib import write_dynamic_lstm
from worker.quantizer.emit.embeddings import Tables
from worker.quantizer.graph.metadata import NodeFacts
from worker.quantizer.graph.rewriting import opset_of
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    input_of,
    int_attribute,
    is_float32,
    name_of,
    node_name,
)
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid
from worker.quantizer.ops.linear import CONVOLUTIONS, LINEAR, linear_view, recurrent_weights
from worker.quantizer.ops.table import named, operator
from worker.quantizer.plan.build import widen
from worker.quantizer.plan.candidates import leave_subgraphs, plan_subgraph_weights
from worker.quantizer.plan.grids import OPERANDS_NOT_FLOAT32, plan_weight, unusable_weight
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.selection import Matcher, Selection
from worker.quantizer.plan.stored_weights import plan_embeddings, plan_recurrent
from worker.quantizer.plan.types import NodePlan, PlanLog, QuantizationPlan, Role

# Plans that concern weights alone: for dynamic quantization and for weights that are stored small.
#
# Every MatMul, Gemm, Conv and ConvTranspose with a constant weight is a candidate; activations are not planned.


def plan_weights(
    graph: ir.Graph,
    config: QuantizationConfig,
    facts: NodeFacts,
    plan_log: PlanLog,
    *,
    candidates: Collection[str] = LINEAR,
    why_not: Reason,
    ties: Callable[[WeightSpec], bool] = lambda spec: True,
    why_float: Callable[[ir.Node], Reason | None] = lambda node: None,
) -> QuantizationPlan:
    """A plan with the weights of linear nodes and recurrent layers, the tables of embeddings, and nothing else.

    Args:
        graph: prepared main graph.
        config: resolved config.
        facts: of its nodes.
        plan_log: takes notes.
        candidates: operators whose weights are quantized.
        why_not: the reason given for all other operators.
        ties: see ``plan_embeddings``.
        why_float: see ``plan_recurrent``.

    Returns:
        A plan with a NodePlan for every node, sub-graph nodes included.
    """
    selection = Selection(config, Matcher(graph, facts.op_types))
    plan = QuantizationPlan()
    for node in graph:
        reason = _reason(node, selection, candidates, why_not) or facts.kept_float.get(node_name(node))
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, None if reason else Role.LINEAR, reason)
        if reason is None:
            plan_weight(node, plan, selection, plan_log)
    widen(plan, facts)
    leave_subgraphs(graph, plan)
    plan_recurrent(graph, plan, selection, plan_log, why_float=why_float)
    plan_embeddings(graph, plan, selection, plan_log, ties=ties)
    if config.subgraphs == "weights":
        plan_subgraph_weights(graph, plan, selection, plan_log)
    return plan


def _reason(node: ir.Node, selection: Selection, candidates: Collection[str], why_not: Reason) -> Reason | None:
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in candidates:
        return why_not
    excluded = selection.reason(node)
    if excluded is not None:
        return excluded
    return unusable_weight(node.inputs[1]) if is_float32(node.inputs[0]) else OPERANDS_NOT_FLOAT32()


# What DynamicQuantizeLinear makes of an activation.
AT_RUN_TIME = ActivationSpec(dtype="uint8", symmetric=False)
NOT_DYNAMIC = declare("not-dynamic", "dynamic quantization concerns MatMul, Gemm, Conv and recurrent layers")
SCALED_GEMM = declare("scaled-gemm", "transA, alpha or beta has no counterpart in MatMulInteger")
WEIGHT_NO_MATRIX = declare("weight-no-matrix", "its weight is not a matrix")
RECURRENCE_NOT_DYNAMIC = declare(
    "recurrence-not-dynamic",
    "its weights are stored quantized, its recurrence computes in float: onnxruntime has no dynamic integer kernel for "
    "{op_type}",
    hint="An LSTM has one.",
)
RECURRENCE_BATCH_FIRST = declare(
    "recurrence-batch-first",
    (
        "its weights are stored quantized, its recurrence computes in float: DynamicQuantizeLSTM does "
        "not support layout 1"
    ),
    hint="Export the model with batch_first=False, or with Transpose nodes around the layer.",
)


def plan_dynamic(graph: ir.Graph, config: QuantizationConfig, facts: NodeFacts, plan_log: PlanLog) -> QuantizationPlan:
    """Which MatMul, Gemm and Conv nodes run on integers; weights as the config says, activations uint8."""
    plan = plan_weights(
        graph,
        config,
        facts,
        plan_log,
        candidates=named(lambda record: record.integer_form is not None),
        why_not=NOT_DYNAMIC(),
        ties=_ties,
        why_float=_recurrence_in_float,
    )
    used = set()
    for node in graph:
        entry, weight = plan.nodes[node_name(node)], input_of(node, 1)
        if entry.role is not Role.LINEAR or weight is None:
            if entry.role is Role.LOOKUP:
                used.add(name_of(node.inputs[0]))  # type: ignore[arg-type]
            if entry.role is Role.STORED:
                used.update(_recurrent(node, plan, plan_log))
            continue
        reason = _not_dynamic(node)
        if reason is not None:
            entry.role, entry.reason = None, reason
            continue
        used.add(name_of(weight))
        planned = plan.weights[name_of(weight)]
        if entry.name in facts.float_inputs:
            entry.role, entry.activation_reason = Role.STORED, facts.float_inputs[entry.name]
            continue
        if node.op_type == "Conv" and planned.granularity != PER_TENSOR and not planned.spec.symmetric:
            planned.granularity = PER_TENSOR
            plan_log.note(f"{entry.name}: ConvInteger supports one zero point, so its asymmetric weight has one scale")
    plan.weights = {name: weight for name, weight in plan.weights.items() if name in used}
    return plan


def _recurrence_in_float(node: ir.Node) -> Reason | None:
    """Why a recurrent layer does not run on integers; None if it does."""
    if node.op_type != "LSTM":
        return RECURRENCE_NOT_DYNAMIC(op_type=node.op_type)
    return RECURRENCE_BATCH_FIRST() if int_attribute(node, "layout", 0) else None


def _recurrent(node: ir.Node, plan: QuantizationPlan, plan_log: PlanLog) -> list[str]:
    """The planned weights of a recurrent layer, with scales that its kernel takes."""
    names = [name_of(value) for value in recurrent_weights(node) if value is not None]
    for name in names if plan.nodes[node_name(node)].activation_reason is None else ():
        planned = plan.weights[name]
        if planned.granularity != PER_TENSOR and not planned.spec.symmetric:
            planned.granularity = PER_TENSOR
            told = "DynamicQuantizeLSTM supports one zero point, so its asymmetric weight has one scale"
            plan_log.note(f"{node_name(node)}: {told}")
    return names


def _ties(spec: WeightSpec) -> bool:
    """True if an integer product can read a table that is represented so."""
    return has_integer_kernels(spec.dtype) and spec.granularity != "per_block"


def _not_dynamic(node: ir.Node) -> Reason | None:
    linear = linear_view(node)
    if linear is None or linear.stacked:
        return WEIGHT_NO_MATRIX()
    if linear.transposes_data or (linear.alpha, linear.beta) != (1.0, 1.0):
        return SCALED_GEMM()
    return None


def emit_dynamic(model: ir.Model, plan: QuantizationPlan) -> Emitted:
    """Write ``plan`` (with the weights filled) into ``model``, which is changed in place.

    Raises:
        EngineError: the plan was not filled.
    """
    graph = model.graph
    write_moved(graph, plan)
    names = Names(graph)
    quantized: dict[str, tuple[ir.Value, ir.Value, ir.Value]] = {}
    tables = Tables(graph, plan, names, blocks=(opset_of(model) or 0) >= BLOCKS_OPSET)
    linear = [node for node in graph if plan.nodes[node_name(node)].role is Role.LINEAR]
    tables.write_embeddings()
    for node in linear:
        _replace(graph, node, plan, quantized, names, tables)
        plan.spill_initializers(graph)
    for node in list(graph):
        entry = plan.nodes.get(node_name(node))
        if entry is not None and entry.role is Role.STORED and entry.activation_reason is None:
            write_dynamic_lstm(model, node, plan, names)
    restore_weights(model, plan, tables)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
    model.producer_name, model.producer_version = PRODUCER, None
    return Emitted(model)


def _replace(
    graph: ir.Graph,
    node: ir.Node,
    plan: QuantizationPlan,
    quantized: dict[str, tuple[ir.Value, ir.Value, ir.Value]],
    names: Names,
    tables: Tables,
) -> None:
    source, weight = node.inputs[0], node.inputs[1]
    if source is None or weight is None:
        raise EngineError(f"node {node.name!r} has no input", node=node.name)
    made: list[ir.Node] = []
    if name_of(source) not in quantized:
        quantized[name_of(source)] = _quantize_input(source, names, made)
    integers, scale, zero_point = quantized[name_of(source)]
    stored, weight_scale, weight_zero = _weight(graph, node, name_of(weight), plan, names, tables)
    stem = node_name(node)

    def add(op_type: str, inputs: list[ir.Value | None], **attributes: object) -> ir.Value:
        made.append(ir.node(op_type, inputs, attributes=attributes, name=names.free(f"{stem}_{op_type}")))  # type: ignore[arg-type]
        made[-1].outputs[0].name = names.free(f"{stem}_{op_type}_Output")
        return made[-1].outputs[0]

    kept = dict(node.attributes.items()) if node.op_type in CONVOLUTIONS else {}
    operands: list[ir.Value | None] = [integers, stored, zero_point, weight_zero]
    product = add(operator(node.op_type).integer_form or "", operands, **kept)
    both = add("Mul", [scale, weight_scale])
    result = add("Mul", [add("Cast", [product], to=int(ir.DataType.FLOAT)), both])
    bias = input_of(node, 2)
    if bias is not None:
        result = add("Add", [result, _shaped_bias(graph, node, bias, names)])
    old = node.outputs[0]
    result.type, result.shape = old.type, old.shape
    graph.insert_before(node, made)
    name = name_of(old)
    is_output = old.is_graph_output()
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=is_output)
    graph.remove(node, safe=True)
    result.name = name


def _quantize_input(source: ir.Value, names: Names, made: list[ir.Node]) -> tuple[ir.Value, ir.Value, ir.Value]:
    stem = name_of(source)
    node = ir.node("DynamicQuantizeLinear", [source], num_outputs=3, name=names.free(f"{stem}_DynamicQuantizeLinear"))
    for value, word in zip(node.outputs, ("quantized", "scale", "zero_point"), strict=True):
        value.name = names.free(f"{stem}_{word}")
    made.append(node)
    return node.outputs[0], node.outputs[1], node.outputs[2]


def _weight(
    graph: ir.Graph, node: ir.Node, initializer: str, plan: QuantizationPlan, names: Names, tables: Tables
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Integers in the layout that the integer operator wants, scale in that of the result, zero point."""
    weight = Parameters(graph, plan).weight(initializer)
    grid, integers = weight.grid, weight.integers
    if not isinstance(grid, IntegerGrid) or integers is None:
        raise EngineError(f"weight {initializer!r} was planned but not filled", tensor=initializer)
    scale, zero_point = grid.scale, grid.zero_point
    linear = linear_view(node)
    if linear is None:
        raise EngineError(f"node {node.name!r} has no weight", node=node.name)
    if not linear.kernel:
        integers = np.ascontiguousarray(linear.matrix(integers)[0].T)
    else:
        # onnxruntime's ConvInteger knows uint8 weights with one zero point only.
        integers, zero_point = _as_uint8(integers, grid)
        scale = scale.reshape(-1, *[1] * (integers.ndim - 2)) if scale.ndim else scale
    stem = f"{initializer}_of_{node_name(node)}"
    shared = tables.shared(initializer)
    stored = None if shared is None or linear.kernel else shared.inputs_first(outputs_first=linear.outputs_first)
    return (
        stored or add_initializer(graph, names.free(f"{stem}_quantized"), integers),
        add_initializer(graph, names.free(f"{stem}_scale"), np.asarray(scale)),
        add_initializer(graph, names.free(f"{stem}_zero_point"), np.asarray(zero_point)),
    )


def _as_uint8(integers: np.ndarray, grid: IntegerGrid) -> tuple[np.ndarray, np.ndarray]:
    shift = -grid.at_run_time().limits[0]
    zero_point = np.unique(grid.zero_point.astype(np.int32) + shift)
    if zero_point.size != 1:
        raise EngineError("a Conv's weight needs one zero point; use symmetric weights for dynamic quantization")
    return (integers.astype(np.int32) + shift).astype(np.uint8), zero_point[0].astype(np.uint8)


def _shaped_bias(graph: ir.Graph, node: ir.Node, bias: ir.Value, names: Names) -> ir.Value:
    """The bias in a shape that broadcasts along the channels of the result."""
    weight = node.inputs[1]
    rank = len(weight.shape) if weight is not None and weight.shape is not None else 2
    if node.op_type != "Conv" or bias.const_value is None:
        return bias
    array = bias.const_value.numpy().reshape(-1, *[1] * (rank - 2))
    return add_initializer(graph, names.free(f"{name_of(bias)}_of_{node_name(node)}"), array)
