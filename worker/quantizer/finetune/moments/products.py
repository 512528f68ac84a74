"""Matrix products on threads of our own, which wait without spinning.

The BLAS beside NumPy keeps its threads busy while they wait for one another: beside other work on the same cores half
of their time is lost, and twice the CPU time is spent. Here a large product is cut into pieces, each of which one
thread computes with a BLAS that is told to use one (``worker.threads``). How it is cut follows from its shape alone, so
that the same product has the same bits on any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from service.cores import available_cores

# Products of fewer multiplications are not worth handing over.
_WORTH_MULTIPLICATIONS = 1e7
# A piece has so many rows, columns or groups at least, and there are so many pieces at most.
_LEAST_ROWS, _MOST_PIECES = 32, 16


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
