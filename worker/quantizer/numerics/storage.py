"""How numbers are held: integers by numpy while a plan is made and by ONNX in the model, and what float16 holds.

float16 ends at 65504, and below 2^-14 it loses digits, until 2^-25 becomes 0.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.specs import NUMBER_TYPES

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
