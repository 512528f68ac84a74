"""Weights that are stored quantized for nodes that compute in float: tables of embeddings, recurrent layers.

Only the rows that are looked up are ever restored, so that a table costs its integers in the file and in memory, on
every target that runs Gather: nothing of the lookup itself becomes integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.specs import WeightSpec, bits_of, is_block, is_float8, is_integer, needs_calibration
from worker.quantizer.graph.values import constant, is_constant, is_float32, name_of, node_name, users
from worker.quantizer.numerics.blocks import BLOCK_FORMATS
from worker.quantizer.numerics.integer import PER_TENSOR, Granularity, PerAxis, PerBlock
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, is_linear, is_lookup, is_recurrent, recurrent_weights
from worker.quantizer.plan.grids import (
    OPERANDS_NOT_FLOAT32,
    WEIGHT_NOT_FINITE,
    enter_weight,
    float_bias_reason,
    granularity_of,
    is_finite,
    unusable_weight,
)
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import PlanLog, QuantizationPlan, Role, WeightPlan

_LEAST_BITS = 4
TABLE_COMPUTED_WITH = declare(
    "table-computed-with",
    "its table is read by {op_type} too, which computes with all of it",
    hint="Give the other node a copy of the table.",
)
FACTORS_LOOKED_UP = declare(
    "factors-looked-up",
    "what it looks up is multiplied with activations, as the angles of rotary embeddings are",
    by_design=True,
)
TABLE_DTYPE = declare("table-dtype", "a table is stored as integers of 4 to 16 bits, not as {dtype}")


def plan_embeddings(
    graph: ir.Graph,
    plan: QuantizationPlan,
    selection: Selection,
    plan_log: PlanLog,
    *,
    ties: Callable[[WeightSpec], bool] = lambda spec: True,
) -> None:
    """Enter the tables that nodes of the main graph look up rows of, and say why others stay in float.

    The plan has all other weights. ``ties`` says whether layers can have weights that are represented so, as well as
    tables.
    """
    for node in graph:
        if not is_lookup(node):
            continue
        entry, table = plan.nodes[node_name(node)], node.inputs[0]
        asked = selection.table(node)
        spec = _counting(table, asked, plan, selection, ties)
        entry.reason = selection.reason(node) or _table_reason(table, spec, graph, plan) or _factors(node)
        if entry.reason is not None or table is None:
            continue
        entry.role = Role.LOOKUP
        name = name_of(table)
        known = plan.weights.get(name)
        if known is None:
            known = plan.weights[name] = WeightPlan(name, entry.name, spec, table_granularity(spec))
        elif known.spec != spec:
            known.spec, known.granularity = spec, table_granularity(spec)
            _judge_biases(users(table), plan)
        if spec != asked:
            plan_log.note(f"table {name!r} is shared: the spec of node {known.node!r} counts, not {entry.name!r}")
        if plan.nodes[known.node].role is not Role.LOOKUP:
            known.node = entry.name  # so that nothing rounds it for the layer alone
        if isinstance(known.granularity, PerBlock) and known.granularity.axis % 2 == 0:
            known.granularity = PER_TENSOR
            plan_log.note(f"table {name!r} is read along different axes: one scale for the whole tensor")
    _tie(graph, plan, selection, plan_log, ties)


def table_granularity(spec: WeightSpec) -> Granularity:
    """Which elements of a table, [rows, columns], share a scale: a row is what a channel is to a layer."""
    if spec.granularity == "per_block":
        return PerBlock(1, spec.block_size)
    return PerAxis(0) if spec.granularity == "per_channel" else PER_TENSOR


def _counting(
    table: ir.Value | None,
    asked: WeightSpec,
    plan: QuantizationPlan,
    selection: Selection,
    ties: Callable[[WeightSpec], bool],
) -> WeightSpec:
    """The spec that counts for a table: another lookup's, or that of layers that cannot have what is asked, because of
    their kernels or of a rule of the target.
    """
    known = None if table is None else plan.weights.get(name_of(table))
    if known is None or table is None or known.spec == asked:
        return asked
    layers = [reader for reader in users(table) if is_linear(reader)]
    by_layers = plan.nodes[known.node].role is not Role.LOOKUP
    fits = all(granularity_of(layer, asked, PlanLog()) == table_granularity(asked) for layer in layers)
    free = all(known.spec == selection.weight(layer) for layer in layers)
    return asked if by_layers and fits and free and ties(asked) else known.spec


def _table_reason(table: ir.Value | None, spec: WeightSpec, graph: ir.Graph, plan: QuantizationPlan) -> Reason | None:
    if not is_finite(table):
        return WEIGHT_NOT_FINITE()
    if not is_integer(spec.dtype) or bits_of(spec.dtype) < _LEAST_BITS:
        return TABLE_DTYPE(dtype=spec.dtype)
    others = (node for node in users(table) if not is_lookup(node))  # type: ignore[arg-type]
    other = next((node for node in others if not _reads_integers(node, graph, plan)), None)
    return None if other is None else TABLE_COMPUTED_WITH(op_type=other.op_type)


def _reads_integers(node: ir.Node, graph: ir.Graph, plan: QuantizationPlan) -> bool:
    """True for a layer with a quantized weight; those inside sub-graphs are planned later."""
    return is_linear(node) and (node.graph is not graph or plan.nodes[node_name(node)].quantized)


def _factors(node: ir.Node) -> Reason | None:
    """Cosines and sines of positions: small tables whose error every activation would be multiplied with."""
    readers = list(users(node.outputs[0]))
    while readers and all(reader.op_type in ("Unsqueeze", "Reshape", "Squeeze", "Transpose") for reader in readers):
        readers = [user for reader in readers for user in users(reader.outputs[0])]
    if not readers or not all(reader.op_type == "Mul" for reader in readers):
        return None
    constant_factor = any(any(is_constant(value) for value in reader.inputs) for reader in readers)
    return None if constant_factor else FACTORS_LOOKED_UP()


def _tie(
    graph: ir.Graph,
    plan: QuantizationPlan,
    selection: Selection,
    plan_log: PlanLog,
    ties: Callable[[WeightSpec], bool],
) -> None:
    """Let weights of layers that hold what a table holds have its integers: they are one tensor in the file.

    Only where the scales of the table's rows, or of blocks of them, are what the layer's kernel takes, and no rule of
    the target wants the layer's weight otherwise.
    """
    tables = {
        name_of(table): table
        for node in graph
        if plan.nodes[node_name(node)].role is Role.LOOKUP and (table := node.inputs[0]) is not None
    }
    for node, weight in _matrices(graph, plan):
        entry = plan.weights[name_of(weight)]
        for name, table in tables.items():
            transposed = None if weight is table else _turned(weight, table)
            if transposed is None:
                continue
            held = plan.weights[name]
            granularity = _transposed(held.granularity) if transposed else held.granularity
            free = entry.spec in (held.spec, selection.weight(node))
            if free and ties(held.spec) and granularity_of(node, held.spec, PlanLog()) == granularity:
                entry.spec, entry.granularity, entry.node, entry.tied = held.spec, granularity, held.node, name
                plan_log.note(f"the weight of {node_name(node)!r} is table {name!r}: both are stored once")
                _judge_biases([node], plan)
            break


def _judge_biases(layers: Iterable[ir.Node], plan: QuantizationPlan) -> None:
    """Leave biases in float that have no grid beside what the layers' weights are now."""
    for layer in layers:
        bias = plan.biases.get(node_name(layer))
        if bias is not None and bias.reason is None:
            bias.reason = float_bias_reason(layer, bias.spec, plan.weights[name_of(layer.inputs[1])])  # type: ignore[arg-type]


