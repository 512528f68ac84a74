"""Statements about names and what they stand for, of models and datasets alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, and_, select, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from service.contracts.nearest import nearest_name
from service.contracts.references import LATEST, SIGN, Reference, is_name, parse
from service.db import db_now
from service.ids import is_id
from service.names.kinds import Kind, Named
from service.names.readiness import require_ready
from service.nouns import NounNotFoundError
from service.pagination import Position
from service.repository import insert_of, page
from service.tables import Alias, Dataset, Model, ModelFile, NounName
from service.tenancy import owned

# Of the version that is counted next, where the name is known already.
_NEXT = {"last_version": NounName.last_version + 1}
# Of names that the one meant is looked for among, and of what an error lists.
_MOST_NAMES, _MOST_TOLD = 2000, 20


def next_version(session: Session, tenant_id: str, noun: str, name: str) -> int:
    """The number of a new version of the name: 1, or one above the highest that there ever was.

    Until the transaction ends, nobody else counts on: of two at once the second waits for the first.
    """
    row = {"tenant_id": tenant_id, "noun": noun, "name": name, "last_version": 1}
    keys = ("tenant_id", "noun", "name")
    statement = insert_of(session, NounName).values(row)
    counted = statement.on_conflict_do_update(index_elements=keys, set_=_NEXT).returning(NounName.last_version)
    return int(session.execute(counted).scalar_one())


def look_up(
    session: Session,
    kind: Kind[Named],
    tenant_id: str,
    text: str,
    *,
    pointer: str | None = None,
    query: str | None = None,
) -> Named:
    """The tenant's model or dataset that an id or a reference names.

    Args:
        session: reads.
        kind: which of both.
        tenant_id: whose.
        text: as the request has it.
        pointer: where, in the body.
        query: which parameter of the query; without either it is the one of the path.

    Raises:
        NounNotFoundError: the tenant has none that is called so; says what there is.
        NounNotReadyError, NounRejectedError: ``NAME@latest``, and no version is ready: tells of the newest.
    """
    reference = None
    if is_id(text, kind.prefix):
        found = session.scalar(select(kind.table).where(kind.table.id == text, *_there(kind, tenant_id)))
    else:
        reference = parse(text)
        found = None if reference is None else _referred(session, kind, tenant_id, reference, pointer or "")
    if found is None:
        raise _nothing_called(session, kind, tenant_id, text, reference, pointer, query)
    return found


def by_id(session: Session, kind: Kind[Named], tenant_id: str, noun_id: str) -> Named:
    """The tenant's model or dataset of this id: for transactions in which nothing is to be computed, as by ``look_up``.

    Raises:
        NounNotFoundError: the tenant has none.
    """
    found = session.scalar(select(kind.table).where(kind.table.id == noun_id, *_there(kind, tenant_id)))
    if found is None:
        raise kind.not_found(noun_id, pointer=None)
    return found


def hold(session: Session, kind: Kind[Named], tenant_id: str, places: Sequence[tuple[str | None, str]]) -> None:
    """Until the transaction ends, nobody deletes these: something is made that needs them.

    Args:
        session: in a write transaction.
        kind: which of both.
        tenant_id: whose.
        places: pointer in the body and id of each; None is the parameter of the path.

    Raises:
        NounNotFoundError: one is not there (any more).
    """
    table = kind.table
    ids = {noun_id for _, noun_id in places}
    statement = select(table.id).where(table.id.in_(ids), *_there(kind, tenant_id)).order_by(table.id)
    held = set(session.scalars(statement.with_for_update(read=True)))
    for pointer, noun_id in places:
        if noun_id not in held:
            raise kind.not_found(noun_id, pointer=pointer)


@dataclass(frozen=True)
class NounQuery:
    """Filters of a list of models or datasets; ``sha256`` is that of the main file, ``search`` a part of the name."""

    status: str | None = None
    name: str | None = None
    sha256: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    search: str | None = None


def list_page(
    session: Session, kind: Kind[Named], tenant_id: str, query: NounQuery, *, after: Position | None, limit: int
) -> tuple[list[Named], Position | None]:
    """One page of the tenant's models or datasets, newest first; whole summaries are not read, but outlines."""
    table = kind.table
    conditions = _there(kind, tenant_id)
    if query.search is not None:
        conditions.append(table.name.icontains(query.search, autoescape=True))
    if query.sha256 is not None:
        conditions.append(_has_main_file(kind, query.sha256))
    conditions += [table.tags[key].as_string() == value for key, value in query.tags.items()]
    equal = {"status": query.status, "name": query.name}
    rows, last = page(session, table, conditions, after=after, limit=limit, without=(table.summary,), **equal)
    for row in rows:
        if row.status == "ready" and row.outline is None:  # written by older code
            session.refresh(row, ["summary"])
            set_committed_value(row, "outline", row.summary)  # for this answer alone
    return rows, last


