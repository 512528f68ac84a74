"""Zip archives of pictures or sounds; what is hostile about a zip is refused by ``worker.quantizer.data.zips``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worker.quantizer.data.media.members import AGAIN, MAX_FILES, MediaFile, Register, check_ratio, is_media
from worker.quantizer.data.zips import ZipMember, ZipRules, first_name, holds, read_members

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
            stream = self.members[file.offset].open()
            try:
                yield stream.read(file.size_bytes)
            finally:
                stream.close()


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
