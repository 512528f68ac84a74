"""Which channels of which tensors share a factor, told by following the operators of the whole main graph.

Every float tensor has an array of labels that broadcasts to its shape: [1, C, 1, 1] behind a convolution. An operator
that commutes with positive factors per channel (relu(s x) = s relu(x)) hands the labels on, re-arranged as it
re-arranges the values; one that does not pins what it reads at 1. What is not understood is pinned, and so is what
stands outside the network's quantized regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.channel_graph import ChannelGraph, Fold, is_row
from worker.quantizer.graph.rewriting import only_reader, other_operand, rank_of, scalar
from worker.quantizer.graph.values import (
    activation_limits,
    constant,
    int_attribute,
    is_constant,
    is_float32,
    name_of,
    node_name,
)
from worker.quantizer.ops.channels import Kind, joined, tied
from worker.quantizer.ops.labels import TiedLabels, lifted, varies_beside
from worker.quantizer.ops.linear import channel_axis, linear_view

_Fresh = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class ScalableLayer:
    """A Conv, ConvTranspose, Gemm, MatMul or BatchNormalization with constant parameters.

    With the factor t of every label, its weight w becomes w * t[rows] / t[columns], its bias b * t[outputs].
    """

    node: ir.Node  # the node
    outputs: np.ndarray  # label of every output channel, int64 [out]
    inputs: np.ndarray  # label of every input channel, int64 [in]
    # labels of the results that weights belong to; broadcasts to the first two axes of the weight (a vector counts as
    # [n, 1])
    rows: np.ndarray
    columns: np.ndarray  # labels of the values that weights multiply, likewise

    @property
    def is_linear(self) -> bool:
        """True for layers with a weight that is quantized; a normalization's is not."""
        return self.node.op_type != "BatchNormalization"

    @property
    def weight(self) -> np.ndarray:
        """The weight; float32."""
        found = constant(self.node.inputs[1])
        if found is None:
            raise ValueError(f"{self.node.name}: the weight is not constant")
        return found

    @property
    def bias(self) -> np.ndarray | None:
        """The bias per output channel; float32 [out]; None if there is none."""
        value = self.node.inputs[2] if len(self.node.inputs) > 2 else None
        found = constant(value)
        return None if found is None else np.broadcast_to(found.reshape(-1), self.outputs.shape)

    def with_groups(self, groups: np.ndarray) -> ScalableLayer:
        """With labels replaced by their groups."""
        return replace(
            self,
            outputs=groups[self.outputs],
            inputs=groups[self.inputs],
            rows=groups[self.rows],
            columns=groups[self.columns],
        )

    def magnitudes(self) -> np.ndarray:
        """Max |w| over the kernel's positions, float32, with the first two axes of the weight."""
        weight = self.weight
        matrix = weight.reshape(*weight.shape[:2], -1) if weight.ndim > 1 else weight.reshape(-1, 1, 1)
        sizes: np.ndarray = np.abs(matrix).max(axis=2)
        return sizes


@dataclass(frozen=True)
class ChannelLimit:
    """A Clip, Max or Min by which a tensor is limited; limits enclose 0."""

    node: ir.Node  # the node
    index: int  # which of its inputs it limits
    channels: np.ndarray  # labels of its result
    low: float  # lower limit, -inf if none
    high: float  # upper limit, inf if none

    @property
    def value(self) -> ir.Value:
        """What is limited."""
        found = self.node.inputs[self.index]
        if found is None:
            raise ValueError(f"{self.node.name} limits nothing")
        return found


@dataclass
class Flow:
    """The main graph as channels see it. All labels are groups of ``TiedLabels.resolve``, 0 is pinned."""

    # by tensor name, for float tensors; broadcasts to the tensor's shape
    channels: dict[str, np.ndarray] = field(default_factory=dict)
    layers: list[ScalableLayer] = field(default_factory=list)  # what can take scales in, in topological order
    limits: list[ChannelLimit] = field(default_factory=list)  # the Clips between them
    terms: list[Fold] = field(default_factory=list)  # constants that are added between them
    groups: int = 1  # number of groups, the pinned one included
    # tensors by gate: what it reads, and the product of that with what it makes, whose scales are free; None: there is
    # no such product
    gates: dict[str, tuple[str, str | None]] = field(default_factory=dict)


def follow(graph: ir.Graph, *, through_normalizations: bool = True, gates: Collection[str] = ()) -> Flow:
    """Follow the channels of a prepared main graph.

    ``through_normalizations`` lets a BatchNormalization that is not folded take scales in. ``gates`` are nodes, by
    name, whose functions are fitted to the scale of what they read.
    """
    return _Follower(graph, through_normalizations=through_normalizations, gates=gates).run()


