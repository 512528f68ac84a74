"""Reads .npz archives as hostile input: the directory is checked first, members are then streamed."""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.npy import MAX_HEADER_BYTES, parse_npy_header
from worker.quantizer.data.pointers import array_fault, array_pointer
from worker.quantizer.data.stored import StoredArray

DEFAULT_MAX_TOTAL_BYTES = 64 << 30
MAX_MEMBERS = 10_000
_MAX_DIRECTORY_BYTES = 16 << 20

_END_OF_DIRECTORY = struct.Struct("<4s4H2LH")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x1
_CHUNK_BYTES = 128 << 10
_AGAIN = "Write the file again with numpy.savez or numpy.savez_compressed and upload it anew."


def read_npz(path: Path, *, max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES) -> dict[str, StoredArray]:
    """List the arrays of an .npz file by name; reads headers only.

    Args:
        path: the file.
        max_total_bytes: largest sum of the members' unpacked sizes.

    Raises:
        DatasetFormatError: not a zip archive, damaged, or with entries that a plain .npz does not have.
    """
    _check_directory_size(path)
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    except (zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, ValueError, EOFError, NotImplementedError) as error:
        raise DatasetFormatError(f"the archive is cut short or damaged: {error}", hint=_AGAIN) from None
    _check_entries(entries, max_total_bytes)
    members = [_locate(path, entry) for entry in entries]
    _check_overlap(members)
    arrays = [_array(member) for member in members if member.name.endswith(".npy")]
    return {array.name: array for array in arrays}


def _member_fault(name: str, why: str, hint: str = _AGAIN) -> DatasetFormatError:
    """The error about a file of the archive; ``why`` follows its name."""
    return DatasetFormatError(f"member {name!r} {why}", hint=hint, pointer=array_pointer(name), member=name)


def _check_directory_size(path: Path) -> None:
    """Refuse a directory that is too large before zipfile reads it whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = max(0, size - _END_OF_DIRECTORY.size - 0xFFFF - _ZIP64_LOCATOR.size)
        file.seek(start)
        tail = file.read()
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or at + _END_OF_DIRECTORY.size > len(tail):
            raise DatasetFormatError("the archive is cut short: its directory is missing", hint=_AGAIN)
        *_, count, directory_bytes, _offset, _comment = _END_OF_DIRECTORY.unpack_from(tail, at)
        locator = at - _ZIP64_LOCATOR.size
        if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":
            file.seek(_ZIP64_LOCATOR.unpack_from(tail, locator)[2])
            record = file.read(_ZIP64_END.size)
            if len(record) < _ZIP64_END.size or record[:4] != b"PK\x06\x06":
                raise DatasetFormatError("the archive's directory is damaged", hint=_AGAIN)
            count, directory_bytes = _ZIP64_END.unpack(record)[7:9]
    if count > MAX_MEMBERS or directory_bytes > _MAX_DIRECTORY_BYTES:
        raise DatasetFormatError(
            f"the archive lists {count} members in {directory_bytes} bytes; at most {MAX_MEMBERS} are accepted",
            hint="Store one array per model input, with all samples along the first axis.",
        )


def _check_entries(entries: list[zipfile.ZipInfo], max_total_bytes: int) -> None:
    if len(entries) > MAX_MEMBERS:
        raise DatasetFormatError(f"the archive lists {len(entries)} members; at most {MAX_MEMBERS} are accepted")
    seen: set[str] = set()
    for entry in entries:
        name = entry.filename
        parts = name.replace("\\", "/").split("/")
        # orig_filename still holds what zipfile cuts off at a NUL byte
        if parts[0] == "" or ".." in parts or "\0" in entry.orig_filename:
            raise DatasetFormatError(
                f"the archive holds a member with an unsafe name: {name!r}", pointer=array_pointer(name), member=name
            )
        if name in seen:
            raise DatasetFormatError(
                f"the archive holds member {name!r} twice", hint=_AGAIN, pointer=array_pointer(name), member=name
            )
        seen.add(name)
        if entry.flag_bits & _ENCRYPTED:
            raise _member_fault(name, "is encrypted", "Store it without a password.")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            why = f"uses compression method {entry.compress_type}; only stored and deflated are read"
            raise _member_fault(name, why)
    total = sum(entry.file_size for entry in entries)
    if total > max_total_bytes:
        raise DatasetFormatError(
            f"the archive unpacks to {total} bytes; at most {max_total_bytes} are accepted",
            hint="Use fewer samples, or store images as uint8 with a preprocessing spec.",
        )


@dataclass(frozen=True)
class Member:
    """One file of the archive; ``offset`` is that of its packed bytes. Opens streams that start ``skip_bytes`` in."""

    path: Path
    name: str
    header_offset: int
    offset: int
    packed_bytes: int
    size_bytes: int
    deflated: bool
    crc: int
    skip_bytes: int = 0

    def open(self) -> MemberStream:
        """A stream over the unpacked bytes after the first ``skip_bytes``."""
        stream = MemberStream(self)
        if self.skip_bytes:
            stream.read(self.skip_bytes)
        return stream


def _locate(path: Path, entry: zipfile.ZipInfo) -> Member:
    """Find the packed bytes behind the local header, whose length differs from the directory's copy."""
    with path.open("rb") as file:
        file.seek(entry.header_offset)
        raw = file.read(_LOCAL_HEADER.size)
        size = file.seek(0, 2)
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
        raise _member_fault(entry.filename, "is damaged: no header where the directory points")
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(raw)
    offset = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if offset + entry.compress_size > size:
        raise _member_fault(entry.filename, "is cut short")
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and entry.compress_size != entry.file_size:
        raise _member_fault(entry.filename, "declares two sizes")
    sizes = entry.compress_size, entry.file_size
    return Member(path, entry.filename, entry.header_offset, offset, *sizes, deflated, entry.CRC)


