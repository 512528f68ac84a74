"""Integers that minimize E ||V x - t||^2 over V = step * z, z integer within limits; in NumPy or torch.

With second moments A = E[x x^T] and C = E[t x^T] the error is tr(V A V^T) - 2 tr(V C^T) + const, for every group of a
layer. All outputs of all groups are treated at once: they share A, and each has its own row of V.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from service.cores import available_cores

if TYPE_CHECKING:
    import torch


# Arrays that the moments solver computes with: NumPy's on the CPU, torch's on a GPU.
#
# NumPy stays on the CPU because torch takes a second and 200 MB to load, and computes no faster there. Matrix products
# of NumPy run on threads of our own, which wait without spinning: the BLAS beside NumPy keeps its threads busy while
# they wait for one another, so that beside other work on the same cores half of their time is lost, and twice the CPU
# time is spent. Here a large product is cut into pieces, each of which one thread computes with a BLAS that is told to
# use one (``worker.memory``). How it is cut follows from its shape alone, so that the same product has the same bits on
# any number of threads.

# numpy.ndarray or torch.Tensor; a type that is either would fit neither's operators.
Array = Any
Function = Callable[..., Any]
# Products of fewer multiplications are not worth handing over.
_WORTH_MULTIPLICATIONS = 1e7
# A piece has so many rows, columns or groups at least, and there are so many pieces at most.
_LEAST_ROWS, _MOST_PIECES = 32, 16


@dataclass(frozen=True)
class Arrays:
    """What the solver asks of a library of arrays."""

    # the library, for functions that are called alike in NumPy and torch and are given positional arguments beside
    # ``out``: ``lib.clip``, ``lib.linalg.inv``
    lib: Any
    matmul: Function  # of matrices, or of two stacks of them; may be given ``out``
    of: Function  # a NumPy array as one of the library's, float32; nobody may write into it, it may share memory
    numpy: Function  # the inverse of ``of``, for every type
    session: Callable[[], AbstractContextManager[object]]  # what computations run within
    copy: Function  # in C order
    contiguous: Function  # the array itself, or a copy in C order if it has another
    single: Function  # as float32; the array itself if it is
    double: Function  # as float64
    diagonal: Function  # of [groups, k, k], a view [groups, k]
    copy_where: Function  # (target, source, mask) writes source into target where mask is true
    take_first: Function  # (array, indices) takes along the first axis
    rint: Function  # to the nearest integer, halves to even; may be given ``out``
    dot: Function  # the sum of the products of all elements
    row_dots: Function  # the sums of the products along the last axis, in float64
    singular: type[Exception]  # what ``lib.linalg`` raises for a matrix that it cannot invert or take apart


def matmul(a: np.ndarray, b: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """``numpy.matmul`` of matrices [rows, inner] and [inner, columns], or of two stacks of so many groups of them."""
    stacked = a.ndim == 3 and b.ndim == 3 and len(a) == len(b)
    work = float(a.size) * b.shape[-1]
    if not (stacked or a.ndim == b.ndim == 2) or work < _WORTH_MULTIPLICATIONS or a.dtype != b.dtype:
        return np.matmul(a, b) if out is None else np.matmul(a, b, out=out)
    whole: np.ndarray = np.empty((*a.shape[:-1], b.shape[-1]), a.dtype) if out is None else out
    if stacked and len(a) > 1:
        jobs = [(a[part], b[part], whole[part]) for part in _pieces(len(a), 1)]
    elif a.shape[-2] >= b.shape[-1]:
        jobs = [(a[..., part, :], b, whole[..., part, :]) for part in _pieces(a.shape[-2], _LEAST_ROWS)]
    else:
        jobs = [(a, b[..., part], whole[..., part]) for part in _pieces(b.shape[-1], _LEAST_ROWS)]
    for _ in _pool().map(lambda job: np.matmul(job[0], job[1], out=job[2]), jobs):
        pass
    return whole


def _pieces(length: int, least: int) -> Iterator[slice]:
    """Slices of one size, but for the last."""
    size = max(least, -(-length // _MOST_PIECES))
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """As many threads as the process may use; in a container that is what its quota allows."""
    told, cores = os.environ.get("OMP_NUM_THREADS", ""), available_cores()
    return ThreadPoolExecutor(min(int(told), cores) if told.isdecimal() and int(told) else cores, "products")


def _itself(array: np.ndarray) -> np.ndarray:
    return array


NUMPY = Arrays(
    lib=np,
    matmul=matmul,
    of=_itself,
    numpy=_itself,
    session=nullcontext,
    copy=np.ndarray.copy,
    contiguous=np.ascontiguousarray,
    single=lambda array: array.astype(np.float32, copy=False),
    double=lambda array: array.astype(np.float64),
    diagonal=lambda array: np.einsum("gkk->gk", array),  # unlike numpy.diagonal's it can be written into
    copy_where=lambda target, source, mask: np.copyto(target, source, where=mask),
    take_first=lambda array, indices: np.take_along_axis(array, indices, axis=0),
    rint=np.rint,
    dot=np.vdot,
    row_dots=lambda a, b: np.einsum("gok,gok->go", a, b, dtype=np.float64),
    singular=np.linalg.LinAlgError,
)


def torch_arrays(device: torch.device) -> Arrays:
    """``Arrays`` of tensors on ``device``."""
    import torch  # takes a second, and few runs need it
    from torch import Tensor

    from worker.quantizer.autodiff.program import as_tensor, repeatable

    @contextmanager
    def session() -> Iterator[None]:
        # Coordinate descent is many small operations: without the bookkeeping of gradients each starts sooner.
        with torch.inference_mode(), repeatable(torch.get_num_threads()):
            yield

    return Arrays(
        lib=torch,
        matmul=torch.matmul,
        of=lambda array: as_tensor(array, device),
        numpy=lambda tensor: tensor.cpu().numpy(),
        session=session,
        copy=lambda tensor: tensor.clone(memory_format=torch.contiguous_format),
        contiguous=Tensor.contiguous,
        single=Tensor.float,
        double=Tensor.double,
        diagonal=lambda tensor: tensor.diagonal(dim1=1, dim2=2),
        copy_where=lambda target, source, mask: torch.where(mask, source, target, out=target),
        take_first=lambda tensor, indices: torch.take_along_dim(tensor, indices, dim=0),
        rint=torch.round,
        dot=lambda a, b: torch.dot(a.flatten(), b.flatten()),
        row_dots=lambda a, b: torch.einsum("gok,gok->go", a.double(), b.double()),
        singular=torch.linalg.LinAlgError,  # type: ignore[attr-defined]
    )


# Columns whose effects on each other are followed one by one; on all others they act as one matrix product.
_BLOCK = 48


@dataclass(frozen=True)
class SecondMoments:
    """Second moments of a layer."""

    inputs: Array  # A, float32 [groups, inputs, inputs]
    cross: Array  # C, float32 [groups, outputs, inputs]


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

    It starts from ``z``, float32 [groups, outputs, inputs], and sweeps over all inputs ``sweeps`` times at most.
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

    Returns by how much each value has moved.
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
