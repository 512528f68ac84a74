"""How far the two ways to run a model are apart, beside how far each is from the float model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.written.child import Arrays

# Nearer to one another than this, no user can tell the two apart.
_ALIKE_DB = 60.0
# Rounding moves both ways alike far from the float model, whatever it does to single values.
_EVEN_DB, _SLIGHT_DB = 2.0, 6.0
# Of integers, what rounding may turn.
_OTHER_INTEGERS = 0.02
# Of a tensor's own grid. An integer kernel rounds what falls between two steps to the other one, and a network hands
# that on; a kernel that computes something else is off by more.
_MEAN_STEPS, _MOST_STEPS = 1.0, 8.0
_FLOATS_DB = 25.0


@dataclass(frozen=True)
class Apart:
    """An output that the two ways give otherwise."""

    output: str  # its name
    optimized: str  # how far it is from the float model with the runtime's optimizations, in words
    plain: str  # likewise without
    optimized_db: float | None = None  # the same as SQNR in dB; None: there is none
    plain_db: float | None = None  # likewise

    @property
    def is_slight(self) -> bool:
        """True if both ways are nearly as far from the float model."""
        if self.optimized_db is None or self.plain_db is None:
            return False
        return abs(self.optimized_db - self.plain_db) <= _SLIGHT_DB


def outputs_apart(float_: Arrays, optimized: Arrays, plain: Arrays) -> Apart | None:
    """The first output that differs by more than rounding explains; None if there is none.

    Args:
        float_: what the float model gives, sample by sample.
        optimized: the quantized one with the runtime's optimizations.
        plain: without.
    """
    for name in plain[0]:
        series = [[sample[name] for sample in way] for way in (float_, optimized, plain)]
        found = _apart(name, *series)
        if found is not None:
            return found
    return None


def no_longer_finite(float_: Arrays, optimized: Arrays) -> str | None:
    """The first output that is NaN or Inf where it is finite in the float model; None if there is none."""
    for expected, got in zip(float_, optimized, strict=True):
        for name, array in expected.items():
            if array.shape == got[name].shape and (np.isfinite(array) & ~np.isfinite(got[name])).any():
                return name
    return None


def tensor_apart(optimized: Arrays, plain: Arrays, name: str, grid: Grid | None) -> bool:
    """True if a tensor inside differs by more than rounding explains.

    Args:
        optimized: sample by sample.
        plain: likewise.
        name: of the tensor.
        grid: that it lies on; None: on none that is known.
    """
    one = np.concatenate([sample[name].ravel() for sample in optimized]).astype(np.float64)
    other = np.concatenate([sample[name].ravel() for sample in plain]).astype(np.float64)
    if one.shape != other.shape or (np.isfinite(one) != np.isfinite(other)).any():
        return True
    finite = np.isfinite(one)
    difference = np.abs(one - other)[finite]
    if not difference.size:
        return False
    if isinstance(grid, IntegerGrid) and np.size(grid.scale) == 1:
        steps = difference / float(np.asarray(grid.scale).reshape(-1)[0])
        return bool(np.sqrt(np.mean(steps**2)) > _MEAN_STEPS or steps.max() > _MOST_STEPS)
    found = _sqnr_db(one[finite], other[finite])
    return found is not None and found < _FLOATS_DB


def _apart(name: str, float_: list[np.ndarray], optimized: list[np.ndarray], plain: list[np.ndarray]) -> Apart | None:
    shapes = [[array.shape for array in way] for way in (optimized, plain)]
    if shapes[0] != shapes[1]:
        return Apart(name, f"shape {list(shapes[0][0])}", f"shape {list(shapes[1][0])}")
    fits = [array.shape for array in float_] == shapes[1]
    one, other = (np.concatenate([array.ravel() for array in way]) for way in (optimized, plain))
    reference = np.concatenate([array.ravel() for array in float_]) if fits else other
    if one.dtype.kind != "f":
        turned = [float((way != reference).mean()) if way.size else 0.0 for way in (one, other)]
        if abs(turned[0] - turned[1]) <= _OTHER_INTEGERS:
            return None
        return Apart(name, *_both("{:.1%} of its values are others", turned))
    if (np.isfinite(one) != np.isfinite(other)).any():
        counts = [int((~np.isfinite(way)).sum()) for way in (one, other)]
        return Apart(name, *_both("{} values are not finite", counts))
    kept = np.isfinite(one) & np.isfinite(reference)
    apart_db = _sqnr_db(other[kept], one[kept])
    far = [_sqnr_db(reference[kept], way[kept]) for way in (one, other)]
    if apart_db is None or far[0] is None or far[1] is None:
        return None
    if apart_db >= _ALIKE_DB or abs(far[0] - far[1]) <= _EVEN_DB:
        return None
    return Apart(name, f"{far[0]:.1f} dB", f"{far[1]:.1f} dB", far[0], far[1])


def _both(words: str, figures: Sequence[float]) -> tuple[str, str]:
    """The words with each of two figures."""
    one, other = (words.format(figure) for figure in figures)
    return one, other


def _sqnr_db(reference: np.ndarray, twin: np.ndarray) -> float | None:
    distance = Distance()
    distance.update(reference.astype(np.float64), twin.astype(np.float64))
    return distance.sqnr_db
