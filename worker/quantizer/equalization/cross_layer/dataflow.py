"""Which channels of which tensors share a scale, told by following the operators of the main graph.

Every float tensor has an array of variables that broadcasts to its shape: [1, C, 1, 1] behind a convolution. An
operator that commutes with positive factors per channel (relu(s x) = s relu(x)) hands the variables on, re-arranged as
it re-arranges the values; one that does not pins what it reads at 1. What is not understood is pinned, and so is what
stands outside the network's quantized regions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.cross_layer.layers import Layer, diagonal_layer, linear_layer
from worker.quantizer.equalization.cross_layer.spaces import Spaces
from worker.quantizer.graph.regions import has_regions, region_of
from worker.quantizer.graph.rewriting import rank_of, scalar
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, is_float32, name_of
from worker.quantizer.ops.channels import CHANNEL_FLOWS, Kind, joined, tied
from worker.quantizer.ops.labels import lifted, varies_beside
from worker.quantizer.ops.linear import channel_axis


@dataclass(frozen=True)
class Limit:
    """A Clip, Max or Min by which a tensor is limited; limits enclose 0.

    Attributes:
        node: the node.
        index: which of its inputs it limits.
        channels: variables of its result.
        low: lower limit, -inf if none.
        high: upper limit, inf if none.
    """

    node: ir.Node
    index: int
    channels: np.ndarray
    low: float
    high: float

    @property
    def value(self) -> ir.Value:
        """What is limited."""
        found = self.node.inputs[self.index]
        if found is None:
            raise ValueError(f"{self.node.name} limits nothing")
        return found


@dataclass(frozen=True)
class Term:
    """A constant that is added to a tensor and is scaled with its channels."""

    node: ir.Node
    index: int
    channels: np.ndarray


@dataclass
class Flow:
    """The main graph as channels see it. All variables are groups of ``Spaces.resolve``, 0 is pinned.

    Attributes:
        channels: by tensor name, for float tensors; broadcasts to the tensor's shape.
        layers: what can take scales in, in topological order.
        limits: the Clips between them.
        terms: constants that are added between them.
        groups: number of groups, the pinned one included.
    """

    channels: dict[str, np.ndarray] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    terms: list[Term] = field(default_factory=list)
    groups: int = 1


def follow(graph: ir.Graph, *, through_normalizations: bool = True) -> Flow:
    """Follow the channels of a prepared main graph.

    Args:
        graph: not changed.
        through_normalizations: let a BatchNormalization that is not folded take scales in.
    """
    return _Follower(graph, through_normalizations=through_normalizations).run()


class _Follower:
    def __init__(self, graph: ir.Graph, *, through_normalizations: bool) -> None:
        self._graph = graph
        self._through_normalizations = through_normalizations
        self._in_regions = has_regions(graph)
        self._spaces = Spaces()
        self._flow = Flow()
        self._channels: dict[ir.Value, np.ndarray] = {}

    def run(self) -> Flow:
        for node in self._graph:
            self._pass(node)
        for value, channels in self._channels.items():
            read_inside = any(usage.node.graph is not self._graph for usage in value.uses())
            if value.is_graph_output() or read_inside:
                self._spaces.pin(channels)
        return self._resolved()

    def _resolved(self) -> Flow:
        groups = self._spaces.resolve()
        flow = self._flow
        return Flow(
            channels={name_of(value): groups[found] for value, found in self._channels.items() if value.name},
            layers=[layer.with_groups(groups) for layer in flow.layers],
            limits=[replace(limit, channels=groups[limit.channels]) for limit in flow.limits],
            terms=[replace(term, channels=groups[term.channels]) for term in flow.terms],
            groups=int(groups.max()) + 1,
        )

    def of(self, value: ir.Value | None) -> np.ndarray | None:
        """The variables of a tensor; None if its rank is not known."""
        if value is None:
            return None
        if value not in self._channels:
            rank = rank_of(value)
            if rank is None or not is_float32(value):
                return None
            self._channels[value] = np.zeros([1] * rank, np.int64)
        return self._channels[value]

    def _pass(self, node: ir.Node) -> None:
        outside = self._in_regions and region_of(node) is None
        flow = CHANNEL_FLOWS.get(node.op_type) if node.domain in DEFAULT_DOMAINS and not outside else None
        channels = self.of(node.inputs[0]) if node.inputs else None
        made = None
        if flow is not None and channels is not None and is_float32(node.outputs[0]):
            if flow.forward is not None:
                made = flow.forward(node, channels, self._spaces)
            else:
                made = _HANDLERS[flow.kind](self, node, channels)
        if made is None:
            for value in node.inputs:
                channels = self.of(value)
                if channels is not None and not is_constant(value):
                    self._spaces.pin(channels)
            return
        for value, channels in zip(node.outputs, made, strict=False):
            if rank_of(value) not in (None, channels.ndim):  # an operand's rank is not known
                self._spaces.pin(channels)
            else:
                self._channels[value] = channels

    # Each handler gets the variables of the first operand and returns those of the results, or None: pin all operands.

    def linear(self, node: ir.Node, channels: np.ndarray) -> list[np.ndarray] | None:
        axis = 1 if channel_axis(node) == 1 else channels.ndim - 1
        if axis >= channels.ndim or varies_beside(channels, axis):
            return None
        layer = linear_layer(node, channels.reshape(-1), self._spaces.fresh)
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
        layer = diagonal_layer(node, channels.reshape(-1), self._spaces.fresh)
        if layer is None:
            return None
        self._flow.layers.append(layer)
        return [layer.outputs.reshape([1, -1, *[1] * (channels.ndim - 2)])]

    def clip(self, node: ir.Node, channels: np.ndarray) -> list[np.ndarray] | None:
        limits = [-math.inf, math.inf]
        for k, value in enumerate(node.inputs[1:3]):
            if value is not None:
                found = scalar(value)
                if found is None:
                    return None
                limits[k] = found
        return self._limited(node, 0, channels, (limits[0], limits[1]))

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
        self._flow.limits.append(Limit(node, index, channels, *limits))
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
        self._flow.terms.append(Term(node, fixed[0], channels))
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
        return None if parts is None else joined(node, parts, self._spaces)

    def _tied(self, values: Sequence[ir.Value | None]) -> list[np.ndarray] | None:
        parts = self._all(values)
        return None if parts is None else tied(parts, self._spaces)

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
