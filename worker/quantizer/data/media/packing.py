"""A folder of pictures or sounds as a .tar: the same folder gives the same bytes."""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from worker.quantizer.data.media import picture
from worker.quantizer.data.media.members import MAX_FILE_BYTES, SOUND_SUFFIXES, Content, refuse, suffix_of
from worker.quantizer.data.media.reading import ListedMedia, list_media
from worker.quantizer.data.media.sound import read_wave
from worker.quantizer.data.zips import DEFAULT_MAX_TOTAL_BYTES

_MODE = 0o644


@dataclass(frozen=True)
class Packed:
    """What was packed: number of files, what they are, and of how many classes; None without labels."""

    files: int
    content: Content
    classes: int | None


def pack_folder(folder: Path, output: Path) -> Packed:
    """Write the files of ``folder``, sorted by name, into ``output``, which appears whole or not at all.

    Every file is looked at as validation would, but for the pixels themselves. Links to files are followed.

    Raises:
        DatasetFormatError: a file cannot be used; names it.
        DatasetLabelsError: labels.csv or the folders do not label the files.
        OSError: something cannot be read or written.
    """
    with tempfile.NamedTemporaryFile(dir=output.absolute().parent, prefix=".quantmill-", delete=False) as stream:
        part = Path(stream.name)
        try:
            _write(folder, stream)
            listed = list_media(part, "tar", max_total_bytes=DEFAULT_MAX_TOTAL_BYTES)
            _check_files(listed)
        except BaseException:
            part.unlink()
            raise
    mask = os.umask(0)
    os.umask(mask)
    part.chmod(0o666 & ~mask)
    part.replace(output)
    classes = None if listed.labels is None else len(set(listed.labels.values.tolist()))
    return Packed(len(listed.files), listed.content, classes)


def _write(folder: Path, stream: IO[bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(_files(folder)):
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                refuse(name, "is not a file", "Leave it out of the folder.")
            if status.st_size > MAX_FILE_BYTES:
                refuse(
                    name, f"takes {status.st_size} bytes; at most {MAX_FILE_BYTES} are accepted", "Use smaller files."
                )
            member = tarfile.TarInfo(name)
            member.size, member.mode = status.st_size, _MODE
            with path.open("rb") as file:
                archive.addfile(member, file)
    stream.flush()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Everything below ``folder`` that is no folder, by its path from there."""
    for place, folders, names in os.walk(folder):
        here = Path(place)
        for name in folders:
            if (here / name).is_symlink():
                refuse((here / name).relative_to(folder).as_posix(), "is a link to a folder", "Put the folder there.")
        for name in names:
            yield (here / name).relative_to(folder).as_posix(), here / name


def _check_files(listed: ListedMedia) -> None:
    for file, data in zip(listed.files, listed.archive.contents(listed.files), strict=True):
        if suffix_of(file.name) in SOUND_SUFFIXES:
            read_wave(file.name, data)
        else:
            picture.open_picture(file.name, data)
