"""Receives bytes: streamed to disk, counted, hashed, synced, then moved into the store."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from starlette.requests import ClientDisconnect

from service import tracing
from service.audit.service import note
from service.contracts.errors import InvalidRequestError
from service.deps import AppState, room_of
from service.files import repository as files
from service.principal import Principal
from service.quotas import service as quotas
from service.storage import StorageFullError, StoredFile, StoredFileMissingError
from service.tables import Upload
from service.uploads import repository
from service.uploads.base import UploadWriter
from service.uploads.copying import SizeLimit, copy
from service.uploads.places import UploadPlace, place_of
from service.uploads.schemas import (
    DigestMismatchError,
    UploadBusyError,
    UploadCompleteError,
    UploadCreate,
    UploadEmptyError,
    UploadIncompleteError,
    UploadNotCompleteError,
    UploadNotFoundError,
    UploadOffsetMismatchError,
    UploadSizeUnknownError,
    UploadStalledError,
)

_CONTENT_DIGEST = re.compile(r"(?:^|,)\s*sha-256\s*=\s*:([A-Za-z0-9+/=]*):")
_DIGEST_HEADER = "Content-Digest"
# Fields of POST /v1/uploads that bytes may fall short of later; pointers in problems with the bytes name them.
_SIZE_POINTER = "/size_bytes"
_SHA256_POINTER = "/sha256"
_WHOLE_BODY = ""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Incoming:
    """One request that carries bytes."""

    blocks: AsyncIterator[bytes]  # the body, in the pieces in which it arrives
    offset: int | None  # where the client says they begin; None: they are the whole file
    length: int | None  # their number, where the client says so
    digest: bytes | None  # their sha256, where the client says so


def create(app: AppState, by: Principal, body: UploadCreate) -> Upload:
    """Open an upload; one of a file that the tenant has already, by digest and size, is complete at once.

    Raises:
        UploadEmptyError: no bytes are declared.
        UploadTooLargeError: more bytes are declared than the service takes.
        StorageFullError: there is no room for them.
    """
    size_bytes = body.size_bytes
    if size_bytes == 0:
        raise UploadEmptyError("File is empty (0 bytes).", pointer=_SIZE_POINTER, hint="Choose another file.")
    if size_bytes is not None and size_bytes > app.settings.max_upload_bytes:
        SizeLimit(app.settings.max_upload_bytes, _SIZE_POINTER).refuse(size_bytes)
    free_bytes = app.store.free_bytes()
    if free_bytes is not None and free_bytes < (size_bytes or 0) + app.settings.min_free_bytes:
        raise StorageFullError(
            "There is not enough free disk space for this file.", hint="Free disk space on the storage folder."
        )
    known = _known(app, by.tenant_id, body)
    with app.database.write() as session:
        quotas.admit_bytes(session, app.settings, by.tenant_id, size_bytes or 0)
        upload = repository.create(
            session,
            by.tenant_id,
            filename=body.filename,
            kind=body.kind,
            size_bytes=size_bytes,
            sha256=body.sha256,
            expiry_seconds=app.settings.upload_expiry_seconds,
        )
        if known is not None and files.name_known(session, app.store, known.sha256):
            done = repository.complete(session, upload.id, sha256=known.sha256, size_bytes=known.size_bytes)
            assert done is not None  # noqa: S101 - it was opened just now
            note(session, by, "upload.reuse", upload.id)
            return done
        note(session, by, "upload.create", upload.id)
        return upload


def _known(app: AppState, tenant_id: str, body: UploadCreate) -> StoredFile | None:
    """The file that is announced, if the tenant has it. Asked before the transaction: that looks at many rows."""
    if body.sha256 is None or body.size_bytes is None:
        return None
    with app.database.read() as session:
        known = files.has_file(session, tenant_id, body.sha256, body.size_bytes)
    return StoredFile(body.sha256, body.size_bytes) if known else None


def get(app: AppState, tenant_id: str, upload_id: str) -> tuple[Upload, int]:
    """The upload and its durable offset, in bytes.

    Raises:
        UploadNotFoundError: the tenant has no such upload.
    """
    with app.database.read() as session:
        upload = repository.get(session, tenant_id, upload_id)
    return upload, upload.size_bytes if upload.size_bytes is not None else _place(app).received_bytes(upload_id)


async def receive(app: AppState, by: Principal, upload_id: str, incoming: Incoming) -> tuple[Upload, int]:
    """Take the bytes of one request; memory does not grow with their number.

    They are durable when this returns, and the upload is complete if they were the last. If the client breaks off, what
    arrived is kept, where the size was declared: without it nobody can go on from there. If anything about the bytes is
    wrong, all bytes of this request are thrown away, and those of earlier requests are as they were; only if the sum of
    all parts is wrong must the whole file be sent again. If it is the database that cannot take note of the last bytes,
    they stay, and an empty part tries it again.

    Bytes of a size that was not declared are held to the quota while they come, and counted before they are stored.

    Returns:
        The upload and its new offset.

    Raises:
        QuantmillError: see ``service.uploads.schemas`` and ``service.quotas.schemas``.
        ClientDisconnect: the client is gone.
    """
    with tracing.span("upload.receive", {"upload_id": upload_id, "tenant_id": by.tenant_id}) as received:
        upload, size_bytes = await _receive(app, by, upload_id, incoming)
        received.set_attribute("quantmill.size_bytes", size_bytes)
    return upload, size_bytes


async def _receive(app: AppState, by: Principal, upload_id: str, incoming: Incoming) -> tuple[Upload, int]:
    file = await app.reads.run(lambda: _open(app, by.tenant_id, upload_id))
    with file:
        upload = await app.reads.run(lambda: _begin(app, by.tenant_id, upload_id, file, incoming))
        declared = upload.expected_size_bytes is not None
        try:
            await (_copy if declared else _copy_undeclared)(app, by, upload, file, incoming)
        except (ClientDisconnect, UploadStalledError):
            await app.disk.run(file.keep if declared else file.undo)
            raise
        except BaseException:
            await app.disk.run(file.undo)
            raise
        ended = await app.disk.run(lambda: _end(app, upload, file, incoming))
        return await app.writes.run(lambda: _record(app, by, upload, file, ended))


async def _copy(app: AppState, by: Principal, upload: Upload, file: UploadWriter, incoming: Incoming) -> None:
    """Write the bytes to the file; see to it that they are what the request and the upload say."""
    meter, idle_seconds = app.meter_of(by.tenant_id), app.settings.upload_idle_seconds
    await copy(incoming.blocks, file, _limit(app, upload), idle_seconds, meter)
    _check_request(upload, file, incoming)


async def _copy_undeclared(
    app: AppState, by: Principal, upload: Upload, file: UploadWriter, incoming: Incoming
) -> None:
    """As ``_copy``, up to the tenant's quota; then their number is reserved, as if it had been declared."""
    room = await room_of(app, by.tenant_id)
    room.refuse_beyond(incoming.length or 0)
    with app.meter_of(by.tenant_id).arrival() as arrival:
        await _copy(app, by, upload, file, replace(incoming, blocks=arrival.within(room, incoming.blocks)))
        await app.writes.run(lambda: _reserve(app, by.tenant_id, upload, file.size_bytes))


