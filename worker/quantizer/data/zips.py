"""Reads zip archives as hostile input: the directory is checked first, members are then streamed."""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.pointers import array_pointer, file_pointer

DEFAULT_MAX_TOTAL_BYTES = 64 << 30
_DIRECTORY_BYTES_PER_MEMBER = 1600

_END_OF_DIRECTORY = struct.Struct("<4s4H2LH")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")
_ZIP64_END = struct.Struct("<4sQ2H2L4Q")
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x1
_CHUNK_BYTES = 128 << 10


@dataclass(frozen=True)
class ZipRules:
    """What the members of a zip archive are, how many there may be, and what to do where one cannot be used.

    Attributes:
        holds_arrays: arrays, not files.
        max_members: how many are accepted.
        again: what to do where the archive is damaged.
        fewer: what to do where there are too many members, or too many bytes.
    """

    holds_arrays: bool
    max_members: int
    again: str
    fewer: str

    def refusal(self, name: str, message: str, hint: str | None = None) -> DatasetFormatError:
        """The error that names a member."""
        pointer = array_pointer(name) if self.holds_arrays else file_pointer(name)
        return DatasetFormatError(message, hint=hint or self.again, pointer=pointer, member=name)


def read_members(path: Path, rules: ZipRules, *, max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES) -> list[Member]:
    """List the members of a zip archive but folders, in the directory's order.

    Raises:
        DatasetFormatError: not a zip archive, damaged, or with members that no such archive needs.
    """
    _check_directory_size(path, rules)
    entries = [entry for entry in _directory(path, rules) if not entry.is_dir()]
    _check_entries(entries, max_total_bytes, rules)
    with path.open("rb") as file:
        members = [_locate(path, file, entry, rules) for entry in entries]
    _check_overlap(members)
    return members


def first_name(path: Path) -> str:
    """Name of the member that a zip archive begins with, unchecked; empty if there is none."""
    with path.open("rb") as file:
        raw = file.read(_LOCAL_HEADER.size)
        if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
            return ""
        return file.read(_LOCAL_HEADER.unpack(raw)[-2]).decode(errors="replace")


def member_names(path: Path, rules: ZipRules) -> list[str]:
    """Names of all members but folders, unchecked.

    Raises:
        DatasetFormatError: the directory is damaged, or too large.
    """
    _check_directory_size(path, rules)
    return [entry.filename for entry in _directory(path, rules) if not entry.is_dir()]


def _directory(path: Path, rules: ZipRules) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except (zipfile.BadZipFile, zipfile.LargeZipFile, struct.error, ValueError, EOFError, NotImplementedError) as error:
        raise DatasetFormatError(f"the archive is cut short or damaged: {error}", hint=rules.again) from None


def _check_directory_size(path: Path, rules: ZipRules) -> None:
    """Refuse a directory that is too large before zipfile reads it whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = max(0, size - _END_OF_DIRECTORY.size - 0xFFFF - _ZIP64_LOCATOR.size)
        file.seek(start)
        tail = file.read()
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or at + _END_OF_DIRECTORY.size > len(tail):
            raise DatasetFormatError("the archive is cut short: its directory is missing", hint=rules.again)
        *_, count, directory_bytes, _offset, _comment = _END_OF_DIRECTORY.unpack_from(tail, at)
        locator = at - _ZIP64_LOCATOR.size
        if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":
            file.seek(_ZIP64_LOCATOR.unpack_from(tail, locator)[2])
            record = file.read(_ZIP64_END.size)
            if len(record) < _ZIP64_END.size or record[:4] != b"PK\x06\x06":
                raise DatasetFormatError("the archive's directory is damaged", hint=rules.again)
            count, directory_bytes = _ZIP64_END.unpack(record)[7:9]
    if count > rules.max_members or directory_bytes > _DIRECTORY_BYTES_PER_MEMBER * rules.max_members:
        raise DatasetFormatError(
            f"the archive lists {count} members in {directory_bytes} bytes; at most {rules.max_members} are accepted",
            hint=rules.fewer,
        )


def _check_entries(entries: list[zipfile.ZipInfo], max_total_bytes: int, rules: ZipRules) -> None:
    if len(entries) > rules.max_members:
        raise DatasetFormatError(
            f"the archive lists {len(entries)} members; at most {rules.max_members} are accepted", hint=rules.fewer
        )
    seen: set[str] = set()
    for entry in entries:
        name = entry.filename
        parts = name.replace("\\", "/").split("/")
        # orig_filename still holds what zipfile cuts off at a NUL byte
        if parts[0] == "" or ".." in parts or "\0" in entry.orig_filename:
            raise rules.refusal(name, f"the archive holds a member with an unsafe name: {name!r}")
        if name in seen:
            raise rules.refusal(name, f"the archive holds member {name!r} twice")
        seen.add(name)
        if entry.flag_bits & _ENCRYPTED:
            raise rules.refusal(name, f"member {name!r} is encrypted", "Store it without a password.")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise rules.refusal(
                name,
                f"member {name!r} uses compression method {entry.compress_type}; only stored and deflated are read",
            )
        mode = entry.external_attr >> 16
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise rules.refusal(name, f"member {name!r} is a link or a device, not a file")
    total = sum(entry.file_size for entry in entries)
    if total > max_total_bytes:
        raise DatasetFormatError(
            f"the archive unpacks to {total} bytes; at most {max_total_bytes} are accepted", hint=rules.fewer
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
    rules: ZipRules
    skip_bytes: int = 0

    def open(self) -> MemberStream:
        """A stream over the unpacked bytes after the first ``skip_bytes``."""
        stream = MemberStream(self)
        if self.skip_bytes:
            stream.read(self.skip_bytes)
        return stream


def _locate(path: Path, file: IO[bytes], entry: zipfile.ZipInfo, rules: ZipRules) -> Member:
    """Find the packed bytes behind the local header, whose length differs from the directory's copy."""
    name = entry.filename
    file.seek(entry.header_offset)
    raw = file.read(_LOCAL_HEADER.size)
    size = file.seek(0, 2)
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
        raise rules.refusal(name, f"member {name!r} is damaged: no header where the directory points")
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(raw)
    offset = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if offset + entry.compress_size > size:
        raise rules.refusal(name, f"member {name!r} is cut short")
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    if not deflated and entry.compress_size != entry.file_size:
        raise rules.refusal(name, f"member {name!r} declares two sizes")
    return Member(
        path, name, entry.header_offset, offset, entry.compress_size, entry.file_size, deflated, entry.CRC, rules
    )


def _check_overlap(members: list[Member]) -> None:
    """Members that share bytes unpack to far more than the archive holds."""
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise member.rules.refusal(member.name, f"member {member.name!r} overlaps another one")
        end = member.offset + member.packed_bytes


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
        name = self._member.name
        return self._member.rules.refusal(name, f"member {name!r} is damaged: {why}")
