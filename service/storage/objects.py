"""The objects of a bucket below a prefix, through obstore; what goes wrong becomes an error of ours.

Every request is short, or moves a bounded part: a connection that hangs is noticed within seconds, however large the
file is, and tried again from the part on that was missing.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import from_url

from service.monitoring.timing import timed_store
from service.storage.base import Check, Identity
from service.storage.errors import StorageAwayError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from obstore import WritableFile

T = TypeVar("T")
log = logging.getLogger(__name__)
# Of a file that is sent or read; S3 takes at most 10,000 parts of an object, of at least 5 MiB.
PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_A_TIME = 4
# Of an upload: with one more that is being filled, they are in memory.
_STREAMED_AT_A_TIME = 2
_FIRST_READ_BYTES = 256 * 1024
# The most that S3 copies within itself by one request.
_MOST_COPIED_BYTES = 5 * 10**9
# HTTP without TLS is only used for an endpoint that the operator names by http://.
_CLIENT = {"connect_timeout": "3s", "read_timeout": "10s", "timeout": "60s", "allow_http": True}
_COPY_TIMEOUT = "900s"
_RETRY_SECONDS = 3.0
_RETRY = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=_RETRY_SECONDS),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
}
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 5.0


@lru_cache
def connections(url: str) -> tuple[Any, Any]:
    """Of this process to a bucket: one for all, and one for copies within the bucket, which may take minutes.

    The first call reads the provider's variables; later ones need them no more, see ``Settings.secret_variables``.
    """
    slow = _CLIENT | {"timeout": _COPY_TIMEOUT, "read_timeout": _COPY_TIMEOUT}
    first, second = (
        from_url(url, client_options=cast(Any, client), retry_config=cast(Any, _RETRY)) for client in (_CLIENT, slow)
    )
    return first, second


class StoredObject(NamedTuple):
    """What a bucket tells of an object; ``name`` is below the prefix, ``changed_at`` by the bucket's clock (Unix)."""

    name: str
    size_bytes: int
    changed_at: float
    identity: Identity


class Objects:
    """Named objects.

    Args:
        url: of the bucket and the prefix; where it is and who we are comes from the variables of its provider
            (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID``, ...).
        patience_seconds: for how long a call goes on asking a bucket that is away.
    """

    def __init__(self, url: str, *, patience_seconds: float) -> None:
        self._patience = patience_seconds
        self._store, self._copies = connections(url)

    def head(self, name: str, check: Check = lambda: None) -> StoredObject | None:
        """What is known of an object; None: there is none."""

        def call() -> Any:
            try:
                return obstore.head(self._store, name)
            except FileNotFoundError:
                return None

        found = self._asked("head", call, check)
        return None if found is None else _told(found)

    def open(self, found: StoredObject) -> ObjectStream:
        """The object's bytes, read as they are asked for."""
        return ObjectStream(self, found)

    def read(self, name: str, start: int, length: int, check: Check = lambda: None) -> bytes:
        """So many bytes of an object.

        Raises:
            StorageAwayError: the bucket is away, or sends fewer, or has no such object any more.
        """

        def call() -> bytes:
            data = bytes(obstore.get_range(self._store, name, start=start, length=length))
            if len(data) != length:
                raise _away(f"{len(data)} of {length} bytes of {name} came")
            return data

        return self._asked("get", call, check)

    def put(self, name: str, data: bytes | Path, check: Check = lambda: None) -> None:
        """Store an object, whole or not at all; a large file in parts at the same time."""

        def call() -> None:
            obstore.put(self._store, name, data, chunk_size=PART_BYTES, max_concurrency=_PARTS_AT_A_TIME)

        self._asked("put", call, check)

    def writer(self, name: str) -> ObjectWriter:
        """Store an object whose bytes come one after the other."""
        return ObjectWriter(
            obstore.open_writer(self._store, name, buffer_size=PART_BYTES, max_concurrency=_STREAMED_AT_A_TIME)
        )

    def copy(self, found: StoredObject, name: str) -> None:
        """Store the object under another name, too."""
        if found.size_bytes <= _MOST_COPIED_BYTES:
            self._asked("copy", lambda: obstore.copy(self._copies, found.name, name))
            return
        with self.open(found) as stream, self.writer(name) as writer:
            while block := stream.read(PART_BYTES):
                writer.write(block)

    def delete(self, *names: str) -> None:
        """Remove objects; gone already is fine."""
        if names:
            self._asked("delete", lambda: _delete(self._store, list(names)))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose names begin with these folders, in the order of their names."""
        with _translated():
            for page in obstore.list(self._store, prefix):
                yield from map(_told, page)

    def sign(self, name: str, seconds: float) -> str | None:
        """An address where the object can be read for so long; None: the store of this URL has none."""
        try:
            with _translated():
                return str(obstore.sign(self._store, "GET", name, timedelta(seconds=seconds)))
        except (TypeError, StorageAwayError):  # of a kind that signs nothing, or with credentials that cannot
            return None

    def _asked(self, operation: str, call: Callable[[], T], check: Check = lambda: None) -> T:
        """What a call answers; one that a bucket does not answer is tried again for as long as patience lasts."""
        end, pause_seconds = time.monotonic() + self._patience, _FIRST_PAUSE_SECONDS
        while True:
            check()
            try:
                with timed_store(operation), _translated():
                    return call()
            except StorageAwayError:
                if time.monotonic() + pause_seconds > end:
                    raise
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


class ObjectStream(io.RawIOBase):
    """Reads an object by ranges, which grow while it is read one after the other."""

    def __init__(self, objects: Objects, found: StoredObject) -> None:
        super().__init__()
        self.found = found
        self._objects = objects
        self._at = 0
        self._held, self._held_at = b"", 0
        self._ahead = _FIRST_READ_BYTES

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Where the next byte is read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Read from another place on."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.found.size_bytes}[whence]
        self._at = max(0, start + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        """At most so many bytes; none at the end."""
        left = self.found.size_bytes - self._at
        wanted = left if size < 0 else min(size, left)
        pieces = []
        while wanted > 0:
            piece = self._piece(wanted)
            pieces.append(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    def readinto(self, buffer: WriteableBuffer) -> int:
        """As ``read``, into a buffer."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def _piece(self, most: int) -> bytes:
        begin = self._at - self._held_at
        if not 0 <= begin < len(self._held):
            length = min(max(most, self._ahead), PART_BYTES, self.found.size_bytes - self._at)
            self._held, self._held_at, begin = self._objects.read(self.found.name, self._at, length), self._at, 0
            self._ahead = min(2 * self._ahead, PART_BYTES)
        piece = self._held[begin : begin + most]
        self._at += len(piece)
        return piece


