"""A store in a bucket of an object store: S3 and what speaks its language, Google Cloud Storage, Azure Blob Storage.

    PREFIX/sha256/ab/abcd...        stored files
    PREFIX/incoming/UPLOAD/...      parts of uploads, see ``service.uploads.parts``
    PREFIX/trash/abcd...            empty; the file of this name has been in the trash since this was written
    PREFIX/store                    empty; tells the store from a bucket that is another one, or was emptied

A bucket moves no objects, so the trash is a mark: a file in the trash lies where it lay, and taking it back removes the
mark. Hosts share nothing but the bucket; the folder on each holds copies of files that its jobs use.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import IO, cast

from service.failpoints import reach
from service.storage.base import Check, Identity, Store, StoredFile, file_name, no_check
from service.storage.cache import LocalCopies
from service.storage.digests import copy_checked, file_sha256, is_sha256
from service.storage.errors import StorageAwayError, StoredFileCorruptError, check_digest, check_size, missing
from service.storage.objects import PART_BYTES, Objects, ObjectStream, StoredObject

MARK = "store"
_FILES, _TRASH = "sha256", "trash"


class BucketStore(Store):
    """Files as objects of a bucket.

    Args:
        url: of the bucket and the prefix, such as ``s3://bucket/prefix``.
        root: folder on a local disk, for copies and for forms on their way.
        cache_bytes: what copies on the local disk may take while no job uses them.
        patience_seconds: for how long a call goes on asking a bucket that is away.
        may_begin: whether a bucket without the mark of a store is one that is used for the first time.
    """

    files_at_once = 5

    def __init__(
        self,
        url: str,
        root: Path,
        *,
        cache_bytes: int,
        patience_seconds: float = 0.0,
        may_begin: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(root)
        self.objects = Objects(url, patience_seconds=patience_seconds)
        # For what is asked while a database transaction is open: nobody has patience then.
        self._briefly = Objects(url, patience_seconds=0.0)
        self._may_begin = may_begin
        self.copies = LocalCopies(root, cache_bytes)
        self._marked = False

    def open(self, sha256: str, size_bytes: int | None = None) -> IO[bytes]:
        """Open a stored file for reading."""
        found = self._found(sha256)
        check_size(sha256, found.size_bytes, size_bytes)
        return cast(IO[bytes], self.objects.open(found))

    def identity_of(self, stream: IO[bytes]) -> Identity:
        """Entity tag and time of change."""
        return cast(ObjectStream, stream).found.identity

    def identity(self, sha256: str) -> Identity | None:
        """Which file lies in its place; None: none."""
        found = self._briefly.head(file_name(sha256))
        return None if found is None else found.identity

    def check_there(self) -> None:
        """Make sure that this bucket and prefix have been used as a store."""
        self._check_mark(self.objects)

    @staticmethod
    def _check_mark(objects: Objects) -> None:
        if objects.head(MARK) is None:
            raise StorageAwayError(
                "The bucket is not the store of this service: its mark is missing.",
                hint=f"Check QUANTMILL_STORAGE_URL. If files were moved here, create an empty object {MARK!r} beside "
                "the folder sha256. Jobs then continue automatically.",
            )

    def probe(self) -> str:
        """Ask for the mark of the store, which is written in a bucket that is used for the first time."""
        if self.objects.head(MARK) is None and self._may_begin():
            self.objects.put(MARK, b"")
        self.check_there()
        return "reachable"

    def put_file(self, path: Path, *, sha256: str | None = None, check: Check = no_check) -> StoredFile:
        """Move a file into the store, in place of an equal one: one that was damaged since is healed."""
        digest = sha256 or file_sha256(path, check=check)
        file = StoredFile(digest, path.stat().st_size)
        self._store(file, lambda: self.objects.put(file_name(digest), path, check))
        path.unlink(missing_ok=True)
        return file

    def put_object(self, found: StoredObject, sha256: str) -> StoredFile:
        """Store what lies in the bucket under another name and has this digest; it stays there, too."""
        file = StoredFile(sha256, found.size_bytes)
        self._store(file, lambda: self.objects.copy(found, file_name(sha256)))
        return file

    def ensure(self, sha256: str) -> None:
        """Make sure that a file lies in its place; its mark of the trash goes."""
        self._look(self._briefly, sha256)
        self.take_back(sha256)

    def copy_to(self, sha256: str, destination: Path, check: Check = no_check) -> None:
        """Write a copy, through the copies of this host."""
        with suppress(StoredFileCorruptError), self._lent(sha256, check, verify=False) as path:
            copy_checked(path, destination, sha256=sha256, check=check)
            return
        with self._lent(sha256, check, verify=True) as path:  # the disk had damaged the copy
            copy_checked(path, destination, sha256=sha256, check=check)

    def lend(self, sha256: str, check: Check = no_check) -> AbstractContextManager[Path]:
        """A copy on this host."""
        return self._lent(sha256, check, verify=True)

    @contextmanager
    def _lent(self, sha256: str, check: Check, *, verify: bool) -> Iterator[Path]:
        found = self._found(sha256, check)

        def fetch(place: Path) -> None:
            self._download(found, place, sha256, check)

        with self.copies.lend(sha256, found.size_bytes, fetch, check, verify=verify) as path:
            yield path

    def old_files(self, age_seconds: float) -> Iterator[list[StoredFile]]:
        """Files that were stored longer ago and bear no mark of the trash."""
        marked = {found.name.rpartition("/")[2] for found in self.objects.list(_TRASH)}
        for _, found in groupby(self.objects.list(_FILES), key=lambda one: one.name.split("/")[1]):
            if old := [file for file in _old(found, age_seconds) if file.sha256 not in marked]:
                yield old

    def discard(self, sha256: str, *, age_seconds: float) -> bool:
        """Mark a file as in the trash, unless it was stored anew since."""
        found = self._briefly.head(file_name(sha256))
        if found is None or time.time() - found.changed_at <= age_seconds:
            return False
        self._briefly.put(_trash(sha256), b"")
        return True

    def take_back(self, sha256: str) -> bool:
        """Remove the mark."""
        if self._briefly.head(_trash(sha256)) is None:
            return False
        self._briefly.delete(_trash(sha256))
        return True

    def old_trash(self, age_seconds: float) -> Iterator[StoredFile]:
        """What has borne its mark for longer; the sizes are the files'."""
        for mark in _old(self.objects.list(_TRASH), age_seconds):
            found = self.objects.head(file_name(mark.sha256))
            yield StoredFile(mark.sha256, 0 if found is None else found.size_bytes)

    def purge(self, sha256: str, check: Check = no_check) -> None:
        """Remove a marked file, and then its mark; of one that was stored anew since, the mark alone."""
        mark, found = self._briefly.head(_trash(sha256)), self._briefly.head(file_name(sha256))
        if mark is None:
            return
        if found is not None and found.changed_at < mark.changed_at:
            check()
            self._briefly.delete(file_name(sha256))
        self._briefly.delete(_trash(sha256))

    def free_bytes(self) -> None:
        """Nobody knows a bound."""
        return

    def signed_url(self, sha256: str, seconds: float) -> str | None:
        """An address where whoever has it may read the file for so long."""
        return self.objects.sign(file_name(sha256), seconds)

    def _store(self, file: StoredFile, send: Callable[[], None]) -> None:
        """Have ``send`` store a file, and look at it then: nobody may name less than the whole.

        Raises:
            StorageAwayError: the bucket says that it has it, and has not.
        """
        if not self._marked:  # once per process: that this is the store
            self.probe()
            self._marked = True
        reach("before_artifact_fsync")
        send()
        found = self.objects.head(file_name(file.sha256))
        if found is None or found.size_bytes != file.size_bytes:
            raise StorageAwayError(
                f"The bucket does not have the file {file.sha256} that it has just accepted.", hint="Try again later."
            )
        reach("after_artifact_rename")

    def _found(self, sha256: str, check: Check = no_check) -> StoredObject:
        return self._look(self.objects, sha256, check)

    def _look(self, objects: Objects, sha256: str, check: Check = no_check) -> StoredObject:
        found = objects.head(file_name(sha256), check)
        if found is None:
            self._check_mark(objects)
            raise missing(sha256)
        return found

    def _download(self, found: StoredObject, place: Path, sha256: str, check: Check) -> None:
        digest = hashlib.sha256()
        with place.open("wb") as target:
            for start in range(0, found.size_bytes, PART_BYTES):
                length = min(PART_BYTES, found.size_bytes - start)
                block = self.objects.read(found.name, start, length, check)
                digest.update(block)
                target.write(block)
        check_digest(digest.hexdigest(), sha256)


def _trash(sha256: str) -> str:
    if not is_sha256(sha256):
        raise ValueError(f"not a sha256: {sha256!r}")
    return f"{_TRASH}/{sha256}"


def _old(objects: Iterator[StoredObject], age_seconds: float) -> Iterator[StoredFile]:
    """Those that have the name of a stored file and were changed longer ago."""
    for found in objects:
        name = found.name.rpartition("/")[2]
        if is_sha256(name) and time.time() - found.changed_at > age_seconds:
            yield StoredFile(name, found.size_bytes)
