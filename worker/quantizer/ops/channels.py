"""How channels flow through operators: one table, read in both directions; and along which axis tensors have any.

``forward`` re-arranges labels (see ``labels``) as the operator re-arranges the values, ``backward`` tells which labels
the operand must have had. A factor per channel, positive and the same for all elements with one label, comes out of
the operator as it goes in. Where several operands come together, labels may have to be tied: they then share a factor.
What is not in the table lets no channel through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import axis_length, producer, rank_of, reduced_axes, scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    constant,
    int_attribute,
    is_constant,
    is_float32,
    string_attribute,
)
from worker.quantizer.ops.labels import TiedLabels, compact, lifted, reshaped, trimmed, varies_beside
from worker.quantizer.ops.linear import LINEAR, channel_axis, is_linear, summed_axis
from worker.quantizer.ops.table import named, operator


class Kind(Enum):
    """What an operator does to channels."""

    LINEAR = "makes new channels of all that it reads"
    NORMALIZED = "scales and shifts each channel by its own parameters"
    MOVED = "moves elements, or leaves some out"
    REPEATED = "repeats elements"
    ELEMENTWISE = "computes each element from one element"
    POOLED = "computes each element from several of the same channel"
    FILLED = "moves elements and puts others between or around them"
    LIMITED = "limits elements by constants"
    ADDED = "adds two operands"
    MULTIPLIED = "multiplies or divides two operands"
    COMPARED = "takes the larger or smaller of its operands"
    JOINED = "puts its operands one behind the other"


Forward = Callable[[ir.Node, np.ndarray, TiedLabels], list[np.ndarray] | None]
Backward = Callable[[ir.Node, np.ndarray], np.ndarray | None]


@dataclass(frozen=True)
class ChannelFlow:
    """How channels flow through an operator."""

    kind: Kind  # what it does to them
    # labels of its results from those of the first operand, of full rank; None where they cannot be told
    forward: Forward | None = None
    # labels of the first operand from those of the first result, likewise. Both are None for operators of several
    # operands, or with parameters.
    backward: Backward | None = None
    passes_shift: bool = False  # whether a number added to a channel comes out as it goes in, padding aside

    def operands(self, node: ir.Node, labels: np.ndarray) -> list[np.ndarray] | None:
        """Labels of the operands that hand their channels on, in order, from those of the first result.

        None where they cannot be told; and for products, where one of the operands is enough.
        """
        if self.kind is Kind.ADDED:
            return [labels] * len(node.inputs)
        if self.kind is Kind.LIMITED:
            return [labels]
        if self.kind is Kind.JOINED:
            return parted(node, labels)
        found = None if self.backward is None else self.backward(node, labels)
        return None if found is None else [found]


def _one(backward: Backward) -> Forward:
    """Forward as ``backward`` does it: for operators with one result, whose labels are those of the operand."""

    def forward(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
        found = backward(node, labels)
        return None if found is None else [found]

    return forward


def _same(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    return labels


def _sloped(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    """PRelu: a positive factor before is one behind, whatever the slopes, which stay as they are."""
    return labels if is_constant(node.inputs[1]) else None


def _pooled(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    return None if any(size > 1 for size in labels.shape[2:]) else labels


def _reduced(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    axes = reduced_axes(node)
    if axes is None or any(labels.shape[axis] > 1 for axis in axes):
        return None
    return [labels if int_attribute(node, "keepdims", 1) else np.squeeze(labels, axes)]


def _reduced_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    axes = reduced_axes(node)
    if axes is None:
        return None
    whole = labels if int_attribute(node, "keepdims", 1) else np.expand_dims(labels, axes)
    return None if any(whole.shape[axis] > 1 for axis in axes) else whole


def _permuted(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    return [labels.transpose(_permutation(node, labels.ndim))]


def _permuted_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    return labels.transpose(np.argsort(_permutation(node, labels.ndim)))


def _permutation(node: ir.Node, rank: int) -> list[int]:
    found = node.attributes.get("perm")
    return list(range(rank))[::-1] if found is None else list(found.as_ints())


def _reshaped(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    """Reshape, Flatten, Squeeze, Unsqueeze: by the shapes before and after."""
    return None if node.inputs[0] is None else reshaped(labels, node.inputs[0], node.outputs[0])


def _reshaped_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    return None if node.inputs[0] is None else reshaped(labels, node.outputs[0], node.inputs[0])


def _sliced(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    given = [None if value is None else constant(value) for value in node.inputs[1:]]
    if len(given) < 2 or given[0] is None or given[1] is None:
        return None
    starts, ends = given[0].reshape(-1), given[1].reshape(-1)
    axes = given[2].reshape(-1) if len(given) > 2 and given[2] is not None else np.arange(starts.size)
    steps = given[3].reshape(-1) if len(given) > 3 and given[3] is not None else np.ones(starts.size, np.int64)
    for start, end, axis, step in zip(starts.tolist(), ends.tolist(), axes.tolist(), steps.tolist(), strict=True):
        size = labels.shape[axis]
        if size > 1:
            stop = None if step < 0 and end < -size else end
            labels = np.take(labels, np.arange(size)[start:stop:step], axis)
    return [labels] if labels.size else None


def _sliced_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    """Positions are cut off, channels are not."""
    axes = constant(node.inputs[3]) if len(node.inputs) > 3 else None
    if axes is None or any(labels.shape[axis] > 1 for axis in axes.reshape(-1).tolist()):
        return None
    return labels


def _split(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    axis = int_attribute(node, "axis", 0) % labels.ndim
    if labels.shape[axis] == 1:
        return [labels] * len(node.outputs)
    lengths = [axis_length(value, axis) for value in node.outputs]
    known = [length for length in lengths if length is not None]
    if len(known) < len(lengths) or sum(known) != labels.shape[axis]:
        return None
    return np.split(labels, np.cumsum(known)[:-1], axis)


def _gathered(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    picked = constant(node.inputs[1])
    if picked is None or picked.ndim > 1:
        return None
    axis = int_attribute(node, "axis", 0) % labels.ndim
    if labels.shape[axis] == 1:
        return [labels if picked.ndim else np.squeeze(labels, axis)]
    return [np.take(labels, picked, axis)]


def _gathered_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    """Rows of a table, or some positions of a tensor: the channels lie behind the axis."""
    rank, short = rank_of(node.inputs[0]), trimmed(labels)
    if rank is None or int_attribute(node, "axis", 0) % rank + short.ndim >= rank:
        return None
    return lifted(short, rank)


def _shuffled(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    """DepthToSpace and SpaceToDepth of channels: positions share a label, so that only axis 1 counts."""
    if labels.ndim != 4 or varies_beside(labels, 1):
        return None
    if labels.size == 1:
        return [labels]
    if node.op_type == "SpaceToDepth":
        return [_deep(node, labels)]
    rows = _shallow(node, labels)
    for other in rows[1:]:
        ties.tie(rows[0], other)
    return [rows[0].reshape(1, -1, 1, 1)]


def _shuffled_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    if labels.ndim != 4 or varies_beside(labels, 1):
        return None
    if labels.size == 1:
        return labels
    if node.op_type == "DepthToSpace":
        return _deep(node, labels)
    rows = _shallow(node, labels)
    return rows[0].reshape(1, -1, 1, 1) if (rows == rows[0]).all() else None


def _deep(node: ir.Node, labels: np.ndarray) -> np.ndarray:
    """Labels where positions are channels, from those where they are not."""
    row, positions = labels.reshape(-1), int_attribute(node, "blocksize", 1) ** 2
    return (np.tile if _depth_first(node) else np.repeat)(row, positions).reshape(1, -1, 1, 1)


def _shallow(node: ir.Node, labels: np.ndarray) -> np.ndarray:
    """The inverse, for each position: [positions, channels]."""
    row, positions = labels.reshape(-1), int_attribute(node, "blocksize", 1) ** 2
    return row.reshape(positions, -1) if _depth_first(node) else row.reshape(-1, positions).T


def _depth_first(node: ir.Node) -> bool:
    return string_attribute(node, "mode", "DCR") == "DCR"


def _expanded(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    rank = rank_of(node.outputs[0])
    return None if rank is None else [lifted(labels, rank)]


def _padded(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    """New channels are zeros, whose factor is as good as any."""
    pads = _padding(node, labels.ndim)
    if pads is None:
        return None
    constant_mode = string_attribute(node, "mode", "constant") == "constant"
    for axis, (before, after) in enumerate(pads):
        if labels.shape[axis] == 1 or not (before or after):
            continue
        if not constant_mode or before < 0 or after < 0 or varies_beside(labels, axis):
            return None
        shape = [-1 if k == axis else 1 for k in range(labels.ndim)]
        added = [ties.fresh(count).reshape(shape) for count in (before, after)]
        labels = np.concatenate([added[0], labels, added[1]], axis)
    return [labels]


def _padded_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    pads = _padding(node, labels.ndim)
    if pads is None or any(size > 1 and any(pair) for size, pair in zip(labels.shape, pads, strict=True)):
        return None
    return labels


def _padding(node: ir.Node, rank: int) -> list[tuple[int, int]] | None:
    """Elements before and behind each axis; None if anything but zeros or the tensor's own values is put there."""
    pads = constant(node.inputs[1])
    filling = node.inputs[2] if len(node.inputs) > 2 else None
    if pads is None or pads.size != 2 * rank or (len(node.inputs) > 3 and node.inputs[3] is not None):
        return None
    if string_attribute(node, "mode", "constant") == "constant" and filling is not None and scalar(filling) != 0.0:
        return None
    before, after = pads.reshape(2, -1).tolist()
    return list(zip(before, after, strict=True))


