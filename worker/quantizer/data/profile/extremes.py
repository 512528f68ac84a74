"""The least and the greatest value of a block. Floats are compared by their bits, which is much faster."""

from __future__ import annotations

import numpy as np

from worker.quantizer.data.stored import Array


def extremes(block: Array) -> tuple[float, float]:
    """Least and greatest value, as 64-bit floats.

    Args:
        block: not empty, finite; bool, integers, or floats up to 64 bits, bfloat16 among them.
    """
    if block.dtype.kind in "biu":
        return float(block.min()), float(block.max())
    return _extremes_of_floats(block)


def _extremes_of_floats(block: Array) -> tuple[float, float]:
    """Bits without a sign grow with the value; with a sign, which makes them the larger ones, they grow as it falls."""
    values = np.ascontiguousarray(block)
    unsigned = values.view(f"u{block.dtype.itemsize}")
    signed = values.view(f"i{block.dtype.itemsize}")
    greatest = signed.max()  # of those without a sign, if there are any
    largest = unsigned.max()  # of those with a sign, if there are any
    low = largest if largest.view(signed.dtype) < 0 else unsigned.min()
    high = greatest if greatest >= 0 else signed.min()
    found = np.array([low.view(signed.dtype), high.view(signed.dtype)]).view(block.dtype).astype(np.float64) + 0.0
    return float(found[0]), float(found[1])  # where adding 0 has made -0 a 0
