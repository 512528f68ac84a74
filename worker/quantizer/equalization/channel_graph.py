"""Channels followed from a tensor through the main graph: what makes and reads them, and where that stops.

One goes from tensor to tensor by the table of operators (``CHANNEL_FLOWS``), with an array of channel numbers that
broadcasts to the tensor's shape and that operators re-arrange as they re-arrange the values. Two things are asked:
which constants can take in a factor per channel, going back alone (``folding``), and all that has to change with the
number of channels, going both ways (``region``). Which channels of all tensors share a factor: ``channel_groups``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import has_regions, region_of
from worker.quantizer.graph.rewriting import axis_length, rank_of
from worker.quantizer.graph.values import (
    activation_limits,
    constant,
    is_constant,
    is_float32,
    name_of,
    node_name,
    reads,
)
from worker.quantizer.ops.channels import ChannelFlow, Kind, flow_of
from worker.quantizer.ops.labels import TiedLabels, components, fits, lifted, trimmed
from worker.quantizer.ops.linear import LinearNode, channel_axis, is_linear, linear_view, summed_axis
from worker.quantizer.ops.table import Family, operator

IN_INTERFACE = declare(
    "channels-in-interface", "the channels of {tensor!r} are those of an input or output of the network"
)
NOT_PASSED_ON = declare("channels-not-passed-on", "{op_type} {node!r} does not leave channels what they are")
LIMITED_ABOVE = declare(
    "channels-limited", "{node!r} limits the channels that would be split: part of a value needs another limit"
)
ONE_FACTOR = declare("channels-of-one-value", "all channels of {tensor!r} are copies of one value")
CHANNELS_UNKNOWN = declare("channels-of-unknown-axis", "the channels of {tensor!r} have no axis of known length")
LAYER_UNFIT = declare("layer-cannot-be-split", "the channels of {op_type} {node!r} cannot be split: {why}")

# What leaves every channel whole, so that there may be more of them.
_SPLIT_THROUGH = (Kind.ELEMENTWISE, Kind.POOLED, Kind.MOVED, Kind.LIMITED, Kind.ADDED)


class ChannelsStopError(Exception):
    """The channels cannot be followed any further."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.words)
        self.reason = reason


