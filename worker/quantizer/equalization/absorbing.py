"""Moves the part of a bias that is always passed on into the next layer's bias (Nagel et al. 2019, section 4.1.3).

relu(x) = relu(x - c) + c as long as x >= c. The paper takes c from the distribution that a batch normalization
promises; here it is the smallest value that the channel takes on the calibration data. Padding with 0 would mean c
behind such a shift, so that only layers without padding are shifted into.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.channel_groups import ChannelLimit, Flow, ScalableLayer
from worker.quantizer.equalization.channel_ranges import ObservedChannels
from worker.quantizer.equalization.channel_scaling import put_bias
from worker.quantizer.graph.values import DEFAULT_DOMAINS, Names, name_of, node_name, users
from worker.quantizer.ops.channels import flow_of
from worker.quantizer.ops.labels import PINNED
from worker.quantizer.ops.linear import linear_view
from worker.quantizer.ops.windows import reaches_beyond

# A shift by a smaller share of a channel's range gains nothing.
_WORTH = 0.1


def find_shifts(flow: Flow, seen: Mapping[str, ObservedChannels]) -> np.ndarray:
    """What can be taken from every group's values, float64 [groups], 0 or more."""
    limits = {node_name(limit.node): limit for limit in flow.limits}
    layers = {layer.node: layer for layer in flow.layers}
    makers = _uses(flow, [layer.outputs for layer in flow.layers])
    readers = _uses(flow, [layer.inputs for layer in flow.layers])
    shifts = np.zeros(flow.groups)
    for layer in flow.layers:
        activation = _activation(layer.node.outputs[0], limits)
        tensor = seen.get(name_of(activation.outputs[0])) if activation is not None else None
        found = _readers(activation.outputs[0], layers) if activation is not None else None
        if activation is None or tensor is None or found is None or not _adds_bias(layer.node):
            continue
        groups, low, high = tensor.groups, tensor.low, tensor.high
        limit = limits.get(node_name(activation))
        worth = (low > _WORTH * high) & (groups != PINNED)
        worth &= (makers[groups] == 1) & (readers[groups] == len(found)) & (np.bincount(groups)[groups] == 1)
        if limit is not None:
            worth &= high < limit.high
        shifts[groups[worth]] = low[worth]
    return shifts


def absorb(graph: ir.Graph, flow: Flow, shifts: np.ndarray) -> list[str]:
    """Take ``shifts`` from the biases of the layers that make the values and give them to those that read them.

    Args:
        graph: that of ``flow``, changed in place.
        flow: see there.
        shifts: by group.

    Returns:
        Names of the nodes whose bias has changed.
    """
    names, changed = Names(graph), []
    for layer in flow.layers:
        moved = _gained(layer, shifts) - shifts[layer.outputs]
        if not moved.any():
            continue
        bias, moved = layer.bias, moved / _beta(layer.node)
        put_bias(graph, layer, moved if bias is None else bias + moved, names)
        changed.append(node_name(layer.node))
    return changed


def shifted(seen: Mapping[str, ObservedChannels], shifts: np.ndarray) -> dict[str, ObservedChannels]:
    """What would have been seen with ``shifts`` taken away."""
    return {
        name: replace(tensor, low=tensor.low - shifts[tensor.groups], high=tensor.high - shifts[tensor.groups])
        for name, tensor in seen.items()
    }


def _gained(layer: ScalableLayer, shifts: np.ndarray) -> np.ndarray:
    """What the layer's results lose by the shifts of its inputs, float64 [out]."""
    if not layer.is_linear or not shifts[layer.inputs].any():
        return np.zeros(layer.outputs.size)
    weight = layer.weight
    sums = weight.reshape(*weight.shape[:2], -1).sum(axis=2, dtype=np.float64) * shifts[layer.columns]
    axis = 1 if layer.rows.shape[1] == 1 else 0  # sum over the columns of each row
    total: np.ndarray = np.broadcast_to(sums, weight.shape[:2]).sum(axis=axis)
    linear = linear_view(layer.node)
    return total if linear is None else total * linear.alpha


def _activation(value: ir.Value, limits: Mapping[str, ChannelLimit]) -> ir.Node | None:
    """The node that alone reads ``value`` and passes on what is positive: a Relu, or a limit from 0."""
    readers = users(value)
    if len(readers) != 1 or value.is_graph_output():
        return None
    node = readers[0]
    limit = limits.get(node_name(node))
    is_limit = limit is not None and limit.low == 0.0
    return node if (node.op_type == "Relu" and node.domain in DEFAULT_DOMAINS) or is_limit else None


def _readers(value: ir.Value, layers: Mapping[ir.Node, ScalableLayer]) -> list[ScalableLayer] | None:
    """The layers that read ``value``, behind operators that pass a shift on; None if anything else reads it."""
    found: list[ScalableLayer] = []
    if value.is_graph_output():
        return None
    for node in users(value):
        layer = layers.get(node)
        if layer is not None and _takes_shift(node):
            found.append(layer)
        elif _passes_shift(node):
            behind = _readers(node.outputs[0], layers)
            if behind is None:
                return None
            found += behind
        else:
            return None
    return found


def _takes_shift(node: ir.Node) -> bool:
    return node.op_type in ("Gemm", "Conv") and _adds_bias(node) and not reaches_beyond(node)


def _adds_bias(node: ir.Node) -> bool:
    """True if a bias of the node changes its results: a MatMul has none, and a Gemm may multiply it by 0."""
    return node.op_type != "MatMul" and _beta(node) != 0.0


def _beta(node: ir.Node) -> float:
    """What the node multiplies its bias by."""
    linear = linear_view(node)
    return 1.0 if linear is None else linear.beta


def _passes_shift(node: ir.Node) -> bool:
    flow = flow_of(node)
    return flow is not None and flow.passes_shift and len(node.outputs) == 1 and not reaches_beyond(node)


def _uses(flow: Flow, parts: list[np.ndarray]) -> np.ndarray:
    """Number of layers by group."""
    count = np.zeros(flow.groups, np.int64)
    for groups in parts:
        count[np.unique(groups)] += 1
    return count