def _check_overlap(members: list[Member]) -> None:
    """Members that share bytes unpack to far more than the archive holds."""
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise _member_fault(member.name, "overlaps another one")
        end = member.offset + member.packed_bytes


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
        raise array_fault(DatasetFormatError, name, why, hint=_AGAIN)
    elif header.fortran_order and sum(axis > 1 for axis in header.shape) > 1:
        refusal = "is stored in Fortran order; save numpy.ascontiguousarray of it"
    source = replace(member, skip_bytes=header.size_bytes)
    return StoredArray(name, header.dtype, header.shape, source, refusal)


class MemberStream:
    """Unpacks a member; never gives more than its declared size; checks size and CRC at the end."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._file = member.path.open("rb", buffering=0)
        self._file.seek(member.offset)
        self._packed_left = member.packed_bytes
        self._left = member.size_bytes
        self._crc = 0
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS) if member.deflated else None

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes, fewer at the end."""
        target = bytearray(min(count, self._left))
        self.readinto(memoryview(target))
        return bytes(target)

    def readinto(self, target: memoryview) -> int:
        """Fill ``target``; returns fewer bytes only at the member's declared end.

        Raises:
            DatasetFormatError: the packed bytes are damaged or end early.
        """
        wanted = min(len(target), self._left)
        done = 0
        while done < wanted:
            window = target[done : min(wanted, done + _CHUNK_BYTES)]
            got = self._inflate(window) if self._inflater else self._copy(window)
            if got == 0:
                raise self._damaged("its bytes end early")
            self._crc = zlib.crc32(window[:got], self._crc)
            done += got
        self._left -= done
        if self._left == 0 and done and self._crc != self._member.crc:
            raise self._damaged("the checksum does not match")
        return done

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _copy(self, window: memoryview) -> int:
        got = self._file.readinto(window[: self._packed_left])
        self._packed_left -= got
        return got

    def _inflate(self, window: memoryview) -> int:
        inflater = self._inflater
        if inflater is None:
            raise AssertionError("only called for deflated members")
        while not inflater.eof:
            packed = inflater.unconsumed_tail
            if not packed and self._packed_left:
                packed = self._file.read(min(_CHUNK_BYTES, self._packed_left))
                self._packed_left -= len(packed)
            if not packed:
                # zlib may still hold output that did not fit into the last window
                tail = inflater.decompress(b"", len(window))
                window[: len(tail)] = tail
                return len(tail)
            try:
                data = inflater.decompress(packed, len(window))
            except zlib.error as error:
                raise self._damaged(str(error)) from None
            if data:
                window[: len(data)] = data
                return len(data)
        return 0

    def _damaged(self, why: str) -> DatasetFormatError:
        return _member_fault(self._member.name, f"is damaged: {why}")
