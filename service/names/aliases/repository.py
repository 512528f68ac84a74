"""SQL statements for aliases. Writers lock the name first (``hold_name``)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.names.kinds import Named, ResourceKind
from service.names.repository import of_name
from service.repository import owned
from service.tables import Alias, AliasMove, NounName

# Of an alias; older ones are forgotten.
MOST_MOVES = 100


def hold_name(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str) -> None:
    """Until the transaction ends, nobody else changes the aliases of the name."""
    session.execute(select(NounName.last_version).where(*of_name(NounName, kind, tenant_id, name)).with_for_update())


def alias_of(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str, alias: str) -> Alias | None:
    """The alias, if the name has it."""
    statement = select(Alias).where(*of_name(Alias, kind, tenant_id, name), Alias.alias == alias)
    return session.scalar(statement, execution_options={"populate_existing": True})


def of(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str) -> list[Alias]:
    """All aliases of the name, in their order."""
    statement = select(Alias).where(*of_name(Alias, kind, tenant_id, name)).order_by(Alias.alias)
    return list(session.scalars(statement))


def of_names(session: Session, kind: ResourceKind[Named], tenant_id: str, names: Collection[str]) -> list[Alias]:
    """All aliases of these names, in their order."""
    of_kind = owned(Alias, tenant_id), Alias.noun == kind.word, Alias.name.in_(names)
    return list(session.scalars(select(Alias).where(*of_kind).order_by(Alias.alias)))


def count(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str) -> int:
    """How many aliases the name has."""
    statement = select(func.count()).select_from(Alias)
    return session.scalar(statement.where(*of_name(Alias, kind, tenant_id, name))) or 0


def point(session: Session, kind: ResourceKind[Named], row: Named, alias: str, actor: str, *, is_new: bool) -> Alias:
    """Have the alias stand for ``row``, and write down who did it."""
    seq = _move(session, kind, row.tenant_id, row.name, alias, actor, version=row.version, noun_id=row.id)
    now = db_now()
    values: dict[str, Any] = {
        "version": row.version,
        f"{kind.word}_id": row.id,
        "row_version": seq,
        "updated_by": actor,
        "updated_at": now,
    }
    if is_new:
        place = {"tenant_id": row.tenant_id, "noun": kind.word, "name": row.name, "alias": alias}
        session.execute(insert(Alias).values(**place, **values, created_at=now))
    else:
        place_of = (*of_name(Alias, kind, row.tenant_id, row.name), Alias.alias == alias)
        session.execute(update(Alias).where(*place_of).values(values).execution_options(synchronize_session=False))
    made = alias_of(session, kind, row.tenant_id, row.name, alias)
    assert made is not None  # noqa: S101 - it was written just now
    return made


def drop(session: Session, kind: ResourceKind[Named], alias: Alias, actor: str) -> None:
    """End the alias, and write down who did it."""
    _move(session, kind, alias.tenant_id, alias.name, alias.alias, actor, version=None, noun_id=None)
    place = (*of_name(Alias, kind, alias.tenant_id, alias.name), Alias.alias == alias.alias)
    session.execute(delete(Alias).where(*place).execution_options(synchronize_session=False))


def moves(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str, alias: str) -> list[AliasMove]:
    """The last moves of the alias, the newest first; also of one that has ended."""
    statement = select(AliasMove).where(*of_name(AliasMove, kind, tenant_id, name), AliasMove.alias == alias)
    return list(session.scalars(statement.order_by(AliasMove.seq.desc()).limit(MOST_MOVES)))


def _move(
    session: Session,
    kind: ResourceKind[Named],
    tenant_id: str,
    name: str,
    alias: str,
    actor: str,
    *,
    version: int | None,
    noun_id: str | None,
) -> int:
    """Write down a move, and forget those that are too old; gives its number."""
    place = (*of_name(AliasMove, kind, tenant_id, name), AliasMove.alias == alias)
    seq = (session.scalar(select(func.max(AliasMove.seq)).where(*place)) or 0) + 1
    session.execute(
        insert(AliasMove).values(
            tenant_id=tenant_id,
            noun=kind.word,
            name=name,
            alias=alias,
            seq=seq,
            version=version,
            noun_id=noun_id,
            actor=actor,
            at=db_now(),
        )
    )
    old = delete(AliasMove).where(*place, AliasMove.seq <= seq - MOST_MOVES)
    session.execute(old.execution_options(synchronize_session=False))
    return seq
