"""How long things are kept, and how stored files are verified."""

from __future__ import annotations

from pydantic import BaseModel, Field

_MIB = 1024**2


class Upkeep(BaseModel):
    """Settings of what the reconciler deletes and verifies."""

    job_retention_seconds: float | None = Field(
        default=None, gt=0, description="Seconds after its end at which a job is deleted. Default: never."
    )
    audit_retention_seconds: float | None = Field(
        default=None, gt=0, description="Age in seconds at which an entry of the audit log is deleted. Default: never."
    )
    progress_retention_seconds: float = Field(
        default=30 * 24 * 3600.0,
        gt=0,
        description="Seconds after the end of its job at which a progress event is deleted.",
    )
    webhook_retention_seconds: float = Field(
        default=30 * 24 * 3600.0, gt=0, description="Age in seconds at which a delivery is deleted, sent or not."
    )
    schedule_run_retention_seconds: float = Field(
        default=90 * 24 * 3600.0, gt=0, description="Age in seconds at which an ended run of a schedule is deleted."
    )
    upload_expiry_seconds: float = Field(default=24 * 3600.0, gt=0)
    idempotency_seconds: float = Field(default=7 * 24 * 3600.0, gt=0)
    garbage_age_seconds: float = Field(
        default=24 * 3600.0, ge=0, description="Minimum age in seconds at which an unreferenced stored file is deleted."
    )
    trash_seconds: float = Field(default=3600.0, ge=0, description="Seconds that a deleted file stays in the trash.")
    scrub_bytes_per_second: int = Field(
        default=8 * _MIB,
        ge=0,
        description="Rate of the background verification of stored files, in bytes per second; 0: none.",
    )
    scrub_period_seconds: float = Field(
        default=7 * 24 * 3600.0,
        gt=0,
        description="Seconds from the start of one verification of all stored files to the start of the next.",
    )
