"""Archives of pictures or sounds as hostile input: .tar and .tar.gz (ustar, GNU, pax), and .zip by ``data.zips``.

A .tar.gz is read from its beginning each time, and only as far as it has to be; nothing is ever written to a folder.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.media.members import (
    AGAIN,
    MAX_FILES,
    MediaFile,
    Register,
    check_ratio,
    is_media,
    plain_path,
    refuse,
)
from worker.quantizer.data.zips import ZipMember, ZipRules, first_name, holds, read_members

BLOCK_BYTES = 512
GZIP_MAGIC = b"\x1f\x8b"
_SKIP_BYTES = 256 << 10
# A header of a member's header: a long name, a table of attributes.
_MAX_EXTRA_BYTES = 1 << 20
_MAX_HEADERS = 3 * MAX_FILES
# What tar programs fill the last record of an archive with.
_MAX_TAIL_BYTES = 1 << 20
_REGULAR, _FOLDER = (b"0", b"\0", b"7"), b"5"
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX = b"L", b"K", b"x", b"g"
_REFUSED = {
    b"1": "is a hard link",
    b"2": "is a symbolic link",
    b"3": "is a character device",
    b"4": "is a block device",
    b"6": "is a named pipe",
    b"S": "is a sparse file",
}


@dataclass(frozen=True)
class TarArchive:
    """A checked .tar or .tar.gz; see ``read_tar``."""

    path: Path
    kind: Literal["tar", "tar.gz"]
    files: tuple[MediaFile, ...]

    def contents(self, files: Iterable[MediaFile]) -> Iterator[bytes]:
        """The bytes of these files, which come in the archive's order."""
        with _opened(self.path, self.kind) as stream:
            for file in files:
                stream.go_to(file.offset, file.name)
                yield stream.read(file.size_bytes, file.name)


def read_tar(path: Path, kind: Literal["tar", "tar.gz"], *, max_total_bytes: int) -> TarArchive:
    """List the files of a tar archive; reads headers, and unpacks a .tar.gz once on the way.

    Raises:
        DatasetFormatError: damaged, cut short, or with members that a set of pictures or sounds does not have.
    """
    register = Register(max_total_bytes)
    with _opened(path, kind) as stream:
        _TarWalk(stream, register).run()
    return TarArchive(path, kind, tuple(register.files))


def looks_like_tar(head: bytes) -> bool:
    """True if the first block of a file is a tar header."""
    return len(head) >= BLOCK_BYTES and any(head[:BLOCK_BYTES]) and _checksum_holds(head[:BLOCK_BYTES])


def gzip_head(path: Path) -> bytes:
    """The first block inside a gzip file; empty if it cannot be unpacked."""
    with path.open("rb") as file:
        try:
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(file.read(64 << 10), BLOCK_BYTES)
        except zlib.error:
            return b""


@contextmanager
def _opened(path: Path, kind: Literal["tar", "tar.gz"]) -> Iterator[_Stream]:
    with path.open("rb") as file:
        if kind == "tar":
            yield _Stream(file, file, packed=False)
        else:
            with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
                yield _Stream(unpacked, file, packed=True)


class _Stream:
    """Bytes of the unpacked archive; only ever goes forward."""

    def __init__(self, source: IO[bytes] | gzip.GzipFile, file: IO[bytes], *, packed: bool) -> None:
        self._source = source
        self._file = file
        self._packed = packed
        self.at = 0

    def read(self, count: int, name: str) -> bytes:
        """Exactly ``count`` bytes.

        Raises:
            DatasetFormatError: the archive ends before, or is damaged; names the member that was being read.
        """
        data = self._take(count, name)
        if len(data) != count:
            refuse(name, "is truncated: the archive ends within it")
        return data

    def rest(self, count: int, name: str) -> bytes:
        """Up to ``count`` bytes: fewer at the end."""
        return self._take(count, name)

    def go_to(self, offset: int, name: str) -> None:
        """Go on at ``offset``, which lies ahead.

        Raises:
            DatasetFormatError: as ``read``.
        """
        if not self._packed:
            self._file.seek(offset)
            self.at = offset
            return
        while self.at < offset:
            self.read(min(_SKIP_BYTES, offset - self.at), name)

    def _take(self, count: int, name: str) -> bytes:
        parts: list[bytes] = []
        left = count
        while left:
            try:
                part = self._source.read(min(left, _SKIP_BYTES))
            except (OSError, EOFError, zlib.error) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                refuse(name, f"is damaged: {error}")
            if not part:
                break
            parts.append(part)
            left -= len(part)
            self.at += len(part)
            if self._packed:
                check_ratio(name, self.at, self._file.tell())
        return b"".join(parts)


