"""The directory of a zip archive (PKWARE's APPNOTE.TXT, 4.3.12 to 4.3.16 and 4.5.3).

Python's zipfile makes an object of thirty fields per member, so that 100,000 members take seconds to be refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
    """What the directory says of a member.

    Attributes:
        name: as it is stored, NUL bytes included; a folder's ends in a slash.
        flags: general purpose bits.
        method: of compression.
        crc: CRC-32 of the unpacked bytes.
        packed_bytes: in the archive.
        size_bytes: unpacked.
        mode: of Unix, 0 where there is none.
        header_offset: of the local header, from the beginning of the file.
    """

    name: str
    flags: int
    method: int
    crc: int
    packed_bytes: int
    size_bytes: int
    mode: int
    header_offset: int


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
            raise DirectoryError("its directory holds something that is no entry")
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
