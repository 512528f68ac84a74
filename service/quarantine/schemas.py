"""Models in quarantine as they are shown, and their errors."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from service.contracts.errors import QuantmillError

if TYPE_CHECKING:
    from service.tables import Quarantine


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


# Errors around models in quarantine.


def release_hint(digest: str) -> str:
    """Who can end a quarantine, and how."""
    return (
        "Fix the cause, then have an administrator of the service release the model with "
        f"DELETE /v1/quarantine/{digest}."
    )


class ModelQuarantinedError(QuantmillError, code="model-quarantined", title="The model is in quarantine", status=409):
    """The model has killed its runner again and again: nothing more is tried with it."""

    def __init__(self, found: Quarantine, *, pointer: str | None = None) -> None:
        super().__init__(
            f"This model killed the process that worked on it {found.crashes} times in a row, the last time in job "
            f"{found.job_id}: {found.reason}. Nothing more is tried with it.",
            pointer=pointer,
            hint=release_hint(found.digest),
            digest=found.digest,
            job_id=found.job_id,
        )


class QuarantineNotFoundError(QuantmillError, code="quarantine-not-found", title="Not in quarantine", status=404):
    """No model of these bytes is in quarantine (or it is somebody else's)."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"No model with the digest {digest!r} is in quarantine.",
            path_parameter="digest",
            hint="GET /v1/quarantine lists the models in quarantine.",
        )
