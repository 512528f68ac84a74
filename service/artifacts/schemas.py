"""Artifacts as seen over HTTP, and their errors."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from service.contracts.command_errors import HttpError
from service.resources import ResourceNotFoundError


class ArtifactLinks(BaseModel):
    """Where to go from an artifact."""

    self: str
    content: str
    job: str


class ArtifactOut(BaseModel):
    """A file that a job produced."""

    id: str
    job_id: str
    attempt: int
    kind: str = Field(
        description="model: the quantized ONNX file; report: the report; any other word: a further file of its recipe."
    )
    filename: str = Field(description="For downloads: of model and report it says which model, and by which recipe.")
    media_type: str
    size_bytes: int
    sha256: str
    created_at: datetime
    links: ArtifactLinks


class ArtifactList(BaseModel):
    """All artifacts of a job."""

    items: list[ArtifactOut]


class ArtifactNotFoundError(
    ResourceNotFoundError,
    word="artifact",
    code="artifact-not-found",
    title="No such artifact",
    listed="GET /v1/jobs/{id}/artifacts lists those of a job.",
):
    """There is no such artifact (or it belongs to somebody else)."""


class RangeNotSatisfiableError(
    HttpError, code="range-not-satisfiable", title="The range lies outside the file", status=416
):
    """The range lies outside the file."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"The file has {size_bytes} bytes; the range begins after them.",
            hint="Ask for a range within the file.",
            header="Range",
            size_bytes=size_bytes,
        )
        self.size_bytes = size_bytes

    def headers(self) -> dict[str, str]:
        """Carries the file's size."""
        return {"Content-Range": f"bytes */{self.size_bytes}"}
