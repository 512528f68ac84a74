"""API schemas and errors of artifacts."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from service.contracts.command_errors import HttpError
from service.resources import ResourceNotFoundError


class ArtifactLinks(BaseModel):
    """Related URLs of an artifact."""

    self: str
    content: str
    job: str


class ArtifactOut(BaseModel):
    """A file that a job created."""

    id: str
    job_id: str
    attempt: int
    kind: str = Field(
        description="Kind of the file. model: the quantized ONNX file; report: the report; other kinds: further "
        "files of the recipe."
    )
    filename: str = Field(
        description="File name for downloads; for model and report it contains the model's name and the recipe."
    )
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
    title="Artifact not found",
    listed="List the artifacts of a job with GET /v1/jobs/{id}/artifacts.",
):
    """The artifact does not exist or belongs to another tenant."""


class RangeNotSatisfiableError(HttpError, code="range-not-satisfiable", title="Range not satisfiable", status=416):
    """The requested range is outside the file."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"The file has {size_bytes} bytes; the range starts after its end.",
            hint="Request a range within the file.",
            header="Range",
            size_bytes=size_bytes,
        )
        self.size_bytes = size_bytes

    def headers(self) -> dict[str, str]:
        """Carries the file's size."""
        return {"Content-Range": f"bytes */{self.size_bytes}"}
