"""Uploads as seen over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.base import plain_text

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
