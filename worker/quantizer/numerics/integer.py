"""Integer grids, and which elements of a tensor share a scale: all, those of one index of an axis, or of one block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.specs import NUMBER_TYPES

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
    along = isinstance(granularity, PerAxis) and granularity.axis % len(shape) == axis
    cuts_scales = along or isinstance(granularity, PerBlock)
    for first in range(0, shape[axis], step):
        where: Slices = (*[slice(None)] * axis, slice(first, first + step))
        yield where, where if cuts_scales else (...,)


Granularity = PerTensor | PerAxis | PerBlock
PER_TENSOR = PerTensor()


# Integer grids: scale and zero point from a range, quantize, dequantize.
#
# q = saturate(round_half_to_even(x / scale) + zero_point), x~ = (q - zero_point) * scale   (ONNX QuantizeLinear,
# DequantizeLinear).

# How numbers are held: integers by numpy while a plan is made and by ONNX in the model, and what float16 holds.
#
# float16 ends at 65504, and below 2^-14 it loses digits, until 2^-25 becomes 0.
LARGEST_HALF = float(np.finfo(np.float16).max)
# Values that do not reach it have fewer than 7 of the 11 digits of float16.
FAINT_HALF = 2.0**-17
# Root of the mean square that rounding may take away, as a share of that of the values: 35 dB.
_LOST = 10 ** (-35 / 20)


def memory_type(dtype: str) -> np.dtype:
    """Numpy's type that holds integers of ``dtype``: bytes where they have fewer bits."""
    return np.dtype(dtype) if NUMBER_TYPES[dtype].bits >= 8 else np.dtype(np.uint8 if dtype[0] == "u" else np.int8)


def onnx_type(dtype: str) -> ir.DataType:
    """ONNX's word for an integer type."""
    return ir.DataType[dtype.upper()]


def onnx_integers(integers: np.ndarray, dtype: str) -> np.ndarray:
    """``integers`` in the type that ONNX stores: those held in bytes until now in ml_dtypes' own."""
    return integers.astype(onnx_type(dtype).numpy(), copy=False)


def exceeds_half(array: np.ndarray) -> bool:
    """True if finite values lie beyond float16's range."""
    finite = array[np.isfinite(array)]
    return finite.size > 0 and float(np.abs(finite).max()) > LARGEST_HALF


def fades_in_half(array: np.ndarray) -> bool:
    """True if values are so small that rounding them to float16 takes more than a sixtieth of them away."""
    wide = array[np.isfinite(array)].astype(np.float64)
    if not wide.size or not 0.0 < np.abs(wide).max() < 2.0**-8:
        return False  # larger ones make up for what small ones lose
    lost = wide - wide.astype(np.float16)
    return bool(np.linalg.norm(lost) > _LOST * np.linalg.norm(wide))


def holds_in_half(number: float) -> bool:
    """True if a number is 0, or one that float16 holds with some digits."""
    return number == 0.0 or FAINT_HALF / 8 <= abs(number) <= LARGEST_HALF


# int16 scales are M / 2^N (AMD Quark's Int16Scale).
_LARGEST_MULTIPLIER = 2**15 - 1
_LARGEST_SHIFT = 16
# Larger tensors are worked on piece by piece: intermediate arrays are several times as large as the tensor.
_PIECE_ELEMENTS = 1 << 22
# Smallest and largest scale of 16 bits.
_HALVES = 2.0**-24, 65504.0
_LARGEST = float(np.finfo(np.float32).max)


def integer_limits(dtype: str, *, symmetric: bool, reduce_range: bool = False) -> tuple[int, int]:
    """Smallest and largest integer in use.

    Symmetric signed types leave out the lowest integer, so that the grid is the same on both sides of 0.

    Raises:
        ValueError: the type is no integer, or has no bit to spare.
    """
    known = NUMBER_TYPES[dtype]
    limits = known.reduced if reduce_range else known.limits
    if limits is None:
        raise ValueError(f"{dtype} has no {'reduced ' if reduce_range else ''}range of integers")
    low, high = limits
    return (-high, high) if symmetric and low < 0 else limits


