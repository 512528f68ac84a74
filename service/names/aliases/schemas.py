"""Aliases as seen over HTTP, and their errors."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from service.contracts.errors import QuantmillError


class AliasLinks(BaseModel):
    """Where to go from an alias."""

    self: str
    target: str
    moves: str


class AliasOut(BaseModel):
    """An alias: ``NAME@ALIAS`` names what it stands for."""

    name: str
    alias: str
    version: int = Field(description="That it stands for.")
    id: str = Field(description="Of the model or dataset that it stands for.")
    updated_by: str = Field(description="The key that has moved it last.")
    created_at: datetime
    updated_at: datetime
    links: AliasLinks


class AliasList(BaseModel):
    """All aliases of a name, in their order."""

    items: list[AliasOut]


class MoveOut(BaseModel):
    """One move of an alias."""

    version: int | None = Field(description="That it stood for from then on; null where it ended.")
    id: str | None = Field(description="Of that version.")
    by: str = Field(description="The key that has moved it.")
    at: datetime


class MoveList(BaseModel):
    """The last 100 moves of an alias, the newest first."""

    items: list[MoveOut]


# Errors around aliases.


class AliasNotFoundError(QuantmillError, code="alias-not-found", title="No such alias", status=404):
    """The name has no such alias."""

    def __init__(self, name: str, alias: str, known: list[str]) -> None:
        there = f"It has {', '.join(known)}." if known else "It has none."
        super().__init__(f"{name!r} has no alias {alias!r}.", path_parameter="alias", hint=there)


class InvalidAliasError(QuantmillError, code="invalid-alias", title="The alias is not valid", status=422):
    """The word cannot be an alias."""

    def __init__(self, alias: str) -> None:
        super().__init__(
            f"{alias!r} cannot be an alias.",
            path_parameter="alias",
            hint="An alias is up to 64 lower-case letters and digits, a letter first, parted by single '.', '_' or "
            "'-', such as prod or eu-prod; 'latest' is taken.",
        )


class TooManyAliasesError(QuantmillError, code="too-many-aliases", title="The name has too many aliases", status=409):
    """The name has as many aliases as a name may have."""
