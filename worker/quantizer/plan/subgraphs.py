"""Nodes inside sub-graphs (bodies of If, Loop and Scan): what becomes of them.

Their weights may be quantized, which asks for no data. Their activations stay in float: what a body computes never
leaves it but as a result, as often as the body runs and in shapes that may differ each time, so that calibration, which
reads tensors of the main graph, does not see it.
"""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.values import (
    is_constant,
    is_float32,
    node_name,
    owners,
    subgraph_nodes,
)
from worker.quantizer.ops.linear import is_linear
from worker.quantizer.ops.weights import is_recurrent, recurrent_weights
from worker.quantizer.plan.log import PlanLog
from worker.quantizer.plan.recurrent import enter_recurrent
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.plan.weights import WEIGHT_NOT_CONSTANT, plan_weight, unusable_weight

_UNROLL = "Export the model without control flow, for instance by unrolling its loops"
IN_FLOAT = declare(
    "in-subgraph",
    "nodes inside sub-graphs stay in float",
    hint=f"{_UNROLL}; or set subgraphs to weights, for modes static and weights_only.",
)
ACTIVATIONS_IN_FLOAT = declare(
    "activations-in-subgraph",
    "activations inside sub-graphs stay in float: calibration sees the main graph alone",
    hint=f"{_UNROLL}.",
)


def leave_subgraphs(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Enter the nodes of all sub-graphs into the plan as ones that stay in float."""
    for node in subgraph_nodes(graph):
        plan.nodes.setdefault(node_name(node), NodePlan(node_name(node), node.op_type, None, IN_FLOAT()))


def plan_subgraph_weights(graph: ir.Graph, plan: QuantizationPlan, selection: Selection, plan_log: PlanLog) -> None:
    """Quantize the weights that linear and recurrent nodes of sub-graphs read from the main graph.

    Args:
        graph: prepared main graph, to which the weights of sub-graphs were moved.
        plan: with the main graph planned, whose spec counts for a weight that both read; changed in place.
        selection: the user's word.
        plan_log: takes notes.
    """
    for node in subgraph_nodes(graph):
        entry = plan.nodes[node_name(node)]
        recurrent = is_recurrent(node)
        if not recurrent and not is_linear(node):
            entry.reason = ACTIVATIONS_IN_FLOAT()
            continue
        weights = recurrent_weights(node) if recurrent else (node.inputs[1],)
        refused = (_not_a_weight(weight, graph) for weight in weights)
        entry.reason = selection.reason(node) or next(filter(None, refused), None)
        if entry.reason is None:
            (enter_recurrent if recurrent else plan_weight)(node, plan, selection, plan_log)
            entry.role, entry.activation_reason = Role.STORED, ACTIVATIONS_IN_FLOAT()


def _not_a_weight(weight: ir.Value | None, graph: ir.Graph) -> Reason | None:
    if is_float32(weight) and is_constant(weight) and weight is not None and weight.graph is not graph:
        return WEIGHT_NOT_CONSTANT()
    return unusable_weight(weight)


def common_home(graph: ir.Graph, readers: list[ir.Node]) -> ir.Graph:
    """Where to restore a weight: in the innermost graph that all readers see, but in no body that runs many times.

    A branch of an If that is not taken then costs nothing, and a loop restores the weight once.

    Args:
        graph: main graph.
        readers: nodes of it or of its sub-graphs.
    """
    if all(node.graph is graph for node in readers):
        return graph
    held_by = owners(graph)
    paths = [_path(node, graph, held_by) for node in readers]
    common: list[ir.Graph] = [
        steps[0] for steps in zip(*paths, strict=False) if all(step is steps[0] for step in steps)
    ]
    return common[-1]


def _path(node: ir.Node, graph: ir.Graph, held_by: dict[ir.Graph, ir.Node]) -> list[ir.Graph]:
    """The graphs around ``node`` from the main graph inwards, as far as each runs once at most."""
    inwards: list[ir.Graph] = []
    part = node.graph
    while isinstance(part, ir.Graph) and part is not graph:
        owner = held_by[part]
        inwards = [part, *inwards] if owner.op_type == "If" else []
        part = owner.graph
    return [graph, *inwards]
