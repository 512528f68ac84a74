"""Content-addressed files: a file's name is its sha256, so its bytes never change and are never stored twice."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

from service.contracts.errors import QuantmillError
from service.failpoints import reach

BLOCK_BYTES = 1024 * 1024
# Device, inode and time of change of a file: another one after it was replaced.
Identity = tuple[int, int, int]
Damage = Literal["missing", "digest", "unreadable"]
_SHA256 = re.compile(r"[0-9a-f]{64}")
# The disk is there and cannot give the bytes of a file: its sectors, or what the file system keeps of it, are damaged.
_UNREADABLE = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
_COLLECT_LOCK = "collect.lock"
_READ_ONLY = 0o440
_ENDING = ThreadPoolExecutor(1, "storage-ending")


class StoredFileMissingError(QuantmillError, code="stored-file-missing", title="Stored file missing", status=500):
    """A file that is recorded in the database is missing from the store."""


class StoredFileCorruptError(QuantmillError, code="stored-file-corrupt", title="Stored file damaged", status=500):
    """A stored file is not identical to what was stored."""


def check_digest(actual: str, expected: str) -> None:
    """Compare the digest of a stored file's bytes with the one that is its name.

    Raises:
        StoredFileCorruptError: they differ; names the file.
    """
    if actual != expected:
        raise StoredFileCorruptError(
            f"The stored file {expected} is damaged: its bytes have sha256 {actual}.",
            hint="Restore the storage folder from a backup, or upload the file again. Inform the operator.",
            file=expected,
            actual=actual,
        )


class StorageFullError(QuantmillError, code="storage-full", title="Storage full", status=507):
    """The disk is full."""


class StorageAwayError(QuantmillError, code="storage-away", title="Storage unavailable", status=503):
    """The storage folder is not available: it is not mounted, or does not respond."""


@dataclass(frozen=True)
class StoredFile:
    """A file in the store: lowercase hex sha256 and size."""

    sha256: str
    size_bytes: int


class Read(NamedTuple):
    """What reading a stored file has shown: what is wrong with it, if anything; its bytes; and which file it was."""

    damage: Damage | None
    size_bytes: int
    identity: Identity | None


class FileStore:
    """Files below ``root``, at ``sha256/ab/abcd...``; ``incoming`` holds uploads on their way, ``trash`` what goes.

    Args:
        root: folder on a local disk; made if it is not there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"
        self.blobs = root / "sha256"
        self.trash = root / "trash"
        for folder in (self.incoming, self.blobs, self.trash):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        """Where the file of this digest lies, whether or not it is there."""
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"not a sha256: {sha256!r}")
        return self.blobs / sha256[:2] / sha256

    def open(self, sha256: str, size_bytes: int | None = None) -> IO[bytes]:
        """Open a stored file for reading.

        Args:
            sha256: its digest.
            size_bytes: the size it must have, if known.

        Raises:
            StoredFileMissingError: it is not there.
            StoredFileCorruptError: its size is not the one given.
        """
        stream = self._opened(sha256)
        actual = os.fstat(stream.fileno()).st_size
        if size_bytes is not None and actual != size_bytes:
            stream.close()
            raise StoredFileCorruptError(
                f"The file {sha256} has {actual} bytes instead of {size_bytes}.",
                hint="Restore the storage folder from a backup.",
            )
        return stream

    def read_through(self, sha256: str, on_block: Callable[[bytes], object]) -> Read:
        """Read a stored file to its end; ``on_block`` is called with each of its blocks.

        Raises:
            OSError: the disk is away: that says nothing of the file.
        """
        try:
            stream = self.open(sha256)
        except StoredFileMissingError:
            return Read("missing", 0, None)
        digest, size_bytes = hashlib.sha256(), 0
        with stream:
            identity = identity_of(stream)
            while True:
                try:
                    block = stream.read(BLOCK_BYTES)
                except OSError as error:
                    if error.errno in _UNREADABLE:
                        return Read("unreadable", size_bytes, identity)
                    raise
                if not block:
                    break
                digest.update(block)
                size_bytes += len(block)
                on_block(block)
        return Read(None if digest.hexdigest() == sha256 else "digest", size_bytes, identity)

    def check_there(self) -> None:
        """Make sure that the folder is the store, and not what is left where it was mounted.

        Raises:
            StorageAwayError: it is not there.
        """
        if not self.blobs.is_dir():
            raise StorageAwayError(
                f"The storage folder {self.root} does not exist.",
                hint="Mount it again; jobs then continue automatically.",
            )

    def put_file(
        self,
        path: Path,
        *,
        sha256: str | None = None,
        keep: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> StoredFile:
        """Move a file into the store; it is on the disk for good when this returns.

        Args:
            path: the file; it is gone from there afterwards.
            sha256: its digest, if the caller has just computed it.
            keep: leave it at ``path``, too, until ``forget_source``: whoever is about to name it may not come to it.
            check: called every now and then; what it raises ends the move.

        Raises:
            OSError: the disk refused.
        """
        digest = sha256 or file_sha256(path, check=check)
        size_bytes = path.stat().st_size
        target = self.path(digest)
        self._make_folder(target.parent)
        # An equal file that is there is replaced unseen: one that was damaged since is healed, and whoever sends it
        # does not learn from the time that it takes whether somebody has it.
        is_here = path.stat().st_dev == target.parent.stat().st_dev
        source = (self._linked(path) if keep else path) if is_here else self._copied(path, check)
        reach("before_artifact_fsync")
        with source.open("rb") as stream:
            os.fsync(stream.fileno())
        if not keep:  # under its other name it may be opened for writing once more
            source.chmod(_READ_ONLY)
        with _ending_later(target):
            source.replace(target)
        source.unlink(missing_ok=True)  # of two names of one file none replaces the other
        sync_folder(target.parent)
        reach("after_artifact_rename")
        if not keep:
            path.unlink(missing_ok=True)
        return StoredFile(digest, size_bytes)

    def forget_source(self, path: Path, sha256: str) -> None:
        """A file that was put here and kept lies here alone from now on."""
        path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # nobody names it, and it was collected
            self.path(sha256).chmod(_READ_ONLY)

    def ensure(self, sha256: str) -> None:
        """Make sure that a file lies in its place; what had gone to the trash is taken back.

        Opened, not only looked for: a network file system may answer from memory, but not when it opens.

        Raises:
            StoredFileMissingError: it is nowhere.
        """
        self._opened(sha256).close()

    def identity(self, sha256: str) -> Identity | None:
        """Which file lies in its place; None: none."""
        try:
            return _identity(self.path(sha256).stat())
        except FileNotFoundError:
            return None

    def discard(self, sha256: str) -> None:
        """Move a file to the trash, where it ages from now on; gone already is fine.

        The caller makes sure that no row names it, see ``service.files.repository``.
        """
        path = self.path(sha256)
        with suppress(FileNotFoundError):
            os.utime(path)
            path.replace(self.trash / sha256)

    def take_back(self, sha256: str) -> bool:
        """Put a file from the trash back into its place; False if it is not in the trash.

        One that was stored anew meanwhile stays.
        """
        path, trashed = self.path(sha256), self.trash / sha256
        if not trashed.exists():
            return False
        self._make_folder(path.parent)
        with suppress(FileExistsError):
            try:
                os.link(trashed, path)
            except FileNotFoundError:
                return False
            sync_folder(path.parent)
        trashed.unlink(missing_ok=True)
        return True

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Nothing is collected from this store on this host while the block runs; ends with the process, too."""
        with (self.root / _COLLECT_LOCK).open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            yield

    @contextmanager
    def collecting(self) -> Iterator[bool]:
        """Whether files may be collected while the block runs: False while somebody has the store pinned."""
        with (self.root / _COLLECT_LOCK).open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _opened(self, sha256: str) -> IO[bytes]:
        for _ in range(2):
            with suppress(FileNotFoundError):
                return self.path(sha256).open("rb")
            if not self.take_back(sha256):
                break
        with suppress(FileNotFoundError):  # another process was quicker to take it back
            return self.path(sha256).open("rb")
        raise StoredFileMissingError(
            f"The file {sha256} is missing from the store.",
            hint="Restore the storage folder from a backup, or upload the file again.",
        )

    def _linked(self, path: Path) -> Path:
        """The same file under another name, which can be given away."""
        link = self.incoming / f"{secrets.token_hex(8)}.copy"
        os.link(path, link)
        return link

    def _copied(self, path: Path, check: Callable[[], None]) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self.incoming, suffix=".copy")
        try:
            with path.open("rb") as source, os.fdopen(descriptor, "wb") as target:
                while block := source.read(BLOCK_BYTES):
                    check()
                    target.write(block)
        except BaseException:
            # On a full disk half a copy would be in the way of everything else.
            Path(name).unlink(missing_ok=True)
            raise
        return Path(name)

    def _make_folder(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)

    def free_bytes(self) -> int:
        """Space left on the store's disk."""
        return shutil.disk_usage(self.root).free


def identity_of(stream: IO[bytes]) -> Identity:
    """Which file an open one is."""
    return _identity(os.fstat(stream.fileno()))


def _identity(state: os.stat_result) -> Identity:
    return state.st_dev, state.st_ino, state.st_mtime_ns


def is_sha256(name: str) -> bool:
    """True for a lowercase hex sha256."""
    return _SHA256.fullmatch(name) is not None


@contextmanager
def _ending_later(path: Path) -> Iterator[None]:
    """Whatever lies at ``path`` may be replaced in the block; to free the space of a large file takes its time, which
    is spent beside.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # there is none, or it is damaged
        yield
        return
    try:
        yield
    finally:
        _ENDING.submit(os.close, descriptor)


def file_sha256(path: Path, *, check: Callable[[], None] = lambda: None) -> str:
    """Lowercase hex sha256 of a file, read in blocks; ``check`` is called before each."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            check()
            digest.update(block)
    return digest.hexdigest()


def sync_folder(folder: Path) -> None:
    """Make names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