def _matrices(graph: ir.Graph, plan: QuantizationPlan) -> Iterator[tuple[ir.Node, ir.Value]]:
    for node in graph:
        if node.op_type not in MATRIX_PRODUCTS or plan.nodes[node_name(node)].role is not Role.LINEAR:
            continue
        weight = node.inputs[1]
        if weight is not None and is_constant(weight) and name_of(weight) in plan.weights:
            yield node, weight


def _turned(weight: ir.Value, table: ir.Value) -> bool | None:
    """Whether a weight holds a table transposed; None if it does not hold it at all."""
    one, other = constant(weight), constant(table)
    if one is None or other is None or one.ndim != 2:
        return None
    if one.shape == other.shape and np.array_equal(one, other):
        return False
    return True if one.shape == other.shape[::-1] and np.array_equal(one, other.T) else None


def _transposed(granularity: Granularity) -> Granularity:
    if isinstance(granularity, PerBlock):
        return PerBlock(1 - granularity.axis % 2, granularity.size)
    return PerAxis(1 - granularity.axis % 2) if isinstance(granularity, PerAxis) else granularity


# Weights of recurrent layers: stored quantized on every target that runs the layer, which itself computes in float.
#
# No runtime has a kernel for a recurrence on calibrated integers: what it feeds back would be rounded at every step.

