"""API schemas and errors of quotas."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, Field

from service.contracts.command_errors import HttpError
from service.contracts.quota import Quota


class UsageOut(BaseModel):
    """Current usage of a tenant, by name of the limit."""

    stored_bytes: int
    jobs_queued: int
    jobs_running: int
    jobs_per_day: int
    cpu_seconds_per_day: float


class TenantOut(BaseModel):
    """A tenant with its quota and usage."""

    tenant: str
    quota: Quota = Field(description="Limits that apply to the tenant.")
    own: dict[str, Any] = Field(
        description="Limits set for this tenant; for all others, the default of the installation applies."
    )
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


class QuotaError(_TooMuchError, code="quota-exceeded", title="Quota exceeded"):
    """The tenant has reached a limit of its quota; nothing was stored."""

    def __init__(self, name: str, limit: float, used: float, wanted: int = 1, *, retry_after_seconds: float) -> None:
        more = "" if wanted == 1 else f"; this request needs {wanted} more"
        super().__init__(
            f"The quota {name} is {_plain(limit)}, of which {_plain(used)} are in use{more}.",
            hint="Wait until some are free again, or ask the operator to raise the quota with PUT "
            "/v1/tenants/{tenant}/quota.",
            retry_after_seconds=retry_after_seconds,
            quota=name,
            limit=limit,
            used=used,
        )


class LargerThanQuotaError(HttpError, code="larger-than-quota", title="File larger than quota", status=413):
    """The file is larger than the tenant's total storage quota; nothing was stored."""

    def __init__(self, name: str, limit: int, wanted: int) -> None:
        super().__init__(
            f"The quota {name} is {limit} bytes, but this file has {wanted} bytes.",
            hint="Send a smaller file, or ask the operator to raise the quota with PUT /v1/tenants/{tenant}/quota.",
            quota=name,
            limit=limit,
            wanted=wanted,
        )


def _plain(number: float) -> str:
    """Every digit before the point, and no more than three behind it."""
    return f"{number:.3f}".rstrip("0").rstrip(".")


class RateError(_TooMuchError, code="rate-limited", title="Too many requests"):
    """The tenant exceeded its request rate; the request was not processed."""


class AddressRateError(_TooMuchError, code="address-rate-limited", title="Too many requests from this address"):
    """Too many requests without a valid key were sent from the client's address; this one was not processed."""
