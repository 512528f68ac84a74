"""Integers that minimize a quadratic error: E ||V x - t||^2 over V = step * z, z integer within limits.

With second moments A = E[x x^T] and C = E[t x^T] the error is tr(V A V^T) - 2 tr(V C^T) + const, for every group of a
layer. All outputs of all groups are treated at once: they share A, and each has its own row of V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

# Columns whose effects on each other are followed one by one; on all others they act as one matrix product.
_BLOCK = 48


@dataclass(frozen=True)
class Moments:
    """Second moments of a layer.

    Attributes:
        inputs: A, float32 [groups, inputs, inputs].
        cross: C, float32 [groups, outputs, inputs].
    """

    inputs: np.ndarray
    cross: np.ndarray


@dataclass(frozen=True)
class Lattice:
    """Values that a layer's weights can take: step * z with low <= z <= high.

    All arrays are float32 and broadcast to [groups, outputs, inputs]; z counts from the zero point.
    """

    step: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def nearest(self, values: np.ndarray) -> np.ndarray:
        """The z nearest to ``values``."""
        rounded: np.ndarray = np.clip(np.rint(values / self.step), self.low, self.high)
        return rounded


def descend(
    z: np.ndarray, lattice: Lattice, moments: Moments, *, sweeps: int, check: Callable[[], None] = lambda: None
) -> np.ndarray:
    """Coordinate descent: sets one input of all outputs after the other to its best value, until nothing changes.

    The error never rises.

    Args:
        z: start, float32 [groups, outputs, inputs].
        lattice: where z may go.
        moments: of the error.
        sweeps: over all inputs, at most.
        check: called now and then; may raise.
    """
    layout = _Columns(lattice, z.shape)
    z = layout.columns(z)
    cross = layout.columns(moments.cross)
    diagonal = np.einsum("gkk->gk", moments.inputs)
    safe = np.where(diagonal > 0, diagonal, np.float32(np.inf))
    divisor = safe[:, :, None] * layout.step
    for _ in range(sweeps):
        gradient = np.matmul(moments.inputs, z * layout.step)
        gradient -= cross
        changed = False
        for block in _blocks(z.shape[1]):
            check()
            parts = (z, divisor, layout.step, layout.low, layout.high, gradient)
            now, size, step, low, high, slope = (_rows_first(array[:, block]) for array in parts)
            moved = _settle(now, size, step, low, high, slope, _rows_first(moments.inputs[:, block, block]))
            if moved.any():
                changed = True
                z[:, block] = np.moveaxis(now, 0, 1)
                rest = slice(block.stop, None)
                gradient[:, rest] += np.matmul(moments.inputs[:, rest, block], np.moveaxis(moved, 0, 1))
        if not changed:
            break
    return layout.matrix(z)


def _settle(
    z: np.ndarray,
    divisor: np.ndarray,
    step: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    gradient: np.ndarray,
    inputs: np.ndarray,
) -> np.ndarray:
    """One sweep over the columns of a block; ``z`` and ``gradient`` [columns, groups, outputs] are changed in place.

    Returns:
        By how much each value has moved.
    """
    moved = np.empty_like(z)
    last = len(z) - 1
    for k in range(len(z)):
        best = gradient[k] / divisor[k]
        np.subtract(z[k], best, out=best)
        np.rint(best, out=best)
        np.maximum(best, low[k], out=best)
        np.minimum(best, high[k], out=best)
        np.subtract(best, z[k], out=moved[k])
        moved[k] *= step[k]
        z[k] = best
        if k < last:
            gradient[k + 1 :] += inputs[k][:, k + 1 :].T[:, :, None] * moved[k]
    return moved


class _Columns:
    """A lattice in the order in which columns are visited: [groups, inputs, outputs]."""

    def __init__(self, lattice: Lattice, shape: tuple[int, ...]) -> None:
        self.step, self.low, self.high = (
            self.columns(np.broadcast_to(array, shape)) for array in (lattice.step, lattice.low, lattice.high)
        )

    @staticmethod
    def columns(matrix: np.ndarray) -> np.ndarray:
        """[groups, outputs, inputs] as [groups, inputs, outputs]; a copy."""
        return np.array(np.swapaxes(matrix, 1, 2), order="C")

    @staticmethod
    def matrix(columns: np.ndarray) -> np.ndarray:
        """The inverse of ``columns``."""
        return np.ascontiguousarray(np.swapaxes(columns, 1, 2))


def _rows_first(array: np.ndarray) -> np.ndarray:
    """[groups, columns, ...] as [columns, groups, ...]; a copy only where there are several groups."""
    return np.ascontiguousarray(np.moveaxis(array, 1, 0))


def round_in_turn(values: np.ndarray, lattice: Lattice, inputs: np.ndarray) -> np.ndarray:
    """Round one input after the other and let all later ones make up for its error, as far as the reals can.

    Frantar et al. 2022, GPTQ, equations 2 and 3, with the inverse's Cholesky factor.

    Args:
        values: of the least error, float32 [groups, outputs, inputs].
        lattice: where they go.
        inputs: A, regular.

    Returns:
        z, float32.
    """
    factor = _inverse_factor(inputs)
    layout = _Columns(lattice, values.shape)
    left = layout.columns(values.astype(np.float32))
    z = np.empty_like(left)
    for block in _blocks(left.shape[1]):
        now, step, low, high = (_rows_first(array[:, block]) for array in (left, layout.step, layout.low, layout.high))
        rows = _rows_first(factor[:, block, block])
        errors = np.empty_like(now)
        for k in range(len(now)):
            best = np.clip(np.rint(now[k] / step[k]), low[k], high[k])
            z[:, block.start + k] = best
            errors[k] = (now[k] - best * step[k]) / rows[k][:, k, None]
            now[k + 1 :] -= rows[k][:, k + 1 :].T[:, :, None] * errors[k]
        rest = slice(block.stop, None)
        left[:, rest] -= np.matmul(np.swapaxes(factor[:, block, rest], 1, 2), np.moveaxis(errors, 0, 1))
    return layout.matrix(z)


def _inverse_factor(inputs: np.ndarray) -> np.ndarray:
    """Upper triangular U with U^T U = A^-1, float32 [groups, inputs, inputs]."""
    inverse = np.linalg.inv(inputs.astype(np.float64))
    inverse = (inverse + np.swapaxes(inverse, 1, 2)) / 2
    return np.swapaxes(np.linalg.cholesky(inverse), 1, 2).astype(np.float32)


def error(z: np.ndarray, lattice: Lattice, moments: Moments) -> np.ndarray:
    """The quadratic error without its constant, float64 [groups, outputs]."""
    values = z * lattice.step
    product = np.matmul(values, moments.inputs) - 2 * moments.cross
    errors: np.ndarray = np.einsum("gok,gok->go", values, product, dtype=np.float64)
    return errors


def _blocks(length: int) -> Iterator[slice]:
    for start in range(0, length, _BLOCK):
        yield slice(start, min(start + _BLOCK, length))
