"""Several channels of a part of the value each in the place of one.

A channel y = w x + b becomes n channels y / n, and whatever reads y reads all of them with the weight that y had: the
sum is the same (Zhao et al. 2019, Outlier Channel Splitting, section 3.2). What lies between, a Relu or a pooling,
gives n-th parts for n-th parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.outliers.region import Region
from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import Names, constant, name_of
from worker.quantizer.ops.linear import LinearNode
from worker.quantizer.preparation.affine import replace_constant


@dataclass(frozen=True)
class Split:
    """How the channels of a region are split.

    Attributes:
        pieces: by channel, what it becomes; others stay.
        taken: for every channel afterwards, the channel that it is of, int64 [new channels].
        parts: the part of its value that it has, float64 [new channels].
    """

    pieces: Mapping[int, int]
    taken: np.ndarray
    parts: np.ndarray

    @classmethod
    def of(cls, channels: int, pieces: Mapping[int, int]) -> Split:
        """New channels stand behind the others, in the order of those that they are of."""
        more = [np.full(count - 1, channel) for channel, count in sorted(pieces.items())]
        taken = np.concatenate([np.arange(channels), *more]).astype(np.int64)
        part = np.ones(channels)
        for channel, count in pieces.items():
            part[channel] = 1.0 / count
        return cls(pieces, taken, part[taken])

    @property
    def added(self) -> int:
        """Channels that are new."""
        return int(sum(self.pieces.values())) - len(self.pieces)


def wanted_pieces(spans: np.ndarray, outliers: Sequence[int], goal: float, most_added: int) -> dict[int, int]:
    """By channel, how many pieces bring it down to ``goal``; with fewer pieces than that the widest go first.

    Args:
        spans: range of every channel, float64 [channels].
        outliers: channels that may be split.
        goal: range to come down to.
        most_added: channels that may be added in all.
    """
    pieces = dict.fromkeys(outliers, 1)
    for _ in range(most_added):
        widest = max(pieces, key=lambda channel: (spans[channel] / pieces[channel], -channel))
        if spans[widest] / pieces[widest] <= goal * (1.0 + 1e-6):
            break
        pieces[widest] += 1
    return {channel: count for channel, count in pieces.items() if count > 1}


def most_added(channels: int, growth: float) -> int:
    """Channels that may be added to so many."""
    return max(1, math.floor(channels * growth))


def apply_split(graph: ir.Graph, region: Region, split: Split, names: Names) -> None:
    """Split the channels of a region; the graph, which uses ``names``, is changed in place."""
    for linear in region.makers:
        _take_weight(graph, linear, linear.output_axis, split, split.parts, names)
        _take_bias(graph, linear, split, names)
    for linear in region.diagonal:
        _take_weight(graph, linear, 0, split, None, names)
        _take_bias(graph, linear, split, names)
        linear.node.attributes["group"] = ir.AttrInt64("group", split.taken.size)
    for linear in region.readers:
        _take_weight(graph, linear, linear.input_axis, split, None, names)
    for node, index in region.parameters:
        _take_along(graph, region, node, index, split, None, names)
    for node, index in region.terms:
        _take_along(graph, region, node, index, split, split.parts, names)
    for node, place in region.reshapes:
        shape, value = constant(node.inputs[1]), node.inputs[1]
        if shape is not None and value is not None:
            shape = shape.copy()
            shape[place] = split.taken.size
            replace_constant(graph, node, 1, name_of(value), shape, names)
    for value, axis in region.axes.items():
        if value.shape is not None:
            lengths = [split.taken.size if k == axis else dim for k, dim in enumerate(value.shape)]
            value.shape = ir.Shape(lengths)


def _take_weight(
    graph: ir.Graph, linear: LinearNode, axis: int, split: Split, parts: np.ndarray | None, names: Names
) -> None:
    """Repeat channels along an axis of the weight as it is now: both ends of a layer may lie in one region."""
    value = linear.node.inputs[1]
    weight = constant(value)
    if weight is None or value is None:
        raise ValueError(f"the weight of {linear.node.name!r} is no constant")
    replace_constant(graph, linear.node, 1, name_of(value), _taken(weight, axis, split, parts), names)


def _take_bias(graph: ir.Graph, linear: LinearNode, split: Split, names: Names) -> None:
    value = linear.bias
    bias = constant(value)
    if bias is None or value is None:
        return
    whole = np.broadcast_to(bias, (*bias.shape[:-1], linear.out_channels))
    array = _taken(whole, whole.ndim - 1, split, split.parts)
    replace_constant(graph, linear.node, 2, name_of(value), array, names)


def _take_along(
    graph: ir.Graph,
    region: Region,
    node: ir.Node,
    index: int,
    split: Split,
    parts: np.ndarray | None,
    names: Names,
) -> None:
    """Repeat channels of a constant that broadcasts against the node's result."""
    value, result = node.inputs[index], node.outputs[0]
    array, rank = constant(value), rank_of(result)
    if array is None or value is None or rank is None:
        raise ValueError(f"input {index} of {node.name!r} is no constant")
    axis = region.axes[result]
    lifted = array.reshape([1] * (rank - array.ndim) + list(array.shape))
    shape = [region.channels if k == axis else size for k, size in enumerate(lifted.shape)]
    whole = np.broadcast_to(lifted, shape)
    replace_constant(graph, node, index, name_of(value), _taken(whole[(0,) * axis], 0, split, parts), names)


def _taken(array: np.ndarray, axis: int, split: Split, parts: np.ndarray | None) -> np.ndarray:
    made = np.take(array, split.taken, axis).astype(np.float64)
    if parts is not None:
        made *= parts.reshape([-1 if k == axis else 1 for k in range(made.ndim)])
    return np.asarray(made, np.float32)
