"""Plans that concern weights alone: for dynamic quantization and for weights that are stored small.

Every MatMul, Gemm, Conv and ConvTranspose with a constant weight is a candidate; activations are not planned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    LINEAR,
    constant,
    is_constant,
    is_float32,
    node_name,
)
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.subgraphs import leave_subgraphs, plan_subgraph_weights
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.plan.weights import plan_weight


def plan_weights(
    graph: ir.Graph,
    config: QuantizationConfig,
    op_types: Mapping[str, str],
    *,
    candidates: Collection[str] = LINEAR,
    why_not: str,
) -> QuantizationPlan:
    """A plan with the weights of linear nodes and nothing else.

    Args:
        graph: prepared main graph.
        config: resolved config.
        op_types: operators by node name as uploaded.
        candidates: operators whose weights are quantized.
        why_not: the reason given for all other operators.

    Returns:
        A plan with a NodePlan for every node, sub-graph nodes included.
    """
    selection = Selection(config, Matcher(graph, op_types))
    plan = QuantizationPlan()
    for node in graph:
        reason = _reason(node, selection, candidates, why_not)
        plan.nodes[node_name(node)] = NodePlan(node_name(node), node.op_type, None if reason else Role.LINEAR, reason)
        if reason is None:
            plan_weight(node, plan, selection)
    leave_subgraphs(graph, plan)
    if config.subgraphs == "weights":
        plan_subgraph_weights(graph, plan, selection)
    return plan


def _reason(node: ir.Node, selection: Selection, candidates: Collection[str], why_not: str) -> str | None:
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in candidates:
        return why_not
    excluded = selection.reason(node)
    if excluded is not None:
        return excluded
    if not is_float32(node.inputs[0]) or not is_float32(node.inputs[1]):
        return "its operands are not float32"
    if not is_constant(node.inputs[1]):
        return "its weight is not constant"
    array = constant(node.inputs[1])
    if array is None or array.size == 0 or not np.isfinite(array).all():
        return "its weight is empty or holds NaN or Inf"
    return None
