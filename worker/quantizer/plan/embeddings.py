"""Tables of embeddings: which are stored as integers, and which of them are the weight of a layer too.

Only the rows that are looked up are ever restored, so that a table costs its integers in the file and in memory, on
every target that runs Gather: nothing of the lookup itself becomes integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.specs import WeightSpec, bits_of, is_integer
from worker.quantizer.graph.values import constant, is_constant, name_of, node_name, users
from worker.quantizer.numerics.granularity import PER_TENSOR, Granularity, PerAxis, PerBlock
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, is_linear
from worker.quantizer.ops.weights import is_lookup
from worker.quantizer.plan.log import PlanLog
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import QuantizationPlan, Role, WeightPlan
from worker.quantizer.plan.weights import WEIGHT_NOT_FINITE, float_bias_reason, granularity_of, is_finite

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

    Args:
        graph: prepared main graph.
        plan: with all other weights; changed in place.
        selection: the user's word.
        plan_log: takes notes.
        ties: whether layers can have weights that are represented so, as well as tables.
    """
    for node in graph:
        if not is_lookup(node):
            continue
        entry, table = plan.nodes[node_name(node)], node.inputs[0]
        asked = selection.table(node)
        spec = _counting(table, asked, plan, selection, ties)
        entry.reason = selection.reason(node) or _reason(table, spec, graph, plan) or _factors(node)
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


def _reason(table: ir.Value | None, spec: WeightSpec, graph: ir.Graph, plan: QuantizationPlan) -> Reason | None:
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
    """Quantized matrix products with their planned constant weights."""
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
    """That of the transposed matrix."""
    if isinstance(granularity, PerBlock):
        return PerBlock(1 - granularity.axis % 2, granularity.size)
    return PerAxis(1 - granularity.axis % 2) if isinstance(granularity, PerAxis) else granularity
