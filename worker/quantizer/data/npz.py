"""Reads .npz archives as hostile input: arrays are found by their headers, and streamed.

A header (dtype, shape, order) is parsed as a literal; nothing is ever unpickled.
"""

from __future__ import annotations

import ast
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.stored import StoredArray, array_fault
from worker.quantizer.data.zips import DEFAULT_MAX_TOTAL_BYTES, ZipMember, ZipRules, read_members

# A header of a plain array takes 128 bytes; versions 2 and 3 of the format allow 4 GiB.
_MAX_HEADER_BYTES = 16 << 10
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
    if at + length > _MAX_HEADER_BYTES or at + length > len(head):
        raise ValueError(f"{length} bytes of header are cut short or too many")
    fields = ast.literal_eval(head[at : at + length].decode(encoding).strip())
    if not isinstance(fields, dict):
        raise ValueError("it holds no fields")  # noqa: TRY004 - the bytes are wrong, not a caller
    return fields, at + length


ARRAYS = ZipRules(
    holds_arrays=True,
    max_members=10_000,
    again="Write the file again with numpy.savez or numpy.savez_compressed and upload it anew.",
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
    arrays = [_array(member) for member in members if member.name.endswith(".npy")]
    return {array.name: array for array in arrays}


def _array(member: ZipMember) -> StoredArray:
    name = member.name.removesuffix(".npy")
    stream = member.open()
    try:
        head = stream.read(min(_MAX_HEADER_BYTES, member.size_bytes))
    finally:
        stream.close()
    header = _parse_header(head, name)
    refusal = None
    if header.dtype.hasobject:
        refusal = "holds pickled Python objects, which are never loaded"
    elif header.size_bytes + header.data_bytes != member.size_bytes:
        declared = f"{header.dtype}{list(header.shape)} = {header.data_bytes} bytes"
        why = f"declares {declared}, but holds {member.size_bytes - header.size_bytes}"
        raise array_fault(DatasetFormatError, name, why, hint=ARRAYS.again)
    elif header.fortran_order and sum(axis > 1 for axis in header.shape) > 1:
        refusal = "is stored in Fortran order; save numpy.ascontiguousarray of it"
    source = member._replace(skip_bytes=header.size_bytes)
    return StoredArray(name, header.dtype, header.shape, source, refusal)