class _TarWalk:
    """From header to header, through the whole archive."""

    def __init__(self, stream: _Stream, register: Register) -> None:
        self._stream = stream
        self._register = register
        self._reached = "the first header"
        self._headers = self._folders = 0

    def run(self) -> None:
        """Fill the register."""
        name: str | None = None
        size: int | None = None
        while True:
            block = self._stream.rest(BLOCK_BYTES, self._reached)
            if len(block) != BLOCK_BYTES:
                refuse(self._reached, "is not followed by the archive's end: the archive is truncated")
            if not any(block):
                self._end()
                return
            self._count()
            header = _parse(block, self._reached)
            if header.kind in (_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX):
                data = self._extra(header)
                if header.kind == _LONG_NAME:
                    name = _text(data.rstrip(b"\0"))
                elif header.kind == _GLOBAL_PAX and _pax(data, self._reached):
                    refuse(self._reached, "is followed by a header that gives all members one path or one size")
                elif header.kind == _PAX:
                    records = _pax(data, self._reached)
                    name, size = records.get("path", name), _pax_size(records, self._reached)
                continue
            self._member(header, header.name if name is None else name, header.size if size is None else size)
            name = size = None

    def _member(self, header: _TarHeader, name: str, size: int) -> None:
        is_folder = header.kind == _FOLDER or (header.kind == b"\0" and name.endswith("/"))
        name = name.rstrip("/") if is_folder else name
        self._reached = name
        why = _REFUSED.get(header.kind)
        if why is not None:
            refuse(name, why, "Pack the files themselves: `quantmill dataset pack` does.")
        if is_folder:
            plain_path(name)
            self._folders += 1
            if self._folders > MAX_FILES:
                refuse(name, f"is one too many: at most {MAX_FILES} folders are accepted", "Use fewer folders.")
            if size:
                refuse(name, "is a folder that contains data")
            return
        if header.kind not in _REGULAR:
            refuse(name, f"is of unknown type {header.kind!r}")
        self._register.add(name, size, self._stream.at)
        self._stream.go_to(self._stream.at + _padded(size), name)

    def _extra(self, header: _TarHeader) -> bytes:
        if header.size > _MAX_EXTRA_BYTES:
            refuse(self._reached, f"is followed by a header of {header.size} bytes")
        return self._stream.read(_padded(header.size), self._reached)[: header.size]

    def _count(self) -> None:
        self._headers += 1
        if self._headers > _MAX_HEADERS:
            refuse(self._reached, f"is followed by more than {_MAX_HEADERS} headers", "Use fewer samples.")

    def _end(self) -> None:
        """Read what fills the last record, so that a gzip checks its sum."""
        tail = self._stream.rest(_MAX_TAIL_BYTES + 1, self._reached)
        if any(tail) or len(tail) > _MAX_TAIL_BYTES:
            raise DatasetFormatError("the archive contains data after its end", hint=AGAIN)


@dataclass(frozen=True)
class _TarHeader:
    name: str
    size: int
    kind: bytes


def _parse(block: bytes, reached: str) -> _TarHeader:
    if not _checksum_holds(block):
        refuse(reached, "is followed by a damaged header")
    name = _text(block[:100].split(b"\0", 1)[0])
    if block[257:263] == b"ustar\0" and block[345] != 0:
        name = _text(block[345:500].split(b"\0", 1)[0]) + "/" + name
    size = _number(block[124:136])
    if size is None:
        refuse(name, "declares an impossible size")
    return _TarHeader(name, size, block[156:157])


def _checksum_holds(block: bytes) -> bool:
    declared = _number(block[148:156])
    unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if declared is None or declared == unsigned:
        return declared is not None
    # programs of old added up signed bytes
    return declared == unsigned - 256 * sum(byte > 127 for byte in block)


def _number(field: bytes) -> int | None:
    """An octal number, or GNU's base-256; None if it is neither, or negative."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0") or b"0"
    return int(text, 8) if text.isdigit() and b"8" not in text and b"9" not in text else None


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        name = raw.decode(errors="backslashreplace")
        refuse(name, "has a name that is not UTF-8")


def _pax(data: bytes, reached: str) -> dict[str, str]:
    """Path and size among the records of a pax header: "LENGTH KEY=VALUE" and a line feed each."""
    records: dict[str, str] = {}
    at = 0
    while at < len(data):
        length_text, _, _ = data[at : at + 20].partition(b" ")
        length = int(length_text) if length_text.isdigit() else 0
        record = data[at : at + length]
        key, equals, value = record[len(length_text) + 1 : -1].partition(b"=")
        if length <= len(length_text) + 1 or len(record) != length or record[-1:] != b"\n" or not equals:
            refuse(reached, "is followed by a damaged pax header")
        if key.startswith(b"GNU.sparse"):
            refuse(reached, "is followed by a sparse file")
        if key in (b"path", b"size"):
            records[key.decode()] = _text(value)
        at += length
    return records


def _pax_size(records: dict[str, str], reached: str) -> int | None:
    text = records.get("size")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        refuse(reached, "is followed by a header with an impossible size")
    return int(text)


def _padded(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


# Zip archives of pictures or sounds; what is hostile about a zip is refused by ``worker.quantizer.data.zips``.

FILES = ZipRules(holds_arrays=False, max_members=MAX_FILES, again=AGAIN, fewer="Use fewer samples.")


@dataclass(frozen=True)
class ZipArchive:
    """A checked zip archive; see ``read_zip``. The offset of a file is its member's place in ``members``."""

    files: tuple[MediaFile, ...]
    members: tuple[ZipMember, ...]
    kind: Literal["zip"] = "zip"

    def contents(self, files: Iterable[MediaFile]) -> Iterator[bytes]:
        """The bytes of these files."""
        for file in files:
            with closing(self.members[file.offset].open()) as stream:
                yield stream.read(file.size_bytes)


def holds_media(path: Path) -> bool:
    """True for a zip archive with pictures or sounds, and without arrays: false for an .npz.

    Raises:
        DatasetFormatError: the directory is damaged, or too large.
    """
    if first_name(path).endswith(".npy"):
        return False
    return holds(path, FILES, is_media, without=".npy")


def read_zip(path: Path, *, max_total_bytes: int) -> ZipArchive:
    """List the files of a zip archive; reads the directory.

    Raises:
        DatasetFormatError: damaged, or with members that a set of pictures or sounds does not have.
    """
    register = Register(max_total_bytes)
    members = read_members(path, FILES, max_total_bytes=max_total_bytes)
    packed = unpacked = 0
    for number, member in enumerate(members):
        packed, unpacked = packed + member.packed_bytes, unpacked + member.size_bytes
        file = register.add(member.name, member.size_bytes, number)
        check_ratio(file.name, unpacked, packed)
    return ZipArchive(tuple(register.files), tuple(members))
