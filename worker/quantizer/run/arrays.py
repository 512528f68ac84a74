"""Named arrays as bytes, without pickles: what checkpoints are made of.

First the length of a head, 8 bytes, little endian; then the head, JSON with [name, dtype, shape] of each array; then
the bytes of the arrays.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

_LENGTH_BYTES = 8
# Plain numbers: what any numpy reads back as it was.
_KINDS = "biuf"


def pack(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The inverse of ``unpack``.

    Args:
        arrays: of plain numbers, under any names.

    Raises:
        TypeError: an array is of another kind.
    """
    head = []
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"{name}: arrays of {array.dtype} cannot be kept")
        head.append([name, array.dtype.str, list(array.shape)])
    words = json.dumps(head).encode()
    parts = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays.values())
    return b"".join((len(words).to_bytes(_LENGTH_BYTES, "little"), words, *parts))


def unpack(data: bytes) -> Arrays:
    """Arrays that can be written to, from what ``pack`` made of them.

    Raises:
        ValueError: these are other bytes.
    """
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    arrays: Arrays = {}
    try:
        for name, word, shape in json.loads(data[_LENGTH_BYTES:start]):
            dtype = np.dtype(word)
            if dtype.kind not in _KINDS:
                raise ValueError(f"an array of {dtype}")
            found = np.frombuffer(data, dtype, math.prod(shape), start)
            arrays[name] = found.reshape(shape).copy()
            start += found.nbytes
    except (TypeError, KeyError) as error:
        raise ValueError(f"no packed arrays: {error}") from error
    if start != len(data):
        raise ValueError("no packed arrays: the length is another one")
    return arrays
