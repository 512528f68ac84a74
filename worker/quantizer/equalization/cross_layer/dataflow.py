"""Which channels of which tensors share a scale, told by following the operators of the main graph.

Every float tensor has an array of variables that broadcasts to its shape: [1, C, 1, 1] behind a convolution. An
operator that commutes with positive factors per channel (relu(s x) = s relu(x)) hands the variables on, re-arranged as
it re-arranges the values; one that does not pins what it reads at 1. What is not understood is pinned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.cross_layer.channels import compact, lifted, reshaped, varies_beside
from worker.quantizer.equalization.cross_layer.layers import Layer, diagonal_layer, linear_layer
from worker.quantizer.equalization.cross_layer.spaces import Spaces
from worker.quantizer.graph.rewriting import rank_of, reduced_axes, scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    constant,
    int_attribute,
    is_constant,
    is_float32,
    name_of,
    string_attribute,
)


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
        handler = _HANDLERS.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None
        made = None
        if handler is not None and is_float32(node.outputs[0]) and self.of(node.inputs[0]) is not None:
            made = handler(self, node)
        if made is None:
            for value in node.inputs:
                channels = self.of(value)
                if channels is not None and not is_constant(value):
                    self._spaces.pin(channels)
            return
        for value, channels in zip(node.outputs, made, strict=False):
            rank = rank_of(value)
            if rank is not None and rank != channels.ndim:
                raise ValueError(f"{node.name}: channels of rank {channels.ndim} for a tensor of rank {rank}")
            self._channels[value] = channels

    # Each handler returns the variables of the node's outputs, or None: pin what it reads.

    def linear(self, node: ir.Node) -> list[np.ndarray] | None:
        channels, axis = self.of(node.inputs[0]), _channel_axis(node)
        if channels is None or axis >= channels.ndim or varies_beside(channels, axis):
            return None
        layer = linear_layer(node, channels.reshape(-1), self._spaces.fresh)
        if layer is None:
            return None
        self._flow.layers.append(layer)
        rank = rank_of(node.outputs[0]) or channels.ndim
        shape = [1] * rank
        shape[rank - 1 if axis == channels.ndim - 1 else axis] = layer.outputs.size
        return [layer.outputs.reshape(shape)]

    def normalization(self, node: ir.Node) -> list[np.ndarray] | None:
        channels = self.of(node.inputs[0])
        if channels is None or channels.ndim < 2 or varies_beside(channels, 1) or not self._through_normalizations:
            return None
        layer = diagonal_layer(node, channels.reshape(-1), self._spaces.fresh)
        if layer is None:
            return None
        self._flow.layers.append(layer)
        return [layer.outputs.reshape([1, -1, *[1] * (channels.ndim - 2)])]

    def same(self, node: ir.Node) -> list[np.ndarray] | None:
        channels = self.of(node.inputs[0])
        return None if channels is None else [channels]

    def prelu(self, node: ir.Node) -> list[np.ndarray] | None:
        """A positive factor before is one behind, whatever the slopes, which stay as they are."""
        return self.same(node) if is_constant(node.inputs[1]) else None

    def clip(self, node: ir.Node) -> list[np.ndarray] | None:
        channels = self.of(node.inputs[0])
        limits = [-math.inf, math.inf]
        for k, value in enumerate(node.inputs[1:3]):
            if value is not None:
                found = scalar(value)
                if found is None:
                    return None
                limits[k] = found
        return None if channels is None else self._limited(node, 0, channels, (limits[0], limits[1]))

    def extremum(self, node: ir.Node) -> list[np.ndarray] | None:
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

    def addition(self, node: ir.Node) -> list[np.ndarray] | None:
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

    def product(self, node: ir.Node) -> list[np.ndarray] | None:
        """A factor whose scale is 1 whatever happens leaves the other operand's as it is."""
        first, second = (self.of(value) for value in node.inputs[:2])
        if first is None or second is None:
            return None
        rank = max(first.ndim, second.ndim)
        if not second.any():
            return [lifted(first, rank)]
        if node.op_type == "Mul" and not first.any():
            return [lifted(second, rank)]
        return None

    def concat(self, node: ir.Node) -> list[np.ndarray] | None:
        parts = [self.of(value) for value in node.inputs]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        rank = found[0].ndim
        axis = int_attribute(node, "axis", 0) % rank
        if all(part.shape[axis] == 1 for part in found) and not any(part.any() for part in found):
            return [np.zeros([1] * rank, np.int64)]
        if axis == 0 or any(varies_beside(part, axis) for part in found):
            return self._tied([value for value in node.inputs if value is not None])
        pieces = []
        for value, part in zip(node.inputs, found, strict=True):
            length = value.shape[axis] if value is not None and value.shape is not None else None
            if not isinstance(length, int):
                return self._tied([value for value in node.inputs if value is not None])
            pieces.append(np.broadcast_to(part, [*part.shape[:axis], length, *part.shape[axis + 1 :]]))
        return [compact(np.concatenate(pieces, axis))]

    def _tied(self, values: list[ir.Value]) -> list[np.ndarray] | None:
        found = [self.of(value) for value in values]
        known = [channels for channels in found if channels is not None]
        if len(known) < len(found) or not known:
            return None
        rank = max(channels.ndim for channels in known)
        known = [lifted(channels, rank) for channels in known]
        for other in known[1:]:
            try:
                self._spaces.tie(known[0], other)
            except ValueError:  # axes of different length, as when one is joined piece by piece
                return None
        return [max(known, key=lambda channels: channels.size)]

    def pool(self, node: ir.Node) -> list[np.ndarray] | None:
        channels = self.of(node.inputs[0])
        return None if channels is None or any(size > 1 for size in channels.shape[2:]) else [channels]

    def reduce(self, node: ir.Node) -> list[np.ndarray] | None:
        channels, axes = self.of(node.inputs[0]), reduced_axes(node)
        if channels is None or axes is None or any(channels.shape[axis] > 1 for axis in axes):
            return None
        return [channels if int_attribute(node, "keepdims", 1) else np.squeeze(channels, axes)]

    def pad(self, node: ir.Node) -> list[np.ndarray] | None:
        """Zeros and values of the tensor itself are scaled like it; any other number is not."""
        channels, pads = self.of(node.inputs[0]), constant(node.inputs[1])
        mode = string_attribute(node, "mode", "constant")
        filling = node.inputs[2] if len(node.inputs) > 2 else None
        if channels is None or pads is None or (len(node.inputs) > 3 and node.inputs[3] is not None):
            return None
        if mode == "constant" and filling is not None and scalar(filling) != 0.0:
            return None
        if pads.size != 2 * channels.ndim:
            return None
        for axis, (before, after) in enumerate(pads.reshape(2, -1).T.tolist()):
            if channels.shape[axis] == 1 or not (before or after):
                continue
            if mode != "constant" or before < 0 or after < 0 or varies_beside(channels, axis):
                return None
            # new channels of zeros, whose scale is as good as any
            shape = [-1 if k == axis else 1 for k in range(channels.ndim)]
            added = [self._spaces.fresh(count).reshape(shape) for count in (before, after)]
            channels = np.concatenate([added[0], channels, added[1]], axis)
        return [channels]

    def resize(self, node: ir.Node) -> list[np.ndarray] | None:
        channels, before, after = self.of(node.inputs[0]), node.inputs[0], node.outputs[0]
        if channels is None or before is None or string_attribute(node, "mode", "nearest") not in ("nearest", "linear"):
            return None
        if string_attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
            return None
        for axis, size in enumerate(channels.shape):
            if size > 1 and (after.shape is None or after.shape[axis] != size):
                return None
        return [channels]

    def transpose(self, node: ir.Node) -> list[np.ndarray] | None:
        channels = self.of(node.inputs[0])
        if channels is None:
            return None
        found = node.attributes.get("perm")
        return [channels.transpose(found.as_ints() if found is not None else None)]

    def reshape(self, node: ir.Node) -> list[np.ndarray] | None:
        """Reshape, Flatten, Squeeze, Unsqueeze: by the shapes before and after."""
        before, after, channels = node.inputs[0], node.outputs[0], self.of(node.inputs[0])
        rank = rank_of(after)
        if before is None or channels is None or rank is None:
            return None
        if not channels.any():
            return [np.zeros([1] * rank, np.int64)]
        found = reshaped(channels, before, after)
        return None if found is None else [found]

    def shuffle(self, node: ir.Node) -> list[np.ndarray] | None:
        """DepthToSpace and SpaceToDepth of channels: positions share a scale, so that only axis 1 counts."""
        channels, block = self.of(node.inputs[0]), int_attribute(node, "blocksize", 1)
        if channels is None or channels.ndim != 4 or varies_beside(channels, 1):
            return None
        row = channels.reshape(-1)
        if row.size == 1:
            return [channels]
        if node.op_type == "SpaceToDepth":
            return [np.tile(row, block * block).reshape(1, -1, 1, 1)]
        depth_first = string_attribute(node, "mode", "DCR") == "DCR"
        rows = row.reshape(block * block, -1) if depth_first else row.reshape(-1, block * block).T
        for other in rows[1:]:
            self._spaces.tie(rows[0], other)
        return [rows[0].reshape(1, -1, 1, 1)]

    def slice(self, node: ir.Node) -> list[np.ndarray] | None:
        channels = self.of(node.inputs[0])
        given = [None if value is None else constant(value) for value in node.inputs[1:]]
        if channels is None or len(given) < 2 or given[0] is None or given[1] is None:
            return None
        starts, ends = given[0].reshape(-1), given[1].reshape(-1)
        axes = given[2].reshape(-1) if len(given) > 2 and given[2] is not None else np.arange(starts.size)
        steps = given[3].reshape(-1) if len(given) > 3 and given[3] is not None else np.ones(starts.size, np.int64)
        for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
            size = channels.shape[axis]
            if size > 1:
                stop = None if step < 0 and end < -size else end
                channels = np.take(channels, np.arange(size)[start:stop:step], axis)
        return [channels] if channels.size else None

    def split(self, node: ir.Node) -> list[np.ndarray] | None:
        channels = self.of(node.inputs[0])
        if channels is None:
            return None
        axis = int_attribute(node, "axis", 0) % channels.ndim
        if channels.shape[axis] == 1:
            return [channels] * len(node.outputs)
        lengths = [value.shape[axis] if value.shape is not None else None for value in node.outputs]
        known = [length for length in lengths if isinstance(length, int)]
        if len(known) < len(lengths) or sum(known) != channels.shape[axis]:
            return None
        return np.split(channels, np.cumsum(known)[:-1], axis)

    def gather(self, node: ir.Node) -> list[np.ndarray] | None:
        channels, picked = self.of(node.inputs[0]), constant(node.inputs[1])
        if channels is None or picked is None or picked.ndim > 1:
            return None
        axis = int_attribute(node, "axis", 0) % channels.ndim
        if channels.shape[axis] == 1:
            return [channels if picked.ndim else np.squeeze(channels, axis)]
        return [np.take(channels, picked, axis)]


def _channel_axis(node: ir.Node) -> int:
    if node.op_type == "MatMul":
        return max((rank_of(node.inputs[0]) or 1) - 1, 0)
    return 1


_Handler = Callable[[_Follower, ir.Node], list[np.ndarray] | None]
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), _Follower.linear),
    **dict.fromkeys(("Relu", "LeakyRelu", "Abs", "Neg", "Identity", "Dropout"), _Follower.same),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _Follower.pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _Follower.pool),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"), _Follower.reduce),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _Follower.reshape),
    **dict.fromkeys(("Add", "Sub"), _Follower.addition),
    **dict.fromkeys(("Mul", "Div"), _Follower.product),
    **dict.fromkeys(("Max", "Min"), _Follower.extremum),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _Follower.shuffle),
    "BatchNormalization": _Follower.normalization,
    "Clip": _Follower.clip,
    "Concat": _Follower.concat,
    "Gather": _Follower.gather,
    "PRelu": _Follower.prelu,
    "Pad": _Follower.pad,
    "Resize": _Follower.resize,
    "Slice": _Follower.slice,
    "Split": _Follower.split,
    "Transpose": _Follower.transpose,
}
