"""Reads .npz archives as hostile input: arrays are found by their headers, and streamed."""

from __future__ import annotations

from pathlib import Path

from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.npy import MAX_HEADER_BYTES, parse_npy_header
from worker.quantizer.data.pointers import array_fault
from worker.quantizer.data.stored import StoredArray
from worker.quantizer.data.zips import DEFAULT_MAX_TOTAL_BYTES, Member, ZipRules, read_members

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


def _array(member: Member) -> StoredArray:
    name = member.name.removesuffix(".npy")
    stream = member.open()
    try:
        head = stream.read(min(MAX_HEADER_BYTES, member.size_bytes))
    finally:
        stream.close()
    header = parse_npy_header(head, name)
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
