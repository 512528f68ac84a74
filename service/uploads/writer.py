"""The file of an upload in progress, whose size is the offset; and its digests.

A request that sends the whole file anew, over bytes of earlier requests, writes into a second file beside it, which
takes the first one's place only once it is kept: a refused request leaves the earlier bytes alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from service.monitoring.declarations import UPLOADED
from service.storage import FileStore, StorageFullError, file_sha256, sync_folder
from service.uploads.base import UploadWriter
from service.uploads.schemas import UploadBusyError

# Digests of uploads that are under way: with them, a file that came in parts need not be read again at its end.

# Each is some hundred bytes; of an upload that is forgotten, the file is read again.
REMEMBERED = 4096
# Device, inode, size and time of change of a file: another one after anybody has written to it.
_State = tuple[int, int, int, int]


class RunningDigests:
    """The digest of each file as far as it was written in this process. Any thread may use it.

    A file that another process has written to meanwhile is not known here.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._lock = threading.Lock()
        self._digests: OrderedDict[tuple[int, int], tuple[_State, hashlib._Hash]] = OrderedDict()

    def remember(self, descriptor: int, digest: hashlib._Hash) -> None:
        """Note the digest of all bytes that the open file has now."""
        state = _state(descriptor)
        with self._lock:
            self._digests[state[:2]] = state, digest.copy()
            self._digests.move_to_end(state[:2])
            while len(self._digests) > self._remembered:
                self._digests.popitem(last=False)

    def known(self, descriptor: int) -> hashlib._Hash | None:
        """The digest of all bytes that the open file has now, to be gone on with."""
        state = _state(descriptor)
        with self._lock:
            known = self._digests.get(state[:2])
        return known[1].copy() if known is not None and known[0] == state else None


def _state(descriptor: int) -> _State:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


_ANEW_SUFFIX = ".anew"
# So much may wait in memory for the disk, which begins to write meanwhile: less is left to be waited for at the end.
_UNWRITTEN_BYTES = 32 * 1024 * 1024


