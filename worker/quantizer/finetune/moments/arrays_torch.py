"""Arrays of the moments solver that torch holds on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from worker.quantizer.autodiff.device import as_tensor, repeatable
from worker.quantizer.finetune.moments.arrays import Arrays


def torch_arrays(device: torch.device) -> Arrays:
    """``Arrays`` of tensors on ``device``."""
    return Arrays(
        lib=torch,
        matmul=torch.matmul,
        of=lambda array: as_tensor(array, device),
        numpy=_numpy,
        session=_session,
        copy=_copy,
        contiguous=Tensor.contiguous,
        single=Tensor.float,
        double=Tensor.double,
        diagonal=lambda tensor: tensor.diagonal(dim1=1, dim2=2),
        copy_where=_copy_where,
        take_first=lambda tensor, indices: torch.take_along_dim(tensor, indices, dim=0),
        rint=torch.round,
        dot=lambda a, b: torch.dot(a.flatten(), b.flatten()),
        row_dots=_row_dots,
        singular=torch.linalg.LinAlgError,  # type: ignore[attr-defined]
    )


@contextmanager
def _session() -> Iterator[None]:
    # Coordinate descent is many small operations: without the bookkeeping of gradients each starts sooner.
    with torch.inference_mode(), repeatable(torch.get_num_threads()):
        yield


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.cpu().numpy()
    return array


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _copy_where(target: Tensor, source: Tensor, mask: Tensor) -> None:
    torch.where(mask, source, target, out=target)


def _row_dots(a: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("gok,gok->go", a.double(), b.double())
