"""Arrays that the moments solver computes with: NumPy's on the CPU, torch's on a GPU.

NumPy stays on the CPU because torch takes a second and 200 MB to load, and computes no faster there. Matrix products of
NumPy run on threads of our own, which wait without spinning: the BLAS beside NumPy keeps its threads busy while they
wait for one another, so that beside other work on the same cores half of their time is lost, and twice the CPU time is
spent. Here a large product is cut into pieces, each of which one thread computes with a BLAS that is told to use one
(``worker.memory``). How it is cut follows from its shape alone, so that the same product has the same bits on any
number of threads.
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

# numpy.ndarray or torch.Tensor; a type that is either would fit neither's operators.
Array = Any
Function = Callable[..., Any]

# Products of fewer multiplications are not worth handing over.
_WORTH_MULTIPLICATIONS = 1e7
# A piece has so many rows, columns or groups at least, and there are so many pieces at most.
_LEAST_ROWS, _MOST_PIECES = 32, 16


@dataclass(frozen=True)
class Arrays:
    """What the solver asks of a library of arrays.

    Attributes:
        lib: the library, for functions that are called alike in NumPy and torch and are given positional arguments
            beside ``out``: ``lib.clip``, ``lib.linalg.inv``.
        matmul: of matrices, or of two stacks of them; may be given ``out``.
        of: a NumPy array as one of the library's, float32; nobody may write into it, it may share memory.
        numpy: the inverse of ``of``, for every type.
        session: what computations run within.
        copy: in C order.
        contiguous: the array itself, or a copy in C order if it has another.
        single: as float32; the array itself if it is.
        double: as float64.
        diagonal: of [groups, k, k], a view [groups, k].
        copy_where: (target, source, mask) writes source into target where mask is true.
        take_first: (array, indices) takes along the first axis.
        rint: to the nearest integer, halves to even; may be given ``out``.
        dot: the sum of the products of all elements.
        row_dots: the sums of the products along the last axis, in float64.
        singular: what ``lib.linalg`` raises for a matrix that it cannot invert or take apart.
    """

    lib: Any
    matmul: Function
    of: Function
    numpy: Function
    session: Callable[[], AbstractContextManager[object]]
    copy: Function
    contiguous: Function
    single: Function
    double: Function
    diagonal: Function
    copy_where: Function
    take_first: Function
    rint: Function
    dot: Function
    row_dots: Function
    singular: type[Exception]


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

    from worker.quantizer.autodiff.device import as_tensor, repeatable

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