RECURRENCE_IN_FLOAT = declare(
    "recurrence-in-float",
    "its weights are stored quantized, its recurrence computes in float: {target} has no static integer kernel for "
    "{op_type}",
    hint="Mode dynamic runs LSTM on integers.",
)
_ROW_AXIS, _INPUT_AXIS = 1, 2


def plan_recurrent(
    graph: ir.Graph,
    plan: QuantizationPlan,
    selection: Selection,
    plan_log: PlanLog,
    *,
    why_float: Callable[[ir.Node], Reason | None] = lambda node: None,
) -> None:
    """Enter W and R of the main graph's recurrent layers, and say why others stay in float.

    ``why_float`` says why the recurrence of a node computes in float although its weights are quantized; None: it does
    not, or the mode concerns weights alone.
    """
    for node in graph:
        if not is_recurrent(node):
            continue
        entry = plan.nodes[node_name(node)]
        entry.reason = selection.reason(node) or _recurrent_reason(node)
        if entry.reason is None:
            entry.role, entry.activation_reason = Role.STORED, why_float(node)
            enter_recurrent(node, plan, selection, plan_log)


def enter_recurrent(node: ir.Node, plan: QuantizationPlan, selection: Selection, plan_log: PlanLog) -> None:
    """Enter the constant W and R of a recurrent layer into the plan."""
    spec = selection.weight(node)
    for value in recurrent_weights(node):
        if value is not None:
            enter_weight(name_of(value), node, spec, recurrent_granularity(value, spec), plan, plan_log)


def recurrence_in_float(target: str) -> Callable[[ir.Node], Reason]:
    """Says of recurrent layers why they compute in float on a target."""
    return lambda node: RECURRENCE_IN_FLOAT(target=target, op_type=node.op_type)


def recurrent_granularity(weight: ir.Value, spec: WeightSpec) -> Granularity:
    """Which elements of W or R share a scale; a row is what a channel is to a layer.

    For two directions a row is written as one block along the last axis, because an axis of DequantizeLinear would
    give both directions the scales of the other. Floats of 8 bits, which carry exponents of their own, do with that.
    """
    if is_block(spec.dtype):
        return BLOCK_FORMATS[spec.dtype].granularity(_INPUT_AXIS)
    if not needs_calibration(spec.dtype) or spec.granularity == "per_tensor":
        return PER_TENSOR
    if spec.granularity == "per_block":
        return PerBlock(_INPUT_AXIS, spec.block_size)
    array = constant(weight)
    if array is None or array.shape[0] == 1 or is_float8(spec.dtype):
        return PerAxis(_ROW_AXIS)
    return PerBlock(_INPUT_AXIS, array.shape[_INPUT_AXIS])


def _recurrent_reason(node: ir.Node) -> Reason | None:
    if not is_float32(node.inputs[0]):
        return OPERANDS_NOT_FLOAT32()
    return next(filter(None, map(unusable_weight, recurrent_weights(node))), None)
