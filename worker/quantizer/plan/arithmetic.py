"""Integer grids: scale and zero point from a range, quantize, dequantize.

q = saturate(round_half_to_even(x / scale) + zero_point), x~ = (q - zero_point) * scale   (ONNX QuantizeLinear,
DequantizeLinear).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Symmetric int8 uses [-127, 127], so that the grid is the same on both sides of 0.
_FULL = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}
_SYMMETRIC = {**_FULL, "int8": (-127, 127)}


@dataclass(frozen=True)
class Quantization:
    """One affine integer grid, or one per channel along ``axis``.

    Attributes:
        dtype: uint8, int8 or int32.
        scale: float32, shape [] or [channels].
        zero_point: of ``dtype``, same shape as ``scale``.
        axis: channel axis; None for one grid.
        symmetric: whether the integers keep to the symmetric range.
    """

    dtype: str
    scale: np.ndarray
    zero_point: np.ndarray
    axis: int | None = None
    symmetric: bool = False

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest integer in use."""
        return (_SYMMETRIC if self.symmetric else _FULL)[self.dtype]

    def _along(self, array: np.ndarray, rank: int) -> np.ndarray:
        if self.axis is None:
            return array
        shaped: np.ndarray = array.reshape([-1 if axis == self.axis % rank else 1 for axis in range(rank)])
        return shaped

    def quantize(self, values: np.ndarray) -> np.ndarray:
        """Integers of ``dtype`` for float ``values``, same shape.

        8-bit grids divide in float32, as QuantizeLinear does: ties fall where the runtime puts them. int32 needs more
        digits than float32 has.
        """
        low, high = self.limits
        precision = np.float64 if self.dtype == "int32" else np.float32
        scale = self._along(self.scale, values.ndim)
        zero_point = self._along(self.zero_point, values.ndim).astype(np.float64)
        with np.errstate(over="ignore"):  # infinite quotients saturate
            integers = np.rint(values.astype(precision) / scale.astype(precision)) + zero_point
        stored: np.ndarray = np.clip(integers, low, high).astype(self.dtype)
        return stored

    def dequantize(self, integers: np.ndarray) -> np.ndarray:
        """float32 values of ``integers``, same shape."""
        zero_point = self._along(self.zero_point, integers.ndim).astype(np.float64)
        scale = self._along(self.scale, integers.ndim)
        values: np.ndarray = ((integers.astype(np.float64) - zero_point) * scale).astype(np.float32)
        return values


def grid_for_range(
    minimum: np.ndarray, maximum: np.ndarray, dtype: str, *, symmetric: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point whose grid covers [minimum, maximum] and holds 0 exactly.

    Args:
        minimum: float32, shape [] or [channels].
        maximum: float32, same shape.
        dtype: uint8 or int8.
        symmetric: stretch the range to [-m, m].

    Returns:
        scale (float32) and zero_point (``dtype``), same shape. A range of 0 gives scale 1: every value is 0.
    """
    qmin, qmax = (_SYMMETRIC if symmetric else _FULL)[dtype]
    low = np.minimum(np.asarray(minimum, np.float32), np.float32(0)).astype(np.float64)
    high = np.maximum(np.asarray(maximum, np.float32), np.float32(0)).astype(np.float64)
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    wide = (high - low) / (qmax - qmin)
    empty = wide < np.finfo(np.float32).tiny
    wide = np.where(empty, 1.0, wide)
    if symmetric:
        zero = np.full_like(wide, np.round((qmin + qmax) / 2))
    else:
        zero = np.where(empty, 0 if qmin <= 0 <= qmax else qmin, np.clip(np.round(qmin - low / wide), qmin, qmax))
    return wide.astype(np.float32), zero.astype(dtype)
