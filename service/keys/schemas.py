"""Keys as they are shown and asked for, and what can be wrong with them."""

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
        default=None, description="Whose resources it sees; null: the maker's tenant. Another takes an operator."
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


# What can be wrong with keys.


class KeyNeededError(HttpError, code="unauthorized", title="A key is needed", status=401):
    """The request carries no key, or a wrong one."""

    def headers(self) -> dict[str, str]:
        """Names the scheme."""
        return {"WWW-Authenticate": "Bearer"}


class TooManyWrongKeysError(TransientError, code="too-many-wrong-keys", title="Too many wrong keys", status=429):
    """So many wrong keys have come from the client's address that this one was not looked up."""

    def __init__(self, detail: str, *, hint: str, header: str, retry_after_seconds: int) -> None:
        super().__init__(detail, hint=hint, header=header)
        self.retry_after_seconds = retry_after_seconds


class ScopeMissingError(QuantmillError, code="scope-missing", title="The key may not do this", status=403):
    """The key is good, and may not do this; nothing was read or done."""


class KeyNotFoundError(QuantmillError, code="key-not-found", title="No such key", status=404):
    """There is no such key (or it belongs to somebody else), or it has ended."""

    def __init__(self, key_id: str, *, good: bool = False) -> None:
        of_it = " that is good" if good else ""
        super().__init__(
            f"There is no key {key_id!r}{of_it}.", path_parameter="key_id", hint="The list of keys shows all."
        )


class TooManyKeysError(QuantmillError, code="too-many-keys", title="There are too many keys", status=409):
    """The tenant has as many good keys as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"{most} keys are good, as many as there may be.", hint="Revoke one that is not needed.")


class SharedLinkEndedError(
    QuantmillError, code="shared-link-ended", title="This link shows nothing any more", status=404
):
    """The link to a shared report is none of ours, has expired, or the key that made it has ended."""


class PepperMissingError(
    QuantmillError, code="key-pepper-missing", title="The pepper of the keys is missing", status=409
):
    """Keys of an installation on several hosts are checked by a pepper that all of them know."""
