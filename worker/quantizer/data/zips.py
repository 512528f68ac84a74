"""Reads zip archives as hostile input: the directory is checked first, members are then streamed."""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.stored import array_pointer, file_pointer

# The directory of a zip archive (PKWARE's APPNOTE.TXT, 4.3.12 to 4.3.16 and 4.5.3).
#
# Python's zipfile makes an object of thirty fields per member, so that 100,000 members take seconds to be refused.

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_EXTRA_HEAD = struct.Struct("<2H")
_LONG = struct.Struct("<Q")
_MAX_COMMENT_BYTES = 0xFFFF
_UTF8 = 0x800
_ZIP64_EXTRA = 1
_IN_EXTRA = 0xFFFFFFFF
_DIRECTORY_BYTES_PER_MEMBER = 1600


class DirectoryError(ValueError):
    """There is no directory, or it is cut short or damaged; says why."""


class DirectoryTooLargeError(ValueError):
    """The directory lists more members than are accepted, or takes more bytes than they need; says how many."""


class DirectoryEntry(NamedTuple):
    """What the directory says of a member."""

    name: str  # as it is stored, NUL bytes included; a folder's ends in a slash
    flags: int  # general purpose bits
    method: int  # of compression
    crc: int  # CRC-32 of the unpacked bytes
    packed_bytes: int  # in the archive
    size_bytes: int  # unpacked
    mode: int  # of Unix, 0 where there is none
    header_offset: int  # of the local header, from the beginning of the file


class _DirectoryPlace(NamedTuple):
    start: int
    size_bytes: int
    shift: int
    """What offsets in the directory lack: bytes that stand before the archive in the file."""


class Directory:
    """The directory of an archive, whole in memory; its entries are read as they are asked for.

    Args:
        path: of the archive.
        max_members: more, or a directory larger than so many need, are refused before it is read.

    Raises:
        DirectoryError: see there.
        DirectoryTooLargeError: see there.
    """

    def __init__(self, path: Path, *, max_members: int) -> None:
        self._max_members = max_members
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size - _END.size - _MAX_COMMENT_BYTES - _LOCATOR.size - _END64.size)
            file.seek(start)
            place = _find(file.read(), start, max_members)
            file.seek(place.start)
            self._raw = file.read(place.size_bytes)
        self._shift = place.shift
        if len(self._raw) != place.size_bytes:
            raise DirectoryError("its directory ends early")

    def __iter__(self) -> Iterator[DirectoryEntry]:
        """All entries but those of folders, in the directory's order.

        Raises:
            DirectoryError: see there.
            DirectoryTooLargeError: there are more than the record at the archive's end says.
        """
        for number, entry in enumerate(_entries(self._raw, self._shift), 1):
            if number > self._max_members:
                raise DirectoryTooLargeError(_too_large(number, len(self._raw), self._max_members))
            if not entry.name.endswith("/"):
                yield entry

    def has_ending(self, ending: str) -> bool:
        """True if a name ends so, in ASCII."""
        return ending.encode() in self._raw and any(entry.name.endswith(ending) for entry in self)


def _find(tail: bytes, start: int, max_members: int) -> _DirectoryPlace:
    """Where the directory is, by the record at the archive's end and that of zip64 before it."""
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or at + _END.size > len(tail):
        raise DirectoryError("its directory is missing")
    *_, count, size_bytes, offset, _comment = _END.unpack_from(tail, at)
    end = at
    locator = at - _LOCATOR.size
    if locator >= 0 and tail[locator : locator + 4] == b"PK\x06\x07":
        end = locator - _END64.size
        if end < 0 or tail[end : end + 4] != b"PK\x06\x06":
            raise DirectoryError("the record of its zip64 directory is missing")
        *_, count, size_bytes, offset = _END64.unpack_from(tail, end)
    if count > max_members or size_bytes > _DIRECTORY_BYTES_PER_MEMBER * max_members:
        raise DirectoryTooLargeError(_too_large(count, size_bytes, max_members))
    first = start + end - size_bytes
    if first < offset:
        raise DirectoryError("its directory is not where it is said to be")
    return _DirectoryPlace(first, size_bytes, first - offset)


