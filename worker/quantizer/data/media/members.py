"""The files of an archive: what may be in it, names and sizes, and their labels, by a table, by folder, or none."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

import numpy as np

from service.contracts.dataset import UNLABELLED, ArchiveKind
from service.contracts.errors import DatasetFormatError, DatasetLabelsError
from worker.quantizer.data.stored import LABELS_POINTER, file_pointer

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
        raise DatasetFormatError("the archive contains no picture and no sound", hint=AGAIN)
    return found


def shared_folders(names: Sequence[str]) -> str:
    """The leading folders that all files share, with a slash behind each; "" if there are none."""
    if not names:
        return ""
    # what the first and the last in sorted order share, all between them do
    first, last = min(names), max(names)
    apart = next((k for k, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[: first.rfind("/", 0, apart) + 1]


# Labels of the files of an archive: by a table, by folder, or none.

MAX_TABLE_BYTES = 16 << 20
_MAX_CLASS = (1 << 31) - 1
_HEAD = ["file", "label"]


@dataclass(frozen=True)
class Labels:
    """Class numbers int64 [samples], and the classes' names where the labels are words."""

    values: np.ndarray[Any, np.dtype[np.int64]]
    classes: tuple[str, ...] | None


def table_of(files: Sequence[MediaFile]) -> MediaFile | None:
    """The labels.csv at the archive's top, below the folders that all files share; None if there is none."""
    wanted = shared_folders([file.name for file in files]) + LABELS_FILE
    return next((file for file in files if file.name == wanted), None)


def by_table(files: Sequence[MediaFile], table: MediaFile, content: bytes) -> Labels:
    """Labels from rows ``file,label``; files are named from the table's folder on.

    Raises:
        DatasetLabelsError: damaged, a file without a row, a row without a file, or two rows for one file.
    """
    folder = table.name[: -len(LABELS_FILE)]
    known = {file.name.removeprefix(folder) for file in files}
    found: dict[str, str] = {}
    for line, name, label in _rows(content, table.name):
        if name not in known:
            _refuse(f"{table.name!r} names {name!r} in line {line}, which does not exist", file=name)
        if name in found:
            _refuse(f"{table.name!r} names {name!r} twice, again in line {line}", file=name)
        found[name] = label
    for file in files:
        if file.name.removeprefix(folder) not in found:
            _refuse(f"{table.name!r} has no row for {file.name!r}", file=file.name)
    return _numbered([found[file.name.removeprefix(folder)] for file in files])


def by_folder(files: Sequence[MediaFile]) -> Labels | None:
    """Labels from the first folder below those that all files share; None if there is no such folder.

    Raises:
        DatasetLabelsError: some files lie in such folders and others beside them.
    """
    top = len(shared_folders([file.name for file in files]))
    found = [file.name[top:].partition("/") for file in files]
    beside = [file.name for file, (_, slash, _) in zip(files, found, strict=True) if not slash]
    if len(beside) == len(files):
        return None
    if beside:
        _refuse(
            f"{beside[0]!r} is not in a class folder, unlike the other files",
            hint=f"Put every file into the folder of its class, or give a {LABELS_FILE}.",
            file=beside[0],
        )
    return _numbered([folder for folder, _, _ in found])


def _rows(content: bytes, name: str) -> list[tuple[int, str, str]]:
    """Line number, file and label of each row."""
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        _refuse(f"{name!r} is not a CSV file in UTF-8: {error}", file=name)
    if rows and [cell.strip().lower() for cell in rows[0][1]] == _HEAD:
        del rows[0]
    for line, row in rows:
        if len(row) != len(_HEAD) or not row[1].strip():
            _refuse(f"line {line} of {name!r} is not of the form file,label", file=name)
    return [(line, row[0].strip().removeprefix("./"), row[1].strip()) for line, row in rows]


def _numbered(names: Sequence[str]) -> Labels:
    """Class numbers where all names are numbers or -1, else their places in the sorted order."""
    if all(name.isascii() and (name.isdigit() or name == str(UNLABELLED)) for name in names):
        numbers = [int(name) if len(name) < 20 else _MAX_CLASS + 1 for name in names]
        if max(numbers) > _MAX_CLASS:
            _refuse(f"class number {names[numbers.index(max(numbers))]} is beyond {_MAX_CLASS}")
        return Labels(np.array(numbers, np.int64), None)
    classes = tuple(sorted(set(names)))
    number = {name: k for k, name in enumerate(classes)}
    return Labels(np.array([number[name] for name in names], np.int64), classes)


def _refuse(message: str, *, hint: str | None = None, file: str | None = None) -> NoReturn:
    raise DatasetLabelsError(
        message,
        hint=hint or f'{LABELS_FILE} contains one row "file,label" for each picture or sound.',
        pointer=LABELS_POINTER,
        member=file,
    )
