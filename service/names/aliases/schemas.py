"""API schemas and errors of aliases."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field

from service.contracts.errors import QuantmillError


class AliasLinks(BaseModel):
    """Related URLs of an alias."""

    self: str
    target: str
    moves: str


class AliasOut(BaseModel):
    """An alias: ``NAME@ALIAS`` refers to a version of the name."""

    name: str
    alias: str
    version: int = Field(description="Version that the alias refers to.")
    id: str = Field(description="Id of the model or dataset that the alias refers to.")
    updated_by: str = Field(description="Id of the key that moved the alias last.")
    created_at: datetime
    updated_at: datetime
    links: AliasLinks


class AliasList(BaseModel):
    """All aliases of a name, sorted."""

    items: list[AliasOut]


class MoveOut(BaseModel):
    """One move of an alias."""

    version: int | None = Field(
        description="Version that the alias referred to after the move; null: the alias was deleted."
    )
    id: str | None = Field(description="Id of that version.")
    by: str = Field(description="Id of the key that moved the alias.")
    at: datetime


class MoveList(BaseModel):
    """The last 100 moves of an alias, newest first."""

    items: list[MoveOut]


# Errors around aliases.


class AliasNotFoundError(QuantmillError, code="alias-not-found", title="Alias not found", status=404):
    """The name does not have this alias."""

    def __init__(self, name: str, alias: str, known: list[str]) -> None:
        there = f"Its aliases: {', '.join(known)}." if known else "It has no aliases."
        super().__init__(f"{name!r} has no alias {alias!r}.", path_parameter="alias", hint=there)


class InvalidAliasError(QuantmillError, code="invalid-alias", title="Alias not valid", status=422):
    """The alias does not have a valid form."""

    def __init__(self, alias: str) -> None:
        super().__init__(
            f"{alias!r} is not a valid alias.",
            path_parameter="alias",
            hint="An alias has up to 64 lower-case letters and digits, starts with a letter, and may "
            "contain single '.', '_' or '-' as separators, such as prod or eu-prod; 'latest' is "
            "reserved.",
        )


class TooManyAliasesError(QuantmillError, code="too-many-aliases", title="Too many aliases", status=409):
    """The name has the maximum number of aliases."""
