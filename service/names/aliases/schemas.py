"""Aliases as seen over HTTP."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, Field


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
