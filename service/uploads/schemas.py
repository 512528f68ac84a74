"""API schemas and errors of uploads."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.base import plain_text
from service.contracts.command_errors import HttpError, TransientError
from service.contracts.errors import QuantmillError
from service.resources import ResourceNotFoundError

_SHA256 = (
    "SHA-256 of the file, verified when all bytes are received. If size_bytes is set too, a file that is "
    "already stored need not be sent again."
)
UploadState = Literal["open", "complete"]


class UploadCreate(BaseModel):
    """A file to upload."""

    model_config = ConfigDict(extra="forbid")

    filename: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(plain_text)] = Field(
        description="File name, for display only; it is never used as a path."
    )
    size_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Size of the file. Required to send the bytes in parts (PATCH); optional for PUT .../content.",
    )
    sha256: Annotated[str, AfterValidator(str.lower)] | None = Field(
        default=None,
        pattern="^[0-9a-fA-F]{64}$",
        description=_SHA256,
    )
    kind: Literal["model", "dataset"] | None = Field(
        default=None, description="Intended use of the file, for display only."
    )


class UploadLinks(BaseModel):
    """Related URLs of an upload."""

    self: str
    content: str


class UploadOut(BaseModel):
    """An upload."""

    id: str
    filename: str
    kind: str | None
    state: UploadState
    offset: int = Field(description="Number of bytes received and stored on disk.")
    size_bytes: int | None
    sha256: str | None = Field(
        description="SHA-256 of the file: the declared one until the upload is complete, then the computed one."
    )
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime = Field(description="When the upload is removed; resources created from it are kept.")
    links: UploadLinks


# Errors around uploads.


class UploadNotFoundError(
    ResourceNotFoundError,
    word="upload",
    code="upload-not-found",
    title="Upload not found",
    listed="Create an upload with POST /v1/uploads; unfinished uploads expire.",
):
    """The upload does not exist, has expired, or belongs to another tenant."""


class UploadOffsetMismatchError(HttpError, code="upload-offset-mismatch", title="Upload offset mismatch", status=409):
    """The Upload-Offset of the request differs from the number of bytes received so far."""

    def __init__(self, *, given: int, actual: int) -> None:
        super().__init__(
            f"The request starts at byte {given}, but the upload is at byte {actual}.",
            hint="Get the current offset with HEAD and continue from there.",
            header="Upload-Offset",
            offset=actual,
        )
        self.offset = actual

    def headers(self) -> dict[str, str]:
        """Carries the true offset."""
        return {"Upload-Offset": str(self.offset)}


class UploadTooLargeError(QuantmillError, code="upload-too-large", title="Upload too large", status=413):
    """The file is larger than declared, or larger than the service accepts."""


class UploadIncompleteError(QuantmillError, code="upload-incomplete", title="Upload incomplete", status=422):
    """The request contains fewer bytes than declared."""


class UploadEmptyError(QuantmillError, code="empty-upload", title="Upload is empty", status=422):
    """The file contains no bytes."""


class DigestMismatchError(QuantmillError, code="digest-mismatch", title="Digest mismatch", status=422):
    """The bytes do not match the declared digest."""


class UploadSizeUnknownError(QuantmillError, code="upload-size-unknown", title="Upload size unknown", status=422):
    """Bytes can be sent in parts only if the upload was created with its total size."""


class UploadCompleteError(QuantmillError, code="upload-complete", title="Upload already complete", status=409):
    """The upload already has all its bytes and can no longer be changed."""


class UploadNotCompleteError(QuantmillError, code="upload-not-complete", title="Upload not complete", status=409):
    """The upload does not have all its bytes yet."""


class UploadBusyError(TransientError, code="upload-busy", title="Upload is busy", status=409):
    """Another request is writing to the upload."""


class UploadStalledError(TransientError, code="upload-stalled", title="Upload stalled", status=408):
    """The client sent no data for too long; the received bytes were kept."""
