"""A tenant's limits as they are shown and set, and the errors of who wants more."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, Field

from service.contracts.command_errors import HttpError
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


# A tenant wants more than it may have.


class _TooMuchError(HttpError, status=429):
    """Base: asking again later may help."""

    def __init__(self, detail: str, *, hint: str, retry_after_seconds: float, **where: Any) -> None:
        super().__init__(detail, hint=hint, **where)
        self.retry_after_seconds = retry_after_seconds

    def headers(self) -> dict[str, str]:
        """Says when to ask again."""
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_seconds)))}


class QuotaError(_TooMuchError, code="quota-exceeded", title="The quota is used up"):
    """The tenant has or does as much as its quota allows; nothing was stored."""

    def __init__(self, name: str, limit: float, used: float, wanted: int = 1, *, retry_after_seconds: float) -> None:
        more = "" if wanted == 1 else f"; this asks for {wanted} more"
        super().__init__(
            f"The quota {name} is {_plain(limit)}, and {_plain(used)} are used{more}.",
            hint="Wait until some are free, or ask the operator to raise it with PUT /v1/tenants/{tenant}/quota.",
            retry_after_seconds=retry_after_seconds,
            quota=name,
            limit=limit,
            used=used,
        )


class LargerThanQuotaError(HttpError, code="larger-than-quota", title="The file is larger than the quota", status=413):
    """A file that the tenant may not have however much it deletes; nothing was stored."""

    def __init__(self, name: str, limit: int, wanted: int) -> None:
        super().__init__(
            f"The quota {name} is {limit} bytes; this file has {wanted}.",
            hint="Send a smaller file, or ask the operator to raise it with PUT /v1/tenants/{tenant}/quota.",
            quota=name,
            limit=limit,
            wanted=wanted,
        )


def _plain(number: float) -> str:
    """Every digit before the point, and no more than three behind it."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


class RateError(_TooMuchError, code="rate-limited", title="Too many requests"):
    """The tenant sends more requests than it may; this one was not looked at."""