def _resized(node: ir.Node, labels: np.ndarray, ties: TiedLabels) -> list[np.ndarray] | None:
    return [labels] if _resizes_beside(node, labels, node.outputs[0]) else None


def _resized_back(node: ir.Node, labels: np.ndarray) -> np.ndarray | None:
    return labels if _resizes_beside(node, labels, node.inputs[0]) else None


def _resizes_beside(node: ir.Node, labels: np.ndarray, other: ir.Value | None) -> bool:
    """True if only axes along which nothing changes get another length."""
    if other is None or string_attribute(node, "mode", "nearest") not in ("nearest", "linear"):
        return False
    if string_attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        return False
    return all(size == 1 or axis_length(other, axis) == size for axis, size in enumerate(labels.shape))


def tied(parts: Sequence[np.ndarray], ties: TiedLabels) -> list[np.ndarray] | None:
    """Labels of what is computed from several operands element by element: theirs, tied; None if they do not fit."""
    rank = max(part.ndim for part in parts)
    first, *others = [lifted(part, rank) for part in parts]
    for other in others:
        try:
            ties.tie(first, other)
        except ValueError:  # axes of different length, as when one is joined piece by piece
            return None
    return [max((first, *others), key=lambda part: part.size)]


def joined(node: ir.Node, parts: Sequence[np.ndarray], ties: TiedLabels) -> list[np.ndarray] | None:
    """Labels of a Concat from those of its operands."""
    axis = int_attribute(node, "axis", 0) % parts[0].ndim
    if all((part == parts[0].flat[0]).all() for part in parts):
        return [compact(parts[0])]
    lengths = [None if value is None else axis_length(value, axis) for value in node.inputs]
    if axis == 0 or None in lengths or any(varies_beside(part, axis) for part in parts):
        return tied(parts, ties)
    pieces = [
        np.broadcast_to(part, [*part.shape[:axis], length or 0, *part.shape[axis + 1 :]])
        for part, length in zip(parts, lengths, strict=True)
    ]
    return [compact(np.concatenate(pieces, axis))]


