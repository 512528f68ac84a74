"""An upload in progress in a bucket, which API servers that share no disk can take turns at.

Each request streams its bytes into an object of its own, ``incoming/UPLOAD/TOKEN``, while they arrive. Once it has
ended, a row says that this object holds the bytes from a certain one on: the rows are the truth, and the transaction
that adds one is where a second writer at the same place is refused. At the end the only part is copied within the
bucket, or several are read one after the other into one object and digested on the way.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from types import TracebackType

from service.db import Database
from service.monitoring.declarations import UPLOADED
from service.storage import StorageAwayError
from service.storage.bucket import BucketStore
from service.storage.objects import PART_BYTES, ObjectWriter, StoredObject
from service.tables import UploadPart
from service.uploads import repository
from service.uploads.base import UploadWriter
from service.uploads.schemas import UploadBusyError, UploadNotFoundError

log = logging.getLogger(__name__)


class UploadParts(UploadWriter):
    """Writes to one upload; see ``UploadFile``, which does the same in a folder.

    Args:
        store: of the installation.
        database: has the rows of the parts.
        upload_id: of an upload that is open.
    """

    def __init__(self, store: BucketStore, database: Database, upload_id: str) -> None:
        self._store = store
        self._database = database
        self._id = upload_id
        with database.read() as session:
            self._parts: list[UploadPart] = repository.parts(session, upload_id)
        self._begin = sum(part.size_bytes for part in self._parts)
        self._name = ""  # of the object that this request writes
        self._writer: ObjectWriter | None = None
        self._written = 0
        self._digest = hashlib.sha256()
        self._anew = False
        self._whole: StoredObject | None = None  # the object that has all bytes, once their digest is known

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.abandon()

    @property
    def size_bytes(self) -> int:
        """Bytes of the upload with those that were written here."""
        return self._begin + self._written

    def digest_own(self) -> None:
        """What this writer writes is digested in any case."""

    @property
    def own_sha256(self) -> bytes:
        """Digest of what this writer has written."""
        return self._digest.digest()

    def begin_anew(self) -> None:
        """Write from byte 0 on; the parts of earlier writers stay until ``keep``."""
        self._begin, self._anew = 0, True

    def clear(self) -> None:
        """Throw away everything, earlier writers' parts too."""
        self.undo()
        with self._database.write() as session:
            gone = repository.remove_parts(session, self._id)
        if self._whole is not None:
            gone.append(self._whole.name)
        self._parts, self._begin, self._whole = [], 0, None
        self._drop(gone)

    def undo(self) -> None:
        """Throw away what this writer has written."""
        if self._writer is not None:
            self._writer.abandon()
        self._writer, self._written, self._digest, self._anew = None, 0, hashlib.sha256(), False
        self._begin = sum(part.size_bytes for part in self._parts)

    def write(self, *blocks: bytes) -> None:
        """Append blocks.

        Raises:
            StorageAwayError: the bucket is away.
        """
        if not any(blocks):
            return
        if self._writer is None:
            self._name = f"incoming/{self._id}/{secrets.token_hex(8)}"
            self._writer = self._store.objects.writer(self._name)
        for block in blocks:
            self._digest.update(block)
            self._writer.write(block)
            UPLOADED.inc(len(block))
            self._written += len(block)

    def keep(self) -> None:
        """Make what was written durable, and a part of the upload.

        Raises:
            UploadBusyError: another writer was quicker.
            UploadNotFoundError: the upload is not open any more.
            StorageAwayError: the bucket is away.
        """
        if self._writer is None:
            self.undo()  # of a file begun anew that has no bytes, nothing is kept
            return
        self._writer.close()
        self._writer = None
        part = UploadPart(upload_id=self._id, begin_bytes=self._begin, size_bytes=self._written, name=self._name)
        with self._database.write() as session:
            if not repository.hold_open(session, self._id):
                raise UploadNotFoundError(self._id)
            gone = repository.remove_parts(session, self._id) if self._anew else []
            if sum(one.size_bytes for one in repository.parts(session, self._id)) != self._begin:
                raise UploadBusyError(
                    "Another request has written to this upload.",
                    hint="Wait until that request has ended, then get the current offset.",
                )
            repository.add_part(session, part)
        self._drop(gone)
        self._parts = [*([] if self._anew else self._parts), part]
        self._begin, self._written, self._anew = self.size_bytes, 0, False

    def sha256(self) -> str:
        """Lowercase hex digest of the whole file; parts of several requests are made one object for it."""
        if self._begin == 0:
            return self._digest.hexdigest()
        self.keep()
        name = f"incoming/{self._id}/{secrets.token_hex(8)}"
        digest = hashlib.sha256()
        with self._store.objects.writer(name) as writer:
            for part in self._parts:
                with self._store.objects.open(self._object(part.name)) as stream:
                    while block := stream.read(PART_BYTES):
                        digest.update(block)
                        writer.write(block)
        self._whole = self._object(name)
        return digest.hexdigest()

    def store(self, sha256: str) -> None:
        """Put the whole file, which has this digest, into the store."""
        (*_, last) = self._parts
        try:
            self._store.put_object(self._whole or self._object(last.name), sha256)
        except BaseException:
            if self._whole is not None:  # whoever tries it again makes another one
                self._drop([self._whole.name])
            raise

    def forget(self, sha256: str | None) -> None:
        """Remove the parts: the file lies in the store alone from now on. None: it was complete before this writer."""
        if sha256 is not None:
            names = [part.name for part in self._parts] + ([] if self._whole is None else [self._whole.name])
            self._drop(names)

    def _drop(self, names: list[str]) -> None:
        """Remove objects that no row names any more; those that cannot be removed now go with their upload."""
        try:
            self._store.objects.delete(*names)
        except StorageAwayError:
            log.warning("upload.parts_left id=%s", self._id)

    def _object(self, name: str) -> StoredObject:
        found = self._store.objects.head(name)
        if found is None:  # collected, or thrown away by a writer that began anew
            raise UploadBusyError("Another request has written to this upload.", hint="Get the current offset.")
        return found
