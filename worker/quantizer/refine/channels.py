"""Channels that stand out in calibration: so wide that they alone set a range, or never woken by the data.

What counts is the range of a channel, from its smallest to its largest value, 0 within, beside the median of all
channels that are not 0 throughout. Where many channels are that wide, the tensor has a broad distribution and no
outliers: splitting or scaling all of them would only move the trouble.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import activation_limits, constant, name_of, node_name, users
from worker.quantizer.numerics.integer import PER_TENSOR, PerAxis
from worker.quantizer.ops.channels import channel_axes
from worker.quantizer.ops.linear import channel_axis, is_linear, linear_view
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.grids import is_searched_whole, weight_axis
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import ChannelExtremes, ChannelMean

# Share of a tensor's channels that outliers may be; one may always be.
_FEW = 0.1
# Fewer have no usual channel.
_FEWEST = 3


@dataclass(frozen=True)
class Outliers:
    """The outlier channels of one tensor."""

    kind: Literal["activation", "weight"]  # whether it is an activation or a weight whose channels share one scale
    tensor: str  # its name; of an activation that of the tensor whose range counts
    node: str  # that makes the activation (of an input of the network: that reads it), or reads the weight
    axis: int  # of the channels in the activation, or in what the weight's node makes; not negative
    spans: np.ndarray  # range of every channel, float64 [channels]
    channels: tuple[int, ...]  # indices of the outliers, ascending
    usual: float  # the median range

    @property
    def ratio(self) -> float:
        """Widest range beside the median."""
        return float(self.spans.max() / self.usual)

    @property
    def widest_tame(self) -> float:
        """Range of the widest of the other channels: to be wider costs them steps, to be narrower gains nothing."""
        return float(np.delete(self.spans, self.channels).max())


def watch_outliers(graph: ir.Graph, plan: QuantizationPlan, wanted: Collection[str]) -> list[Request]:
    """What to collect on the pass over the data.

    ``wanted`` are source tensors to look at: those that the pass reads anyway.
    """
    axes = {value.name: axis for value, axis in channel_axes(graph).items() if value.name in wanted}
    return [Request(tensor, ChannelExtremes(axes[tensor])) for tensor in plan.sources() if tensor in axes]


def mark_outliers(watched: list[Request], plan: QuantizationPlan) -> None:
    """Enter what was seen into the plan; what is not finite is refused elsewhere and left out here."""
    for request in watched:
        found = request.observer.result() if isinstance(request.observer, ChannelExtremes) else None
        if found is not None and all(np.isfinite(part).all() for part in found):
            low, high = (part.astype(np.float64) for part in found)
            plan.spans[request.tensor] = np.maximum(high, 0.0) - np.minimum(low, 0.0)


def find_outliers(graph: ir.Graph, plan: QuantizationPlan, bound: float | None) -> list[Outliers]:
    """Outlier channels of activations, by what calibration has seen, then of weights with one scale; in order.

    ``bound`` is the ratio to the median range from which on a channel is an outlier; None: none is.
    """
    if bound is None:
        return []
    found = []
    for value, axis in channel_axes(graph).items():
        spans = plan.spans.get(value.name or "")
        if spans is not None:
            node = value.producer() or users(value)[0]
            found.append(_judged("activation", name_of(value), node_name(node), axis, spans, bound))
    order = {tensor: k for k, tensor in enumerate(plan.activations)}
    activations = sorted((one for one in found if one is not None), key=lambda one: order.get(one.tensor, len(order)))
    return [*activations, *(one for node in graph if (one := _of_weight(node, plan, bound)) is not None)]


def _of_weight(node: ir.Node, plan: QuantizationPlan, bound: float) -> Outliers | None:
    if not is_linear(node) or node.inputs[1] is None or plan.role_of(node) not in (Role.LINEAR, Role.STORED):
        return None
    name = name_of(node.inputs[1])
    entry, array, linear, axis = plan.weights.get(name), constant(node.inputs[1]), linear_view(node), weight_axis(node)
    if entry is None or array is None or linear is None or linear.stacked or axis is None:
        return None
    if entry.granularity != PER_TENSOR or entry.node != node_name(node):
        return None
    rows = PerAxis(axis).rows(array).astype(np.float64)
    if len(rows) != linear.out_channels:
        return None
    spans = np.maximum(rows.max(axis=1), 0.0) - np.minimum(rows.min(axis=1), 0.0)
    silent = plan.silent.get(name)
    if silent is not None and silent.size == spans.size:
        spans = np.where(silent, 0.0, spans)
    return _judged("weight", name, node_name(node), channel_axis(node) % (rank_of(node.outputs[0]) or 2), spans, bound)


def _judged(
    kind: Literal["activation", "weight"], tensor: str, node: str, axis: int, spans: np.ndarray, bound: float
) -> Outliers | None:
    alive = spans[spans > 0]
    if alive.size < _FEWEST:
        return None
    usual = float(np.median(alive))
    channels = np.flatnonzero(spans > bound * usual)
    if not 0 < channels.size <= max(1, int(_FEW * alive.size)):
        return None
    return Outliers(kind, tensor, node, axis, spans, tuple(channels.tolist()), usual)


# Output channels that the calibration data never wake, and the weights that they set no range for.
#
# A channel that its activation function cuts off on all data often has the largest weights of its layer: a folded
# normalization has divided them by next to no deviation. Where one scale serves the whole weight and is searched by
# square error, such channels would choose it alone, for nothing that anybody sees.


def watch_silent(graph: ir.Graph, plan: QuantizationPlan) -> dict[str, Request]:
    """What to collect on the pass over the data, by weight: the mean of its channels behind an activation function that
    gives nothing below 0; nothing for weights that the plan knows about.
    """
    found = {}
    for node in graph:
        if node.op_type != "Conv" or node.inputs[1] is None or plan.nodes[node_name(node)].role is not Role.LINEAR:
            continue
        name = name_of(node.inputs[1])
        weight = plan.weights.get(name)
        if weight is None or name in plan.silent or not is_searched_whole(weight) or len(node.inputs[1].uses()) > 1:
            continue
        cut = _cut_behind(node, plan)
        if cut is not None and (rank_of(cut) or 0) >= 3:
            found[name] = Request(name_of(cut), ChannelMean(), pooled=True)
    return found


def mark_silent(watched: Mapping[str, Request], plan: QuantizationPlan) -> list[str]:
    """Enter what was seen into the plan; a sentence for the report if it knows of silent channels that matter."""
    for name, request in watched.items():
        mean = request.observer.result() if isinstance(request.observer, ChannelMean) else None
        if mean is not None:
            plan.silent[name] = mean == 0.0
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