def parted(node: ir.Node, labels: np.ndarray) -> list[np.ndarray] | None:
    """Labels of the operands of a Concat from those of its result."""
    axis = int_attribute(node, "axis", 0) % labels.ndim
    if labels.shape[axis] == 1:
        return [labels] * len(node.inputs)
    lengths = [None if value is None else axis_length(value, axis) for value in node.inputs]
    known = [length for length in lengths if length is not None]
    return np.split(labels, np.cumsum(known)[:-1], axis) if len(known) == len(lengths) else None


_POOL = ChannelFlow(Kind.POOLED, _one(_pooled), _pooled, passes_shift=True)
_REDUCTION = ChannelFlow(Kind.POOLED, _reduced, _reduced_back, passes_shift=True)
_ELEMENTWISE = ChannelFlow(Kind.ELEMENTWISE, _one(_same), _same)
_RESHAPE = ChannelFlow(Kind.MOVED, _one(_reshaped), _reshaped_back, passes_shift=True)
_SHUFFLE = ChannelFlow(Kind.MOVED, _shuffled, _shuffled_back, passes_shift=True)

CHANNEL_FLOWS: dict[str, ChannelFlow] = {
    **dict.fromkeys(LINEAR, ChannelFlow(Kind.LINEAR)),
    **dict.fromkeys(named(lambda record: record.parameters), ChannelFlow(Kind.NORMALIZED)),
    **dict.fromkeys(named(lambda record: record.homogeneous), _ELEMENTWISE),
    "PRelu": ChannelFlow(Kind.ELEMENTWISE, _one(_sloped), _sloped),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"), _POOL),
    "LpPool": ChannelFlow(Kind.POOLED, _one(_pooled), _pooled),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin"), _REDUCTION),
    "ReduceSum": ChannelFlow(Kind.POOLED, _reduced, _reduced_back),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _SHUFFLE),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _RESHAPE),
    "Gather": ChannelFlow(Kind.MOVED, _gathered, _gathered_back, passes_shift=True),
    "Identity": ChannelFlow(Kind.MOVED, _one(_same), _same, passes_shift=True),
    "Slice": ChannelFlow(Kind.MOVED, _sliced, _sliced_back, passes_shift=True),
    "Split": ChannelFlow(Kind.MOVED, _split, passes_shift=True),
    "Transpose": ChannelFlow(Kind.MOVED, _permuted, _permuted_back, passes_shift=True),
    "Expand": ChannelFlow(Kind.REPEATED, _expanded, _same, passes_shift=True),
    "Pad": ChannelFlow(Kind.FILLED, _padded, _padded_back),
    "Resize": ChannelFlow(Kind.FILLED, _resized, _resized_back),
    "Clip": ChannelFlow(Kind.LIMITED),
    **dict.fromkeys(("Add", "Sub"), ChannelFlow(Kind.ADDED)),
    **dict.fromkeys(("Div", "Mul"), ChannelFlow(Kind.MULTIPLIED)),
    **dict.fromkeys(("Max", "Min"), ChannelFlow(Kind.COMPARED)),
    "Concat": ChannelFlow(Kind.JOINED),
}

