"""Output channels that the calibration data never wake, and the weights that they set no range for.

A channel that its activation function cuts off on all data often has the largest weights of its layer: a folded
normalization has divided them by next to no deviation. Where one scale serves the whole weight and is searched by
square error, such channels would choose it alone, for nothing that anybody sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import activation_limits, name_of, node_name, users
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.plan.weights import is_searched_whole
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import ChannelMean


@dataclass(frozen=True)
class Watched:
    """A weight whose output channels are watched: their mean behind an activation function that gives nothing below 0.

    Attributes:
        weight: name of the initializer.
        request: of the mean.
        observer: the same request's.
    """

    weight: str
    request: Request
    observer: ChannelMean


def watch(graph: ir.Graph, plan: QuantizationPlan) -> list[Watched]:
    """What to collect on the pass over the data; nothing for weights that the plan knows about.

    Args:
        graph: prepared.
        plan: made for it.
    """
    found = []
    for node in graph:
        if node.op_type != "Conv" or node.inputs[1] is None or plan.nodes[node_name(node)].role is not Role.LINEAR:
            continue
        name = name_of(node.inputs[1])
        weight = plan.weights.get(name)
        if weight is None or name in plan.silent or not is_searched_whole(weight) or len(node.inputs[1].uses()) > 1:
            continue
        cut = _cut_behind(node, plan)
        if cut is not None and (rank_of(cut) or 0) >= 3:
            observer = ChannelMean()
            found.append(Watched(name, Request(name_of(cut), observer, pooled=True), observer))
    return found


def mark(watched: list[Watched], plan: QuantizationPlan) -> list[str]:
    """Enter what was seen into the plan; a sentence for the report if it knows of silent channels that matter."""
    for entry in watched:
        mean = entry.observer.result()
        if mean is not None:
            plan.silent[entry.weight] = mean == 0.0
    counts = {}
    for name, silent in plan.silent.items():
        weight = plan.weights.get(name)
        if weight is not None and is_searched_whole(weight) and silent.any() and not silent.all():
            counts[weight.node] = int(silent.sum())
    where = ", ".join(f"{name} ({count})" for name, count in counts.items())
    told = "output channels that are 0 on all calibration data do not count for the scale of their weight"
    return [f"{told}; node (channels): {where}"] if where else []


def _cut_behind(node: ir.Node, plan: QuantizationPlan) -> ir.Value | None:
    """The result of the Relu or Clip that alone reads ``node`` and gives nothing below 0."""
    value = node.outputs[0]
    readers = users(value)
    if len(readers) != 1 or value.is_graph_output() or plan.nodes[node_name(readers[0])].role is not Role.FUSED:
        return None
    reader = readers[0]
    limits = activation_limits(reader) if operator(reader.op_type).limits else None
    return reader.outputs[0] if limits is not None and limits[0] == 0.0 else None
