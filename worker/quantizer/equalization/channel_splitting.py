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

from worker.quantizer.equalization.channel_graph import ChannelConstant, ChannelRegion
from worker.quantizer.graph.values import Names, constant, name_of
from worker.quantizer.preparation.affine import replace_constant


@dataclass(frozen=True)
class ChannelSplit:
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
    def of(cls, channels: int, pieces: Mapping[int, int]) -> ChannelSplit:
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


def apply_split(graph: ir.Graph, region: ChannelRegion, split: ChannelSplit, names: Names) -> None:
    """Split the channels of a region; the graph, which uses ``names``, is changed in place."""
    for held in region.constants:
        value, node = held.node.inputs[held.index], held.node
        array = constant(value)
        if array is None or value is None:
            raise ValueError(f"input {held.index} of {node.name!r} is no constant")
        replace_constant(graph, node, held.index, name_of(value), _taken(array, held, region.channels, split), names)
    for linear in region.depthwise:
        linear.node.attributes["group"] = ir.AttrInt64("group", split.taken.size)
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


def _taken(array: np.ndarray, held: ChannelConstant, channels: int, split: ChannelSplit) -> np.ndarray:
    """float32: the constant with the channels that there are afterwards."""
    whole = array.reshape([1] * (-held.axis - array.ndim) + list(array.shape))
    shape = list(whole.shape)
    shape[held.axis] = channels
    made = np.take(np.broadcast_to(whole, shape), split.taken, held.axis).astype(np.float64)
    if held.adds_up:
        made *= split.parts.reshape(-1, *[1] * (-held.axis - 1))
    return np.asarray(made, np.float32)
