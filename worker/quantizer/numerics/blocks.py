"""Block formats: small elements that share a power-of-two scale, block by block along one axis.

value = element * 2^shared, shared = max(floor(log2(max |x| of the block)) - emax, smallest exponent)

* OCP Microscaling Formats (MX) 1.0, section 6.3: blocks of 32, 8-bit exponent; elements FP8, FP6, FP4, INT8.
* Block floating point: blocks of 8, 8-bit exponent, sign and 7-bit magnitude.
* Shared microexponents: Rouhani et al., "With Shared Microexponents, A Little Shifting Goes a Long Way" (ISCA 2023):
  blocks of 16; each pair of elements has one more bit that halves its scale where both leave the top bit unused.

Elements are rounded to the nearest, ties to even, and saturate. The last block along the axis counts as padded with
zeros, which changes nothing in it. A block of zeros has scale exponent 0. Inputs are finite; float32 subnormals are
values like any other. The result is finite too, but for MXINT8, whose -2 * 2^127 is beyond float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from worker.quantizer.numerics.granularity import PerBlock
from worker.quantizer.numerics.minifloat import (
    FLOAT4_E2M1,
    FLOAT6_E2M3,
    FLOAT6_E3M2,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    Minifloat,
    floor_log2,
)


class NotFiniteError(ValueError):
    """A value is NaN or Inf, which the format does not hold."""


@dataclass(frozen=True)
class FixedPoint:
    """Signed integers that count steps of 2^-fraction_bits.

    Attributes:
        minimum: smallest integer.
        maximum: largest integer.
        fraction_bits: such that the largest magnitudes lie in [1, 2).
    """

    minimum: int
    maximum: int
    fraction_bits: int

    @property
    def maximum_exponent(self) -> int:
        """floor(log2) of the largest value."""
        return 0

    def fake(self, values: np.ndarray) -> np.ndarray:
        """The nearest element value, ties to even; float32, any shape."""
        steps = np.clip(np.rint(np.ldexp(values, self.fraction_bits)), self.minimum, self.maximum)
        rounded: np.ndarray = np.ldexp(steps, -self.fraction_bits).astype(np.float32)
        return rounded


@dataclass(frozen=True)
class BlockFormat:
    """One block format.

    Attributes:
        name: as in the config.
        block_size: elements that share an exponent.
        element: what is stored per element.
        smallest_exponent: of the shared exponent.
        sub_block_size: elements that share a one-bit shift, if the format has one.
        storage: numpy type that holds the elements in a model: the float8 type, or int8 with multiples of
            2^-storage_fraction_bits.
        storage_fraction_bits: see ``storage``; 0 for float8.
        scale_block_size: elements that share a scale in a model. Where it is ``block_size`` and the format has
            sub-blocks, the shift is in the elements.
    """

    name: str
    block_size: int
    element: FixedPoint | Minifloat
    storage: np.dtype
    storage_fraction_bits: int
    scale_block_size: int
    smallest_exponent: int = -127
    sub_block_size: int | None = None

    def fake(self, values: np.ndarray, axis: int) -> np.ndarray:
        """``values`` as the format represents them.

        Args:
            values: float32, any rank >= 1, finite.
            axis: along which blocks run.

        Returns:
            float32, same shape.

        Raises:
            NotFiniteError: a value is not finite.
        """
        elements, exponent = self._elements(values, axis)
        with np.errstate(over="ignore"):  # MXINT8's -2 * 2^127 is beyond float32
            return self.granularity(axis).joined(np.ldexp(elements, exponent), values.shape)

    def granularity(self, axis: int) -> PerBlock:
        """The blocks that share an exponent."""
        return PerBlock(axis, self.block_size)

    def decompose(self, values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """Elements and scales with elements * scales == fake(values), exactly.

        Args:
            values: float32, any rank >= 1, finite.
            axis: along which blocks run.

        Returns:
            elements of type ``storage``, shape of ``values``; scales, float32 powers of two, shape of ``values`` with
            ``axis`` divided by ``scale_block_size`` and rounded up. Each scale fits into bfloat16.

        Raises:
            NotFiniteError: a value is not finite.
        """
        fractions, exponent = self._elements(values, axis)
        if self.scale_block_size == self.sub_block_size:
            per_scale = exponent[:, :, :: self.sub_block_size]
        else:
            per_scale = exponent.min(axis=2, keepdims=True)
        per_scale = per_scale - self.storage_fraction_bits
        repeated = np.repeat(per_scale, self.block_size // per_scale.shape[2], axis=2)
        elements = self.granularity(axis).joined(np.ldexp(fractions, exponent - repeated), values.shape)
        shape = PerBlock(axis, self.scale_block_size).scale_shape(values.shape)
        powers = self.granularity(axis).joined(np.ldexp(np.float32(1), per_scale), shape)
        return elements.astype(self.storage), powers

    def _elements(self, values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """Element values and the scale exponent of each, [outer, blocks, block_size, inner]."""
        blocks = self.granularity(axis).blocks(np.asarray(values, np.float32))
        if not np.isfinite(blocks).all():
            raise NotFiniteError(f"{self.name} cannot represent infinity or NaN")
        peak = np.abs(blocks).max(axis=2, keepdims=True, initial=0)
        exponent = np.maximum(floor_log2(peak) - self.element.maximum_exponent, self.smallest_exponent)
        exponent = np.where(peak == 0, np.int32(0), exponent)
        if self.sub_block_size is not None:
            pair_count = self.block_size // self.sub_block_size
            pairs = blocks.reshape(*blocks.shape[:2], pair_count, self.sub_block_size, blocks.shape[3])
            unused = np.abs(pairs).max(axis=3) < np.ldexp(np.float32(1), exponent)
            exponent = exponent - np.repeat(unused, self.sub_block_size, axis=2)
        exponent = np.broadcast_to(exponent, blocks.shape)
        return self.element.fake(np.ldexp(blocks, -exponent)), exponent


_INT8 = np.dtype(np.int8)
_E4M3, _E5M2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)


def _ocp(name: str, element: FixedPoint | Minifloat, storage: np.dtype, fraction_bits: int) -> BlockFormat:
    return BlockFormat(name, 32, element, storage, fraction_bits, scale_block_size=32)


def _microexponents(name: str, magnitude_bits: int, *, shift_in_elements: bool) -> BlockFormat:
    """Sign and ``magnitude_bits``, blocks of 16, pairs share a shift of one bit.

    The exponent is that of a normal float32: the pair's shift must not leave the range of bfloat16.
    """
    limit, fraction_bits = (1 << magnitude_bits) - 1, magnitude_bits - 1
    element = FixedPoint(-limit, limit, fraction_bits)
    return BlockFormat(
        name,
        16,
        element,
        _INT8,
        fraction_bits,
        scale_block_size=16 if shift_in_elements else 2,
        smallest_exponent=-126,
        sub_block_size=2,
    )


# The largest int8 multiple, 2 * 127, would not fit with mx9's shift in its elements.
BLOCK_FORMATS: dict[str, BlockFormat] = {
    each.name: each
    for each in (
        BlockFormat("bfp16", 8, FixedPoint(-127, 127, 6), _INT8, 6, scale_block_size=8),
        _microexponents("mx4", 2, shift_in_elements=True),
        _microexponents("mx6", 4, shift_in_elements=True),
        _microexponents("mx9", 7, shift_in_elements=False),
        _ocp("mxint8", FixedPoint(-128, 127, 6), _INT8, 6),
        _ocp("mxfp8_e4m3", FLOAT8_E4M3FN, _E4M3, 0),
        _ocp("mxfp8_e5m2", FLOAT8_E5M2, _E5M2, 0),
        _ocp("mxfp6_e3m2", FLOAT6_E3M2, _E4M3, 0),  # 28 = 448 * 2^-4 is too large for int8
        _ocp("mxfp6_e2m3", FLOAT6_E2M3, _INT8, 3),
        _ocp("mxfp4_e2m1", FLOAT4_E2M1, _INT8, 1),
    )
}


@dataclass(frozen=True)
class BlockGrid:
    """A block type of the contract that values are rounded to.

    Attributes:
        dtype: its name.
        axis: along which blocks run: the one that products are summed over.
    """

    dtype: str
    axis: int

    @property
    def form(self) -> BlockFormat:
        """The format."""
        return BLOCK_FORMATS[self.dtype]

    def fake(self, values: np.ndarray) -> np.ndarray:
        """``values`` as the type represents them: float32, same shape."""
        return self.form.fake(values, self.axis)

    def at_run_time(self) -> BlockGrid:
        """The grid as the emitted model rounds to it: the same."""
        return self
