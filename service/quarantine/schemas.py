"""Models in quarantine, as they are shown."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


class QuarantineOut(BaseModel):
    """The bytes of a model that are refused."""

    digest: str = Field(description="sha256 of the model's file; of several files, of their digests.")
    reason: str = Field(description="How the process that worked on it ended, the last time.")
    crashes: int = Field(description="How often in a row.")
    model_id: str = Field(description="The model, the last time.")
    job_id: str = Field(description="The job, the last time.")
    quarantined_at: datetime


class QuarantineList(BaseModel):
    """All of them, the newest first."""

    items: list[QuarantineOut]
