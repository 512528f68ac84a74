"""Plans that concern weights alone: for dynamic quantization and for weights that are stored small.

Every MatMul, Gemm, Conv and ConvTranspose with a constant weight is a candidate; activations are not planned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason
from service.contracts.specs import WeightSpec
from worker.quantizer.graph.facts import NodeFacts
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_float32, node_name
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.embeddings import plan_embeddings
from worker.quantizer.plan.log import PlanLog
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.recurrent import plan_recurrent
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.subgraphs import leave_subgraphs, plan_subgraph_weights
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.plan.weights import OPERANDS_NOT_FLOAT32, plan_weight, unusable_weight


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
        reason = _reason(node, selection, candidates, why_not)
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, None if reason else Role.LINEAR, reason)
        if reason is None:
            plan_weight(node, plan, selection, plan_log)
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
