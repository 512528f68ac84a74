"""API schemas and errors of keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.base import Text
from service.contracts.command_errors import HttpError, TransientError
from service.contracts.errors import QuantmillError
from service.principal import Scope

# Ten years; who wants more wants a key that never expires.
_MOST_DAYS = 3650.0
DAY_SECONDS = 24 * 3600.0
_MOST_GRACE_SECONDS = 30 * DAY_SECONDS
KeyState = Literal["good", "expired", "revoked"]
Tenant = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


def _visible(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("must contain printable characters only, and must not be blank")
    return name


class KeyCreate(BaseModel):
    """A key to create."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[Text, AfterValidator(_visible)] = Field(description="Name of the key, for display.")
    scope: Scope = "submit"
    days: float | None = Field(
        default=None,
        ge=0.001,
        le=_MOST_DAYS,
        allow_inf_nan=False,
        description="Days until the key expires; null: it does not expire.",
    )
    tenant: Tenant | None = Field(
        default=None,
        description="Tenant that the key belongs to; null: the creator's tenant. Another tenant requires an "
        "operator key.",
    )


class KeyRotate(BaseModel):
    """Settings for rotating a key."""

    model_config = ConfigDict(extra="forbid")

    grace_seconds: float = Field(
        default=DAY_SECONDS, ge=0.0, le=_MOST_GRACE_SECONDS, allow_inf_nan=False,
        description="Seconds until the old key expires; 0: immediately.",
    )  # fmt: skip


class KeyOut(BaseModel):
    """A key without its text."""

    id: str
    tenant: str = Field(description="Tenant whose models, datasets and jobs the key can access.")
    name: str
    scope: str = Field(description="Scope of the key; newer versions of the service may add scopes.")
    state: KeyState
    last4: str = Field(description="Last four characters of the key's text.")
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="When the key was last used, to the minute.")
    revoked_at: datetime | None


class KeyMade(KeyOut):
    """A new key."""

    key: str = Field(
        repr=False, description="The key's text, returned only once. Send it as Authorization: Bearer KEY."
    )


# What can be wrong with keys.


class KeyNeededError(HttpError, code="unauthorized", title="Authentication required", status=401):
    """The request has no key, or an invalid one."""

    def headers(self) -> dict[str, str]:
        """Names the scheme."""
        return {"WWW-Authenticate": "Bearer"}


class TooManyWrongKeysError(TransientError, code="too-many-wrong-keys", title="Too many invalid keys", status=429):
    """Too many invalid keys were sent from the client's address; this one was not checked."""

    def __init__(self, detail: str, *, hint: str, header: str, retry_after_seconds: int) -> None:
        super().__init__(detail, hint=hint, header=header)
        self.retry_after_seconds = retry_after_seconds


class ScopeMissingError(QuantmillError, code="scope-missing", title="Permission denied", status=403):
    """The key is valid, but does not have permission for this request; nothing was read or changed."""


class KeyNotFoundError(QuantmillError, code="key-not-found", title="Key not found", status=404):
    """The key does not exist, belongs to another tenant, or was revoked or has expired."""

    def __init__(self, key_id: str, *, good: bool = False) -> None:
        what = "Valid key" if good else "Key"
        super().__init__(
            f"{what} {key_id!r} not found.", path_parameter="key_id", hint="List all keys with GET /v1/keys."
        )


class TooManyKeysError(QuantmillError, code="too-many-keys", title="Too many keys", status=409):
    """The tenant has the maximum number of valid keys."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The tenant has {most} valid keys, which is the maximum.", hint="Revoke a key that is no longer needed."
        )


class SharedLinkEndedError(QuantmillError, code="shared-link-ended", title="Link is no longer valid", status=404):
    """The link to a shared report is invalid or has expired, or the key that created it was revoked."""


class PepperMissingError(QuantmillError, code="key-pepper-missing", title="Key pepper missing", status=409):
    """Keys of an installation on several hosts require a pepper, the same on each host."""
