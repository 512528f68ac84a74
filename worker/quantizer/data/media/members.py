"""The files of an archive: what may be in it, what they may be called, how large they may be."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, Protocol

from service.contracts.dataset import ArchiveKind
from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.stored import file_pointer

MAX_FILES = 100_000
MAX_FILE_BYTES = 64 << 20
LABELS_FILE = "labels.csv"
PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
SOUND_SUFFIXES = frozenset({".wav"})
# Pictures and sounds hardly shrink by packing: what unpacks to more than this many times its bytes is a bomb.
_MAX_RATIO = 100
_RATIO_FREE_BYTES = 64 << 20
AGAIN = "Pack the folder again with `quantmill dataset pack FOLDER -o data.tar`."

Content = Literal["pictures", "sounds"]


@dataclass(frozen=True)
class MediaFile:
    """One file of an archive: its normalized path, its size, and where its bytes are, by the archive's kind."""

    name: str
    size_bytes: int
    offset: int = 0


class Archive(Protocol):
    """An archive whose directory has been read and checked."""

    @property
    def kind(self) -> ArchiveKind:
        """How it is packed."""

    @property
    def files(self) -> tuple[MediaFile, ...]:
        """Everything in it but folders, in the archive's order; each name once."""

    def contents(self, files: Iterable[MediaFile]) -> Iterator[bytes]:
        """The bytes of these files, which come in the archive's order; one file in memory at a time."""


def refuse(name: str, why: str, hint: str = AGAIN) -> NoReturn:
    """Refuse the archive for one of its files.

    Raises:
        DatasetFormatError: always; names the member.
    """
    raise DatasetFormatError(f"member {name!r} {why}", hint=hint, pointer=file_pointer(name), member=name)


def plain_path(name: str) -> str:
    """The path of a member without "./" and doubled slashes; "" for the archive's top.

    Raises:
        DatasetFormatError: it is absolute, leads out of the archive, or holds control characters.
    """
    if _is_plain(name):
        return name
    parts = name.replace("\\", "/").split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or parts[0].endswith(":"):
        refuse(name, "has an unsafe path: it does not lie within the archive")
    if not name.isprintable():
        refuse(name, "has control characters in its name")
    return "/".join(part for part in parts if part not in ("", "."))


def _is_plain(name: str) -> bool:
    """True only if nothing is wrong with the path and nothing is to be left out: most are so, and there are many."""
    odd = "\\" in name or ":" in name or "//" in name or "./" in name or ".." in name
    return not (odd or name.startswith("/") or name.endswith(("/", "."))) and name.isprintable()


def suffix_of(name: str) -> str:
    """The ending of a file name, lower case, with its dot."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 - 100,000 names: pathlib takes ten times as long


def is_media(name: str) -> bool:
    """True if a file of this name is meant to be a picture or a sound."""
    return suffix_of(name) in PICTURE_SUFFIXES | SOUND_SUFFIXES


class Register:
    """Takes in members one by one and refuses what an archive of pictures or sounds must not hold."""

    def __init__(self, max_total_bytes: int) -> None:
        self._max_total_bytes = max_total_bytes
        self._names: set[str] = set()
        self._total = 0
        self.files: list[MediaFile] = []

    def add(self, name: str, size_bytes: int, offset: int) -> MediaFile:
        """Take in one file.

        Raises:
            DatasetFormatError: its path, its size or the sum of all sizes is refused, or its name was there before.
        """
        path = plain_path(name)
        if not path:
            refuse(name, "has no name")
        if path in self._names:
            refuse(path, "is there twice")
        if len(self.files) >= MAX_FILES:
            refuse(path, f"is one too many: at most {MAX_FILES} files are accepted", "Use fewer samples.")
        if size_bytes > MAX_FILE_BYTES:
            refuse(path, f"unpacks to {size_bytes} bytes; at most {MAX_FILE_BYTES} are accepted", "Use smaller files.")
        self._total += size_bytes
        if self._total > self._max_total_bytes:
            refuse(path, f"is too much: all files may take {self._max_total_bytes} bytes", "Use fewer samples.")
        self._names.add(path)
        self.files.append(MediaFile(path, size_bytes, offset))
        return self.files[-1]


def check_ratio(name: str, unpacked_bytes: int, packed_bytes: int) -> None:
    """Refuse an archive that unpacks to far more than it is.

    Raises:
        DatasetFormatError: naming the member that was reached.
    """
    if unpacked_bytes > _RATIO_FREE_BYTES + _MAX_RATIO * packed_bytes:
        refuse(
            name,
            f"makes the archive unpack to more than {_MAX_RATIO} times its size",
            "Store pictures and sounds as they are; packing does not make them smaller.",
        )


def content_of(files: Iterable[MediaFile]) -> Content:
    """What an archive holds, by the endings of its files.

    Raises:
        DatasetFormatError: pictures beside sounds, or a file that is neither; names it.
    """
    found: Content | None = None
    for file in files:
        suffix = suffix_of(file.name)
        here: Content = "sounds" if suffix in SOUND_SUFFIXES else "pictures"
        if suffix not in PICTURE_SUFFIXES | SOUND_SUFFIXES:
            refuse(
                file.name,
                "is neither a picture nor a sound: JPEG, PNG, WebP, BMP, WAV are read, and labels.csv at the top",
                "Leave it out of the archive.",
            )
        if found not in (None, here):
            refuse(file.name, f"is one of the {here} in an archive of {found}", "Put them into two archives.")
        found = here
    if found is None:
        raise DatasetFormatError("the archive holds no picture and no sound", hint=AGAIN)
    return found


def shared_folders(names: Sequence[str]) -> str:
    """The leading folders that all files share, with a slash behind each; "" if there are none."""
    if not names:
        return ""
    # what the first and the last in sorted order share, all between them do
    first, last = min(names), max(names)
    apart = next((k for k, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[: first.rfind("/", 0, apart) + 1]