def _reserve(app: AppState, tenant_id: str, upload: Upload, size_bytes: int) -> None:
    with app.database.write() as session:
        quotas.admit_bytes(session, app.settings, tenant_id, size_bytes)
        if not repository.reserve(session, upload.id, size_bytes):
            raise UploadNotFoundError(upload.id)


def completed(upload: Upload, *, pointer: str) -> StoredFile:
    """The stored file of a complete upload.

    Raises:
        UploadNotCompleteError: bytes are missing.
    """
    if upload.sha256 is None or upload.size_bytes is None:
        raise UploadNotCompleteError(
            f"Upload {upload.id} does not have all its bytes yet.",
            pointer=pointer,
            hint="Send the remaining bytes first.",
        )
    return StoredFile(upload.sha256, upload.size_bytes)


def parse_content_digest(header: str | None) -> bytes | None:
    """The sha-256 of a Content-Digest header (RFC 9530), if it has one.

    Raises:
        InvalidRequestError: the header names sha-256 but carries no digest.
    """
    if header is None or "sha-256" not in header:
        return None
    found = _CONTENT_DIGEST.search(header)
    try:
        digest = base64.b64decode(found.group(1), validate=True) if found else b""
    except binascii.Error:
        digest = b""
    if len(digest) != 32:
        raise InvalidRequestError(
            "The Content-Digest header contains no sha-256.",
            hint="Send 'Content-Digest: sha-256=:BASE64:' or omit the header.",
            header=_DIGEST_HEADER,
        )
    return digest


def _open(app: AppState, tenant_id: str, upload_id: str) -> UploadWriter:
    with app.database.read() as session:
        repository.get(session, tenant_id, upload_id)  # no file is made for an id that is not there
    return _place(app).open(upload_id)


def _place(app: AppState) -> UploadPlace:
    """Where the bytes of open uploads grow."""
    floor_bytes = app.settings.min_free_bytes
    return place_of(app.store, app.database, min_free_bytes=floor_bytes, digests=app.upload_digests)


def _current(app: AppState, tenant_id: str, upload_id: str, file: UploadWriter) -> Upload:
    """Read the row again, now that nobody else writes."""
    with app.database.read() as session:
        upload = repository.get(session, tenant_id, upload_id)
    if upload.state == "complete":
        file.forget(None)
        raise UploadCompleteError(
            "This upload already has all its bytes.", hint="Create a new upload for another file."
        )
    return upload


def _limit(app: AppState, upload: Upload) -> SizeLimit:
    if upload.expected_size_bytes is None:
        return SizeLimit(app.settings.max_upload_bytes, _WHOLE_BODY)
    return SizeLimit(upload.expected_size_bytes, _SIZE_POINTER)


