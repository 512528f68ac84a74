"""Integer grids: scale and zero point from a range, quantize, dequantize.

q = saturate(round_half_to_even(x / scale) + zero_point), x~ = (q - zero_point) * scale   (ONNX QuantizeLinear,
DequantizeLinear).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

_FULL = {
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
}
# onnxruntime's reduced ranges: one bit less, so that sums of two products fit into 16 (32) bits.
_REDUCED = {
    "int4": (-4, 3),
    "uint4": (0, 7),
    "int8": (-64, 64),
    "uint8": (0, 127),
    "int16": (-(2**14), 2**14),
    "uint16": (0, 2**15 - 1),
}
# 4-bit integers are held in bytes; numpy has no smaller type.
_STORAGE = {"int4": np.dtype(np.int8), "uint4": np.dtype(np.uint8)}
# int16 scales are M / 2^N (AMD Quark's Int16Scale).
_LARGEST_MULTIPLIER = 2**15 - 1
_LARGEST_SHIFT = 16


def integer_limits(dtype: str, *, symmetric: bool, reduce_range: bool = False) -> tuple[int, int]:
    """Smallest and largest integer in use.

    Symmetric signed types leave out the lowest integer, so that the grid is the same on both sides of 0.
    """
    low, high = (_REDUCED if reduce_range else _FULL)[dtype]
    return (-high, high) if symmetric and low < 0 else (low, high)


def storage_dtype(dtype: str) -> np.dtype:
    """Numpy's type that holds integers of ``dtype``."""
    return _STORAGE.get(dtype) or np.dtype(dtype)


@dataclass(frozen=True)
class IntegerGrid:
    """One affine integer grid, or one per channel or block along ``axis``.

    Attributes:
        dtype: int4, uint4, int8, uint8, int16, uint16 or int32.
        scale: float32, shape [], [channels], or, with ``block_size``, that of the tensor with ``axis`` divided by it.
        zero_point: integers, same shape as ``scale``.
        axis: channel or block axis; None for one grid.
        symmetric: whether the integers keep to the symmetric range.
        reduce_range: whether they keep to the reduced range.
        block_size: elements along ``axis`` that share a scale; None for one scale per index of ``axis``.
    """

    dtype: str
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None = None
    symmetric: bool = False
    reduce_range: bool = False
    block_size: int | None = None

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer in use."""
        return integer_limits(self.dtype, symmetric=self.symmetric, reduce_range=self.reduce_range)

    def _along(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return along(array, self, shape)

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Integers for float ``values``, same shape, in the storage type of ``dtype``.

        Grids of up to 16 bits divide in float32, as QuantizeLinear does: ties fall where the runtime puts them. int32
        needs more digits than float32 has.
        """
        low, high = self.limits
        precision = np.float64 if self.dtype == "int32" else np.float32
        scale = self._along(self.scale, values.shape)
        zero_point = self._along(self.zero_point, values.shape).astype(np.float64)
        with np.errstate(over="ignore"):  # infinite quotients saturate
            integers = np.rint(values.astype(precision) / scale.astype(precision)) + zero_point
        stored: np.ndarray = np.clip(integers, low, high).astype(storage_dtype(self.dtype))
        return stored

    def dequantize(self, integers: np.ndarray) -> np.ndarray:
        """float32 values of ``integers``, same shape."""
        zero_point = self._along(self.zero_point, integers.shape).astype(np.float64)
        scale = self._along(self.scale, integers.shape)
        values: np.ndarray = ((integers.astype(np.float64) - zero_point) * scale).astype(np.float32)
        return values

    def at_run_time(self) -> IntegerGrid:
        """The grid as QuantizeLinear uses it: it saturates at the limits of the type, not at those of the grid."""
        return replace(self, symmetric=False, reduce_range=False)

    def fake(self, values: np.ndarray) -> np.ndarray:
        """``values`` as the grid represents them: float32, same shape."""
        return self.dequantize(self.quantize(values))


def along(array: np.ndarray, grid: IntegerGrid, shape: tuple[int, ...]) -> np.ndarray:
    """A grid's scale or zero point in a form that broadcasts to a tensor of ``shape``."""
    if grid.axis is None:
        return array
    axis = grid.axis % len(shape)
    if grid.block_size is not None:
        return np.repeat(array, grid.block_size, axis=axis).take(range(shape[axis]), axis=axis)
    shaped: np.ndarray = array.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return shaped


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
            saturate); "int16" (the nearest M / 2^N).
        reduce_range: use one bit less.

    Returns:
        scale (float32) and zero_point (storage type of ``dtype``), same shape. A range of 0 gives scale 1: every
        value is 0.
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
    return wide.astype(np.float32), zero.astype(storage_dtype(dtype))


def snap_scale(scale: np.ndarray, kind: str) -> np.ndarray:
    """The nearest scale of ``kind`` ("float32", "power_of_two", "int16") to each of ``scale``, float64 > 0."""
    if kind == "float32":
        return scale
    if kind == "power_of_two":
        exponent = np.clip(np.round(np.log2(scale)), -126, 127)
        powers: np.ndarray = np.exp2(exponent)
        return powers
    if kind == "int16":
        shift = np.clip(np.floor(np.log2(_LARGEST_MULTIPLIER / scale)), 0, _LARGEST_SHIFT)
        multiplier = np.clip(np.round(scale * np.exp2(shift)), 1, _LARGEST_MULTIPLIER)
        fractions: np.ndarray = multiplier / np.exp2(shift)
        return fractions
    raise ValueError(f"unknown kind of scale {kind!r}")
