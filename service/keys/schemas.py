"""What is told of a key that is to be made."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from service.contracts.texts import Text
from service.principal import Scope

# Ten years; who wants more wants a key that never expires.
_MOST_DAYS = 3650.0


def _visible(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("must be printable characters, and not blank")
    return name


class KeyCreate(BaseModel):
    """A key of the maker's tenant."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[Text, AfterValidator(_visible)] = Field(description="What people call it.")
    scope: Scope = "submit"
    days: float | None = Field(
        default=None, ge=0.001, le=_MOST_DAYS, allow_inf_nan=False, description="Until it expires; null: never."
    )
