"""Arrays of channel numbers that broadcast to a tensor's shape: which of its elements belong to which channel."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of


def trimmed(channels: np.ndarray) -> np.ndarray:
    """Without leading axes of length 1."""
    while channels.ndim > 1 and channels.shape[0] == 1:
        channels = channels[0]
    return channels


def lifted(channels: np.ndarray, rank: int) -> np.ndarray:
    """With leading axes of length 1 up to ``rank``."""
    short = trimmed(channels)
    return short.reshape([1] * (rank - short.ndim) + list(short.shape))


def fits(channels: np.ndarray, value: ir.Value) -> bool:
    """Whether the value has an element of its own for every channel."""
    rank = rank_of(value)
    if rank is None or value.shape is None or channels.ndim > rank:
        return False
    lengths = list(value.shape)[rank - channels.ndim :]
    return all(wanted in (1, length) for wanted, length in zip(channels.shape, lengths, strict=True))


def reshaped(channels: np.ndarray, after: ir.Value, before: ir.Value) -> np.ndarray | None:
    """The channels of ``after`` as they lie in ``before``, which holds the same elements in the same order.

    Of both shapes the shortest tails of the same number of elements are compared, so that leading axes may be unknown.
    """
    if after.shape is None or before.shape is None:
        return None
    short = trimmed(channels)
    for kept in range(short.ndim, len(after.shape) + 1):
        last = list(after.shape)[len(after.shape) - kept :]
        tail = [length for length in last if isinstance(length, int)]
        if len(tail) < kept:
            return None
        other = _tail_of(before, math.prod(tail))
        if other is not None:
            return _compact(np.broadcast_to(lifted(short, kept), tail).reshape(other))
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


def _compact(channels: np.ndarray) -> np.ndarray:
    """Axes along which nothing changes become axes of length 1."""
    for axis, length in enumerate(channels.shape):
        first = channels.take([0], axis)
        if length > 1 and (channels == first).all():
            channels = first
    return channels