def held_steps(values: np.ndarray, scale: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The steps nearest to ``values``, ties to even, and at least ``low``, at most ``high``.

    Args:
        values: float32 or float64, which is what is computed in; a quotient may overflow, and then saturates.
        scale: of a step; broadcasts against the values, like the limits.
        low: smallest step, counted from the zero point.
        high: largest step.
    """
    kind = values.dtype
    with np.errstate(over="ignore"):
        steps = np.asarray(values / np.asarray(scale, kind))
    np.rint(steps, out=steps)
    np.clip(steps, np.asarray(low, kind), np.asarray(high, kind), out=steps)
    return steps


@dataclass(frozen=True)
class IntegerGrid:
    """One affine integer grid, or one for each scale of a tensor."""

    dtype: str  # an integer type of the contract
    scale: np.ndarray  # float32, in the shape that ``granularity`` gives it
    zero_point: np.ndarray  # integers, same shape as ``scale``
    granularity: Granularity = PER_TENSOR  # what shares a scale
    symmetric: bool = False  # whether the integers keep to the symmetric range
    reduce_range: bool = False  # whether they keep to the reduced range

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer in use."""
        return integer_limits(self.dtype, symmetric=self.symmetric, reduce_range=self.reduce_range)

    @property
    def _precision(self) -> type[np.floating]:
        """What is computed in: float32, as QuantizeLinear does, so that ties fall where the runtime puts them; int32
        needs more digits than float32 has.
        """
        return np.float64 if self.dtype == "int32" else np.float32

    def spread(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Scale or zero point, as it is computed with, in a form that broadcasts to a tensor of ``shape``."""
        return self.granularity.spread(array, shape).astype(self._precision)

    def steps(self, values: np.ndarray) -> np.ndarray:
        """Whole steps from the zero point for float ``values``, same shape, as floats."""
        low, high = self.limits
        scale, zero_point = self.spread(self.scale, values.shape), self.spread(self.zero_point, values.shape)
        return held_steps(values.astype(self._precision, copy=False), scale, low - zero_point, high - zero_point)

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Integers for float ``values``, same shape, in the type that holds ``dtype`` in memory."""
        return self._piecewise(values, memory_type(self.dtype), IntegerGrid._quantize)

    def _quantize(self, values: np.ndarray) -> np.ndarray:
        steps = self.steps(values)
        steps += self.spread(self.zero_point, values.shape)
        return steps.astype(memory_type(self.dtype))

    def dequantize(self, integers: np.ndarray) -> np.ndarray:
        """float32 values of ``integers``, same shape."""
        return self._piecewise(integers, np.dtype(np.float32), IntegerGrid._dequantize)

    def _dequantize(self, integers: np.ndarray) -> np.ndarray:
        values = np.asarray(integers.astype(self._precision) - self.spread(self.zero_point, integers.shape))
        values *= self.spread(self.scale, integers.shape)
        return values.astype(np.float32, copy=False)

    def fake(self, values: np.ndarray) -> np.ndarray:
        """``values`` as the grid represents them, which is ``dequantize(quantize(values))``: float32, same shape."""
        return self._piecewise(values, np.dtype(np.float32), IntegerGrid._fake)

    def _fake(self, values: np.ndarray) -> np.ndarray:
        steps = self.steps(values)
        steps *= self.spread(self.scale, values.shape)
        steps += 0.0  # integers know no -0
        return steps.astype(np.float32, copy=False)

    def parts(self, shape: tuple[int, ...]) -> Iterator[tuple[Slices, IntegerGrid]]:
        """The pieces that a large tensor of ``shape`` is worked on in, each with its grid: one after the other they
        take little memory.
        """
        for where, scales in pieces(self.granularity, shape, _PIECE_ELEMENTS):
            yield where, replace(self, scale=self.scale[scales], zero_point=self.zero_point[scales])

    def _piecewise(
        self, array: np.ndarray, dtype: np.dtype, work: Callable[[IntegerGrid, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        if array.size <= _PIECE_ELEMENTS:
            return work(self, array)
        found = np.empty(array.shape, dtype)
        for where, grid in self.parts(array.shape):
            found[where] = work(grid, array[where])
        return found

    def at_run_time(self) -> IntegerGrid:
        """The grid as QuantizeLinear uses it: it saturates at the limits of the type, not at those of the grid."""
        return replace(self, symmetric=False, reduce_range=False)


def grid_for_range(
    minimum: np.ndarray,
    maximum: np.ndarray,
    dtype: str,
    *,
    symmetric: bool,
    scale: str = "float32",
    reduce_range: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point whose grid covers [minimum, maximum] and holds 0 exactly.

    Args:
        minimum: float32, any shape.
        maximum: float32, same shape.
        dtype: an integer type of up to 16 bits.
        symmetric: stretch the range to [-m, m].
        scale: "float32"; "power_of_two" (the nearest 2^n on the logarithmic scale, so that the ends of the range may
            saturate); "int16" (the nearest M / 2^N); "float16" (the nearest number of 16 bits).
        reduce_range: use one bit less.

    Returns:
        scale (float32) and zero_point (in the type that holds ``dtype`` in memory), same shape. A range of 0 gives
        scale 1: every value is 0.
    """
    qmin, qmax = integer_limits(dtype, symmetric=symmetric, reduce_range=reduce_range)
    low = np.minimum(np.asarray(minimum, np.float32), np.float32(0)).astype(np.float64)
    high = np.maximum(np.asarray(maximum, np.float32), np.float32(0)).astype(np.float64)
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    wide = (high - low) / (qmax - qmin)
    empty = wide < np.finfo(np.float32).tiny
    wide = snap_scale(np.where(empty, 1.0, wide), scale)
    if symmetric:
        zero = np.full_like(wide, np.round((qmin + qmax) / 2))
    else:
        zero = np.where(empty, 0 if qmin <= 0 <= qmax else qmin, np.clip(np.round(qmin - low / wide), qmin, qmax))
    return _restorable(wide, zero, dtype, scale).astype(np.float32), zero.astype(memory_type(dtype))


def _restorable(scale: np.ndarray, zero: np.ndarray, dtype: str, kind: str) -> np.ndarray:
    """The scale, or the next smaller one with which every integer of the type is a finite float32."""
    lowest, highest = integer_limits(dtype, symmetric=False)
    most = _LARGEST / np.maximum(zero - lowest, highest - zero)
    powers = kind == "power_of_two"
    below = np.exp2(np.floor(np.log2(most))) if powers else np.nextafter(np.float32(most), np.float32(0))
    found: np.ndarray = np.where(scale > below, below, scale)
    return found


def snap_scale(scale: np.ndarray, kind: str) -> np.ndarray:
    """The nearest scale of ``kind`` (float32, power_of_two, int16, float16) to each of ``scale``, float64 > 0."""
    if kind == "float32":
        return scale
    if kind == "power_of_two":
        exponent = np.clip(np.round(np.log2(scale)), -126, 127)
        powers: np.ndarray = np.exp2(exponent)
        return powers
    if kind == "float16":
        halves: np.ndarray = np.clip(scale, *_HALVES).astype(np.float16).astype(np.float64)
        return halves
    if kind == "int16":
        shift = np.clip(np.floor(np.log2(_LARGEST_MULTIPLIER / scale)), 0, _LARGEST_SHIFT)
        multiplier = np.clip(np.round(scale * np.exp2(shift)), 1, _LARGEST_MULTIPLIER)
        fractions: np.ndarray = multiplier / np.exp2(shift)
        return fractions
    raise ValueError(f"unknown kind of scale {kind!r}")
