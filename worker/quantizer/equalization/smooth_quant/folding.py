"""Where a factor per channel of a tensor can be taken in without a node of its own.

From the tensor one walks back through operators that commute with positive factors to constants that can hold them:
the scale and bias of a normalization, a constant operand, the output channels of a linear layer. Which element of a
tensor belongs to which channel is told by an array of channel numbers that broadcasts to the tensor's shape; operators
re-arrange it as they re-arrange the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.regions import region_of
from worker.quantizer.graph.rewriting import rank_of, scalar
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    constant,
    is_constant,
    is_float32,
    name_of,
    node_name,
    reads,
)
from worker.quantizer.ops.channels import CHANNEL_FLOWS, Kind, parted
from worker.quantizer.ops.labels import fits, lifted, trimmed
from worker.quantizer.ops.linear import channel_axis, linear_view
from worker.quantizer.ops.table import operator
from worker.quantizer.preparation.affine import replace_constant


@dataclass(frozen=True)
class Fold:
    """A constant that takes the factors in.

    Attributes:
        node: name of the node that reads it.
        index: which input of the node it is.
        channels: channel numbers; broadcast against the constant, or for the weight of a linear node: one per output
            channel.
        linear: whether it is the weight or bias of a linear node.
        divides: the constant divides, so it takes the inverse factors.
    """

    node: str
    index: int
    channels: np.ndarray
    linear: bool = False
    divides: bool = False


@dataclass(frozen=True)
class Folding:
    """How factors are taken in: by which constants, and the names of all tensors that bear them then."""

    folds: tuple[Fold, ...]
    tensors: tuple[str, ...]


def find_folding(
    value: ir.Value, channels: int, refused: Callable[[ir.Node], bool], *, in_regions: bool = False
) -> Folding | None:
    """The constants that take in a factor per index of the last axis of ``value``; None if it needs a node of its own.

    Args:
        value: made by a node of the main graph; who reads it is not looked at.
        channels: length of its last axis.
        refused: True for a linear node that is not to take factors in.
        in_regions: the graph is quantized in regions alone.
    """
    finder = _Finder(value.graph, refused, in_regions)
    found = finder.behind(value, np.arange(channels))
    return Folding(tuple(finder.folds), tuple(finder.tensors)) if found else None


class _Finder:
    def __init__(
        self, graph: ir.Graph | ir.Function | None, refused: Callable[[ir.Node], bool], in_regions: bool
    ) -> None:
        self.folds: list[Fold] = []
        self.tensors: list[str] = []
        self._graph = graph
        self._refused = refused
        self._in_regions = in_regions

    def behind(self, value: ir.Value, channels: np.ndarray) -> bool:
        """Whether everything that makes ``value`` takes the factors in; it is entered into ``folds``."""
        node = value.producer()
        if node is None or node.graph is not self._graph or node.domain not in DEFAULT_DOMAINS:
            return False
        if not is_float32(value) or value is not node.outputs[0]:
            return False
        if self._in_regions and region_of(node) is None:
            return False
        self.tensors.append(name_of(value))
        flow, rank = CHANNEL_FLOWS.get(node.op_type), rank_of(value)
        if flow is None or rank is None:
            return False
        channels = lifted(channels, rank)
        if flow.kind in _HANDLERS:
            return _HANDLERS[flow.kind](self, node, channels)
        before = flow.backward(node, channels) if flow.backward is not None else None
        return before is not None and self.reach(node, 0, before, widened=flow.kind is Kind.REPEATED)

    def reach(self, node: ir.Node, index: int, channels: np.ndarray, *, widened: bool = False) -> bool:
        """The same for input ``index`` of ``node``, which alone must read it unless it is a constant.

        With ``widened`` a constant may have fewer elements than there are channels.
        """
        value = node.inputs[index]
        channels = trimmed(channels)
        if value is None or not is_float32(value):
            return False
        if not fits(channels, value) and not (widened and is_constant(value)):
            return False
        if is_constant(value):
            self.folds.append(Fold(node_name(node), index, channels))
            return True
        if len(reads(value)) != 1 or value.is_graph_output() or value.is_graph_input():
            return False
        return self.behind(value, channels)

    # One handler per kind of operator: ``channels`` are those of its result, of full rank.

    def clip(self, node: ir.Node, channels: np.ndarray) -> bool:
        """A lower limit of 0 or none, and no upper one."""
        limits = [None if value is None else scalar(value) for value in node.inputs[1:3]]
        bounded = [value is not None for value in node.inputs[1:3]]
        low_is_zero = not bounded[:1] or not bounded[0] or limits[0] == 0.0
        return low_is_zero and not any(bounded[1:]) and self.reach(node, 0, channels)

    def concat(self, node: ir.Node, channels: np.ndarray) -> bool:
        parts = parted(node, channels)
        return parts is not None and all(self.reach(node, index, part) for index, part in enumerate(parts))

    def addition(self, node: ir.Node, channels: np.ndarray) -> bool:
        if node.inputs[0] is node.inputs[1]:
            return False
        return all(self.reach(node, index, channels, widened=True) for index in (0, 1))

    def product(self, node: ir.Node, channels: np.ndarray) -> bool:
        """One factor is enough: a constant if there is one, else the first that takes them in."""
        if node.inputs[0] is node.inputs[1]:
            return False
        order = sorted((0, 1), key=lambda index: not is_constant(node.inputs[index]))
        for index in order if node.op_type == "Mul" else (0,):
            if self._tried(node, index, channels):
                return True
        divisor = node.inputs[1]
        if node.op_type == "Div" and is_constant(divisor) and is_float32(divisor):
            self.folds.append(Fold(node_name(node), 1, trimmed(channels), divides=True))
            return True
        return False

    def _tried(self, node: ir.Node, index: int, channels: np.ndarray) -> bool:
        folds, tensors = len(self.folds), len(self.tensors)
        if self.reach(node, index, channels, widened=True):
            return True
        del self.folds[folds:], self.tensors[tensors:]
        return False

    def linear(self, node: ir.Node, channels: np.ndarray) -> bool:
        """Output channels of the weight, and the bias; or of the activation in place of a MatMul's weight."""
        if node.op_type == "MatMul" and not is_constant(node.inputs[1]):
            return channels.ndim > 1 and channels.shape[-2] == 1 and self.reach(node, 1, channels)
        linear = linear_view(node)
        if linear is None or self._refused(node):
            return False
        if not is_constant(linear.weight) or not is_float32(linear.weight):
            return False
        size = channels.shape[channel_axis(node)]
        if size not in (1, linear.out_channels) or channels.size != size:
            return False
        numbers = np.broadcast_to(channels.reshape(-1), (linear.out_channels,)).copy()
        if linear.bias is not None:
            if not is_constant(linear.bias) or not is_float32(linear.bias):
                return False
            self.folds.append(Fold(node_name(node), 2, numbers, linear=True))
        self.folds.append(Fold(node_name(node), 1, numbers, linear=True))
        return True

    def norm(self, node: ir.Node, channels: np.ndarray) -> bool:
        known = operator(node.op_type)
        if any(value.uses() for value in node.outputs[1:]) or channels.size != channels.shape[known.channel_axis or 0]:
            return False
        held = [index for index in known.parameters if index < len(node.inputs) and node.inputs[index] is not None]
        for index in held:
            value = node.inputs[index]
            if not is_constant(value) or not is_float32(value) or rank_of(value) != 1:
                return False
            self.folds.append(Fold(node_name(node), index, channels.reshape(-1)))
        return bool(held)