@dataclass(frozen=True)
class Fold:
    """A constant that takes factors in."""

    node: ir.Node  # that reads it
    index: int  # which input of the node it is
    channels: np.ndarray  # channel numbers; broadcast against the constant
    divides: bool = False  # the constant divides, so it takes the inverse factors

    def scaled(self, array: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """float32: the constant with factors, float64 [channels], in it."""
        chosen = factors[self.channels]
        return np.asarray(array.astype(np.float64) * (1.0 / chosen if self.divides else chosen), np.float32)


@dataclass(frozen=True)
class Folding:
    """How factors are taken in: by which constants, and the names of all tensors that bear them then.

    ``groups`` has a number for every channel: channels of one number come of the same constant, so that their factors
    have to be equal.
    """

    folds: tuple[Fold, ...]
    tensors: tuple[str, ...]
    groups: np.ndarray

    def settled(self, factors: np.ndarray) -> np.ndarray:
        """Factors, float64 [channels], positive, with the geometric mean of every group in it."""
        if np.unique(self.groups).size == self.groups.size:
            return factors
        sums, counts = np.bincount(self.groups, np.log(factors)), np.bincount(self.groups)
        return np.asarray(np.exp(sums / np.maximum(counts, 1))[self.groups])


@dataclass(frozen=True)
class ChannelConstant:
    """A constant with a value for every channel of a region, or one for all."""

    node: ir.Node  # that reads it
    index: int  # which input of the node it is
    axis: int  # of the channels in the constant, counted from its end: negative
    adds_up: bool  # whether the values are divided among the channels that one is split into; else each gets the value


@dataclass
class ChannelRegion:
    """Tensors that have the same channels in the same order, and the layers at their ends."""

    channels: int  # their number
    axes: dict[ir.Value, int] = field(default_factory=dict)  # by tensor, the axis of the channels
    makers: list[LinearNode] = field(default_factory=list)  # layers whose output channels they are
    readers: list[LinearNode] = field(default_factory=list)  # layers whose input channels they are
    depthwise: list[LinearNode] = field(default_factory=list)  # depthwise convolutions within
    # constants with a value per channel that other nodes read
    between: list[ChannelConstant] = field(default_factory=list)
    # nodes that give the number of channels in a constant shape, and its place there
    reshapes: list[tuple[ir.Node, int]] = field(default_factory=list)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the layers, each once."""
        found = (linear.node for linear in (*self.makers, *self.depthwise, *self.readers))
        return tuple(dict.fromkeys(node_name(node) for node in found))

    @property
    def constants(self) -> list[ChannelConstant]:
        """Everything constant that has these channels; a weight at both ends of the region twice."""
        found: list[ChannelConstant] = []
        for linear in (*self.makers, *self.depthwise):
            axis = linear.output_axis if linear.groups == 1 else 0
            found.append(ChannelConstant(linear.node, 1, axis - len(linear.weight_shape), linear.groups == 1))
            if linear.bias is not None:
                found.append(ChannelConstant(linear.node, 2, -1, adds_up=True))
        read = ((linear.node, linear.input_axis - len(linear.weight_shape)) for linear in self.readers)
        found.extend(ChannelConstant(node, 1, axis, adds_up=False) for node, axis in read)
        return found + self.between


class ChannelGraph:
    """A main graph as channels flow through it. It may be changed at other places than those that are asked about."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._in_regions = has_regions(graph)

    def flow(self, node: ir.Node | None) -> ChannelFlow | None:
        """How channels flow through a node; None: it lets none through, or stands outside of what is quantized."""
        if node is None or node.graph is not self.graph or (self._in_regions and region_of(node) is None):
            return None
        return flow_of(node)

    def folding(self, value: ir.Value, channels: int, refused: Callable[[ir.Node], bool]) -> Folding | Reason:
        """The constants that take in a factor per index of the last axis of ``value``; why it needs a node of its own.

        Who reads ``value`` is not looked at; ``refused`` is True for a linear node that is not to take factors in.
        """
        walk = _FoldingWalk(self, refused)
        try:
            walk.take_in(value, np.arange(channels))
        except ChannelsStopError as stop:
            return stop.reason
        groups = walk.groups(channels)
        if channels > 1 and not groups.any():
            return ONE_FACTOR(tensor=name_of(value))
        return Folding(tuple(walk.folds), tuple(walk.tensors), groups)

    def region(self, value: ir.Value, axis: int) -> ChannelRegion | Reason:
        """The region of ``value``, whose channels lie on ``axis``, not negative; the reason if they cannot be split."""
        length = axis_length(value, axis)
        if length is None:
            return CHANNELS_UNKNOWN(tensor=name_of(value))
        walk = _RegionWalk(self, length)
        try:
            walk.run(value, axis)
        except ChannelsStopError as stop:
            return stop.reason
        return walk.region

    def before(self, node: ir.Node, labels: np.ndarray) -> list[np.ndarray]:
        """Labels of the operands that hand their channels on, in order, from those of the first result.

        Raises:
            ChannelsStopError: the node does not let through a factor per channel.
        """
        flow = self.flow(node)
        if flow is not None and flow.kind is Kind.LIMITED:
            limits = activation_limits(node)
            if limits is None:
                raise _not_passed_on(node)
            if not (limits[0] in (0.0, -math.inf) and limits[1] in (0.0, math.inf)):
                raise ChannelsStopError(LIMITED_ABOVE(node=node_name(node)))
        found = None if flow is None else flow.operands(node, labels)
        if found is None:
            raise _not_passed_on(node)
        return found


def _not_passed_on(node: ir.Node) -> ChannelsStopError:
    return ChannelsStopError(NOT_PASSED_ON(op_type=node.op_type, node=node_name(node)))


class _FoldingWalk:
    """Goes back from a tensor to constants: those of normalizations and linear layers, and operands."""

    def __init__(self, graph: ChannelGraph, refused: Callable[[ir.Node], bool]) -> None:
        self.folds: list[Fold] = []
        self.tensors: list[str] = []
        self._ties: list[tuple[np.ndarray, np.ndarray]] = []
        self._graph = graph
        self._refused = refused

    def groups(self, channels: int) -> np.ndarray:
        """The smallest channel that each shares a factor with, int64 [channels]."""
        ones, others = ([pair[side] for pair in self._ties] for side in (0, 1))
        return components(channels, np.concatenate([*ones, []]), np.concatenate([*others, []]))

    def take_in(self, value: ir.Value, labels: np.ndarray) -> None:
        """Let everything that makes ``value`` take the factors in: enter it into ``folds``."""
        node, rank = value.producer(), rank_of(value)
        if node is None:
            raise ChannelsStopError(IN_INTERFACE(tensor=name_of(value)))
        flow = self._graph.flow(node)
        if flow is None or rank is None or value is not node.outputs[0] or not is_float32(value):
            raise _not_passed_on(node)
        self.tensors.append(name_of(value))
        labels = lifted(labels, rank)
        if flow.kind is Kind.LINEAR:
            self._linear(node, labels)
        elif flow.kind is Kind.NORMALIZED:
            self._normalization(node, labels)
        elif flow.kind is Kind.MULTIPLIED:
            self._product(node, labels)
        else:
            widened = flow.kind in (Kind.REPEATED, Kind.ADDED)
            for index, part in enumerate(self._graph.before(node, labels)):
                of_one = self._tied(part, node.inputs[index]) if flow.kind is Kind.REPEATED else part
                self._reach(node, index, of_one, widened=widened)

    def _tied(self, labels: np.ndarray, value: ir.Value | None) -> np.ndarray:
        """Labels of what is repeated: its copies, as the heads that read the keys of one, share a factor."""
        for axis in range(-labels.ndim, 0):
            if labels.shape[axis] > 1 and value is not None and axis_length(value, axis) == 1:
                first = labels.take([0], axis)
                pair = np.broadcast_arrays(first, labels)
                self._ties.append((pair[0].reshape(-1), pair[1].reshape(-1)))
                labels = first
        return labels

    def _reach(self, node: ir.Node, index: int, labels: np.ndarray, *, widened: bool = False) -> None:
        """The same for input ``index`` of ``node``, which alone must read it unless it is a constant.

        With ``widened`` a constant may have fewer elements than there are channels.
        """
        value, labels = node.inputs[index], trimmed(labels)
        if value is None or not is_float32(value) or not (fits(labels, value) or (widened and is_constant(value))):
            raise _not_passed_on(node)
        if is_constant(value):
            self.folds.append(Fold(node, index, labels))
            return
        if len(reads(value)) != 1 or value.is_graph_output() or value.is_graph_input():
            raise _not_passed_on(node)
        self.take_in(value, labels)

    def _product(self, node: ir.Node, labels: np.ndarray) -> None:
        """One factor is enough: a constant if there is one, else the first that takes them in."""
        order = sorted((0, 1), key=lambda index: not is_constant(node.inputs[index]))
        for index in order if node.op_type == "Mul" else (0,):
            folds, tensors, ties = len(self.folds), len(self.tensors), len(self._ties)
            try:
                return self._reach(node, index, labels, widened=True)
            except ChannelsStopError:
                del self.folds[folds:], self.tensors[tensors:], self._ties[ties:]
        divisor = node.inputs[1]
        if node.op_type != "Div" or not is_constant(divisor) or not is_float32(divisor):
            raise _not_passed_on(node)
        self.folds.append(Fold(node, 1, trimmed(labels), divides=True))
        return None

    def _linear(self, node: ir.Node, labels: np.ndarray) -> None:
        """Output channels of the weight, and the bias; or of the activation in place of a MatMul's weight."""
        if node.op_type == "MatMul" and not is_constant(node.inputs[1]):
            if labels.ndim < 2 or labels.shape[-2] != 1:
                raise _not_passed_on(node)
            return self._reach(node, 1, labels)
        linear = linear_view(node)
        if linear is None or self._refused(node):
            raise _not_passed_on(node)
        held = [value for value in (linear.weight, linear.bias) if value is not None]
        size = labels.shape[channel_axis(node)]
        if size not in (1, linear.out_channels) or labels.size != size or not all(map(_is_held, held)):
            raise _not_passed_on(node)
        numbers = np.broadcast_to(labels.reshape(-1), (linear.out_channels,)).copy()
        if linear.bias is not None:
            self.folds.append(Fold(node, 2, numbers))
        self.folds.append(Fold(node, 1, linear.along_outputs(numbers)))
        return None

    def _normalization(self, node: ir.Node, labels: np.ndarray) -> None:
        known = operator(node.op_type)
        held = [index for index in known.parameters if index < len(node.inputs) and node.inputs[index] is not None]
        beside = any(value.uses() for value in node.outputs[1:])
        if beside or not held or labels.size != labels.shape[known.channel_axis or 0]:
            raise _not_passed_on(node)
        if not all(_is_held(node.inputs[index]) and rank_of(node.inputs[index]) == 1 for index in held):
            raise _not_passed_on(node)
        self.folds += [Fold(node, index, labels.reshape(-1)) for index in held]


class _RegionWalk:
    """Goes both ways from a tensor through all that leaves its channels whole and in their order."""

    def __init__(self, graph: ChannelGraph, channels: int) -> None:
        self.region = ChannelRegion(channels)
        self._graph = graph
        self._passed: set[ir.Node] = set()

    def run(self, value: ir.Value, axis: int) -> None:
        waiting = [(value, axis)]
        while waiting:
            value, axis = waiting.pop()
            if value not in self.region.axes:
                waiting += self._enter(value, axis)
            elif self.region.axes[value] != axis:
                raise ChannelsStopError(CHANNELS_UNKNOWN(tensor=name_of(value)))

    def _enter(self, value: ir.Value, axis: int) -> list[tuple[ir.Value, int]]:
        """Take a tensor in; returns those that come with it."""
        maker = value.producer()
        if maker is None or value.is_graph_output() or value.is_graph_input():
            raise ChannelsStopError(IN_INTERFACE(tensor=name_of(value)))
        if axis == 0 or axis_length(value, axis) != self.region.channels or not is_float32(value):
            raise ChannelsStopError(CHANNELS_UNKNOWN(tensor=name_of(value)))
        self.region.axes[value] = axis
        if is_linear(maker):
            at_channels = channel_axis(maker) % (rank_of(value) or 1) == axis
            found = self._end(maker, self.region.makers, at_channels=at_channels)
        else:
            found = self._through(maker)
        for usage in value.uses():
            node = usage.node
            if is_linear(node):
                at_channels = usage.idx == 0 and summed_axis(node, 0) % (rank_of(value) or 1) == axis
                found += self._end(node, self.region.readers, at_channels=at_channels)
            else:
                found += self._through(node)
        return found

    def _end(self, node: ir.Node, ends: list[LinearNode], *, at_channels: bool) -> list[tuple[ir.Value, int]]:
        """Take a layer in at one of the region's ends, or within it if it is depthwise."""
        linear, why = linear_view(node), None
        if self._graph.flow(node) is None:
            why = "it is outside the quantized part"
        elif linear is None or linear.stacked or not _is_held(linear.weight):
            why = "its weight is not a constant matrix"
        elif linear.bias is not None and not is_row(constant(linear.bias), linear.out_channels):
            why = "its bias is not constant per channel"
        elif not at_channels:
            why = "they are positions to it"
        elif linear.groups > 1 and not linear.groups == linear.in_channels == linear.out_channels:
            why = "it has groups of channels"
        if linear is None or why is not None:
            raise ChannelsStopError(LAYER_UNFIT(op_type=node.op_type, node=node_name(node), why=why))
        if linear.groups == 1:
            ends.append(linear)
            return []
        if node in self._passed:
            return []
        self._passed.add(node)
        self.region.depthwise.append(linear)
        return [(node.outputs[0], 1), *([(linear.data, 1)] if linear.data is not None else [])]

    def _through(self, node: ir.Node) -> list[tuple[ir.Value, int]]:
        """The tensors before and behind ``node``, which does not tell channels apart."""
        if node in self._passed:
            return []
        self._passed.add(node)
        flow = self._graph.flow(node)
        if flow is None or flow.kind not in _SPLIT_THROUGH or any(value.uses() for value in node.outputs[1:]):
            raise _not_passed_on(node)
        if flow.kind is Kind.MOVED and operator(node.op_type).family is not Family.REARRANGEMENT:
            raise _not_passed_on(node)
        result, axis = node.outputs[0], self._axis_behind(node, flow)
        found = [(result, axis)]
        for index, labels in enumerate(self._graph.before(node, self._labels(axis, rank_of(result)))):
            value = node.inputs[index]
            if flow.kind is Kind.ADDED and is_constant(value):
                self._hold(node, index, axis, adds_up=True)
            elif value is None or rank_of(value) != labels.ndim:
                raise _not_passed_on(node)
            else:
                found.append((value, self._axis_of(labels, node)))
        if node.op_type == "PRelu":
            self._hold(node, 1, axis, adds_up=False)
        if node.op_type == "Reshape":
            self._hold_shape(node, found[-1][1], axis)
        return found

    def _axis_behind(self, node: ir.Node, flow: ChannelFlow) -> int:
        """Axis of the channels in what ``node`` makes, told from whichever of its tensors is known."""
        result = node.outputs[0]
        if result in self.region.axes:
            return self.region.axes[result]
        known = next(value for value in node.inputs if value is not None and value in self.region.axes)
        labels = self._labels(self.region.axes[known], rank_of(known))
        if flow.forward is None:  # it leaves axes where they are
            return self._axis_of(labels if rank_of(known) == rank_of(result) else None, node)
        made = flow.forward(node, labels, TiedLabels())
        return self._axis_of(None if made is None else made[0], node)

    def _labels(self, axis: int, rank: int | None) -> np.ndarray:
        return np.arange(self.region.channels).reshape([-1 if k == axis else 1 for k in range(rank or 0)])

    def _axis_of(self, labels: np.ndarray | None, node: ir.Node) -> int:
        """Where all channels lie in their order; ``node`` reads or makes them there."""
        whole = np.arange(self.region.channels)
        if labels is None or labels.size not in labels.shape or not np.array_equal(labels.reshape(-1), whole):
            raise _not_passed_on(node)
        return int(np.argmax(labels.shape))

    def _hold(self, node: ir.Node, index: int, axis: int, *, adds_up: bool) -> None:
        """Take in a constant with a value per channel of what ``node`` makes, or one for all."""
        array, rank = constant(node.inputs[index]), rank_of(node.outputs[0])
        if array is None or rank is None or array.ndim > rank or array.dtype != np.float32:
            raise _not_passed_on(node)
        at = axis - (rank - array.ndim)
        along = array.shape[at] if at >= 0 else 1
        if along not in (1, self.region.channels) or array.size != along:
            raise _not_passed_on(node)
        if adds_up or array.size > 1:
            self.region.between.append(ChannelConstant(node, index, axis - rank, adds_up))

    def _hold_shape(self, node: ir.Node, before: int, axis: int) -> None:
        shape = constant(node.inputs[1])
        if shape is None or shape.size <= axis or shape[axis] not in (self.region.channels, -1, 0):
            raise _not_passed_on(node)
        if shape[axis] == self.region.channels:
            self.region.reshapes.append((node, axis))
        elif shape[axis] == 0 and before != axis:
            raise _not_passed_on(node)


def _is_held(value: ir.Value | None) -> bool:
    return is_constant(value) and is_float32(value)


def is_row(bias: np.ndarray | None, channels: int) -> bool:
    """True for a finite float32 value per channel, or one for all."""
    if bias is None or bias.dtype != np.float32 or not np.isfinite(bias).all():
        return False
    return bias.size in (1, channels) and bias.size == (bias.shape[-1] if bias.ndim else 1)
