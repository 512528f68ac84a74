"""What can be wrong with the store or with one of its files."""

from __future__ import annotations

from service.contracts.command_errors import TransientError
from service.contracts.errors import QuantmillError


class StoredFileMissingError(QuantmillError, code="stored-file-missing", title="Stored file missing", status=500):
    """A file that is recorded in the database is missing from the store."""


class StoredFileCorruptError(QuantmillError, code="stored-file-corrupt", title="Stored file damaged", status=500):
    """A stored file is not identical to what was stored."""


class StorageFullError(QuantmillError, code="storage-full", title="Storage full", status=507):
    """The disk is full."""


class StorageAwayError(TransientError, code="storage-away", title="Storage unavailable"):
    """The storage folder or bucket is not available: it is not mounted, or does not respond."""

    retry_after_seconds = 5


def missing(sha256: str) -> StoredFileMissingError:
    """The error of a file that is not in the store."""
    return StoredFileMissingError(
        f"The file {sha256} is missing from the store.",
        hint="Restore the storage from a backup, or upload the file again.",
    )


def check_size(sha256: str, actual: int, expected: int | None) -> None:
    """Compare the size of a stored file with the one that it must have; None: not known.

    Raises:
        StoredFileCorruptError: they differ.
    """
    if expected is not None and actual != expected:
        raise StoredFileCorruptError(
            f"The file {sha256} has {actual} bytes instead of {expected}.",
            hint="Restore the storage from a backup.",
        )


def check_digest(actual: str, expected: str) -> None:
    """Compare the digest of a stored file's bytes with the one that is its name.

    Raises:
        StoredFileCorruptError: they differ; names the file.
    """
    if actual != expected:
        raise StoredFileCorruptError(
            f"The stored file {expected} is damaged: its bytes have sha256 {actual}.",
            hint="Restore the storage from a backup, or upload the file again. Inform the operator.",
            file=expected,
            actual=actual,
        )
