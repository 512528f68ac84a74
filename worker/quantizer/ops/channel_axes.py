"""Along which axis a tensor has channels: numbers of one meaning each, which a weight tells apart."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, is_float32
from worker.quantizer.ops.channels import CHANNEL_FLOWS, Kind
from worker.quantizer.ops.linear import channel_axis, is_linear, summed_axis
from worker.quantizer.ops.table import operator

# What leaves every element, or every channel, on the axis where it is.
_STAYS = (Kind.ELEMENTWISE, Kind.POOLED, Kind.LIMITED, Kind.ADDED, Kind.MULTIPLIED, Kind.COMPARED)


def channel_axes(graph: ir.Graph) -> dict[ir.Value, int]:
    """The axis of the channels, not negative, of every float tensor of a main graph that has one.

    What a weight is multiplied with has it where the products are summed, whatever made it; what a layer or a
    normalization makes has it where they put it; and operators that leave elements in their places hand it on.

    Args:
        graph: prepared, in topological order.
    """
    found: dict[ir.Value, int] = {}
    for node in graph:
        if is_linear(node) and is_constant(node.inputs[1]):
            _enter(found, node.inputs[0], summed_axis(node, 0))
    for node in graph:
        if node.outputs and node.outputs[0] not in found:
            axis = _made(node, found)
            if axis is not None:
                _enter(found, node.outputs[0], axis)
    return found


def _enter(found: dict[ir.Value, int], value: ir.Value | None, axis: int) -> None:
    rank = rank_of(value)
    if value is not None and rank is not None and is_float32(value) and -rank <= axis < rank:
        found.setdefault(value, axis % rank)


def _made(node: ir.Node, found: Mapping[ir.Value, int]) -> int | None:
    """Axis of the channels in the first result of ``node``; None if it has none, or nobody knows."""
    if node.domain not in DEFAULT_DOMAINS:
        return None
    if is_linear(node):
        return channel_axis(node) if is_constant(node.inputs[1]) else None
    if operator(node.op_type).parameters:
        return operator(node.op_type).channel_axis
    flow = CHANNEL_FLOWS.get(node.op_type)
    if flow is None or flow.kind not in _STAYS:
        return None
    rank = rank_of(node.outputs[0])
    operands = [value for value in node.inputs if value is not None and rank_of(value) == rank]
    return next((found[value] for value in operands if value in found), None)
