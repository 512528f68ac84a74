"""Errors around uploads."""

from __future__ import annotations

from service.contracts.command_errors import HttpError, TransientError
from service.contracts.errors import QuantmillError


class UploadNotFoundError(QuantmillError):
    """There is no such upload (or it belongs to somebody else, or has expired)."""

    code = "upload-not-found"
    title = "No such upload"
    status = 404

    def __init__(self, upload_id: str, *, pointer: str | None = None) -> None:
        super().__init__(
            f"There is no upload {upload_id!r}.",
            pointer=pointer,
            path_parameter="upload_id" if pointer is None else None,
            hint="Create one with POST /v1/uploads; unfinished uploads expire.",
        )


class UploadOffsetMismatchError(HttpError):
    """The Upload-Offset of the request is not the number of bytes received so far."""

    code = "upload-offset-mismatch"
    title = "The upload stands at another offset"
    status = 409

    def __init__(self, *, given: int, actual: int) -> None:
        super().__init__(
            f"The request starts at byte {given}, the upload stands at byte {actual}.",
            hint="Ask for the offset with HEAD and go on from there.",
            header="Upload-Offset",
            offset=actual,
        )
        self.offset = actual

    def headers(self) -> dict[str, str]:
        """Carries the true offset."""
        return {"Upload-Offset": str(self.offset)}


class UploadTooLargeError(QuantmillError):
    """More bytes than were declared, or than the service takes."""

    code = "upload-too-large"
    title = "Too many bytes"
    status = 413


class UploadIncompleteError(QuantmillError):
    """Fewer bytes than were declared."""

    code = "upload-incomplete"
    title = "Too few bytes"
    status = 422


class UploadEmptyError(QuantmillError):
    """A file of no bytes."""

    code = "empty-upload"
    title = "The upload is empty"
    status = 422


class DigestMismatchError(QuantmillError):
    """The bytes do not have the digest that was declared."""

    code = "digest-mismatch"
    title = "The digest does not match"
    status = 422


class UploadSizeUnknownError(QuantmillError):
    """Bytes can be sent in parts only if the whole size was declared."""

    code = "upload-size-unknown"
    title = "The upload has no declared size"
    status = 422


class UploadCompleteError(QuantmillError):
    """All bytes are there already; an upload never changes afterwards."""

    code = "upload-complete"
    title = "The upload is complete"
    status = 409


class UploadNotCompleteError(QuantmillError):
    """Bytes are still missing."""

    code = "upload-not-complete"
    title = "The upload is not complete"
    status = 409


class UploadBusyError(TransientError):
    """Another request is writing to the upload."""

    code = "upload-busy"
    title = "Another request is writing"
    status = 409


class UploadStalledError(TransientError):
    """The client sent nothing for too long; what had arrived is kept."""

    code = "upload-stalled"
    title = "The upload stalled"
    status = 408
