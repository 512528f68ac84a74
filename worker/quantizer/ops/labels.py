"""Labels: which channel every element of a tensor belongs to, as int64 arrays that broadcast to the tensor's shape.

Behind a convolution they are [1, C, 1, 1]: along an axis on which nothing changes an array is 1 long.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of

# Elements of a tensor without its batch up to which a Reshape is followed element by element.
_LARGEST_RESHAPE = 1 << 22


def varies_beside(labels: np.ndarray, axis: int) -> bool:
    """True if labels differ along another axis than ``axis``, which is not negative."""
    return any(size > 1 for k, size in enumerate(labels.shape) if k != axis)


def trimmed(labels: np.ndarray) -> np.ndarray:
    """Without leading axes of length 1."""
    while labels.ndim > 1 and labels.shape[0] == 1:
        labels = labels[0]
    return labels


def lifted(labels: np.ndarray, rank: int) -> np.ndarray:
    """With as many leading axes of length 1 as ``rank`` axes take."""
    short = trimmed(labels)
    return short.reshape([1] * (rank - short.ndim) + (list(short.shape) if rank else []))


def compact(labels: np.ndarray) -> np.ndarray:
    """With length 1 along every axis on which nothing changes."""
    for axis, length in enumerate(labels.shape):
        first = labels.take([0], axis) if length > 1 else labels
        if (labels == first).all():
            labels = first
    return labels


def fits(labels: np.ndarray, value: ir.Value) -> bool:
    """Whether the value has an element of its own for every label."""
    rank = rank_of(value)
    if rank is None or value.shape is None or labels.ndim > rank:
        return False
    lengths = list(value.shape)[rank - labels.ndim :]
    return all(wanted in (1, length) for wanted, length in zip(labels.shape, lengths, strict=True))


def reshaped(labels: np.ndarray, value: ir.Value, other: ir.Value) -> np.ndarray | None:
    """The labels of ``value`` as they lie in ``other``, which holds the same elements in the same order.

    Of both shapes the shortest tails of the same number of elements are compared, so that leading axes may be unknown.
    """
    rank = rank_of(other)
    if value.shape is None or rank is None:
        return None
    if labels.size == 1:
        return lifted(labels, rank)
    short = trimmed(labels)
    for kept in range(short.ndim, len(value.shape) + 1):
        tail = [length for length in list(value.shape)[len(value.shape) - kept :] if isinstance(length, int)]
        if len(tail) < kept or math.prod(tail) > _LARGEST_RESHAPE:
            return None
        lengths = _tail_of(other, math.prod(tail))
        if lengths is not None:
            return lifted(compact(np.broadcast_to(lifted(short, kept), tail).reshape(lengths)), rank)
    return None


def _tail_of(value: ir.Value, elements: int) -> list[int] | None:
    """The last axes of ``value`` that hold ``elements`` elements."""
    lengths: list[int] = []
    found = 1
    for length in reversed(list(value.shape or ())):
        if found == elements and lengths:
            break
        if not isinstance(length, int):
            return None
        lengths.insert(0, length)
        found *= length
    return lengths if found == elements and lengths else None
