"""Small floats, block formats that share a power-of-two scale, and all that a tensor may be rounded to.

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

from worker.quantizer.numerics.integer import PER_TENSOR, Granularity, IntegerGrid, PerBlock

# Small floats: sign, a few exponent bits, a few mantissa bits; rounding to the nearest, ties to even.
#
# A minifloat with bias b and m mantissa bits holds +-(1 + f/2^m) * 2^e for e >= 1 - b, and below that the multiples of
# 2^(1 - b - m) (subnormals, zero). FP8: Micikevicius et al., "FP8 Formats for Deep Learning" (2022); FP6 and FP4: OCP
# Microscaling Formats (MX) 1.0, section 5.3.


@dataclass(frozen=True)
class Minifloat:
    """A binary floating-point format."""

    name: str  # as in the config where it is a dtype of its own, else as in the OCP specification
    exponent_bits: int  # width of the exponent field
    mantissa_bits: int  # width of the mantissa field, without the hidden bit
    bias: int  # exponent bias
    maximum: float  # largest finite value
    storage: np.dtype  # numpy type with this very format

    @property
    def maximum_exponent(self) -> int:
        """floor(log2(maximum)), the ``emax`` of the OCP specification."""
        return int(np.frexp(self.maximum)[1]) - 1

    @property
    def smallest_normal_exponent(self) -> int:
        """Exponent below which values are subnormal: their step no longer shrinks."""
        return 1 - self.bias

    def fake(self, values: np.ndarray) -> np.ndarray:
        """The nearest value of the format for each of ``values``, ties to the even mantissa.

        Args:
            values: float32, any shape. NaN stays NaN; the sign of zero stays; what exceeds ``maximum``, infinities
                included, is held at +-maximum.

        Returns:
            float32, same shape.
        """
        held = np.clip(np.asarray(values, np.float32), np.float32(-self.maximum), np.float32(self.maximum))
        exponent = np.maximum(floor_log2(held), self.smallest_normal_exponent)
        shift = self.mantissa_bits - exponent  # the step of the value's binade is 2^-shift
        with np.errstate(invalid="ignore"):
            return np.asarray(np.ldexp(np.rint(np.ldexp(held, shift)), -shift))

    def scale_for(self, peak: np.ndarray) -> np.ndarray:
        """The scale that brings ``peak``, the largest magnitude(s), to the largest value.

        Args:
            peak: float32 >= 0, any shape.

        Returns:
            float32 > 0, same shape; 1 where the peak is too small to be told from 0.
        """
        scale = np.asarray(peak, np.float64) / self.maximum
        return np.where(scale < np.finfo(np.float32).tiny, 1.0, scale).astype(np.float32)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """``fake(values)`` in the format's own type ``storage``, same shape."""
        encoded: np.ndarray = self.fake(values).astype(self.storage)
        return encoded


def floor_log2(values: np.ndarray) -> np.ndarray:
    """floor(log2 |x|), exact, int32; -150, one below the smallest float32, for zero. float32, any shape.

    Infinity and NaN give an exponent without a meaning.
    """
    mantissa, exponent = np.frexp(values)
    found: np.ndarray = np.where(mantissa == 0, np.int32(-150), exponent - 1)
    return found


FLOAT16 = Minifloat("float16", 5, 10, 15, 65504.0, np.dtype(np.float16))
BFLOAT16 = Minifloat("bfloat16", 8, 7, 127, 255 * 2.0**120, np.dtype(ml_dtypes.bfloat16))
FLOAT8_E4M3FN = Minifloat("float8_e4m3fn", 4, 3, 7, 448.0, np.dtype(ml_dtypes.float8_e4m3fn))
FLOAT8_E5M2 = Minifloat("float8_e5m2", 5, 2, 15, 57344.0, np.dtype(ml_dtypes.float8_e5m2))
FLOAT6_E3M2 = Minifloat("float6_e3m2fn", 3, 2, 3, 28.0, np.dtype(ml_dtypes.float6_e3m2fn))
FLOAT6_E2M3 = Minifloat("float6_e2m3fn", 2, 3, 1, 7.5, np.dtype(ml_dtypes.float6_e2m3fn))
FLOAT4_E2M1 = Minifloat("float4_e2m1fn", 2, 1, 1, 6.0, np.dtype(ml_dtypes.float4_e2m1fn))
FLOATS: dict[str, Minifloat] = {each.name: each for each in (FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)}


@dataclass(frozen=True)
class FloatGrid:
    """A float type of the contract that values are rounded to; beyond its largest value they saturate."""

    dtype: str  # 16 or 8 bits
    scale: np.ndarray | None = None  # 8-bit floats only: float32 > 0, in the shape that ``granularity`` gives it
    granularity: Granularity = PER_TENSOR  # what shares a scale

    @property
    def form(self) -> Minifloat:
        """The format of the values over their scale."""
        return FLOATS[self.dtype]

    def spread_scale(self, shape: tuple[int, ...]) -> np.ndarray | None:
        """The scale in a form that broadcasts to a tensor of ``shape``; None if there is none."""
        return None if self.scale is None else self.granularity.spread(np.asarray(self.scale, np.float32), shape)

    def fake(self, values: np.ndarray) -> np.ndarray:
        """``values`` as the type represents them: float32, same shape."""
        scale = self.spread_scale(values.shape)
        return self.form.fake(values) if scale is None else np.asarray(self.form.fake(values / scale) * scale)

    def at_run_time(self) -> FloatGrid:
        """The grid as the emitted model rounds to it: the same."""
        return self


class NotFiniteError(ValueError):
    """A value is NaN or Inf, which the format does not hold."""


@dataclass(frozen=True)
class FixedPoint:
    """Signed integers that count steps of 2^-fraction_bits."""

    minimum: int  # smallest integer
    maximum: int  # largest integer
    fraction_bits: int  # such that the largest magnitudes lie in [1, 2)

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
    """One block format."""

    name: str  # as in the config
    block_size: int  # elements that share an exponent
    element: FixedPoint | Minifloat  # what is stored per element
    # numpy type that holds the elements in a model: the float8 type, or int8 with multiples of 2^-storage_fraction_bits
    storage: np.dtype
    storage_fraction_bits: int  # see ``storage``; 0 for float8
    # elements that share a scale in a model. Where it is ``block_size`` and the format has sub-blocks, the shift is in
    # the elements.
    scale_block_size: int
    smallest_exponent: int = -127  # of the shared exponent
    sub_block_size: int | None = None  # elements that share a one-bit shift, if the format has one

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
    """A block type of the contract that values are rounded to."""

    dtype: str  # its name
    axis: int  # along which blocks run: the one that products are summed over

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


# What a tensor may be rounded to.

Grid = IntegerGrid | FloatGrid | BlockGrid
