"""Arrays that the moments solver computes with: NumPy's on the CPU, torch's on a GPU.

NumPy stays on the CPU because torch takes a second and 200 MB to load, and computes no faster there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.quantizer.finetune.moments import products

# numpy.ndarray or torch.Tensor; a type that is either would fit neither's operators.
Array = Any
Function = Callable[..., Any]


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


def _itself(array: np.ndarray) -> np.ndarray:
    return array


NUMPY = Arrays(
    lib=np,
    matmul=products.matmul,
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
