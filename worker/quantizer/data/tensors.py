"""Reads .safetensors files by blocks of samples.

The header is a JSON object behind an 8-byte length. Plain reads of blocks, not a mapping of the file, keep the resident
memory of a job independent of the file's size.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.stored import StoredArray, cut_short

_MAX_HEADER_BYTES = 16 << 20
_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("bool"),
    "U8": np.dtype("uint8"),
    "I8": np.dtype("int8"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def looks_like_safetensors(head: bytes, size_bytes: int) -> bool:
    """True if the first 9 bytes of a file can begin a .safetensors header."""
    return len(head) >= 9 and head[8:9] == b"{" and struct.unpack("<Q", head[:8])[0] + 8 <= size_bytes


def read_safetensors(path: Path) -> dict[str, StoredArray]:
    """List the arrays of a .safetensors file by name; reads the header only.

    Raises:
        DatasetFormatError: damaged header, or an array whose bytes are not all there.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        if header_bytes > _MAX_HEADER_BYTES:
            raise DatasetFormatError(f"the .safetensors header takes {header_bytes} bytes, at most {_MAX_HEADER_BYTES}")
        raw = file.read(header_bytes)
    start = 8 + header_bytes
    try:
        header = json.loads(raw, object_pairs_hook=_no_duplicates)
        header.pop("__metadata__", None)
        return {name: _array(path, start, size, name, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetFormatError(
            f"the .safetensors header is damaged: {error}",
            hint="Write the file again with safetensors.numpy.save_file and upload it anew.",
        ) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _array(path: Path, start: int, size: int, name: str, entry: dict[str, Any]) -> StoredArray:
    shape = tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in (*shape, begin, end)):
        raise ValueError(f"array {name!r} has an impossible shape or offset")
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        return StoredArray(name, np.dtype("V1"), shape, FileSlice(path, 0, 0), f"has dtype {entry['dtype']}")
    if start + end > size:
        raise cut_short(name, start + end - size)
    if end - begin != dtype.itemsize * math.prod(shape):
        raise ValueError(f"array {name!r} declares {entry['dtype']}{list(shape)} but holds {end - begin} bytes")
    return StoredArray(name, dtype, shape, FileSlice(path, start + begin, end - begin))


@dataclass(frozen=True)
class FileSlice:
    """Plain bytes within a file."""

    path: Path
    offset: int
    size_bytes: int

    def open(self) -> _SliceStream:
        """A stream from the slice's first byte on."""
        return _SliceStream(self)


class _SliceStream:
    def __init__(self, part: FileSlice) -> None:
        self._file = part.path.open("rb", buffering=0)
        self._file.seek(part.offset)
        self._left = part.size_bytes

    def readinto(self, target: memoryview) -> int:
        wanted = min(len(target), self._left)
        done = 0
        while done < wanted:
            got = self._file.readinto(target[done:wanted])
            if not got:
                break
            done += got
        self._left -= done
        return done

    def close(self) -> None:
        self._file.close()
