"""What is known of a tensor's values beside its range: whether there are any, whether they are finite, how they lie.

Planning, float16 and ranges read it. A sentinel is a value that stands for none: a mask of -1e4, of float's lowest
number or of -Inf. Values and sentinels are told apart by the octaves of magnitude between them in which nothing lies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# e^-64 is nothing beside e^0; what lies fewer octaves from the rest may be an outlier.
_SMALLEST_SENTINEL, _EMPTY_OCTAVES = 64.0, 3


@dataclass(frozen=True)
class Extent:
    """Of all values seen.

    Attributes:
        minimum: of the finite values; Inf if there is none.
        maximum: of the finite values; -Inf if there is none.
        infinite: Inf or -Inf was seen.
        is_number: nothing was NaN.
        inner: largest magnitude, up to a factor of 2, of what is no sentinel, had the largest ones been such.
        smallest: smallest magnitude but 0, down to a factor of 2; Inf if there is none.
    """

    minimum: float
    maximum: float
    infinite: bool
    is_number: bool
    inner: float
    smallest: float = np.inf

    @property
    def is_empty(self) -> bool:
        """True if nothing was seen."""
        return self.minimum > self.maximum and not self.infinite and self.is_number

    @property
    def largest(self) -> float:
        """Largest finite magnitude; 0 without any."""
        return max(-self.minimum, self.maximum, 0.0)

    @property
    def has_sentinel(self) -> bool:
        """True if values lie so far beyond all others that they stand for none."""
        return self.infinite or (self.largest >= _SMALLEST_SENTINEL and self.largest > 2**_EMPTY_OCTAVES * self.inner)


class Extents:
    """Sees a tensor batch by batch, and ends with its extent."""

    def __init__(self) -> None:
        self._minimum, self._maximum = np.inf, -np.inf
        self._infinite, self._number = False, True
        self._octaves = np.zeros(256, bool)  # by biased exponent: whether a value lies there

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch of float32."""
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        low, high = float(flat.min()), float(flat.max())
        if not np.isfinite([low, high]).all():
            nothing = np.isnan(flat)
            self._number &= not nothing.any()
            self._infinite |= bool(np.isinf(flat).any())
            flat = flat[np.isfinite(flat)]
            if not flat.size:
                return
            low, high = float(flat.min()), float(flat.max())
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        self._octaves[np.unique((flat.view(np.uint32) >> 23) & 0xFF)] = True

    def result(self) -> Extent:
        """Of everything seen."""
        seen = np.flatnonzero(self._octaves)
        gaps = np.flatnonzero(np.diff(seen, prepend=0) > _EMPTY_OCTAVES)
        below = seen[gaps[-1] - 1] if gaps.size and gaps[-1] else 0
        inner = float(np.ldexp(1.0, int(below) - 126)) if below else 0.0
        smallest = float(np.ldexp(1.0, int(seen[seen > 0][0]) - 127)) if (seen > 0).any() else np.inf
        return Extent(self._minimum, self._maximum, self._infinite, self._number, inner, smallest)


def extent_of(array: np.ndarray) -> Extent:
    """That of a constant."""
    seen = Extents()
    if array.size:
        seen.update(array, 1)
    return seen.result()