class UploadFile(UploadWriter):
    """The only writer of one upload, for as long as it is open.

    Args:
        path: the file; made if it is not there.
        store: where the complete file goes.
        min_free_bytes: disk floor that writing must not go below.
        digests: where the digest of the file so far may be known, and is left for the next writer.

    Raises:
        UploadBusyError: another writer, in this or another process, has it open.
    """

    def __init__(
        self,
        path: Path,
        *,
        store: FileStore | None = None,
        min_free_bytes: int = 0,
        digests: RunningDigests | None = None,
    ) -> None:
        self.path = path
        self._store = store
        self._floor = min_free_bytes
        self._digests = digests if digests is not None else RunningDigests()
        self._lock = _locked(path)
        self._descriptor = self._lock
        self._anew = path.with_name(path.name + _ANEW_SUFFIX)
        self._start = self.size_bytes
        self._flushed = self._start
        self._whole = hashlib.sha256() if self._start == 0 else self._digests.known(self._lock)
        self._own: hashlib._Hash | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor != self._lock:
            os.close(self._descriptor)
        os.close(self._lock)

    @property
    def size_bytes(self) -> int:
        """Bytes in the file that is being written."""
        return os.fstat(self._descriptor).st_size

    def digest_own(self) -> None:
        """Digest what this writer is about to write, beside the whole file where that is not the same."""
        self._own = self._whole if self._start == 0 and self._whole is not None else hashlib.sha256()

    @property
    def own_sha256(self) -> bytes:
        """Digest of what this writer has written since ``digest_own``."""
        assert self._own is not None  # noqa: S101 - who asks has said before that they will
        return self._own.digest()

    def begin_anew(self) -> None:
        """Write the file from byte 0 on; what earlier writers wrote stays until ``keep``."""
        if self._start > 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._anew, flags, 0o640)
            self._start = self._flushed = 0
            self._whole = hashlib.sha256()

    def clear(self) -> None:
        """Throw away everything, earlier writers' bytes too."""
        self.undo()
        if os.fstat(self._lock).st_nlink > 1:  # it lies in the store, too: those bytes are not ours to throw away
            self.begin_anew()
            self._take_place()
        os.ftruncate(self._lock, 0)
        self._start = self._flushed = 0
        self._whole = hashlib.sha256()

    def undo(self) -> None:
        """Throw away what this writer has written: the file is as it was before."""
        self._whole = None  # what it was before is not known any more; it is read again, should it be asked for
        if self._descriptor == self._lock:
            os.ftruncate(self._descriptor, self._start)
            return
        self._anew.unlink()
        os.close(self._descriptor)
        self._descriptor = self._lock
        self._start = self.size_bytes

    def keep(self) -> None:
        """Make what was written durable. Of a file begun anew that has no bytes, nothing is kept.

        Raises:
            OSError: the disk refused.
        """
        os.fsync(self._descriptor)
        if self._descriptor != self._lock:
            if self.size_bytes == 0:
                self.undo()
                return
            self._take_place()
        if self._whole is not None:
            self._digests.remember(self._descriptor, self._whole)

    def _take_place(self) -> None:
        """Let the file that was begun anew be the upload's."""
        # from here on the lock is that of the new file, which nobody else can have opened under this name before
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._anew.replace(self.path)
        sync_folder(self.path.parent)
        os.close(self._lock)
        self._lock = self._descriptor

    def write(self, *blocks: bytes) -> None:
        """Append blocks.

        Raises:
            StorageFullError: the disk would go below its floor.
            OSError: the disk refused.
        """
        disk = os.fstatvfs(self._descriptor)
        if disk.f_bavail * disk.f_frsize < sum(map(len, blocks)) + self._floor:
            raise StorageFullError("The disk of the service is full.", hint="Free disk space on the storage folder.")
        digests = {digest for digest in (self._whole, self._own) if digest is not None}
        offset = self.size_bytes
        for block in blocks:
            for digest in digests:
                digest.update(block)
            view = memoryview(block)
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                view, offset = view[written:], offset + written
                UPLOADED.inc(written)
        if offset - self._flushed >= _UNWRITTEN_BYTES:
            _begin_to_flush(self._descriptor, self._flushed, offset - self._flushed)
            self._flushed = offset

    def sha256(self) -> str:
        """Lowercase hex digest of the whole file; read again only if another process wrote a part of it."""
        return file_sha256(self.path) if self._whole is None else self._whole.hexdigest()

    def store(self, sha256: str) -> None:
        """Put the whole file, which has this digest, into the store; it stays here, too, until ``forget``.

        Raises:
            OSError: the disk refused.
        """
        assert self._store is not None  # noqa: S101 - who stores has said where
        self._store.put_file(self.path, sha256=sha256, keep=True)

    def forget(self, sha256: str | None) -> None:
        """The file lies in the store alone from now on; None: it was complete before this writer came."""
        if sha256 is None:
            self.path.unlink(missing_ok=True)  # was made just now
            return
        assert self._store is not None  # noqa: S101 - as above
        self._store.forget_source(self.path, sha256)


def _begin_to_flush(descriptor: int, offset: int, size_bytes: int) -> None:
    """Have the kernel write these bytes to the disk now, and wait for nothing; a hint, which not every system takes."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)


def _locked(path: Path) -> int:
    """Open and lock the file that has this name; another writer may put a new one in its place in between."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UploadBusyError(
                "Another request is writing to this upload.",
                hint="Wait until that request has ended, then get the current offset.",
            ) from None
        if _is_named(descriptor, path):
            return descriptor
        os.close(descriptor)


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        named = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), named)


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


def part_files(path: Path) -> tuple[Path, Path]:
    """Every file that an upload growing at ``path`` may have: it, and the one that takes its place."""
    return path, path.with_name(path.name + _ANEW_SUFFIX)


@contextmanager
def unwritten(path: Path) -> Iterator[bool]:
    """Whether nobody writes to the upload at ``path``; if so, nobody begins to while the block runs.

    Where there is no file there is no writer yet: one that comes looks at the upload's row after it has made the file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = _is_named(descriptor, path)
    except BlockingIOError:
        alone = False
    try:
        yield alone
    finally:
        os.close(descriptor)