def _begin(app: AppState, tenant_id: str, upload_id: str, file: UploadWriter, incoming: Incoming) -> Upload:
    """Make the file ready for what comes."""
    upload = _current(app, tenant_id, upload_id, file)
    limit = _limit(app, upload)
    if upload.expected_size_bytes is None and incoming.offset is None:
        file.clear()  # what an ended process has left is of no use
    elif incoming.offset is None:
        file.begin_anew()
    elif upload.expected_size_bytes is None:
        raise UploadSizeUnknownError(
            "This upload was created without size_bytes, so its last part cannot be identified.",
            hint="Declare size_bytes in POST /v1/uploads, or send the whole file with PUT .../content.",
            pointer=_SIZE_POINTER,
        )
    elif incoming.offset != file.size_bytes:
        raise UploadOffsetMismatchError(given=incoming.offset, actual=file.size_bytes)
    if incoming.length is not None and file.size_bytes + incoming.length > limit.size_bytes:
        too_many = file.size_bytes + incoming.length
        file.undo()
        limit.refuse(too_many)
    if incoming.digest is not None:
        file.digest_own()
    return upload


class _Ended(NamedTuple):
    """What a request has brought: the durable bytes of its upload, and their digest if they are the whole file."""

    size_bytes: int
    sha256: str | None


def _end(app: AppState, upload: Upload, file: UploadWriter, incoming: Incoming) -> _Ended:
    """Check the bytes and make them durable, those of a whole file in the store as well; that may take long."""
    size_bytes = file.size_bytes
    if incoming.offset is not None and size_bytes != upload.expected_size_bytes:
        file.keep()
        return _Ended(size_bytes, None)
    sha256 = file.sha256()
    if incoming.offset is not None and not _is_right(upload, sha256):
        file.clear()  # nobody can tell which of the parts is wrong
        raise _wrong(upload, sha256)
    file.keep()
    file.store(sha256)
    return _Ended(size_bytes, sha256)


def _record(app: AppState, by: Principal, upload: Upload, file: UploadWriter, ended: _Ended) -> tuple[Upload, int]:
    """Write down what has arrived."""
    if ended.sha256 is None:
        with app.database.write() as session:
            repository.prolong(session, upload.id, expiry_seconds=app.settings.upload_expiry_seconds)
            note(session, by, "upload.append", upload.id)
        return upload, ended.size_bytes
    with app.database.write() as session, _stored_again():
        files.name_files(session, app.store, [ended.sha256])
        files.clear_damaged(session, [ended.sha256])
        done = repository.complete(session, upload.id, sha256=ended.sha256, size_bytes=ended.size_bytes)
        if done is not None:
            note(session, by, "upload.complete", upload.id)
    file.forget(ended.sha256)
    if done is None:  # it expired while its last bytes came in, or another request was quicker
        _current(app, by.tenant_id, upload.id, file)
        raise UploadNotFoundError(upload.id)
    log.info("upload.completed id=%s size_bytes=%d sha256=%s", upload.id, ended.size_bytes, ended.sha256)
    return done, ended.size_bytes


@contextmanager
def _stored_again() -> Iterator[None]:
    """A file that was collected between its storing and its naming is stored again by the next request."""
    try:
        yield
    except StoredFileMissingError:
        raise UploadBusyError(
            "The file was collected while it was stored.", hint="Get the current offset and send the rest again."
        ) from None


def _check_request(upload: Upload, file: UploadWriter, incoming: Incoming) -> None:
    """What can be wrong with the bytes of this request as such; then they are thrown away."""
    if incoming.digest is not None and not hmac.compare_digest(incoming.digest, file.own_sha256):
        raise DigestMismatchError(
            "The bytes of this request do not match their Content-Digest; they were discarded.",
            hint="Send them again.",
            header=_DIGEST_HEADER,
            actual=file.own_sha256.hex(),
        )
    if incoming.offset is not None:
        return
    size_bytes = file.size_bytes
    if size_bytes == 0:
        raise UploadEmptyError(
            "The request body is empty.", hint="Send the file as the request body.", pointer=_WHOLE_BODY
        )
    if upload.expected_size_bytes not in (None, size_bytes):
        raise UploadIncompleteError(
            f"The request contains {size_bytes} bytes of {upload.expected_size_bytes} declared; they were discarded.",
            hint="Send the whole file, or send it in parts with PATCH.",
            pointer=_SIZE_POINTER,
        )
    if not _is_right(upload, file.sha256()):  # known: it was written by this request alone
        raise _wrong(upload, file.sha256())


def _is_right(upload: Upload, sha256: str) -> bool:
    return upload.expected_sha256 is None or hmac.compare_digest(sha256, upload.expected_sha256)


def _wrong(upload: Upload, sha256: str) -> DigestMismatchError:
    return DigestMismatchError(
        f"The bytes have sha256 {sha256}, but {upload.expected_sha256} was declared; they were discarded.",
        hint="Send the file again from byte 0, or create an upload with the correct sha256.",
        pointer=_SHA256_POINTER,
        actual=sha256,
    )