class _Follower:
    def __init__(self, graph: ir.Graph, *, through_normalizations: bool, gates: Collection[str]) -> None:
        self._graph = graph
        self._through_normalizations = through_normalizations
        self._gates = gates
        self._products: dict[ir.Node, ir.Value] = {}  # what else each product of a gate reads
        self._operators = ChannelGraph(graph)
        self._labels = TiedLabels()
        self._flow = Flow()
        self._channels: dict[ir.Value, np.ndarray] = {}

    def run(self) -> Flow:
        for node in self._graph:
            self._pass(node)
        for value, channels in self._channels.items():
            read_inside = any(usage.node.graph is not self._graph for usage in value.uses())
            if value.is_graph_output() or read_inside:
                self._labels.pin(channels)
        return self._resolved()

    def _resolved(self) -> Flow:
        groups = self._labels.resolve()
        flow = self._flow
        return Flow(
            channels={name_of(value): groups[found] for value, found in self._channels.items() if value.name},
            layers=[layer.with_groups(groups) for layer in flow.layers],
            limits=[replace(limit, channels=groups[limit.channels]) for limit in flow.limits],
            terms=[replace(term, channels=groups[term.channels]) for term in flow.terms],
            groups=int(groups.max()) + 1,
            gates=flow.gates,
        )

    def of(self, value: ir.Value | None) -> np.ndarray | None:
        """The labels of a tensor; None if its rank is not known."""
        if value is None:
            return None
        if value not in self._channels:
            rank = rank_of(value)
            if rank is None or not is_float32(value):
                return None
            self._channels[value] = np.zeros([1] * rank, np.int64)
        return self._channels[value]

    def _pass(self, node: ir.Node) -> None:
        flow = self._operators.flow(node)
        channels = self.of(node.inputs[0]) if node.inputs else None
        made = None
        if node.name in self._gates and node.inputs[0] is not None and channels is not None:
            made = self._gate(node, node.inputs[0])
        elif node in self._products:
            labels = self._channels[self._products[node]]
            made = [self._labels.fresh(labels.size).reshape(labels.shape)]
        elif flow is not None and channels is not None and is_float32(node.outputs[0]):
            if flow.forward is not None:
                made = flow.forward(node, channels, self._labels)
            else:
                made = _HANDLERS[flow.kind](self, node, channels)
        if made is None:
            for value in node.inputs:
                channels = self.of(value)
                if channels is not None and not is_constant(value):
                    self._labels.pin(channels)
            return
        for value, channels in zip(node.outputs, made, strict=False):
            if rank_of(value) not in (None, channels.ndim):  # an operand's rank is not known
                self._labels.pin(channels)
            else:
                self._channels[value] = channels

    def _gate(self, node: ir.Node, read: ir.Value) -> list[np.ndarray]:
        """Its result has the scale that it has; a product with what it reads has one of its own."""
        made = node.outputs[0]
        while (scaled := only_reader(made, "Mul")) is not None and is_constant(other_operand(scaled, made)):
            made = scaled.outputs[0]  # as hardware approximates it
        product = only_reader(made, "Mul")
        if product is not None and other_operand(product, made) is read:
            self._products[product] = read
            self._flow.gates[node_name(node)] = name_of(read), name_of(product.outputs[0])
        else:
            self._flow.gates[node_name(node)] = name_of(read), None
        return [np.zeros([1] * (rank_of(node.outputs[0]) or 0), np.int64)]

    # Each handler gets the labels of the first operand and returns those of the results, or None: pin all operands.

    def linear(self, node: ir.Node, channels: np.ndarray) -> list[np.ndarray] | None:
        axis = 1 if channel_axis(node) == 1 else channels.ndim - 1
        if axis >= channels.ndim or varies_beside(channels, axis):
            return None
        layer = _linear_layer(node, channels.reshape(-1), self._labels.fresh)
        if layer is None:
            return None
        self._flow.layers.append(layer)
        rank = rank_of(node.outputs[0]) or channels.ndim
        shape = [1] * rank
        shape[rank - 1 if axis == channels.ndim - 1 else axis] = layer.outputs.size
        return [layer.outputs.reshape(shape)]

    def normalization(self, node: ir.Node, channels: np.ndarray) -> list[np.ndarray] | None:
        if node.op_type != "BatchNormalization" or not self._through_normalizations:
            return None
        if channels.ndim < 2 or varies_beside(channels, 1):
            return None
        layer = _normalization_layer(node, channels.reshape(-1), self._labels.fresh)
        if layer is None:
            return None
        self._flow.layers.append(layer)
        return [layer.outputs.reshape([1, -1, *[1] * (channels.ndim - 2)])]

    def clip(self, node: ir.Node, channels: np.ndarray) -> list[np.ndarray] | None:
        limits = activation_limits(node)
        return None if limits is None else self._limited(node, 0, channels, limits)

    def extremum(self, node: ir.Node, first: np.ndarray) -> list[np.ndarray] | None:
        """Max and Min of activations, or of one and a constant: a limit."""
        operands = [value for value in node.inputs if value is not None]
        fixed = [value for value in operands if is_constant(value)]
        if not fixed:
            return self._tied(operands)
        other = [value for value in operands if not is_constant(value)]
        limit, channels = scalar(fixed[0]), self.of(other[0]) if other else None
        if len(operands) != 2 or limit is None or channels is None or rank_of(node.outputs[0]) != channels.ndim:
            return None
        limits = (limit, math.inf) if node.op_type == "Max" else (-math.inf, limit)
        return self._limited(node, int(operands[0] is fixed[0]), channels, limits)

    def _limited(
        self, node: ir.Node, index: int, channels: np.ndarray, limits: tuple[float, float]
    ) -> list[np.ndarray] | None:
        if not limits[0] <= 0.0 <= limits[1]:
            return None
        self._flow.limits.append(ChannelLimit(node, index, channels, *limits))
        return [channels]

    def addition(self, node: ir.Node, first: np.ndarray) -> list[np.ndarray] | None:
        if len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
            return None
        fixed = [k for k, value in enumerate(node.inputs) if is_constant(value)]
        if not fixed:
            return self._tied([node.inputs[0], node.inputs[1]])
        term, channels = node.inputs[fixed[0]], self.of(node.inputs[1 - fixed[0]])
        if len(fixed) == 2 or channels is None or term is None or len(term.uses()) != 1 or term.is_graph_output():
            return None
        if (rank_of(term) or 0) > channels.ndim or rank_of(node.outputs[0]) != channels.ndim:
            return None
        self._flow.terms.append(Fold(node, fixed[0], channels))
        return [channels]

    def product(self, node: ir.Node, first: np.ndarray) -> list[np.ndarray] | None:
        """A factor whose scale is 1 whatever happens leaves the other operand's as it is."""
        second = self.of(node.inputs[1])
        if second is None:
            return None
        rank = max(first.ndim, second.ndim)
        if not second.any():
            return [lifted(first, rank)]
        if node.op_type == "Mul" and not first.any():
            return [lifted(second, rank)]
        return None

    def concat(self, node: ir.Node, first: np.ndarray) -> list[np.ndarray] | None:
        parts = self._all(node.inputs)
        return None if parts is None else joined(node, parts, self._labels)

    def _tied(self, values: Sequence[ir.Value | None]) -> list[np.ndarray] | None:
        parts = self._all(values)
        return None if parts is None else tied(parts, self._labels)

    def _all(self, values: Sequence[ir.Value | None]) -> list[np.ndarray] | None:
        found = [self.of(value) for value in values]
        known = [channels for channels in found if channels is not None]
        return known if len(known) == len(found) else None


