"""Elements found and placed by index; negative indices count from the end."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Numbers, Operator, whole_numbers

# Reductions of the scattering operators by torch's names.
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _from_start(indices: Tensor, length: int | Tensor) -> Tensor:
    """Indices as int64, none of them negative."""
    wide = indices.long()
    return torch.where(wide < 0, wide + length, wide)


def _gather(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0) % x.dim()
    index = _from_start(indices, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return functional.embedding(index, x)  # its gradient is the same every time on a GPU, too
    taken = x.index_select(axis, index.reshape(-1))
    return taken.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _gather_elements(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0) % x.dim()
    return torch.gather(x, axis, _from_start(indices, x.shape[axis]))


def _gather_nd(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    batch = attributes.get("batch_dims", 0)
    depth = indices.shape[-1]
    flat = _flat_index(indices, tuple(x.shape[batch : batch + depth]))
    rest = tuple(x.shape[batch + depth :])
    samples, places = prod(x.shape[:batch]), prod(x.shape[batch : batch + depth])
    first = torch.arange(samples, device=x.device).reshape([*x.shape[:batch], *[1] * (flat.dim() - batch)]) * places
    rows = x.reshape(samples * places, *rest)
    return rows.index_select(0, (flat + first).reshape(-1)).reshape([*flat.shape, *rest])


def _flat_index(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Tuples of indices, along the last axis, into axes of these sizes as one index into all of them."""
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for k, size in enumerate(sizes):
        flat = flat * size + _from_start(indices[..., k], size)
    return flat


def _scatter_nd(attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape[-1]
    places = prod(x.shape[:depth])
    index = _flat_index(indices, tuple(x.shape[:depth])).reshape(-1, 1)
    rows, new = x.reshape(places, -1), updates.reshape(len(index), -1)
    return _scattered(rows, 0, index.expand(new.shape), new, attributes.get("reduction", "none")).reshape(x.shape)


def _scatter_elements(attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = attributes.get("axis", 0) % x.dim()
    index = _from_start(indices, x.shape[axis])
    return _scattered(x, axis, index, updates, attributes.get("reduction", "none"))


def _scattered(x: Tensor, axis: int, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return torch.scatter(x, axis, index, updates)
    if reduction == "add":
        return torch.scatter_add(x, axis, index, updates)
    return torch.scatter_reduce(x, axis, index, updates, _REDUCTIONS[reduction])


def _one_hot(attributes: Attributes, indices: Tensor, depth: Numbers, values: Tensor) -> Tensor:
    """``values``: off and on. An index beyond the depth has none on."""
    (count,) = whole_numbers(depth)
    axis = attributes.get("axis", -1)
    axis = axis + indices.dim() + 1 if axis < 0 else axis
    classes = torch.arange(count, device=indices.device).reshape(-1, *[1] * (indices.dim() - axis))
    return torch.where(_from_start(indices, count).unsqueeze(axis) == classes, values[1], values[0])


COMPUTE: dict[str, Operator] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": lambda _, x: torch.nonzero(x.reshape(1) if x.dim() == 0 else x).T,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
STATIC: dict[str, frozenset[int]] = {"OneHot": frozenset({1})}