def _too_large(count: int, size_bytes: int, max_members: int) -> str:
    return f"the archive lists {count} members in {size_bytes} bytes; at most {max_members} are accepted"


def _entries(raw: bytes, shift: int) -> Iterator[DirectoryEntry]:
    at, end, head = 0, len(raw), _ENTRY.size
    unpack = _ENTRY.unpack_from
    while at < end:
        if at + head > end:
            raise DirectoryError("its directory ends within an entry")
        (
            magic, _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes, comment_bytes, _, _,
            attributes, offset,
        ) = unpack(raw, at)  # fmt: skip
        stop = at + head + name_bytes + extra_bytes
        if magic != b"PK\x01\x02" or stop + comment_bytes > end:
            raise DirectoryError("its directory contains an invalid entry")
        stored = raw[at + head : at + head + name_bytes]
        try:
            name = stored.decode() if flags & _UTF8 or stored.isascii() else stored.decode("cp437")
        except UnicodeDecodeError as error:
            raise DirectoryError(f"the name {stored!r} is not UTF-8") from error
        if _IN_EXTRA in (size, packed, offset):
            size, packed, offset = _long(name, raw[stop - extra_bytes : stop], size, packed, offset)
        yield DirectoryEntry(name, flags, method, crc, packed, size, attributes >> 16, offset + shift)
        at = stop + comment_bytes


def _long(name: str, extra: bytes, *values: int) -> list[int]:
    """Values that do not fit into 32 bits stand in the extra field of zip64, in their order."""
    at = 0
    while at + _EXTRA_HEAD.size <= len(extra):
        kind, size = _EXTRA_HEAD.unpack_from(extra, at)
        at += _EXTRA_HEAD.size
        field = extra[at : at + size]
        at += size
        if kind == _ZIP64_EXTRA:
            wanted = sum(value == _IN_EXTRA for value in values)
            if len(field) < _LONG.size * wanted:
                break
            longs = (_LONG.unpack_from(field, k * _LONG.size)[0] for k in range(wanted))
            return [next(longs) if value == _IN_EXTRA else value for value in values]
    raise DirectoryError(f"the size of {name!r} is missing")


DEFAULT_MAX_TOTAL_BYTES = 64 << 30
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x1
_STORED, _DEFLATED = 0, 8
# The bits of a mode that tell a file from a link or a device.
_FILE_TYPE = 0o170000
_CHUNK_BYTES = 128 << 10


@dataclass(frozen=True)
class ZipRules:
    """What the members of a zip archive are, how many there may be, and what to do where one cannot be used."""

    holds_arrays: bool  # arrays, not files
    max_members: int  # how many are accepted
    again: str  # what to do where the archive is damaged
    fewer: str  # what to do where there are too many members, or too many bytes

    def refusal(self, name: str, message: str, hint: str | None = None) -> DatasetFormatError:
        """The error that names a member."""
        pointer = array_pointer(name) if self.holds_arrays else file_pointer(name)
        return DatasetFormatError(message, hint=hint or self.again, pointer=pointer, member=name)


def read_members(path: Path, rules: ZipRules, *, max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES) -> list[ZipMember]:
    """List the members of a zip archive but folders, in the directory's order.

    Raises:
        DatasetFormatError: not a zip archive, damaged, or with members that no such archive needs.
    """
    with _refusing(rules):
        entries = list(Directory(path, max_members=rules.max_members))
    _check_entries(entries, max_total_bytes, rules)
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        members = [_locate(path, file.fileno(), size, entry, rules) for entry in entries]
    _check_overlap(members)
    return members


def first_name(path: Path) -> str:
    """Name of the member that a zip archive begins with, unchecked; empty if there is none."""
    with path.open("rb") as file:
        raw = file.read(_LOCAL_HEADER.size)
        if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
            return ""
        return file.read(_LOCAL_HEADER.unpack(raw)[-2]).decode(errors="replace")


