"""A tenant's limits as they are shown and set."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from service.contracts.quota import Quota


class UsageOut(BaseModel):
    """What a tenant uses at this moment, by the names of the limits."""

    stored_bytes: int
    jobs_queued: int
    jobs_running: int
    jobs_per_day: int
    cpu_seconds_per_day: float


class TenantOut(BaseModel):
    """One tenant."""

    tenant: str
    quota: Quota = Field(description="What it may use.")
    own: dict[str, Any] = Field(description="What of this was set for it; the rest is the installation's default.")
    usage: UsageOut
