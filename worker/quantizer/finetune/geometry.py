"""Linear nodes as matrix products: weights as matrices, inputs as patches (im2col).

Every Conv, ConvTranspose (any number of spatial axes), Gemm and MatMul is y[g] = matrix[g] @ patches[g] + bias[g] for
each of its groups g, with one column of ``patches`` per output position. What is padding is exactly 0, in the float
network and in the quantized one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import float_attribute, int_attribute, string_attribute


class UnsupportedLayerError(Exception):
    """The node is no product of a matrix and patches; the message says why, for the report."""


class Geometry(Protocol):
    """A linear node as a product of a matrix [groups, outputs, inputs] and patches [groups, inputs, n]."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(groups, outputs per group, inputs per group); inputs is K, the length of a patch."""

    def matrix(self, array: np.ndarray) -> np.ndarray:
        """An array of the weight's shape as [groups, outputs, inputs]."""

    def weight(self, matrix: np.ndarray) -> np.ndarray:
        """The inverse of ``matrix``."""

    def positions(self, x: np.ndarray) -> int:
        """Patches in the node's input ``x``."""

    def gather(self, x: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Some of the patches of ``x``.

        Args:
            x: the node's input, of any type.
            chosen: int64 [n], ascending: their numbers.

        Returns:
            [groups, inputs, n] of the type of ``x``, and a mask that broadcasts to it: False where there is padding,
            which has to be 0. None: there is no padding.
        """


def geometry_of(node: ir.Node, weight: np.ndarray) -> Geometry:
    """The product that ``node`` computes with ``weight``.

    Raises:
        UnsupportedLayerError: it is none.
    """
    if node.op_type in ("Conv", "ConvTranspose"):
        return Window(node, weight.shape)
    if node.op_type == "Gemm":
        if int_attribute(node, "transA", 0):
            raise UnsupportedLayerError("its input is transposed")
        if float_attribute(node, "alpha", 1.0) != 1.0:
            raise UnsupportedLayerError("alpha differs from 1")
        return Rows(weight.shape, transposed=bool(int_attribute(node, "transB", 0)))
    if node.op_type == "MatMul":
        return Rows(weight.shape, transposed=False)
    raise UnsupportedLayerError(f"{node.op_type} is no linear operator")


@dataclass(frozen=True)
class Rows:
    """Gemm and MatMul: patches are the rows of the input.

    Attributes:
        weight_shape: [inputs, outputs], or [outputs, inputs] if transposed.
        transposed: see there.
    """

    weight_shape: tuple[int, ...]
    transposed: bool

    def __post_init__(self) -> None:
        """Refuse what is no matrix.

        Raises:
            UnsupportedLayerError: the weight is a vector or a stack of matrices.
        """
        if len(self.weight_shape) != 2:
            raise UnsupportedLayerError(f"its weight has {len(self.weight_shape)} axes, not 2")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(1, outputs, inputs)."""
        first, second = self.weight_shape
        return (1, first, second) if self.transposed else (1, second, first)

    def matrix(self, array: np.ndarray) -> np.ndarray:
        """[1, outputs, inputs]."""
        return (array if self.transposed else array.T)[None]

    def weight(self, matrix: np.ndarray) -> np.ndarray:
        """The inverse of ``matrix``."""
        return np.ascontiguousarray(matrix[0] if self.transposed else matrix[0].T)

    def positions(self, x: np.ndarray) -> int:
        """Rows of ``x``."""
        return x.size // self.shape[2]

    def gather(self, x: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See ``Geometry``."""
        return x.reshape(-1, self.shape[2])[chosen].T[None], None


class Window:
    """Conv and ConvTranspose: patches are what the kernel sees, channel by channel.

    Args:
        node: the node.
        weight_shape: [out, in / groups, ...], or for ConvTranspose [in, out / groups, ...].

    Raises:
        UnsupportedLayerError: there is no spatial axis.
    """

    def __init__(self, node: ir.Node, weight_shape: tuple[int, ...]) -> None:
        self._transposed = node.op_type == "ConvTranspose"
        self._weight_shape = weight_shape
        self._groups = int_attribute(node, "group", 1)
        self._kernel = weight_shape[2:]
        rank = len(self._kernel)
        if rank == 0:
            raise UnsupportedLayerError("it has no spatial axis")
        self._strides = _ints(node, "strides") or (1,) * rank
        self._dilations = _ints(node, "dilations") or (1,) * rank
        self._pads = _ints(node, "pads") or (0,) * (2 * rank)
        self._auto_pad = string_attribute(node, "auto_pad", "NOTSET")
        self._output_padding = _ints(node, "output_padding") or (0,) * rank
        self._output_shape = _ints(node, "output_shape")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(groups, outputs, inputs)."""
        first, second = self._weight_shape[:2]
        outputs, channels = (second, first // self._groups) if self._transposed else (first // self._groups, second)
        return self._groups, outputs, channels * prod(self._kernel)

    def matrix(self, array: np.ndarray) -> np.ndarray:
        """[groups, outputs, inputs]; a patch runs over channels, then over the kernel."""
        groups, outputs, inputs = self.shape
        if not self._transposed:
            return array.reshape(groups, outputs, inputs)
        split = array.reshape(groups, -1, outputs, prod(self._kernel))
        return split.transpose(0, 2, 1, 3).reshape(groups, outputs, inputs)

    def weight(self, matrix: np.ndarray) -> np.ndarray:
        """The inverse of ``matrix``."""
        groups, outputs, _ = self.shape
        if not self._transposed:
            return matrix.reshape(self._weight_shape)
        split = matrix.reshape(groups, outputs, -1, prod(self._kernel)).transpose(0, 2, 1, 3)
        return np.ascontiguousarray(split).reshape(self._weight_shape)

    def positions(self, x: np.ndarray) -> int:
        """Output positions of all samples of ``x``."""
        return len(x) * prod(self._extent(x.shape[2:])[0])

    def gather(self, x: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See ``Geometry``."""
        groups, _, inputs = self.shape
        taps = prod(self._kernel)
        samples, channels = x.shape[:2]
        flat = x.reshape(samples, channels, -1)
        out, begin = self._extent(x.shape[2:])
        of_sample, place = np.divmod(chosen, prod(out))
        index, inside = self._index(np.unravel_index(place, out), x.shape[2:], begin)
        found = np.empty((channels, taps, len(chosen)), x.dtype)
        edges = np.searchsorted(of_sample, np.arange(samples + 1))
        for k in range(samples):
            part = slice(edges[k], edges[k + 1])
            if part.start < part.stop:
                found[:, :, part] = np.take(flat[k], index[:, part], axis=1, mode="clip")
        if inside.all():
            return found.reshape(groups, inputs, -1), None
        mask = np.broadcast_to(inside[None], (channels // groups, taps, len(chosen))).reshape(1, inputs, -1)
        return found.reshape(groups, inputs, -1), mask

    def _index(
        self, places: tuple[np.ndarray, ...], size: tuple[int, ...], begin: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Flat input index [taps, n] of every tap at every place, and whether it lies inside."""
        index = np.zeros((1, len(places[0])), np.int64)
        inside = np.ones(index.shape, bool)
        for axis, place in enumerate(places):
            tap = np.arange(self._kernel[axis])[:, None] * self._dilations[axis]
            if self._transposed:
                at, rest = np.divmod(place[None] + begin[axis] - tap, self._strides[axis])
                here = (rest == 0) & (at >= 0) & (at < size[axis])
            else:
                at = place[None] * self._strides[axis] + tap - begin[axis]
                here = (at >= 0) & (at < size[axis])
            at = np.where(here, at, 0)
            index = (index[:, None] * size[axis] + at[None]).reshape(-1, len(place))
            inside = (inside[:, None] & here[None]).reshape(-1, len(place))
        return index, inside

    def _extent(self, size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Size of the output and padding before the input, per axis."""
        axes = [self._axis(axis, length) for axis, length in enumerate(size)]
        return tuple(out for out, _ in axes), tuple(begin for _, begin in axes)

    def _axis(self, axis: int, size: int) -> tuple[int, int]:
        stride, reach = self._strides[axis], (self._kernel[axis] - 1) * self._dilations[axis] + 1
        before, after = self._pads[axis], self._pads[axis + len(self._kernel)]
        same = self._auto_pad in ("SAME_UPPER", "SAME_LOWER")
        if self._auto_pad == "VALID":
            before = after = 0
        if self._transposed:
            whole = stride * (size - 1) + self._output_padding[axis] + reach
            if not same and self._output_shape is None:
                return whole - before - after, before
            wanted = self._output_shape[axis] if self._output_shape is not None else size * stride
            total = max(whole - wanted, 0)
            return whole - total, total // 2 if self._auto_pad == "SAME_UPPER" else total - total // 2
        if same:
            out = -(-size // stride)
            total = max((out - 1) * stride + reach - size, 0)
            return out, total // 2 if self._auto_pad == "SAME_UPPER" else total - total // 2
        return (size + before + after - reach) // stride + 1, before


def _ints(node: ir.Node, name: str) -> tuple[int, ...] | None:
    found = node.attributes.get(name)
    return None if found is None else tuple(found.as_ints())
