"""What aliases look like from outside."""

from __future__ import annotations

from service.names.aliases.schemas import AliasLinks, AliasOut, MoveOut
from service.names.kinds import Kind, Named
from service.tables import Alias, AliasMove


def alias_etag(alias: Alias) -> str:
    """Entity tag: changes with every move, and never comes back."""
    return f'"{alias.row_version}"'


def alias_out(kind: Kind[Named], alias: Alias) -> AliasOut:
    """The alias as it is shown."""
    target = f"/v1/{kind.word}s/{alias.noun_id}"
    path = f"{target}/aliases/{alias.alias}"
    return AliasOut(
        name=alias.name,
        alias=alias.alias,
        version=alias.version,
        id=alias.noun_id,
        updated_by=alias.updated_by,
        created_at=alias.created_at,
        updated_at=alias.updated_at,
        links=AliasLinks(self=path, target=target, moves=f"{path}/moves"),
    )


def move_out(move: AliasMove) -> MoveOut:
    """The move as it is shown."""
    return MoveOut(version=move.version, id=move.noun_id, by=move.actor, at=move.at)
