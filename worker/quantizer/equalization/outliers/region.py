"""Everything that has to change with the number of a tensor's channels.

From a tensor one walks to the layers that make its channels and to those that read them, through operators that leave
channels what they are. All tensors on the way have the same channels in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.regions import region_of
from worker.quantizer.graph.rewriting import axis_length, rank_of
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    activation_limits,
    constant,
    is_constant,
    is_float32,
    name_of,
    node_name,
)
from worker.quantizer.ops.channels import CHANNEL_FLOWS, ChannelFlow, Kind
from worker.quantizer.ops.linear import LinearNode, channel_axis, is_linear, linear_view, summed_axis
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import operator

IN_INTERFACE = declare(
    "channels-in-interface", "the channels of {tensor!r} are those of an input or output of the network"
)
NOT_PASSED_ON = declare("channels-not-passed-on", "{op_type} {node!r} does not leave channels what they are")
LIMITED_ABOVE = declare("channels-limited", "{node!r} limits what would be split: a part of a value has another limit")
CHANNELS_UNKNOWN = declare("channels-of-unknown-axis", "the channels of {tensor!r} have no axis of known length")
LAYER_UNFIT = declare("layer-cannot-be-split", "the channels of {op_type} {node!r} cannot be split: {why}")


class UnfitError(Exception):
    """The channels cannot be split.

    Args:
        reason: why.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.words)
        self.reason = reason


