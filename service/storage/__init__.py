"""The content-addressed store of files: in a folder, or in a bucket of an object store."""

from __future__ import annotations

from service.storage.base import Damage, Identity, Read, Store, StoredFile
from service.storage.digests import BLOCK_BYTES, copy_checked, file_sha256, is_sha256, sync_folder
from service.storage.errors import (
    StorageAwayError,
    StorageFullError,
    StoredFileCorruptError,
    StoredFileMissingError,
    check_digest,
)
from service.storage.folder import FileStore

__all__ = [
    "BLOCK_BYTES",
    "Damage",
    "FileStore",
    "Identity",
    "Read",
    "StorageAwayError",
    "StorageFullError",
    "Store",
    "StoredFile",
    "StoredFileCorruptError",
    "StoredFileMissingError",
    "check_digest",
    "copy_checked",
    "file_sha256",
    "is_sha256",
    "sync_folder",
]