_Handler = Callable[[_Finder, ir.Node, np.ndarray], bool]
_HANDLERS: dict[Kind, _Handler] = {
    Kind.LINEAR: _Finder.linear,
    Kind.NORMALIZED: _Finder.norm,
    Kind.LIMITED: _Finder.clip,
    Kind.ADDED: _Finder.addition,
    Kind.MULTIPLIED: _Finder.product,
    Kind.JOINED: _Finder.concat,
}


def folded(array: np.ndarray, fold: Fold, node: ir.Node, factors: np.ndarray) -> np.ndarray:
    """float32: the constant with the factors in it.

    Args:
        array: float32, the constant.
        fold: where it stands.
        node: which reads it.
        factors: float64 [channels], positive.
    """
    chosen = factors[fold.channels]
    if fold.divides:
        chosen = 1.0 / chosen
    linear = linear_view(node) if fold.linear and fold.index == 1 else None
    if linear is not None:
        chosen = linear.along_outputs(chosen)
    return np.asarray(array.astype(np.float64) * chosen, np.float32)


def apply_folds(
    graph: ir.Graph, nodes: Mapping[str, ir.Node], folds: tuple[Fold, ...], factors: np.ndarray, names: Names
) -> None:
    """Multiply the constants by ``factors``, float64 [channels]; what others read too is copied first.

    ``nodes`` are those of the graph by name.
    """
    for fold in folds:
        node = nodes[fold.node]
        value = node.inputs[fold.index]
        array = constant(value)
        if array is None or value is None:
            raise ValueError(f"input {fold.index} of {fold.node!r} is no constant")
        replace_constant(graph, node, fold.index, name_of(value), folded(array, fold, node, factors), names)
