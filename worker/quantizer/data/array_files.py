"""Datasets of arrays as hostile input: the form of a file, .npz by its headers, .safetensors by blocks."""

from __future__ import annotations

import ast
import json
import math
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from service.contracts.dataset import FileFormat
from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.media.archives import BLOCK_BYTES, GZIP_MAGIC, gzip_head, holds_media, looks_like_tar
from worker.quantizer.data.stored import StoredArray, array_fault, cut_short
from worker.quantizer.data.zips import DEFAULT_MAX_TOTAL_BYTES, ZipMember, ZipRules, read_members

# Reads .safetensors files by blocks of samples.
#
# The header is a JSON object behind an 8-byte length. Plain reads of blocks, not a mapping of the file, keep the
# resident memory of a job independent of the file's size.

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
        return {name: _tensor(path, start, size, name, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetFormatError(
            f"the .safetensors header is damaged: {error}",
            hint="Write the file again with safetensors.numpy.save_file.",
        ) from None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _tensor(path: Path, start: int, size: int, name: str, entry: dict[str, Any]) -> StoredArray:
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
        raise ValueError(f"array {name!r} declares {entry['dtype']}{list(shape)} but contains {end - begin} bytes")
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


_HINT = (
    "Use an .npz file (numpy.savez) or a .safetensors file with one array per model input, or a .tar, .tar.gz or "
    ".zip of pictures or sounds."
)


def detect_format(path: Path) -> FileFormat:
    """Tell the format by the first bytes, and a zip archive's by what it lists.

    Raises:
        DatasetFormatError: missing, empty, or no known format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(BLOCK_BYTES)
    except OSError as error:
        raise DatasetFormatError(f"the dataset cannot be read: {error.strerror}", hint=_HINT) from None
    if not head:
        raise DatasetFormatError("the dataset file is empty", hint=_HINT)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip" if holds_media(path) else "npz"
    if looks_like_safetensors(head, size):
        return "safetensors"
    if looks_like_tar(head):
        return "tar"
    if head[:2] == GZIP_MAGIC:
        if looks_like_tar(gzip_head(path)):
            return "tar.gz"
        raise DatasetFormatError("the file is packed by gzip, and no tar archive is in it", hint=_HINT)
    if head[:6] == b"\x93NUMPY":
        raise DatasetFormatError("the file is a single .npy array, not an .npz archive", hint=_HINT)
    if head[:1] == b"\x80":
        raise DatasetFormatError("the file is a Python pickle, which is never loaded", hint=_HINT)
    raise DatasetFormatError(
        (
            "the file is neither an .npz archive, nor a .safetensors file, nor a .tar, .tar.gz or .zip "
            "archive, or it is truncated"
        ),
        hint=_HINT,
    )


# Reads .npz archives as hostile input: arrays are found by their headers, and streamed.
#
# A header (dtype, shape, order) is parsed as a literal; nothing is ever unpickled.

# A header of a plain array takes 128 bytes; versions 2 and 3 of the format allow 4 GiB.
_MAX_NPY_HEADER_BYTES = 16 << 10
_PREFIX = b"\x93NUMPY"
_MAX_RANK = 32


@dataclass(frozen=True)
class _NpyHeader:
    """What an .npy header says; ``size_bytes`` is the header's own length."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    size_bytes: int

    @property
    def data_bytes(self) -> int:
        """Bytes that the elements take."""
        return self.dtype.itemsize * math.prod(self.shape)


def _parse_header(head: bytes, name: str) -> _NpyHeader:
    """Parse the first bytes of an .npy file.

    Args:
        head: the first bytes; _MAX_HEADER_BYTES always suffice.
        name: array name for error messages.

    Raises:
        DatasetFormatError: no .npy header, one that is too long, or a shape that cannot be.
    """
    try:
        fields, size_bytes = _fields(head)
        dtype = np.dtype(fields["descr"])
        shape, fortran_order = fields["shape"], fields["fortran_order"]
        if not isinstance(shape, tuple) or not all(type(axis) is int for axis in shape):
            raise ValueError("the shape is not a tuple of integers")  # noqa: TRY301 - all told below
    except (ValueError, TypeError, KeyError, SyntaxError, RecursionError, MemoryError, struct.error) as error:
        hint = "Write the file with numpy.savez and plain numeric arrays."
        raise array_fault(DatasetFormatError, name, f"has no usable .npy header: {error}", hint=hint) from None
    if len(shape) > _MAX_RANK or any(not 0 <= axis < 1 << 48 for axis in shape):
        raise array_fault(DatasetFormatError, name, f"has an impossible shape {shape}")
    return _NpyHeader(dtype, shape, bool(fortran_order), size_bytes)


def _fields(head: bytes) -> tuple[dict[str, Any], int]:
    """The header's fields and its length."""
    if not head.startswith(_PREFIX):
        raise ValueError("it does not begin as an .npy file")
    major = head[6] if len(head) > 6 else 0
    if major not in (1, 2, 3):
        raise ValueError(f"format version {major} is unknown")
    at, encoding = (10, "latin1") if major == 1 else (12, "utf8" if major == 3 else "latin1")
    (length,) = struct.unpack_from("<H" if major == 1 else "<L", head, 8)
    if at + length > _MAX_NPY_HEADER_BYTES or at + length > len(head):
        raise ValueError(f"{length} bytes of header are truncated or too many")
    fields = ast.literal_eval(head[at : at + length].decode(encoding).strip())
    if not isinstance(fields, dict):
        raise ValueError("it contains no fields")  # noqa: TRY004 - the bytes are wrong, not a caller
    return fields, at + length


ARRAYS = ZipRules(
    holds_arrays=True,
    max_members=10_000,
    again="Write the file again with numpy.savez or numpy.savez_compressed.",
    fewer="Store one array per model input, with all samples along the first axis; images as uint8; more samples of "
    "different shapes than these in a .safetensors file.",
)


def read_npz(path: Path, *, max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES) -> dict[str, StoredArray]:
    """List the arrays of an .npz file by name; reads headers only.

    Args:
        path: the file.
        max_total_bytes: largest sum of the members' unpacked sizes.

    Raises:
        DatasetFormatError: not a zip archive, damaged, or with entries that a plain .npz does not have.
    """
    members = read_members(path, ARRAYS, max_total_bytes=max_total_bytes)
    arrays = [_npy_array(member) for member in members if member.name.endswith(".npy")]
    return {array.name: array for array in arrays}


def _npy_array(member: ZipMember) -> StoredArray:
    name = member.name.removesuffix(".npy")
    with closing(member.open()) as stream:
        head = stream.read(min(_MAX_NPY_HEADER_BYTES, member.size_bytes))
    header = _parse_header(head, name)
    refusal = None
    if header.dtype.hasobject:
        refusal = "contains pickled Python objects, which are never loaded"
    elif header.size_bytes + header.data_bytes != member.size_bytes:
        declared = f"{header.dtype}{list(header.shape)} = {header.data_bytes} bytes"
        why = f"declares {declared}, but contains {member.size_bytes - header.size_bytes}"
        raise array_fault(DatasetFormatError, name, why, hint=ARRAYS.again)
    elif header.fortran_order and sum(axis > 1 for axis in header.shape) > 1:
        refusal = "is stored in Fortran order; save numpy.ascontiguousarray of it"
    source = member._replace(skip_bytes=header.size_bytes)
    return StoredArray(name, header.dtype, header.shape, source, refusal)
