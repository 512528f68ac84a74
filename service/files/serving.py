"""Serving stored files: a file read to its end is verified, and damage is flagged immediately."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from service.db import Database
from service.files import repository
from service.storage import BLOCK_BYTES, Store, check_digest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedFile:
    """A stored file, open for reading; whoever reads it closes ``stream``."""

    stream: IO[bytes]
    sha256: str
    database: Database
    store: Store

    def check(self, actual: str) -> None:
        """Judge the file by the digest of all its bytes.

        A damaged one is flagged before this raises: nobody goes on with a range of what has just broken off.

        Raises:
            StoredFileCorruptError: it is damaged.
        """
        if actual != self.sha256:
            log.error("stored_file.corrupt sha256=%s actual=%s", self.sha256, actual)
            with self.database.write() as session:
                repository.note_damage(session, self.store, self.sha256, "digest", self.store.identity_of(self.stream))
        check_digest(actual, self.sha256)

    def blocks(self) -> Iterator[bytes]:
        """All bytes of the file; the last are given only if it is whole, so that nobody has all of a damaged one.

        Raises:
            StoredFileCorruptError: it is damaged.
        """
        digest, held = hashlib.sha256(), b""
        while block := self.stream.read(BLOCK_BYTES):
            if held:
                yield held
            digest.update(block)
            held = block
        self.check(digest.hexdigest())
        if held:
            yield held


def open_file(database: Database, store: Store, sha256: str, size_bytes: int) -> ServedFile:
    """Open a stored file for a client, who may read all of it or a part.

    Raises:
        StoredFileMissingError: it is gone.
        StoredFileCorruptError: it has another size than it had, or was found to be damaged.
    """
    with database.read() as session:
        repository.refuse_damaged(session, sha256)
    return ServedFile(store.open(sha256, size_bytes), sha256, database, store)
