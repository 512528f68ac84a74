"""Labels of the files of an archive: by a table, by folder, or none."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from service.contracts.errors import DatasetLabelsError
from worker.quantizer.data.media.members import LABELS_FILE, MediaFile, shared_folders
from worker.quantizer.data.stored import LABELS_POINTER

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
            _refuse(f"{table.name!r} names {name!r} in line {line}, which is not there", file=name)
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
            f"{beside[0]!r} lies beside the folders that name the classes of the others",
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
        _refuse(f"{name!r} is no CSV file in UTF-8: {error}", file=name)
    if rows and [cell.strip().lower() for cell in rows[0][1]] == _HEAD:
        del rows[0]
    for line, row in rows:
        if len(row) != len(_HEAD) or not row[1].strip():
            _refuse(f"line {line} of {name!r} is not of the form file,label", file=name)
    return [(line, row[0].strip().removeprefix("./"), row[1].strip()) for line, row in rows]


def _numbered(names: Sequence[str]) -> Labels:
    """Class numbers where all names are numbers, else their places in the sorted order."""
    if all(name.isascii() and name.isdigit() for name in names):
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
        hint=hint or f"{LABELS_FILE} holds one row file,label for every picture or sound.",
        pointer=LABELS_POINTER,
        member=file,
    )
