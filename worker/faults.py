"""Errors caused by the installation: a full disk, unavailable storage. They are not charged to jobs."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from service.contracts.errors import QuantmillError
from service.storage import StorageAwayError, StorageFullError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# A mount that went away, answers no more, or lost its disk: also one that the kernel only lets be read from then on.
_AWAY = frozenset(
    {
        errno.ESTALE, errno.ENOTCONN, errno.ENODEV, errno.ENXIO, errno.EHOSTDOWN, errno.EHOSTUNREACH,
        errno.ENETUNREACH, errno.ETIMEDOUT, errno.EIO, errno.EREMOTEIO, errno.EROFS, errno.EUCLEAN,
    }
)  # fmt: skip
# Words by which libraries tell of the same where no errno reaches Python: Rust's, SQLite's, NumPy's.
_FULL_WORDS = ("no space left on device", "disk quota exceeded", "database or disk is full", "os error 28")
_SHORT_WRITE = "requested and"
# Less than this is no room for anything.
_ROOM_BYTES = 1024**2


def storage_fault(error: BaseException, *folders: Path) -> StorageFullError | StorageAwayError | None:
    """The fault of the storage that ``error``, or what caused it, stands for; None if it is another error.

    Args:
        error: as caught.
        folders: that were written to; they tell what an error without a number means.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, StorageFullError | StorageAwayError):
            return seen
        if _is_full(seen, folders):
            return no_room(str(seen))
        if isinstance(seen, OSError) and seen.errno in _AWAY:
            return StorageAwayError(
                f"The storage is not usable: {seen}",
                hint="Repair it or mount it again; the job then continues automatically.",
            )
        seen = seen.__cause__ or seen.__context__
    return None


def no_room(what: object) -> StorageFullError:
    """The error of a disk without room; ``what`` says which, or what was refused."""
    return StorageFullError(
        f"The worker's disk is full: {what}",
        hint="Free disk space, or enlarge the disk; the job then continues automatically.",
    )


def has_room(folder: Path) -> bool:
    """False if nothing can be written to the disk of ``folder``."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize >= _ROOM_BYTES


def _is_full(error: BaseException, folders: tuple[Path, ...]) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    if isinstance(error, QuantmillError):
        return False
    told = str(error).lower()
    if any(word in told for word in _FULL_WORDS):
        return True
    # NumPy says how much it has written, not why not all of it.
    return isinstance(error, OSError) and _SHORT_WRITE in told and not all(map(_takes_bytes, folders))


def _takes_bytes(folder: Path) -> bool:
    """False if the disk of ``folder`` is full, or takes no more of this user: no figure of a disk shows a quota."""
    if not has_room(folder):
        return False
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_ROOM_BYTES))
    except OSError as error:
        return error.errno not in _FULL
    return True