@dataclass
class Region:
    """What has the same channels.

    Attributes:
        channels: their number.
        axes: by tensor, the axis of the channels.
        makers: layers whose output channels they are.
        readers: layers whose input channels they are.
        diagonal: depthwise convolutions within.
        parameters: (node, index of the input) of constants with a value per channel, which is not scaled.
        terms: likewise, of constants that are added.
        reshapes: nodes that give the number of channels in a constant shape, and its place there.
    """

    channels: int
    axes: dict[ir.Value, int] = field(default_factory=dict)
    makers: list[LinearNode] = field(default_factory=list)
    readers: list[LinearNode] = field(default_factory=list)
    diagonal: list[LinearNode] = field(default_factory=list)
    parameters: list[tuple[ir.Node, int]] = field(default_factory=list)
    terms: list[tuple[ir.Node, int]] = field(default_factory=list)
    reshapes: list[tuple[ir.Node, int]] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the layers, each once."""
        found = (linear.node for linear in (*self.makers, *self.diagonal, *self.readers))
        return tuple(dict.fromkeys(node_name(node) for node in found))


def find_region(graph: ir.Graph, value: ir.Value, axis: int, *, in_regions: bool = False) -> Region | Reason:
    """The region of ``value``, whose channels lie on ``axis``; the reason if they cannot be split.

    Args:
        graph: prepared main graph.
        value: of it.
        axis: not negative.
        in_regions: the graph is quantized in regions alone.
    """
    length = axis_length(value, axis)
    if length is None:
        return CHANNELS_UNKNOWN(tensor=name_of(value))
    walker = _Walker(graph, Region(length), in_regions)
    try:
        walker.walk(value, axis)
    except UnfitError as unfit:
        return unfit.reason
    return walker.region


class _Walker:
    def __init__(self, graph: ir.Graph, region: Region, in_regions: bool) -> None:
        self.region = region
        self._graph = graph
        self._in_regions = in_regions
        self._passed: set[ir.Node] = set()

    def walk(self, value: ir.Value, axis: int) -> None:
        waiting = [(value, axis)]
        while waiting:
            value, axis = waiting.pop()
            if value in self.region.axes:
                if self.region.axes[value] != axis:
                    raise UnfitError(CHANNELS_UNKNOWN(tensor=name_of(value)))
                continue
            waiting += self._enter(value, axis)

    def _enter(self, value: ir.Value, axis: int) -> list[tuple[ir.Value, int]]:
        """Take a tensor in; returns those that come with it."""
        maker = value.producer()
        if maker is None or value.is_graph_output() or value.is_graph_input():
            raise UnfitError(IN_INTERFACE(tensor=name_of(value)))
        if axis == 0 or axis_length(value, axis) != self.region.channels or not is_float32(value):
            raise UnfitError(CHANNELS_UNKNOWN(tensor=name_of(value)))
        self.region.axes[value] = axis
        found = self._makes(maker, axis)
        for usage in value.uses():
            found += self._reads(usage.node, usage.idx, axis)
        return found

    def _makes(self, node: ir.Node, axis: int) -> list[tuple[ir.Value, int]]:
        if not is_linear(node):
            return self._passes(node)
        at_channels = channel_axis(node) % (rank_of(node.outputs[0]) or 1) == axis
        return self._ends(node, self.region.makers, at_channels=at_channels)

    def _reads(self, node: ir.Node, index: int, axis: int) -> list[tuple[ir.Value, int]]:
        if not is_linear(node):
            return self._passes(node)
        at_channels = index == 0 and summed_axis(node, 0) % (rank_of(node.inputs[0]) or 1) == axis
        return self._ends(node, self.region.readers, at_channels=at_channels)

    def _ends(self, node: ir.Node, ends: list[LinearNode], *, at_channels: bool) -> list[tuple[ir.Value, int]]:
        """Take a layer in at one of the region's ends, or within it if it is depthwise."""
        linear = self._layer(node)
        if not at_channels:
            raise UnfitError(LAYER_UNFIT(op_type=node.op_type, node=node_name(node), why="they are positions to it"))
        if _is_diagonal(linear):
            return self._both_sides(linear)
        if linear.groups > 1:
            raise UnfitError(LAYER_UNFIT(op_type=node.op_type, node=node_name(node), why="it has groups of channels"))
        ends.append(linear)
        return []

    def _both_sides(self, linear: LinearNode) -> list[tuple[ir.Value, int]]:
        if linear.node in self._passed:
            return []
        self._passed.add(linear.node)
        self.region.diagonal.append(linear)
        data = linear.data
        return [(linear.node.outputs[0], 1), *([(data, 1)] if data is not None else [])]

    def _layer(self, node: ir.Node) -> LinearNode:
        linear = linear_view(node)
        told = None
        if node.graph is not self._graph or (self._in_regions and region_of(node) is None):
            told = "it stands outside of what is quantized"
        elif linear is None or linear.stacked or not is_constant(linear.weight) or not is_float32(linear.weight):
            told = "its weight is no constant matrix"
        elif linear.bias is not None and not _is_row(constant(linear.bias), linear.out_channels):
            told = "its bias is no constant per channel"
        if linear is None or told is not None:
            raise UnfitError(LAYER_UNFIT(op_type=node.op_type, node=node_name(node), why=told))
        return linear

    def _passes(self, node: ir.Node) -> list[tuple[ir.Value, int]]:
        """The tensors beside and behind ``node``, which does not tell channels apart."""
        if node in self._passed:
            return []
        refusal = NOT_PASSED_ON(op_type=node.op_type, node=node_name(node))
        flow = CHANNEL_FLOWS.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
        if flow is None or node.graph is not self._graph or any(value.uses() for value in node.outputs[1:]):
            raise UnfitError(refusal)
        if self._in_regions and region_of(node) is None:
            raise UnfitError(refusal)
        handler = _HANDLERS.get(flow.kind)
        found = None if handler is None else handler(self, node, flow)
        if found is None:
            raise UnfitError(refusal)
        self._passed.add(node)
        return found

    # Each handler returns the tensors with the same channels, or None: the node does not pass them on.

    def plain(self, node: ir.Node, flow: ChannelFlow) -> list[tuple[ir.Value, int]] | None:
        axes = self._across(node, flow)
        if axes is None:
            return None
        if node.op_type == "PRelu":
            slope = constant(node.inputs[1])
            if slope is None or not self._fits(slope, node.outputs[0], axes[1]):
                return None
            if slope.size > 1:
                self.region.parameters.append((node, 1))
        value = node.inputs[0]
        return None if value is None else [(value, axes[0]), (node.outputs[0], axes[1])]

    def moved(self, node: ir.Node, flow: ChannelFlow) -> list[tuple[ir.Value, int]] | None:
        if operator(node.op_type).family is not Family.REARRANGEMENT:  # elsewhere they do not stay whole channels
            return None
        found = self.plain(node, flow)
        if found is None or node.op_type != "Reshape":
            return found
        shape, place = constant(node.inputs[1]), found[1][1]
        if shape is None or shape.size <= place or shape[place] not in (self.region.channels, -1, 0):
            return None
        if shape[place] == self.region.channels:
            self.region.reshapes.append((node, place))
        elif shape[place] == 0 and found[0][1] != place:
            return None
        return found

    def limited(self, node: ir.Node, flow: ChannelFlow) -> list[tuple[ir.Value, int]] | None:
        limits = activation_limits(node)
        if limits is None:
            return None
        low, high = limits
        if not (low in (0.0, -math.inf) and high in (0.0, math.inf)):
            raise UnfitError(LIMITED_ABOVE(node=node_name(node)))
        rank = rank_of(node.outputs[0])
        axis = self._known_axis(node)
        value = node.inputs[0]
        return None if rank is None or axis is None or value is None else [(value, axis), (node.outputs[0], axis)]

    def added(self, node: ir.Node, flow: ChannelFlow) -> list[tuple[ir.Value, int]] | None:
        """Two tensors with the same channels, or one and a constant."""
        axis, rank = self._known_axis(node), rank_of(node.outputs[0])
        operands = [value for value in node.inputs if value is not None]
        if axis is None or rank is None or len(operands) != 2:
            return None
        found = [(node.outputs[0], axis)]
        for index, value in enumerate(operands):
            array = constant(value)
            if array is None:
                if rank_of(value) != rank:
                    return None
                found.append((value, axis))
            elif not self._fits(array, node.outputs[0], axis):
                return None
            else:
                self.region.terms.append((node, index))
        return found

    def _known_axis(self, node: ir.Node) -> int | None:
        """Of an operator that leaves axes where they are: that of whichever of its tensors is known."""
        rank = rank_of(node.outputs[0])
        values = [value for value in (*node.outputs, *node.inputs) if value is not None and rank_of(value) == rank]
        return next((self.region.axes[value] for value in values if value in self.region.axes), None)

    def _across(self, node: ir.Node, flow: ChannelFlow) -> tuple[int, int] | None:
        """Axis of the channels before and behind an operator with one operand."""
        value, made = node.inputs[0], node.outputs[0]
        before, after = rank_of(value), rank_of(made)
        if value is None or before is None or after is None or flow.forward is None or flow.backward is None:
            return None
        if value in self.region.axes:
            axis = self.region.axes[value]
            found = flow.forward(node, self._labels(axis, before), _NO_TIES)
            behind = self._axis_of(None if found is None else found[0])
            return None if behind is None else (axis, behind)
        axis = self.region.axes[made]
        ahead = self._axis_of(flow.backward(node, self._labels(axis, after)))
        return None if ahead is None else (ahead, axis)

    def _labels(self, axis: int, rank: int) -> np.ndarray:
        return np.arange(self.region.channels).reshape([-1 if k == axis else 1 for k in range(rank)])

    def _axis_of(self, labels: np.ndarray | None) -> int | None:
        """Where all channels lie in their order; None if that is nowhere."""
        if labels is None or labels.size != self.region.channels:
            return None
        kept = bool((labels.reshape(-1) == np.arange(labels.size)).all())
        return int(np.argmax(labels.shape)) if kept else None

    def _fits(self, array: np.ndarray, value: ir.Value, axis: int) -> bool:
        """Whether a constant has a value per channel of ``value``, or one for all."""
        rank = rank_of(value)
        if rank is None or array.ndim > rank or array.dtype != np.float32:
            return False
        at = axis - (rank - array.ndim)
        along = array.shape[at] if at >= 0 else 1
        return along in (1, self.region.channels) and array.size == along


class _NoTies:
    """What passes channels on one by one ties none."""

    def fresh(self, count: int) -> np.ndarray:
        """Labels that are no channel's."""
        return np.full(count, -1)

    def tie(self, one: np.ndarray, other: np.ndarray) -> None:
        """Nothing: labels that would be tied are found out of order."""


_NO_TIES = _NoTies()
_Handler = Callable[[_Walker, ir.Node, ChannelFlow], list[tuple[ir.Value, int]] | None]
_HANDLERS: dict[Kind, _Handler] = {
    Kind.ELEMENTWISE: _Walker.plain,
    Kind.POOLED: _Walker.plain,
    Kind.MOVED: _Walker.moved,
    Kind.LIMITED: _Walker.limited,
    Kind.ADDED: _Walker.added,
}


def _is_diagonal(linear: LinearNode) -> bool:
    """A depthwise convolution with one result per channel."""
    return linear.groups > 1 and linear.groups == linear.in_channels == linear.out_channels


def _is_row(bias: np.ndarray | None, channels: int) -> bool:
    if bias is None or bias.dtype != np.float32 or not np.isfinite(bias).all():
        return False
    return bias.size in (1, channels) and bias.size == (bias.shape[-1] if bias.ndim else 1)
