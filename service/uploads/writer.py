"""The file that an upload grows in. Its size is the offset: what a crash leaves behind is a prefix of what was sent."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from types import TracebackType

from service.storage import StorageFullError, file_sha256
from service.uploads.errors import UploadBusyError


class UploadFile:
    """The only writer of one upload, for as long as it is open.

    Args:
        path: the file; made if it is not there.
        min_free_bytes: disk floor that writing must not go below.

    Raises:
        UploadBusyError: another writer, in this or another process, has it open.
    """

    def __init__(self, path: Path, *, min_free_bytes: int = 0) -> None:
        self.path = path
        self._floor = min_free_bytes
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise UploadBusyError(
                "Another request is writing to this upload.", hint="Wait until it has ended, then ask for the offset."
            ) from None
        self._hash = hashlib.sha256()
        self._start = self.size_bytes

    def __enter__(self) -> UploadFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._descriptor).st_size

    @property
    def written_sha256(self) -> bytes:
        """Digest of what this writer has written."""
        return self._hash.digest()

    def restart(self) -> None:
        """Throw away everything."""
        os.ftruncate(self._descriptor, 0)
        self._start = 0

    def undo(self) -> None:
        """Throw away what this writer has written."""
        os.ftruncate(self._descriptor, self._start)

    def write(self, block: bytes | bytearray) -> None:
        """Append a block.

        Raises:
            StorageFullError: the disk would go below its floor.
            OSError: the disk refused.
        """
        disk = os.fstatvfs(self._descriptor)
        if disk.f_bavail * disk.f_frsize < len(block) + self._floor:
            raise StorageFullError("The disk of the service is full.", hint="Free some space on its storage folder.")
        self._hash.update(block)
        view = memoryview(block)
        offset = self.size_bytes
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def sync(self) -> None:
        """Make the bytes durable."""
        os.fsync(self._descriptor)

    def sha256(self) -> str:
        """Lowercase hex digest of the whole file; read again only if an earlier writer wrote a part of it."""
        return self._hash.hexdigest() if self._start == 0 else file_sha256(self.path)


def durable_size(path: Path) -> int:
    """Size of the file after making sure that so much of it is on the disk; 0 if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        size_bytes = os.fstat(descriptor).st_size
        os.fsync(descriptor)
        return size_bytes
    finally:
        os.close(descriptor)
