"""Which elements of a tensor share a scale: all, those of one index of an axis, or those of one block along an axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Slices = tuple[Any, ...]


@dataclass(frozen=True)
class PerTensor:
    """One scale."""

    def scale_shape(self, shape: Shape) -> Shape:
        """Shape of the scales of a tensor of ``shape``."""
        return ()

    def rows(self, array: np.ndarray) -> np.ndarray:
        """[scales, elements]: what shares a scale, in the order of the scales."""
        return array.reshape(1, -1)

    def spread(self, scales: np.ndarray, shape: Shape) -> np.ndarray:
        """``scales``, or anything else of their shape, in a form that broadcasts to a tensor of ``shape``."""
        return np.reshape(scales, ())

    def gathered(self, elements: np.ndarray) -> np.ndarray:
        """The inverse of ``spread`` for a tensor whose elements are equal wherever they share a scale."""
        return elements.reshape(-1)[:1].reshape(())

    def attributes(self) -> dict[str, int]:
        """Those of QuantizeLinear and DequantizeLinear."""
        return {}


@dataclass(frozen=True)
class PerAxis:
    """A scale for each index of ``axis``, which may be negative."""

    axis: int

    def scale_shape(self, shape: Shape) -> Shape:
        """Shape of the scales of a tensor of ``shape``."""
        return (shape[self.axis],)

    def rows(self, array: np.ndarray) -> np.ndarray:
        """[scales, elements]: what shares a scale, in the order of the scales."""
        return np.moveaxis(array, self.axis, 0).reshape(array.shape[self.axis], -1)

    def spread(self, scales: np.ndarray, shape: Shape) -> np.ndarray:
        """``scales``, or anything else of their shape, in a form that broadcasts to a tensor of ``shape``."""
        return np.reshape(scales, [-1 if k == self.axis % len(shape) else 1 for k in range(len(shape))])

    def gathered(self, elements: np.ndarray) -> np.ndarray:
        """The inverse of ``spread`` for a tensor whose elements are equal wherever they share a scale."""
        return np.ascontiguousarray(self.rows(elements)[:, 0])

    def attributes(self) -> dict[str, int]:
        """Those of QuantizeLinear and DequantizeLinear."""
        return {"axis": self.axis}


@dataclass(frozen=True)
class PerBlock:
    """A scale for every ``size`` elements along ``axis``, which may be negative; the last ones may be fewer."""

    axis: int
    size: int

    def scale_shape(self, shape: Shape) -> Shape:
        """Shape of the scales of a tensor of ``shape``: that of the tensor, with blocks along the axis."""
        axis = self.axis % len(shape)
        return (*shape[:axis], -(-shape[axis] // self.size), *shape[axis + 1 :])

    def rows(self, array: np.ndarray) -> np.ndarray:
        """[scales, elements]: what shares a scale, in the order of the scales. The last blocks are padded with 0."""
        return np.moveaxis(self.blocks(array), 2, 3).reshape(-1, self.size)

    def spread(self, scales: np.ndarray, shape: Shape) -> np.ndarray:
        """``scales``, or anything else of their shape, in a form that broadcasts to a tensor of ``shape``."""
        axis = self.axis % len(shape)
        spread = np.repeat(scales, self.size, axis=axis)
        return spread if spread.shape[axis] == shape[axis] else spread.take(range(shape[axis]), axis=axis)

    def gathered(self, elements: np.ndarray) -> np.ndarray:
        """The inverse of ``spread`` for a tensor whose elements are equal wherever they share a scale."""
        return elements.take(range(0, elements.shape[self.axis], self.size), axis=self.axis)

    def attributes(self) -> dict[str, int]:
        """Those of QuantizeLinear and DequantizeLinear."""
        return {"axis": self.axis, "block_size": self.size}

    def blocks(self, array: np.ndarray) -> np.ndarray:
        """``array`` as [outer, blocks, size, inner], the last block padded with 0."""
        axis = self.axis % array.ndim
        length = array.shape[axis]
        outer, inner = int(np.prod(array.shape[:axis])), int(np.prod(array.shape[axis + 1 :]))
        flat = np.pad(array.reshape(outer, length, inner), ((0, 0), (0, -length % self.size), (0, 0)))
        return flat.reshape(outer, flat.shape[1] // self.size, self.size, inner)

    def joined(self, blocks: np.ndarray, shape: Shape) -> np.ndarray:
        """The tensor of ``shape`` that was cut into ``blocks``, without the padding."""
        outer, count, size, inner = blocks.shape
        flat = blocks.reshape(outer, count * size, inner)[:, : shape[self.axis]]
        return np.ascontiguousarray(flat).reshape(shape)


def pieces(granularity: Granularity, shape: Shape, most: int) -> Iterator[tuple[Slices, Slices]]:
    """A tensor of ``shape`` in pieces of about ``most`` elements: where each lies, and where its scales do among all.

    No block is cut. A tensor that cannot be cut otherwise is one piece.
    """
    whole = np.prod(shape) <= most
    axis = 1 if not whole and isinstance(granularity, PerBlock) and granularity.axis % len(shape) == 0 else 0
    if whole or axis >= len(shape):
        yield (...,), (...,)
        return
    step = max(1, most * shape[axis] // int(np.prod(shape)))
    for first in range(0, shape[axis], step):
        where: Slices = (*[slice(None)] * axis, slice(first, first + step))
        if isinstance(granularity, PerAxis):
            yield where, where if granularity.axis % len(shape) == axis else (...,)
        else:
            yield where, where if isinstance(granularity, PerBlock) else (...,)


Granularity = PerTensor | PerAxis | PerBlock
PER_TENSOR = PerTensor()
