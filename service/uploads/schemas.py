"""Uploads as seen over HTTP, and their errors."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.base import plain_text
from service.contracts.command_errors import HttpError, TransientError
from service.contracts.errors import QuantmillError
from service.resources import ResourceNotFoundError

_SHA256 = "Checked once all bytes are there. With size_bytes: a file that is here already is not sent again."
UploadState = Literal["open", "complete"]


class UploadCreate(BaseModel):
    """A file that is going to be sent."""

    model_config = ConfigDict(extra="forbid")

    filename: Annotated[str, Field(min_length=1, max_length=255), AfterValidator(plain_text)] = Field(
        description="For people only; it never becomes a path."
    )
    size_bytes: int | None = Field(
        default=None, ge=0, description="Needed to send the bytes in parts (PATCH); optional for PUT .../content."
    )
    sha256: Annotated[str, AfterValidator(str.lower)] | None = Field(
        default=None,
        pattern="^[0-9a-fA-F]{64}$",
        description=_SHA256,
    )
    kind: Literal["model", "dataset"] | None = Field(default=None, description="What it is going to be, for people.")


class UploadLinks(BaseModel):
    """Where to go from an upload."""

    self: str
    content: str


class UploadOut(BaseModel):
    """An upload."""

    id: str
    filename: str
    kind: str | None
    state: UploadState
    offset: int = Field(description="Bytes received and safe on disk.")
    size_bytes: int | None
    sha256: str | None = Field(description="Of the whole, once complete; before that the declared one.")
    created_at: datetime
    completed_at: datetime | None
    expires_at: datetime = Field(description="When it is removed; what was made of it stays.")
    links: UploadLinks


# Errors around uploads.


class UploadNotFoundError(
    ResourceNotFoundError,
    word="upload",
    code="upload-not-found",
    title="No such upload",
    listed="Create an upload with POST /v1/uploads; unfinished uploads expire.",
):
    """There is no such upload (or it belongs to somebody else, or has expired)."""


class UploadOffsetMismatchError(
    HttpError, code="upload-offset-mismatch", title="The upload stands at another offset", status=409
):
    """The Upload-Offset of the request is not the number of bytes received so far."""

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


class UploadTooLargeError(QuantmillError, code="upload-too-large", title="Too many bytes", status=413):
    """More bytes than were declared, or than the service takes."""


class UploadIncompleteError(QuantmillError, code="upload-incomplete", title="Too few bytes", status=422):
    """Fewer bytes than were declared."""


class UploadEmptyError(QuantmillError, code="empty-upload", title="The upload is empty", status=422):
    """A file of no bytes."""


class DigestMismatchError(QuantmillError, code="digest-mismatch", title="The digest does not match", status=422):
    """The bytes do not have the digest that was declared."""


class UploadSizeUnknownError(
    QuantmillError, code="upload-size-unknown", title="The upload has no declared size", status=422
):
    """Bytes can be sent in parts only if the whole size was declared."""


class UploadCompleteError(QuantmillError, code="upload-complete", title="The upload is complete", status=409):
    """All bytes are there already; an upload never changes afterwards."""


class UploadNotCompleteError(
    QuantmillError, code="upload-not-complete", title="The upload is not complete", status=409
):
    """Bytes are still missing."""


class UploadBusyError(TransientError, code="upload-busy", title="Another request is writing", status=409):
    """Another request is writing to the upload."""


class UploadStalledError(TransientError, code="upload-stalled", title="The upload stalled", status=408):
    """The client sent nothing for too long; what had arrived is kept."""
