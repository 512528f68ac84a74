"""Grids of small floats and block formats: what a tensor is rounded to without integers and zero points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.quantizer.numerics.emission import fake


@dataclass(frozen=True)
class RoundedGrid:
    """A float or block type that values are rounded to.

    Attributes:
        dtype: a float or block type of the contract.
        axis: block axis; for 8-bit floats the channel axis of ``scale``; else None.
        scale: 8-bit floats only: float32 > 0, shape [] or [channels].
    """

    dtype: str
    axis: int | None = None
    scale: np.ndarray | None = None

    def fake(self, values: np.ndarray) -> np.ndarray:
        """``values`` as the type represents them: float32, same shape."""
        return fake(values, self.dtype, self.axis, self.scale)

    def at_run_time(self) -> RoundedGrid:
        """The grid as the emitted model rounds to it: the same."""
        return self
