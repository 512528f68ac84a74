"""Artifacts as seen over HTTP."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


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
