"""Errors around models in quarantine."""

from __future__ import annotations

from service.contracts.errors import QuantmillError
from service.tables import Quarantine


def release_hint(digest: str) -> str:
    """Who can end a quarantine, and how."""
    return (
        "Whoever holds this service's key releases it, once the cause is mended: "
        f"quantmill quarantine release {digest} (DELETE /v1/quarantine/{digest})."
    )


class ModelQuarantinedError(QuantmillError):
    """The model has killed its runner again and again: nothing more is tried with it."""

    code = "model-quarantined"
    title = "The model is in quarantine"
    status = 409

    def __init__(self, found: Quarantine, *, pointer: str | None = None) -> None:
        super().__init__(
            f"This model killed the process that worked on it {found.crashes} times in a row, the last time in job "
            f"{found.job_id}: {found.reason}. Nothing more is tried with it.",
            pointer=pointer,
            hint=release_hint(found.digest),
            digest=found.digest,
            job_id=found.job_id,
        )


class QuarantineNotFoundError(QuantmillError):
    """No model of these bytes is in quarantine (or it is somebody else's)."""

    code = "quarantine-not-found"
    title = "Not in quarantine"
    status = 404

    def __init__(self, digest: str) -> None:
        super().__init__(
            f"No model with the digest {digest!r} is in quarantine.",
            path_parameter="digest",
            hint="GET /v1/quarantine lists those that are.",
        )
