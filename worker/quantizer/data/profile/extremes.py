"""The least and the greatest value of a block. 16-bit floats are compared by their bits, which is much faster."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from worker.quantizer.data.stored import Array

_SIGN = 0x8000


def extremes(block: Array) -> tuple[float, float]:
    """Least and greatest value, as 64-bit floats.

    Args:
        block: not empty, finite; bool, integers, or floats up to 64 bits, bfloat16 among them.
    """
    if block.dtype in (np.float16, ml_dtypes.bfloat16):
        return _extremes_of_halves(block)
    return float(block.min()), float(block.max())


def _extremes_of_halves(block: Array) -> tuple[float, float]:
    """Bits without a sign grow with the value; with a sign, which makes them the larger ones, they grow as it falls."""
    bits: np.ndarray[Any, np.dtype[np.uint16]] = np.ascontiguousarray(block).view(np.uint16)
    signed = bits.view(np.int16)
    highest, least_signed = int(bits.max()), int(signed.max())
    low = highest if highest >= _SIGN else int(bits.min())
    high = least_signed if least_signed >= 0 else int(signed.min()) + (1 << 16)
    found = np.array([low, high], np.uint16).view(block.dtype).astype(np.float64) + 0.0  # no -0
    return float(found[0]), float(found[1])
