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
from worker.quantizer.data.zip_directory import Directory, DirectoryEntry, DirectoryError, DirectoryTooLargeError

DEFAULT_MAX_TOTAL_BYTES = 64 << 30

_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_ENCRYPTED = 0x1
_STORED, _DEFLATED = 0, 8
# The bits of a mode that tell a file from a link or a device.
_FILE_TYPE = 0o170000
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
        raise DatasetFormatError(f"the archive is cut short or damaged: {error}", hint=rules.again) from None
    except DirectoryTooLargeError as error:
        raise DatasetFormatError(str(error), hint=rules.fewer) from None


def _check_entries(entries: list[DirectoryEntry], max_total_bytes: int, rules: ZipRules) -> None:
    seen: set[str] = set()
    for entry in entries:
        name = entry.name
        if name[:1] in ("", "/", "\\") or "\0" in name or (".." in name and _leads_out(name)):
            raise rules.refusal(name, f"the archive holds a member with an unsafe name: {name!r}")
        if name in seen:
            raise rules.refusal(name, f"the archive holds member {name!r} twice")
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
        raise rules.refusal(name, f"member {name!r} is cut short")
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
