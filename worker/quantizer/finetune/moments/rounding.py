"""Integers that minimize a quadratic error: E ||V x - t||^2 over V = step * z, z integer within limits.

With second moments A = E[x x^T] and C = E[t x^T] the error is tr(V A V^T) - 2 tr(V C^T) + const, for every group of a
layer. All outputs of all groups are treated at once: they share A, and each has its own row of V.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from worker.quantizer.finetune.moments.arrays import NUMPY, Array, Arrays

# Columns whose effects on each other are followed one by one; on all others they act as one matrix product.
_BLOCK = 48


@dataclass(frozen=True)
class SecondMoments:
    """Second moments of a layer.

    Attributes:
        inputs: A, float32 [groups, inputs, inputs].
        cross: C, float32 [groups, outputs, inputs].
    """

    inputs: Array
    cross: Array


@dataclass(frozen=True)
class Lattice:
    """Values that a layer's weights can take: step * z with low <= z <= high.

    All arrays are float32 and broadcast to [groups, outputs, inputs]; z counts from the zero point. Whatever is
    computed on a lattice is computed with its ``arrays``.
    """

    step: Array
    low: Array
    high: Array
    arrays: Arrays = NUMPY

    def on(self, arrays: Arrays) -> Lattice:
        """A lattice of NumPy as one of ``arrays``."""
        return Lattice(arrays.of(self.step), arrays.of(self.low), arrays.of(self.high), arrays)

    def nearest(self, values: Array) -> Array:
        """The z nearest to ``values``."""
        return self.arrays.lib.clip(self.arrays.rint(values / self.step), self.low, self.high)


def descend(
    z: Array, lattice: Lattice, moments: SecondMoments, *, sweeps: int, check: Callable[[], None] = lambda: None
) -> Array:
    """Coordinate descent: sets one input of all outputs after the other to its best value, until nothing changes.

    The error never rises.

    Args:
        z: start, float32 [groups, outputs, inputs].
        lattice: where z may go.
        moments: of the error.
        sweeps: over all inputs, at most.
        check: called now and then; may raise.
    """
    xp, layout = lattice.arrays, _ColumnLayout(lattice, z.shape)
    z = layout.columns(z)
    cross = layout.columns(moments.cross)
    diagonal = xp.diagonal(moments.inputs)
    safe = xp.lib.where(diagonal > 0, diagonal, float("inf"))
    divisor = safe[:, :, None] * layout.step
    for _ in range(sweeps):
        gradient = xp.matmul(moments.inputs, z * layout.step)
        gradient -= cross
        changed = False
        for block in _blocks(z.shape[1]):
            check()
            parts = (z, divisor, layout.step, layout.low, layout.high, gradient)
            now, size, step, low, high, slope = (layout.rows_first(array[:, block]) for array in parts)
            inputs = layout.rows_first(moments.inputs[:, block, block])
            moved = _settle(xp, now, size, step, low, high, slope, inputs)
            if moved.any():
                changed = True
                z[:, block] = xp.lib.moveaxis(now, 0, 1)
                rest = slice(block.stop, None)
                gradient[:, rest] += xp.matmul(moments.inputs[:, rest, block], xp.lib.moveaxis(moved, 0, 1))
        if not changed:
            break
    return layout.matrix(z)


def _settle(
    xp: Arrays, z: Array, divisor: Array, step: Array, low: Array, high: Array, gradient: Array, inputs: Array
) -> Array:
    """One sweep over the columns of a block; ``z`` and ``gradient`` [columns, groups, outputs] are changed in place.

    Returns:
        By how much each value has moved.
    """
    moved = xp.lib.empty_like(z)
    last = len(z) - 1
    for k in range(len(z)):
        best = gradient[k] / divisor[k]
        xp.lib.subtract(z[k], best, out=best)
        xp.rint(best, out=best)
        xp.lib.maximum(best, low[k], out=best)
        xp.lib.minimum(best, high[k], out=best)
        xp.lib.subtract(best, z[k], out=moved[k])
        moved[k] *= step[k]
        z[k] = best
        if k < last:
            gradient[k + 1 :] += inputs[k][:, k + 1 :].T[:, :, None] * moved[k]
    return moved


class _ColumnLayout:
    """A lattice in the order in which columns are visited: [groups, inputs, outputs]."""

    def __init__(self, lattice: Lattice, shape: tuple[int, ...]) -> None:
        self._arrays = lattice.arrays
        self.step, self.low, self.high = (
            self.columns(lattice.arrays.lib.broadcast_to(array, shape))
            for array in (lattice.step, lattice.low, lattice.high)
        )

    def columns(self, matrix: Array) -> Array:
        """[groups, outputs, inputs] as [groups, inputs, outputs]; a copy."""
        return self._arrays.copy(self._arrays.lib.swapaxes(matrix, 1, 2))

    def matrix(self, columns: Array) -> Array:
        """The inverse of ``columns``."""
        return self._arrays.contiguous(self._arrays.lib.swapaxes(columns, 1, 2))

    def rows_first(self, array: Array) -> Array:
        """[groups, columns, ...] as [columns, groups, ...]; a copy only where there are several groups."""
        return self._arrays.contiguous(self._arrays.lib.moveaxis(array, 1, 0))


def round_by_gptq(values: Array, lattice: Lattice, inputs: Array) -> Array:
    """Round one input after the other and let all later ones make up for its error, as far as the reals can.

    Frantar et al. 2022, GPTQ, equations 2 and 3, with the inverse's Cholesky factor.

    Args:
        values: of the least error, float32 [groups, outputs, inputs].
        lattice: where they go.
        inputs: A, regular.

    Returns:
        z, float32.
    """
    xp, layout = lattice.arrays, _ColumnLayout(lattice, values.shape)
    factor = _inverse_factor(xp, inputs)
    left = layout.columns(xp.single(values))
    z = xp.lib.empty_like(left)
    for block in _blocks(left.shape[1]):
        parts = (left, layout.step, layout.low, layout.high)
        now, step, low, high = (layout.rows_first(array[:, block]) for array in parts)
        rows = layout.rows_first(factor[:, block, block])
        errors = xp.lib.empty_like(now)
        for k in range(len(now)):
            best = xp.lib.clip(xp.rint(now[k] / step[k]), low[k], high[k])
            z[:, block.start + k] = best
            errors[k] = (now[k] - best * step[k]) / rows[k][:, k, None]
            now[k + 1 :] -= rows[k][:, k + 1 :].T[:, :, None] * errors[k]
        rest = slice(block.stop, None)
        left[:, rest] -= xp.matmul(xp.lib.swapaxes(factor[:, block, rest], 1, 2), xp.lib.moveaxis(errors, 0, 1))
    return layout.matrix(z)


def _inverse_factor(xp: Arrays, inputs: Array) -> Array:
    """Upper triangular U with U^T U = A^-1, float32 [groups, inputs, inputs]."""
    inverse = xp.lib.linalg.inv(xp.double(inputs))
    inverse = (inverse + xp.lib.swapaxes(inverse, 1, 2)) / 2
    return xp.single(xp.lib.swapaxes(xp.lib.linalg.cholesky(inverse), 1, 2))


def error(z: Array, lattice: Lattice, moments: SecondMoments) -> Array:
    """The quadratic error without its constant, float64 [groups, outputs]."""
    values = z * lattice.step
    product = lattice.arrays.matmul(values, moments.inputs) - 2 * moments.cross
    return lattice.arrays.row_dots(values, product)


def _blocks(length: int) -> Iterator[slice]:
    for start in range(0, length, _BLOCK):
        yield slice(start, min(start + _BLOCK, length))