_Handler = Callable[[_Follower, ir.Node, np.ndarray], list[np.ndarray] | None]
_HANDLERS: dict[Kind, _Handler] = {
    Kind.LINEAR: _Follower.linear,
    Kind.NORMALIZED: _Follower.normalization,
    Kind.LIMITED: _Follower.clip,
    Kind.COMPARED: _Follower.extremum,
    Kind.ADDED: _Follower.addition,
    Kind.MULTIPLIED: _Follower.product,
    Kind.JOINED: _Follower.concat,
}


def _linear_layer(node: ir.Node, inputs: np.ndarray, fresh: _Fresh) -> ScalableLayer | None:
    """The layer of a linear node, None if scales cannot go in.

    ``inputs`` are the labels of its input channels, [in] or [1]; ``fresh`` makes labels for its results.
    """
    linear, weight = linear_view(node), _own_constant(node, 1)
    if linear is None or weight is None or weight.size == 0 or not np.isfinite(weight).all():
        return None
    if linear.stacked or linear.transposes_data or linear.alpha == 0.0:
        return None
    bias = constant(linear.bias)
    if bias is None and linear.bias is not None:
        return None
    if bias is not None and not (is_row(bias, linear.out_channels) and bias.size == linear.out_channels):
        return None
    if inputs.size not in (1, linear.in_channels):
        return None
    inputs, outputs = np.broadcast_to(inputs, (linear.in_channels,)), fresh(linear.out_channels)
    rows, columns = linear.along_outputs(outputs), linear.along_inputs(inputs)
    return ScalableLayer(node, outputs, inputs, rows.reshape(rows.shape[:2]), columns.reshape(columns.shape[:2]))


def _normalization_layer(node: ir.Node, inputs: np.ndarray, fresh: _Fresh) -> ScalableLayer | None:
    """The layer of a BatchNormalization: gamma (x - mean) / deviation + beta, a weight per channel."""
    parts = [_own_constant(node, index) for index in (1, 2, 3)]
    if int_attribute(node, "training_mode", 0) or any(part is None or part.ndim != 1 for part in parts):
        return None
    size = parts[0].size if parts[0] is not None else 0
    inputs = np.broadcast_to(inputs, (size,))
    outputs = fresh(size)
    return ScalableLayer(node, outputs, inputs, outputs[:, None], inputs[:, None])


def _own_constant(node: ir.Node, index: int) -> np.ndarray | None:
    """A float32 constant that nothing else reads."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or len(value.uses()) != 1 or value.is_graph_output():
        return None
    array = constant(value)
    return array if array is not None and array.dtype == np.float32 else None
