"""A store in a folder: of one host, or of a volume that all hosts share."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from service.failpoints import reach
from service.monitoring.timing import timed_store
from service.storage.base import Check, Identity, Store, StoredFile, file_name, no_check
from service.storage.digests import BLOCK_BYTES, copy_checked, file_sha256, is_sha256, sync_folder
from service.storage.errors import StorageAwayError, check_digest, check_size, missing

_READ_ONLY = 0o440
_ENDING = ThreadPoolExecutor(1, "storage-ending")


class FileStore(Store):
    """Files below ``root``, at ``sha256/ab/abcd...``; ``incoming`` holds uploads on their way, ``trash`` what goes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.blobs = root / "sha256"
        self.trash = root / "trash"
        for folder in (self.blobs, self.trash):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, sha256: str) -> Path:
        """Where the file of this digest lies, whether or not it is there."""
        return self.root / file_name(sha256)

    def open(self, sha256: str, size_bytes: int | None = None) -> IO[bytes]:
        """Open a stored file for reading."""
        stream = self._opened(sha256)
        try:
            check_size(sha256, os.fstat(stream.fileno()).st_size, size_bytes)
        except BaseException:
            stream.close()
            raise
        return stream

    def identity_of(self, stream: IO[bytes]) -> Identity:
        """Device, inode and time of change."""
        return _identity(os.fstat(stream.fileno()))

    def identity(self, sha256: str) -> Identity | None:
        """Which file lies in its place; None: none."""
        try:
            return _identity(self.path(sha256).stat())
        except FileNotFoundError:
            return None

    def check_there(self) -> None:
        """Make sure that the folder is the store, and not what is left where it was mounted."""
        if not self.blobs.is_dir():
            raise StorageAwayError(
                f"The storage folder {self.root} does not exist.",
                hint="Mount it again; jobs then continue automatically.",
            )

    def probe(self) -> str:
        """Write a file and have it synchronized."""
        with tempfile.NamedTemporaryFile(dir=self.incoming, suffix=".probe") as probe:
            probe.write(b"probe")
            probe.flush()
            os.fsync(probe.fileno())
        return "writable"

    def put_file(
        self, path: Path, *, sha256: str | None = None, check: Check = no_check, keep: bool = False
    ) -> StoredFile:
        """Move a file into the store; it is on the disk for good when this returns.

        Args:
            path: the file; it is gone from there afterwards.
            sha256: its digest, if the caller has just computed it.
            check: called every now and then; what it raises ends the move.
            keep: leave it at ``path``, too, until ``forget_source``: whoever is about to name it may not come to it.

        Raises:
            OSError: the disk refused.
        """
        digest = sha256 or file_sha256(path, check=check)
        with timed_store("put"):
            return self._put(path, digest, check, keep=keep)

    def _put(self, path: Path, digest: str, check: Check, *, keep: bool) -> StoredFile:
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
        """
        self._opened(sha256).close()

    def copy_to(self, sha256: str, destination: Path, check: Check = no_check) -> None:
        """Write a copy, verified on its way."""
        copy_checked(self._found(sha256), destination, sha256=sha256, check=check)

    @contextmanager
    def lend(self, sha256: str, check: Check = no_check) -> Iterator[Path]:
        """Where the file lies."""
        path = self._found(sha256)
        check_digest(file_sha256(path, check=check), sha256)
        yield path

    def old_files(self, age_seconds: float) -> Iterator[list[StoredFile]]:
        """Files that were stored longer ago, folder by folder."""
        for folder in sorted(_children(self.blobs)):
            if old := list(_old(folder, age_seconds)):
                yield old

    def discard(self, sha256: str, *, age_seconds: float) -> bool:
        """Move a file to the trash, unless it was stored anew since."""
        path = self.path(sha256)
        try:
            if time.time() - path.lstat().st_mtime <= age_seconds:
                return False
            os.utime(path)
            path.replace(self.trash / sha256)
        except FileNotFoundError:
            return False
        return True

    def take_back(self, sha256: str) -> bool:
        """Put a file from the trash back into its place; one that was stored anew meanwhile stays."""
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

    def old_trash(self, age_seconds: float) -> Iterator[StoredFile]:
        """What has been in the trash for longer."""
        return _old(self.trash, age_seconds)

    def purge(self, sha256: str, check: Check = no_check) -> None:
        """Remove a file of the trash for good; who names it meanwhile has another one in its place."""
        (self.trash / sha256).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Space left on the store's disk."""
        return self.local_free_bytes()

    def _opened(self, sha256: str) -> IO[bytes]:
        for _ in range(2):
            with suppress(FileNotFoundError):
                return self.path(sha256).open("rb")
            if not self.take_back(sha256):
                break
        with suppress(FileNotFoundError):  # another process was quicker to take it back
            return self.path(sha256).open("rb")
        raise missing(sha256)

    def _found(self, sha256: str) -> Path:
        path = self.path(sha256)
        if not path.is_file():
            self.check_there()
            if not self.take_back(sha256):
                raise missing(sha256)
        return path

    def _linked(self, path: Path) -> Path:
        """The same file under another name, which can be given away."""
        link = self.incoming / f"{secrets.token_hex(8)}.copy"
        os.link(path, link)
        return link

    def _copied(self, path: Path, check: Check) -> Path:
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


def _identity(state: os.stat_result) -> Identity:
    return state.st_dev, state.st_ino, state.st_mtime_ns


def _children(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from (Path(entry.path) for entry in entries)


def _old(folder: Path, age_seconds: float) -> Iterator[StoredFile]:
    """Stored files in a folder that were changed longer ago; what is gone meanwhile is passed over."""
    for path in _children(folder):
        with suppress(FileNotFoundError):
            state = path.lstat()
            if is_sha256(path.name) and time.time() - state.st_mtime > age_seconds:
                yield StoredFile(path.name, state.st_size)


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
