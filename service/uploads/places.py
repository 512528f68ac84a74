"""Where the bytes of uploads grow until they are complete: files in a folder, or objects of a bucket."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from service.db import Database
from service.storage import FileStore, Store
from service.uploads import repository
from service.uploads.base import UploadWriter
from service.uploads.writer import RunningDigests, UploadFile, durable_size, part_files, unwritten

if TYPE_CHECKING:
    from service.storage.bucket import BucketStore


class Leftover(NamedTuple):
    """What an upload or a copy that was cut off has left; ``owner`` is the upload's id, if it is of one."""

    name: str
    owner: str
    size_bytes: int


class UploadPlace(ABC):
    """Where uploads are."""

    @abstractmethod
    def open(self, upload_id: str) -> UploadWriter:
        """Write to an upload.

        Raises:
            UploadBusyError: another writer has it open.
        """

    @abstractmethod
    def received_bytes(self, upload_id: str) -> int:
        """How many bytes of an open upload have arrived and stay."""

    @abstractmethod
    def size_bytes(self, upload_ids: Collection[str]) -> int:
        """What the bytes of these uploads take."""

    @abstractmethod
    def idle(self, upload_id: str) -> AbstractContextManager[bool]:
        """Whether nobody writes to the upload; if so, nobody begins to while the block runs."""

    @abstractmethod
    def remove(self, upload_ids: Collection[str]) -> int:
        """Remove the bytes of these uploads; how many."""

    @abstractmethod
    def leftovers(self, age_seconds: float, known: Callable[[Sequence[str]], set[str]]) -> list[Leftover]:
        """What is older and of no upload among those that are ``known``."""

    @abstractmethod
    def remove_leftover(self, leftover: Leftover, age_seconds: float) -> bool:
        """Remove it, unless somebody writes to it after all."""


class FolderPlace(UploadPlace):
    """Files of a store in a folder, that all API processes see.

    Args:
        store: of the installation.
        min_free_bytes: disk floor that writing must not go below.
        digests: of the uploads that this process has written to.
    """

    def __init__(self, store: FileStore, *, min_free_bytes: int = 0, digests: RunningDigests | None = None) -> None:
        self._store = store
        self._floor = min_free_bytes
        self._digests = digests

    def open(self, upload_id: str) -> UploadFile:
        """Lock its file."""
        return UploadFile(self._path(upload_id), store=self._store, min_free_bytes=self._floor, digests=self._digests)

    def received_bytes(self, upload_id: str) -> int:
        """Size of its file."""
        return durable_size(self._path(upload_id))

    def size_bytes(self, upload_ids: Collection[str]) -> int:
        """Sizes of their files."""
        return sum(_size(path) for upload_id in upload_ids for path in part_files(self._path(upload_id)))

    @contextmanager
    def idle(self, upload_id: str) -> Iterator[bool]:
        """Look at the lock of its file, and hold it."""
        with unwritten(self._path(upload_id)) as alone:
            yield alone

    def remove(self, upload_ids: Collection[str]) -> int:
        """Remove their files."""
        size_bytes = self.size_bytes(upload_ids)
        for upload_id in upload_ids:
            for path in part_files(self._path(upload_id)):
                path.unlink(missing_ok=True)
        return size_bytes

    def leftovers(self, age_seconds: float, known: Callable[[Sequence[str]], set[str]]) -> list[Leftover]:
        """Files beside those of uploads."""
        old = [path for path in self._store.incoming.iterdir() if _age_seconds(path) > age_seconds]
        # "ID.anew" belongs to the upload ID
        found = [Leftover(path.name, path.name.partition(".")[0], _size(path)) for path in old]
        kept = known(sorted({one.owner for one in found}))
        return [one for one in found if one.owner not in kept]

    def remove_leftover(self, leftover: Leftover, age_seconds: float) -> bool:
        """Remove the file."""
        path = self._store.incoming / leftover.name
        with unwritten(path) as alone:
            if not alone or _age_seconds(path) <= age_seconds:
                return False
            path.unlink(missing_ok=True)
        return True

    def _path(self, upload_id: str) -> Path:
        return self._store.incoming / upload_id


class BucketPlace(UploadPlace):
    """Objects of a bucket, one for each request; rows say which of them make up an upload. See ``uploads.parts``."""

    def __init__(self, store: BucketStore, database: Database) -> None:
        self._store = store
        self._database = database

    def open(self, upload_id: str) -> UploadWriter:
        """Look at its parts; who writes at the same time learns of it at the end."""
        from service.uploads.parts import UploadParts

        return UploadParts(self._store, self._database, upload_id)

    def received_bytes(self, upload_id: str) -> int:
        """Sum of its parts."""
        with self._database.read() as session:
            return sum(part.size_bytes for part in repository.parts(session, upload_id))

    def size_bytes(self, upload_ids: Collection[str]) -> int:
        """Sum of their parts."""
        return sum(self.received_bytes(upload_id) for upload_id in upload_ids)

    def idle(self, upload_id: str) -> AbstractContextManager[bool]:
        """Always: a writer finds at its end that its upload is gone."""
        return nullcontext(True)

    def remove(self, upload_ids: Collection[str]) -> int:
        """Remove all objects of these uploads, also those of no row."""
        size_bytes = 0
        for upload_id in upload_ids:
            found = list(self._store.objects.list(f"incoming/{upload_id}"))
            self._store.objects.delete(*(one.name for one in found))
            size_bytes += sum(one.size_bytes for one in found)
        return size_bytes

    def leftovers(self, age_seconds: float, known: Callable[[Sequence[str]], set[str]]) -> list[Leftover]:
        """Old objects of uploads that are not there any more."""
        found = [
            Leftover(one.name, one.name.split("/")[1], one.size_bytes)
            for one in self._store.objects.list("incoming")
            if time.time() - one.changed_at > age_seconds
        ]
        kept = known(sorted({one.owner for one in found}))
        return [one for one in found if one.owner not in kept]

    def remove_leftover(self, leftover: Leftover, age_seconds: float) -> bool:
        """Remove the object."""
        self._store.objects.delete(leftover.name)
        return True


def place_of(
    store: Store, database: Database, *, min_free_bytes: int = 0, digests: RunningDigests | None = None
) -> UploadPlace:
    """Where the uploads of an installation are."""
    if isinstance(store, FileStore):
        return FolderPlace(store, min_free_bytes=min_free_bytes, digests=digests)
    from service.storage.bucket import BucketStore  # installations on a folder do without its library

    assert isinstance(store, BucketStore)  # noqa: S101 - there is no third kind
    return BucketPlace(store, database)


def _age_seconds(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