def lock(session: Session, kind: Kind[Named], tenant_id: str, noun_id: str) -> Named:
    """The tenant's model or dataset; until the transaction ends, nobody else changes it, or needs it anew.

    Raises:
        NounNotFoundError: it is not there (any more).
    """
    statement = select(kind.table).where(kind.table.id == noun_id, *_there(kind, tenant_id)).with_for_update()
    found = session.scalar(statement, execution_options={"populate_existing": True})
    if found is None:
        raise kind.not_found(noun_id)
    return found


def change(session: Session, row: Named, **values: Any) -> None:
    """Set columns of a row that is locked; its ``row_version`` goes on."""
    table = type(row)
    changed = update(table).where(table.id == row.id)
    changed = changed.values(**values, row_version=table.row_version + 1, updated_at=db_now())
    session.execute(changed.execution_options(synchronize_session=False))
    session.refresh(row)


def alias_words(session: Session, kind: Kind[Named], tenant_id: str, name: str, limit: int | None = None) -> list[str]:
    """The aliases of a name, in their order."""
    statement = select(Alias.alias).where(*of_name(Alias, kind, tenant_id, name)).order_by(Alias.alias)
    return list(session.scalars(statement.limit(limit)))


def of_name(table: Any, kind: Kind[Named], tenant_id: str, name: str) -> list[ColumnElement[bool]]:
    """Condition: rows of ``table`` are of the name."""
    return [owned(table, tenant_id), table.noun == kind.word, table.name == name]


def _there(kind: Kind[Named], tenant_id: str) -> list[ColumnElement[bool]]:
    return [owned(kind.table, tenant_id), kind.table.deleted_at.is_(None)]


def _referred(session: Session, kind: Kind[Named], tenant_id: str, reference: Reference, pointer: str) -> Named | None:
    table = kind.table
    statement = select(table).where(*_there(kind, tenant_id), table.name == reference.name)
    if reference.word is None:
        return session.scalar(statement.where(table.version == reference.version))
    if reference.word != LATEST:
        stands_for = select(Alias.version).where(
            *of_name(Alias, kind, tenant_id, reference.name), Alias.alias == reference.word
        )
        return session.scalar(statement.where(table.version == stands_for.scalar_subquery()))
    newest = statement.order_by(table.version.desc()).limit(1)
    found = session.scalar(newest.where(table.status == "ready")) or session.scalar(newest)
    if found is not None:
        require_ready(kind, found, pointer=pointer)
    return found


def _nothing_called(
    session: Session,
    kind: Kind[Named],
    tenant_id: str,
    text: str,
    reference: Reference | None,
    pointer: str | None,
    query: str | None,
) -> NounNotFoundError:
    """What to say of a text that names nothing: whether it is a bare name, and else what there is instead."""
    place: dict[str, str | None] = {"pointer": pointer, "query": query}
    if is_name(text) and _versions(session, kind, tenant_id, text, 1):
        detail = f"{text!r} is the name of {kind.word}s and does not say which version."
        hint = f"Take {text + SIGN + LATEST!r}, a version or an alias."
        return kind.not_found(text, **place, detail=detail, hint=hint)
    name: str = text.rpartition(SIGN)[0] if reference is None else reference.name
    if not is_name(name):
        return kind.not_found(text, **place)
    versions = _versions(session, kind, tenant_id, name, _MOST_TOLD)
    if not versions:
        table = kind.table
        names = select(table.name).where(*_there(kind, tenant_id)).distinct().order_by(table.name).limit(_MOST_NAMES)
        near = nearest_name(name, session.scalars(names))
        told = f"There is no {kind.word} of the name {name!r}" + (f"; did you mean {near!r}?" if near else ".")
        return kind.not_found(text, **place, detail=told)
    words = [*alias_words(session, kind, tenant_id, name, _MOST_TOLD), LATEST]
    if reference is None:
        detail = f"{text.rpartition(SIGN)[2]!r} is neither a version nor an alias of the {kind.word} {name!r}."
    else:
        detail = f"There is no {kind.word} {text!r}."
    there = f"Of {name!r} there are the versions {', '.join(map(str, versions))}"
    more = " and older ones" if len(versions) == _MOST_TOLD else ""
    return kind.not_found(text, **place, detail=detail, hint=f"{there}{more}, and the aliases {', '.join(words)}.")


def _has_main_file(kind: Kind[Named], sha256: str) -> ColumnElement[bool]:
    if kind.word == "dataset":
        return Dataset.sha256 == sha256
    return Model.files.any(and_(ModelFile.is_main, ModelFile.sha256 == sha256))


def _versions(session: Session, kind: Kind[Named], tenant_id: str, name: str, limit: int) -> list[int]:
    table = kind.table
    statement = select(table.version).where(*_there(kind, tenant_id), table.name == name)
    return list(session.scalars(statement.order_by(table.version.desc()).limit(limit)))
