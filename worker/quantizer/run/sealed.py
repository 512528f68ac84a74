"""Files that say themselves whether they are whole: bytes below a header with what they are and their sha256.

Written under another name and renamed, so that a reader sees all of a file or none of it, and two writers of the same
file do no harm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from pathlib import Path

MAGIC = b"QMSEAL1\n"
HEADER_BYTES = len(MAGIC) + 2 * hashlib.sha256().digest_size
PART_PREFIX = ".part-"


class DamagedFileError(Exception):
    """The file is not what was written under this label; says in words what is wrong with it."""


def write_sealed(path: Path, label: str, data: bytes, *, durable: bool) -> None:
    """Write ``data`` to ``path``, whole or not at all.

    Args:
        path: in a folder that exists.
        label: what it is; a reader has to ask for the same.
        data: any bytes.
        durable: it is on the disk for good when this returns.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=PART_PREFIX)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(MAGIC + _digest(label.encode()) + _digest(data))
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_sealed(path: Path, label: str) -> bytes:
    """What was written to ``path`` under ``label``.

    Raises:
        FileNotFoundError: nothing is there.
        DamagedFileError: it is no regular file, of another kind, for another label, cut off or changed.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise DamagedFileError("it is no regular file")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        header, data = stream.read(HEADER_BYTES), stream.read()
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise DamagedFileError("it was not written by this program")
    seal = header[len(MAGIC) :]
    half = len(seal) // 2
    if seal[:half] != _digest(label.encode()):
        raise DamagedFileError("it belongs to something else")
    if seal[half:] != _digest(data):
        raise DamagedFileError("its bytes are not the ones that were written")
    return data


def sealed_size(path: Path) -> int:
    """Bytes that the file takes; 0 if it is not there."""
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


def remove_parts(folder: Path, age_seconds: float) -> None:
    """Remove what writers that were killed have left in ``folder``, once nobody can be writing it any more."""
    for part in folder.glob(PART_PREFIX + "*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - part.lstat().st_mtime > age_seconds:
                part.unlink()


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
