"""Rule 3 of planning: elementwise, pooling and data-moving nodes are quantized only between quantized nodes.

The border of a quantized region counts as one.
"""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.regions import Borders
from worker.quantizer.graph.values import is_constant, node_name, users
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role

_FLOAT_ANYWAY = "Nothing: it lies where the network is float anyway."
NOT_FED = declare("not-fed-by-quantized", "no quantized node feeds it", hint=_FLOAT_ANYWAY, by_design=True)
NOT_READ = declare("not-read-by-quantized", "no quantized node reads its result", hint=_FLOAT_ANYWAY, by_design=True)

_BOUNDED = (Role.ARITHMETIC, Role.UNARY, Role.TRANSPARENT)


def keep_only_between_quantized(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Take back decisions until every bounded node is fed and read by a quantized one.

    Decisions are only ever taken back, so the order does not change which remain; one sweep in either direction and
    then only the neighbours of what changed make it linear in the number of edges.
    """
    nodes, borders = list(graph), Borders(graph)
    waiting: dict[ir.Node, None] = {}
    for node in nodes:
        _judge(node, plan, graph, borders, waiting, sides=("fed",))
    for node in reversed(nodes):
        _judge(node, plan, graph, borders, waiting, sides=("read",))
    while waiting:
        changed, waiting = waiting, {}
        for node in changed:
            _judge(node, plan, graph, borders, waiting, sides=("fed", "read"))


def _judge(
    node: ir.Node,
    plan: QuantizationPlan,
    graph: ir.Graph,
    borders: Borders,
    waiting: dict[ir.Node, None],
    *,
    sides: tuple[str, ...],
) -> None:
    """Take the node back if it must be; its neighbours then wait to be judged."""
    entry = plan.nodes[node_name(node)]
    reason = None
    if "fed" in sides and entry.role in (*_BOUNDED, Role.FUSED) and not _fed(node, plan, borders):
        reason = NOT_FED()
    elif "read" in sides and entry.role in _BOUNDED and not _read(plan.carrier(node), plan, graph, borders):
        reason = NOT_READ()
    if reason is None:
        return
    entry.role, entry.reason = None, reason
    waiting.update((reader, None) for value in node.outputs for reader in users(value) if reader.graph is graph)
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        if producer is None:
            continue
        waiting[producer] = None
        # what is fused carries the result of the node before it
        before = producer.inputs[0].producer() if producer.inputs and producer.inputs[0] is not None else None
        if plan.nodes[node_name(producer)].role is Role.FUSED and before is not None:
            waiting[before] = None


def _fed(node: ir.Node, plan: QuantizationPlan, borders: Borders) -> bool:
    given = [value for value in node.inputs if value is not None and not is_constant(value)]
    return any(_entry(value, plan) or borders.enters(value, node) for value in given)


def _read(value: ir.Value, plan: QuantizationPlan, graph: ir.Graph, borders: Borders) -> bool:
    return borders.leaves(value) or read_by_quantized(value, plan, graph)


def _entry(value: ir.Value, plan: QuantizationPlan) -> NodePlan | None:
    producer = value.producer()
    entry = plan.nodes.get(node_name(producer)) if producer is not None else None
    return entry if entry is not None and entry.quantized else None


def read_by_quantized(value: ir.Value, plan: QuantizationPlan, graph: ir.Graph) -> bool:
    """True if a quantized node of ``graph`` reads ``value`` or another result of its producer."""
    producer = value.producer()
    outputs = producer.outputs if producer is not None else [value]
    return any(
        reader.graph is graph and plan.nodes[node_name(reader)].quantized
        for found in outputs
        for reader in users(found)
    )
