"""Values that are integers times a step, such as pixels: which those of a tensor are, and the grid that holds them all.

A grid that is laid over their range alone need not hold them: behind x / 127.5 - 1 every value lies halfway between two
levels, so that neighbours become one and the error is that of half a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.sampling import Stride

# What 8 bits hold; of a tensor with more values nothing is known.
_MOST_LEVELS = 256
# Two values lie on some lattice always.
_FEWEST_LEVELS = 3
# Values that are looked at.
_LOOKED_AT = 1 << 20
# Rounding of float32 moves a value by less than this part of a step.
_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Lattice:
    """first + k * step for whole numbers k from 0 to ``last``."""

    first: float
    step: float
    last: int

    @property
    def maximum(self) -> float:
        """The largest value."""
        return self.first + self.last * self.step

    def exact_range(self, span: int) -> Range | None:
        """The range of a grid of ``span`` steps that holds 0 and every value exactly; None if there is none.

        Where steps are left over the range goes beyond the values seen: on both sides of 0 alike, or on the one side
        that there is.
        """
        low, high = min(self.first, 0.0), max(self.maximum, 0.0)
        width = (high - low) / self.step
        for parts in range(1, int(span / width + _TOLERANCE) + 1):
            if _is_whole(parts * self.first / self.step):
                break
        else:
            return None
        parts *= int((span / width + _TOLERANCE) / parts)  # the finest: other values may come
        scale = self.step / parts
        spare = span - round(width * parts)
        below = 0 if low == 0.0 else spare if high == 0.0 else (spare + 1) // 2
        bottom = round(low / scale) - below
        return Range(bottom * scale, (bottom + span) * scale)


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) <= _TOLERANCE


class Levels:
    """Observer of the distinct values of a tensor, as long as they are few.

    ``samples`` are those to come.
    """

    def __init__(self, samples: int) -> None:
        self._chosen = Stride(_LOOKED_AT, samples)
        self._levels: np.ndarray | None = np.zeros(0, np.float32)

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch."""
        if self._levels is None:
            return
        taken = self._chosen.take(values.reshape(-1), samples)
        found = np.union1d(self._levels, taken[:_MOST_LEVELS])
        if found.size <= _MOST_LEVELS:
            found = np.union1d(self._levels, taken)
        self._levels = found if found.size <= _MOST_LEVELS and np.isfinite(found).all() else None

    def result(self) -> Lattice | None:
        """Where all values lie on; None if there are many, or they lie on none of few steps."""
        if self._levels is None or self._levels.size < _FEWEST_LEVELS:
            return None
        levels = self._levels.astype(np.float64)
        away = levels - levels[0]
        places = np.rint(away / np.diff(levels).min())
        if places[-1] >= _MOST_LEVELS:
            return None
        step = float(away[-1] / places[-1])
        fits = np.abs(away - places * step).max() <= _TOLERANCE * step
        return Lattice(float(levels[0]), step, int(places[-1])) if fits else None