def holds(path: Path, rules: ZipRules, wanted: Callable[[str], bool], *, without: str) -> bool:
    """True if a file of the archive has a name that is wanted, and none a name that ends in ``without``; unchecked.

    Raises:
        DatasetFormatError: the directory is damaged, or too large.
    """
    with _refusing(rules):
        directory = Directory(path, max_members=rules.max_members)
        return any(wanted(entry.name) for entry in directory) and not directory.has_ending(without)


@contextmanager
def _refusing(rules: ZipRules) -> Iterator[None]:
    try:
        yield
    except DirectoryError as error:
        raise DatasetFormatError(f"the archive is truncated or damaged: {error}", hint=rules.again) from None
    except DirectoryTooLargeError as error:
        raise DatasetFormatError(str(error), hint=rules.fewer) from None


def _check_entries(entries: list[DirectoryEntry], max_total_bytes: int, rules: ZipRules) -> None:
    seen: set[str] = set()
    for entry in entries:
        name = entry.name
        if name[:1] in ("", "/", "\\") or "\0" in name or (".." in name and _leads_out(name)):
            raise rules.refusal(name, f"the archive contains a member with an unsafe name: {name!r}")
        if name in seen:
            raise rules.refusal(name, f"the archive contains member {name!r} twice")
        seen.add(name)
        if entry.flags & _ENCRYPTED:
            raise rules.refusal(name, f"member {name!r} is encrypted", "Store it without a password.")
        if entry.method not in (_STORED, _DEFLATED):
            raise rules.refusal(
                name, f"member {name!r} uses compression method {entry.method}; only stored and deflated are read"
            )
        if entry.mode & _FILE_TYPE not in (0, stat.S_IFREG):
            raise rules.refusal(name, f"member {name!r} is a link or a device, not a file")
    total = sum(entry.size_bytes for entry in entries)
    if total > max_total_bytes:
        raise DatasetFormatError(
            f"the archive unpacks to {total} bytes; at most {max_total_bytes} are accepted", hint=rules.fewer
        )


def _leads_out(name: str) -> bool:
    return ".." in name.replace("\\", "/").split("/")


class ZipMember(NamedTuple):
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

    def open(self) -> ZipMemberStream:
        """A stream over the unpacked bytes after the first ``skip_bytes``."""
        stream = ZipMemberStream(self)
        if self.skip_bytes:
            stream.read(self.skip_bytes)
        return stream


def _locate(path: Path, descriptor: int, size: int, entry: DirectoryEntry, rules: ZipRules) -> ZipMember:
    """Find the packed bytes behind the local header, whose length differs from the directory's copy."""
    name = entry.name
    raw = os.pread(descriptor, _LOCAL_HEADER.size, entry.header_offset) if entry.header_offset < size else b""
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\x03\x04":
        raise rules.refusal(name, f"member {name!r} is damaged: no header where the directory points")
    *_, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(raw)
    offset = entry.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    if offset + entry.packed_bytes > size:
        raise rules.refusal(name, f"member {name!r} is truncated")
    deflated = entry.method == _DEFLATED
    if not deflated and entry.packed_bytes != entry.size_bytes:
        raise rules.refusal(name, f"member {name!r} declares two sizes")
    return ZipMember(
        path, name, entry.header_offset, offset, entry.packed_bytes, entry.size_bytes, deflated, entry.crc, rules
    )


def _check_overlap(members: list[ZipMember]) -> None:
    """Members that share bytes unpack to far more than the archive holds."""
    end = 0
    for member in sorted(members, key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise member.rules.refusal(member.name, f"member {member.name!r} overlaps another one")
        end = member.offset + member.packed_bytes


class ZipMemberStream:
    """Unpacks a member; never gives more than its declared size; checks size and CRC at the end."""

    def __init__(self, member: ZipMember) -> None:
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
