"""Which channel space every element of a tensor belongs to: arrays of space numbers, as small as they can be."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

# Elements of a tensor without its batch up to which a Reshape is followed element by element.
_LARGEST_RESHAPE = 1 << 22


def varies_beside(channels: np.ndarray, axis: int) -> bool:
    """True if variables differ along another axis than ``axis``."""
    return any(size > 1 for k, size in enumerate(channels.shape) if k != axis)


def lifted(channels: np.ndarray, rank: int) -> np.ndarray:
    """With ones in front, up to ``rank`` axes."""
    return channels.reshape([1] * (rank - channels.ndim) + list(channels.shape))


def compact(channels: np.ndarray) -> np.ndarray:
    """With one variable along every axis on which all are equal."""
    for axis in range(channels.ndim):
        first = channels.take([0], axis)
        if channels.shape[axis] > 1 and (channels == first).all():
            channels = first
    return channels


def reshaped(channels: np.ndarray, before: ir.Value, after: ir.Value) -> np.ndarray | None:
    """As a Reshape of ``before`` to ``after`` leaves them; None if its shapes are not known well enough."""
    if before.shape is None or after.shape is None:
        return None
    old, new = list(before.shape.dims), list(after.shape.dims)
    lead = 0
    while lead < min(len(old), len(new)) and old[lead] == new[lead] and channels.shape[lead] == 1:
        dim = old[lead]
        if not isinstance(dim, int) and dim.value is None:
            break
        lead += 1
    if lead == 0 and channels.shape[0] == 1 and not isinstance(old[0], int):
        lead = 1  # a batch of unknown size stays in front if what follows it fits
    inner = (static_shape_of(old[lead:]), static_shape_of(new[lead:]))
    if inner[0] is None or inner[1] is None or math.prod(inner[0]) != math.prod(inner[1]):
        return None
    if math.prod(inner[0]) > _LARGEST_RESHAPE:
        return None
    spread = np.broadcast_to(channels.reshape(channels.shape[lead:]), inner[0])
    return compact(spread.reshape([1] * lead + list(inner[1])))


def static_shape_of(dims: list[int | ir.SymbolicDim]) -> tuple[int, ...] | None:
    """The lengths if all are known."""
    known = [dim for dim in dims if isinstance(dim, int)]
    return tuple(known) if len(known) == len(dims) else None