class ObjectWriter:
    """An object that becomes visible as a whole, by ``close``; leaving its block by an error throws it away.

    Parts of it that the bucket has by then are removed by the bucket's own rule for incomplete uploads.
    """

    def __init__(self, writer: WritableFile) -> None:
        self._writer: WritableFile | None = writer

    def __enter__(self) -> ObjectWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def write(self, block: bytes) -> None:
        """Add bytes.

        Raises:
            StorageAwayError: the bucket is away.
        """
        assert self._writer is not None  # noqa: S101 - nobody writes after the end
        with timed_store("write"), _translated():
            self._writer.write(block)

    def close(self) -> None:
        """Make the object visible; it is stored for good when this returns.

        Raises:
            StorageAwayError: the bucket is away.
        """
        assert self._writer is not None  # noqa: S101 - as above
        with timed_store("close"), _translated():
            self._writer.close()
        self._writer = None

    def abandon(self) -> None:
        """Throw everything away."""
        self._writer = None  # dropped unclosed, it completes nothing


def _delete(store: Any, names: list[str]) -> None:
    try:
        obstore.delete(store, names)
    except FileNotFoundError:  # S3 does not tell of one that is gone; others do
        for name in names:
            try:
                obstore.delete(store, name)
            except FileNotFoundError:
                continue


def _told(meta: Any) -> StoredObject:
    changed_at = meta["last_modified"].timestamp()
    return StoredObject(meta["path"], meta["size"], changed_at, (meta["e_tag"] or "", str(changed_at)))


@contextmanager
def _translated() -> Iterator[None]:
    """What the library raises becomes ``StorageAwayError``, also that a bucket or an object is not there (any more)."""
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as error:
        log.warning("storage.refused: %s", _first_line(error))
        raise StorageAwayError(
            "The bucket refuses the credentials of the service.",
            hint="Check them, and what they may do in the bucket; jobs then continue automatically.",
        ) from None
    except (BaseError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of a file on this host
        raise _away(_first_line(error)) from None


def _away(reason: str) -> StorageAwayError:
    log.warning("storage.away: %s", reason)  # names the bucket and its server, which is nothing for clients
    return StorageAwayError(
        "The bucket of the service does not respond.",
        hint="Try again later. Jobs continue automatically once it responds.",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:500]
