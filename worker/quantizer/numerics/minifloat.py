"""Small floats: sign, a few exponent bits, a few mantissa bits; rounding to the nearest, ties to even.

A minifloat with bias b and m mantissa bits holds +-(1 + f/2^m) * 2^e for e >= 1 - b, and below that the multiples of
2^(1 - b - m) (subnormals, zero). FP8: Micikevicius et al., "FP8 Formats for Deep Learning" (2022); FP6 and FP4: OCP
Microscaling Formats (MX) 1.0, section 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from worker.quantizer.numerics.granularity import PER_TENSOR, Granularity


@dataclass(frozen=True)
class Minifloat:
    """A binary floating-point format.

    Attributes:
        name: as in the config where it is a dtype of its own, else as in the OCP specification.
        exponent_bits: width of the exponent field.
        mantissa_bits: width of the mantissa field, without the hidden bit.
        bias: exponent bias.
        maximum: largest finite value.
        storage: numpy type with this very format.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    maximum: float
    storage: np.dtype

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
    """A float type of the contract that values are rounded to; beyond its largest value they saturate.

    Attributes:
        dtype: 16 or 8 bits.
        scale: 8-bit floats only: float32 > 0, in the shape that ``granularity`` gives it.
        granularity: what shares a scale.
    """

    dtype: str
    scale: np.ndarray | None = None
    granularity: Granularity = PER_TENSOR

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