# Operators whose results hold elements of their operand and nothing else.
MOVERS = tuple(op_type for op_type, flow in CHANNEL_FLOWS.items() if flow.kind is Kind.MOVED)

# What leaves every element, or every channel, on the axis where it is.
_STAYS = (Kind.ELEMENTWISE, Kind.POOLED, Kind.LIMITED, Kind.ADDED, Kind.MULTIPLIED, Kind.COMPARED)


def moved_from(value: ir.Value | None) -> ir.Value | None:
    """What was moved into ``value``, or what it is a slice of."""
    while (node := producer(value, *MOVERS)) is not None:
        value = node.inputs[0]
    return value


def flow_of(node: ir.Node) -> ChannelFlow | None:
    """How channels flow through a node; None: it lets none through."""
    return CHANNEL_FLOWS.get(node.op_type) if node.domain in DEFAULT_DOMAINS else None


def channel_axes(graph: ir.Graph) -> dict[ir.Value, int]:
    """The axis of the channels, not negative, of every float tensor of a main graph that has one.

    Channels are numbers of one meaning each, which a weight tells apart. What a weight is multiplied with has them
    where the products are summed, whatever made it; what a layer or a normalization makes has them where they put them;
    and operators that leave elements in their places hand them on.
    """
    found: dict[ir.Value, int] = {}
    for node in graph:
        if is_linear(node) and is_constant(node.inputs[1]):
            _enter(found, node.inputs[0], summed_axis(node, 0))
    for node in graph:
        if node.outputs and node.outputs[0] not in found:
            axis = _made_axis(node, found)
            if axis is not None:
                _enter(found, node.outputs[0], axis)
    return found


def _enter(found: dict[ir.Value, int], value: ir.Value | None, axis: int) -> None:
    rank = rank_of(value)
    if value is not None and rank is not None and is_float32(value) and -rank <= axis < rank:
        found.setdefault(value, axis % rank)


def _made_axis(node: ir.Node, found: Mapping[ir.Value, int]) -> int | None:
    """Axis of the channels in the first result of ``node``; None if it has none, or nobody knows."""
    flow = flow_of(node)
    if flow is None:
        return None
    if flow.kind is Kind.LINEAR:
        return channel_axis(node) if is_linear(node) and is_constant(node.inputs[1]) else None
    if flow.kind is Kind.NORMALIZED:
        return operator(node.op_type).channel_axis
    if flow.kind not in _STAYS:
        return None
    rank = rank_of(node.outputs[0])
    operands = [value for value in node.inputs if value is not None and rank_of(value) == rank]
    return next((found[value] for value in operands if value in found), None)
