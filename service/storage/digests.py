"""Digests of files, and copies that are verified on their way."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from service.storage.errors import check_digest

BLOCK_BYTES = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


def is_sha256(name: str) -> bool:
    """True for a lowercase hex sha256."""
    return _SHA256.fullmatch(name) is not None


def file_sha256(path: Path, *, check: Callable[[], None] = lambda: None) -> str:
    """Lowercase hex sha256 of a file, read in blocks; ``check`` is called before each."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            check()
            digest.update(block)
    return digest.hexdigest()


def copy_checked(source: Path, destination: Path, *, sha256: str, check: Callable[[], None] = lambda: None) -> None:
    """Copy a file, and make sure that these are the bytes of this digest; ``check`` is called before each block.

    Raises:
        StoredFileCorruptError: they are not.
    """
    digest = hashlib.sha256()
    with source.open("rb") as reader, destination.open("wb") as writer:
        while block := reader.read(BLOCK_BYTES):
            check()
            digest.update(block)
            writer.write(block)
    check_digest(digest.hexdigest(), sha256)


def sync_folder(folder: Path) -> None:
    """Make names in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
