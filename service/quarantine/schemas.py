"""API schemas and errors of the quarantine."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from service.contracts.errors import QuantmillError

if TYPE_CHECKING:
    from service.tables import Quarantine


class QuarantineOut(BaseModel):
    """A model in quarantine, identified by its bytes."""

    digest: str = Field(description="SHA-256 of the model's file; for several files, of their digests.")
    reason: str = Field(description="How the process that worked on the model ended, in the last crash.")
    crashes: int = Field(description="Number of crashes in a row.")
    model_id: str = Field(description="Id of the model in the last crash.")
    job_id: str = Field(description="Id of the job in the last crash.")
    quarantined_at: datetime


class QuarantineList(BaseModel):
    """Models in quarantine, newest first."""

    items: list[QuarantineOut]


# Errors around models in quarantine.


def release_hint(digest: str) -> str:
    """Who can end a quarantine, and how."""
    return f"When the cause is fixed, an operator can release it with DELETE /v1/quarantine/{digest}."


class ModelQuarantinedError(QuantmillError, code="model-quarantined", title="Model in quarantine", status=409):
    """The model crashed its runner process repeatedly and is not processed any more."""

    def __init__(self, found: Quarantine, *, pointer: str | None = None) -> None:
        super().__init__(
            f"This model crashed the process that worked on it {found.crashes} times in a row, most "
            f"recently in job {found.job_id}: {found.reason}. It is not processed any more.",
            pointer=pointer,
            hint=release_hint(found.digest),
            digest=found.digest,
            job_id=found.job_id,
        )


class QuarantineNotFoundError(QuantmillError, code="quarantine-not-found", title="Model not in quarantine", status=404):
    """No model with these bytes is in quarantine, or it belongs to another tenant."""

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"No model with the digest {digest!r} is in quarantine.",
            path_parameter="digest",
            hint="List all models in quarantine with GET /v1/quarantine.",
        )
