"""What is told of a key, and of one that is to be made."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.base import Text
from service.principal import Scope

# Ten years; who wants more wants a key that never expires.
_MOST_DAYS = 3650.0
DAY_SECONDS = 24 * 3600.0
_MOST_GRACE_SECONDS = 30 * DAY_SECONDS

KeyState = Literal["good", "expired", "revoked"]
Tenant = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


def _visible(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("must be printable characters, and not blank")
    return name


class KeyCreate(BaseModel):
    """A key that is to be made."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[Text, AfterValidator(_visible)] = Field(description="What people call it.")
    scope: Scope = "submit"
    days: float | None = Field(
        default=None, ge=0.001, le=_MOST_DAYS, allow_inf_nan=False, description="Until it expires; null: never."
    )
    tenant: Tenant | None = Field(
        default=None, description="Whose nouns it sees; null: the maker's tenant. Another takes an operator."
    )


class KeyRotate(BaseModel):
    """How a key is replaced."""

    model_config = ConfigDict(extra="forbid")

    grace_seconds: float = Field(
        default=DAY_SECONDS, ge=0.0, le=_MOST_GRACE_SECONDS, allow_inf_nan=False,
        description="The old key stays good for so long; 0 ends it at once.",
    )  # fmt: skip


class KeyOut(BaseModel):
    """A key, without its text."""

    id: str
    tenant: str = Field(description="Whose models, data and jobs it sees.")
    name: str
    scope: str = Field(description="As when it was made; newer versions of the service may have others.")
    state: KeyState
    last4: str = Field(description="The last characters of its text.")
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None


class KeyMade(KeyOut):
    """A new key."""

    key: str = Field(description="Its text, shown this once: sent as Authorization: Bearer KEY.")
