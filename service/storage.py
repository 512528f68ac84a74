"""Content-addressed files: a file's name is its sha256, so it never changes and is never stored twice."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from service.contracts.errors import QuantmillError

BLOCK_BYTES = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


class StoredFileMissingError(QuantmillError):
    """A file that the database knows of is not in the store."""

    code = "stored-file-missing"
    title = "A stored file is missing"
    status = 500


class StoredFileCorruptError(QuantmillError):
    """A stored file is not what it was when it was stored."""

    code = "stored-file-corrupt"
    title = "A stored file is damaged"
    status = 500


def check_digest(actual: str, expected: str) -> None:
    """Compare the digest of a stored file's bytes with the one that is its name.

    Raises:
        StoredFileCorruptError: they differ; names the file.
    """
    if actual != expected:
        raise StoredFileCorruptError(
            f"The stored file {expected} is damaged: its bytes have sha256 {actual}.",
            hint="Restore the storage folder from a backup, or upload the file again; tell the operator.",
            file=expected,
            actual=actual,
        )


class StorageFullError(QuantmillError):
    """The disk has no room left."""

    code = "storage-full"
    title = "The storage is full"
    status = 507


@dataclass(frozen=True)
class StoredFile:
    """A file in the store: lowercase hex sha256 and size."""

    sha256: str
    size_bytes: int


class FileStore:
    """Files below ``root``, at ``sha256/ab/abcd...``; ``incoming`` holds uploads on their way.

    Args:
        root: folder on a local disk; made if it is not there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"
        self.blobs = root / "sha256"
        for folder in (self.incoming, self.blobs):
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
        try:
            stream = self.path(sha256).open("rb")
        except FileNotFoundError:
            raise StoredFileMissingError(
                f"The file {sha256} is missing from the store.", hint="Restore the storage folder from a backup."
            ) from None
        actual = os.fstat(stream.fileno()).st_size
        if size_bytes is not None and actual != size_bytes:
            stream.close()
            raise StoredFileCorruptError(
                f"The file {sha256} holds {actual} bytes instead of {size_bytes}.",
                hint="Restore the storage folder from a backup.",
            )
        return stream

    def put_file(self, path: Path, *, sha256: str | None = None) -> StoredFile:
        """Move a file into the store; it is on the disk for good when this returns.

        Args:
            path: the file; it is gone from there afterwards.
            sha256: its digest, if the caller has just computed it.

        Raises:
            OSError: the disk refused.
        """
        digest = sha256 or file_sha256(path)
        size_bytes = path.stat().st_size
        target = self.path(digest)
        self._make_folder(target.parent)
        # An equal file that was damaged since is replaced: sending it again is how a user repairs it.
        if target.exists() and target.stat().st_size == size_bytes and file_sha256(target) == digest:
            # No row may name it yet: a fresh time stamp keeps garbage collection away until one does.
            os.utime(target)
            path.unlink()
            return StoredFile(digest, size_bytes)
        source = path if path.stat().st_dev == target.parent.stat().st_dev else self._copied(path)
        with source.open("rb") as stream:
            os.fsync(stream.fileno())
        source.chmod(0o440)
        source.replace(target)
        sync_folder(target.parent)
        if source != path:
            path.unlink()
        return StoredFile(digest, size_bytes)

    def _copied(self, path: Path) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self.incoming, suffix=".copy")
        with path.open("rb") as source, os.fdopen(descriptor, "wb") as target:
            shutil.copyfileobj(source, target, BLOCK_BYTES)
        return Path(name)

    def _make_folder(self, folder: Path) -> None:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            sync_folder(folder.parent)

    def free_bytes(self) -> int:
        """Space left on the store's disk."""
        return shutil.disk_usage(self.root).free


def file_sha256(path: Path) -> str:
    """Lowercase hex sha256 of a file, read in blocks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
