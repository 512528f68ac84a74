"""Resizing without antialias: pixels are taken between their neighbours alone, however much a picture shrinks.

As torch.nn.functional.interpolate(mode="bilinear" | "bicubic", align_corners=False) on float32, clamped and rounded to
8 bits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from worker.quantizer.data.stored import Array

# Keys' kernel as torch and OpenCV have it.
_CUBIC_A = -0.75


def resample(picture: Array, height: int, width: int, *, cubic: bool) -> Array:
    """A picture at another size.

    Args:
        picture: uint8 [h, w] or [h, w, channels].
        height: of the result.
        width: of the result.
        cubic: bicubic, else bilinear.

    Returns:
        uint8 [height, width] or [height, width, channels].
    """
    values = picture.astype(np.float32)
    values = _along(values, 1, width, cubic)
    values = _along(values, 0, height, cubic)
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


def _along(values: Array, axis: int, size: int, cubic: bool) -> Array:
    places, weights = _taps(values.shape[axis], size, cubic)
    shape = [1] * values.ndim
    shape[axis] = size
    taps = [np.take(values, places[k], axis) * weights[k].reshape(shape) for k in range(len(places))]
    total: Array = taps[0]
    for tap in taps[1:]:
        total = total + tap
    return total


@lru_cache(maxsize=64)
def _taps(before: int, after: int, cubic: bool) -> tuple[Array, Array]:
    """Places int64 [taps, after] and weights float32 [taps, after] of the pixels that make one."""
    # float32 as torch has it: where a value lies between two levels, the last bits of the places round it
    at = np.float32(before / after) * (np.arange(after, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5)
    if not cubic:
        at = np.maximum(at, np.float32(0))
    first = np.floor(at).astype(np.int64)
    t = at - first.astype(np.float32)
    if cubic:
        places = np.stack([first + k for k in (-1, 0, 1, 2)])
        weights = np.stack([_outer(t + 1), _inner(t), _inner(1 - t), _outer(2 - t)])
    else:
        places, weights = np.stack([first, first + 1]), np.stack([1 - t, t])
    return np.clip(places, 0, before - 1), weights.astype(np.float32)


def _inner(x: Array) -> Array:
    """The kernel for distances up to 1."""
    return ((_CUBIC_A + 2) * x - (_CUBIC_A + 3)) * x * x + 1


def _outer(x: Array) -> Array:
    """The kernel for distances from 1 to 2."""
    return ((_CUBIC_A * x - 5 * _CUBIC_A) * x + 8 * _CUBIC_A) * x - 4 * _CUBIC_A
