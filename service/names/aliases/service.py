"""Aliases: created, moved and deleted under a precondition, one request at a time per name."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy.orm import Session

from service.audit.changes import changes_between
from service.audit.service import note
from service.contracts.base import is_alias
from service.deps import AppState
from service.http import Conditions, etag_of
from service.names import repository as names
from service.names.aliases import repository
from service.names.aliases.schemas import (
    AliasLinks,
    AliasNotFoundError,
    AliasOut,
    InvalidAliasError,
    MoveOut,
    TooManyAliasesError,
)
from service.names.kinds import Named, ResourceKind, require_ready
from service.names.service import identify
from service.principal import Principal
from service.tables import Alias
from service.tables.base import record_of
from service.webhooks.outbox import emit

MOST_ALIASES = 100


class ShownAlias(NamedTuple):
    """An alias, its entity tag, and whether it was made just now."""

    alias: AliasOut
    etag: str
    is_new: bool = False


def of(app: AppState, kind: ResourceKind[Named], tenant_id: str, text: str) -> list[AliasOut]:
    """All aliases of the name that a model or a dataset has.

    Raises:
        ResourceNotFoundError: the tenant has no such model or dataset.
    """
    with app.database.read() as session:
        row = names.look_up(session, kind, tenant_id, text)
        return [alias_out(kind, alias) for alias in repository.of(session, kind, tenant_id, row.name)]


def words_of(
    app: AppState, kind: ResourceKind[Named], tenant_id: str, of_names: Collection[str]
) -> dict[str, list[str]]:
    """The aliases of these names, by the id of what each stands for."""
    found: dict[str, list[str]] = {}
    with app.database.read() as session:
        for alias in repository.of_names(session, kind, tenant_id, of_names):
            found.setdefault(alias.noun_id, []).append(alias.alias)
    return found


def get(app: AppState, kind: ResourceKind[Named], tenant_id: str, text: str, word: str) -> ShownAlias:
    """One of them.

    Raises:
        ResourceNotFoundError: the tenant has no such model or dataset.
        AliasNotFoundError: its name has no such alias.
    """
    with app.database.read() as session:
        alias = _existing(session, kind, tenant_id, names.look_up(session, kind, tenant_id, text).name, word)
        return ShownAlias(alias_out(kind, alias), etag_of(alias))


def moves(app: AppState, kind: ResourceKind[Named], tenant_id: str, text: str, word: str) -> list[MoveOut]:
    """Who moved the alias when, the newest first; also of one that has ended.

    Raises:
        ResourceNotFoundError: the tenant has no such model or dataset.
        AliasNotFoundError: its name never had such an alias.
    """
    with app.database.read() as session:
        name = names.look_up(session, kind, tenant_id, text).name
        found = repository.moves(session, kind, tenant_id, name, word) if is_alias(word) else []
        if not found:
            raise _missing(session, kind, tenant_id, name, word)
        return [MoveOut(version=move.version, id=move.noun_id, by=move.actor, at=move.at) for move in found]


def put(
    app: AppState, by: Principal, kind: ResourceKind[Named], text: str, word: str, conditions: Conditions
) -> ShownAlias:
    """Have the alias of its name stand for a ready model or dataset; one that does so already stays as it is.

    Raises:
        ResourceNotFoundError: the tenant has no such model or dataset.
        ResourceNotReadyError, ResourceRejectedError: it cannot be used.
        InvalidAliasError: the word cannot be an alias.
        PreconditionRequiredError, PreconditionFailedError: no condition, or one that does not hold.
        TooManyAliasesError: the name has as many as it may have.
    """
    noun_id = identify(app, kind, by.tenant_id, text)
    if not is_alias(word):
        raise InvalidAliasError(word)
    with app.database.write() as session:
        names.by_id(session, kind, by.tenant_id, noun_id)
        conditions.require("Send If-None-Match: * to create the alias, or If-Match with its ETag to move it.")
        row = hold_named(session, kind, by.tenant_id, noun_id)
        known = repository.alias_of(session, kind, by.tenant_id, row.name, word)
        conditions.check(None if known is None else etag_of(known), f"alias {word!r} of {row.name!r}")
        return _moved(session, by, kind, row, word, known)


def hold_named(session: Session, kind: ResourceKind[Named], tenant_id: str, noun_id: str) -> Named:
    """A ready model or dataset, and its name, whose aliases nobody else changes until the transaction ends.

    Raises:
        ResourceNotFoundError: the tenant has no such model or dataset (any more).
        ResourceNotReadyError, ResourceRejectedError: it cannot be used.
    """
    names.hold(session, tenant_id, (kind, None, noun_id))
    row = names.by_id(session, kind, tenant_id, noun_id)
    require_ready(kind, row, pointer="")
    repository.hold_name(session, kind, tenant_id, row.name)
    return row


def promote(session: Session, by: Principal, kind: ResourceKind[Named], noun_id: str, word: str) -> ShownAlias:
    """Have the alias stand for a ready model or dataset of the tenant's, whatever it stood for, in this transaction.

    Raises:
        ResourceNotFoundError: the tenant has no such model or dataset (any more).
        ResourceNotReadyError, ResourceRejectedError: it cannot be used.
        TooManyAliasesError: the name has as many as it may have.
    """
    row = hold_named(session, kind, by.tenant_id, noun_id)
    return _moved(session, by, kind, row, word, repository.alias_of(session, kind, by.tenant_id, row.name, word))


def drop(app: AppState, by: Principal, kind: ResourceKind[Named], text: str, word: str, conditions: Conditions) -> None:
    """End an alias; one that is not there stays so.

    Raises:
        ResourceNotFoundError: the tenant has no such model or dataset.
        PreconditionFailedError: the alias is not what the request takes it to be.
    """
    noun_id, possible = identify(app, kind, by.tenant_id, text), is_alias(word)
    with app.database.write() as session:
        name = names.by_id(session, kind, by.tenant_id, noun_id).name
        repository.hold_name(session, kind, by.tenant_id, name)
        known = repository.alias_of(session, kind, by.tenant_id, name, word) if possible else None
        conditions.check(None if known is None else etag_of(known), f"alias {word!r} of {name!r}")
        if known is None:
            return
        about = _about(known)
        repository.drop(session, kind, known, by.actor)
        note(session, by, f"{kind.word}.drop_alias", about)


def _moved(
    session: Session, by: Principal, kind: ResourceKind[Named], row: Named, word: str, known: Alias | None
) -> ShownAlias:
    """Point the alias, whose name is held, to ``row``; one that does so already stays as it is."""
    if known is not None and known.noun_id == row.id:
        return ShownAlias(alias_out(kind, known), etag_of(known))
    if known is None and repository.count(session, kind, by.tenant_id, row.name) >= MOST_ALIASES:
        raise TooManyAliasesError(
            f"{row.name!r} has {MOST_ALIASES} aliases, which is the maximum.",
            hint="Delete aliases that are no longer used.",
        )
    previous = None if known is None else known.noun_id
    made = repository.point(session, kind, row, word, by.actor, is_new=known is None)
    moved = {"id": row.id, "noun": kind.word, "name": row.name, "alias": word, "version": row.version}
    emit(session, by.tenant_id, "alias.moved", {**moved, "previous_id": previous})
    changes = changes_between({"id": previous}, {"id": row.id})
    note(session, by, f"{kind.word}.set_alias", _about(made), changes=changes)
    return ShownAlias(alias_out(kind, made), etag_of(made), known is None)


def _about(alias: Alias) -> str:
    """In the audit: a name is longer than what is noted there."""
    return f"{alias.noun_id}@{alias.alias}"


def _existing(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str, word: str) -> Alias:
    found = repository.alias_of(session, kind, tenant_id, name, word) if is_alias(word) else None
    if found is None:
        raise _missing(session, kind, tenant_id, name, word)
    return found


def _missing(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str, word: str) -> AliasNotFoundError:
    return AliasNotFoundError(name, word, names.alias_words(session, kind, tenant_id, name, MOST_ALIASES))


def alias_out(kind: ResourceKind[Named], alias: Alias) -> AliasOut:
    """The alias as it is shown."""
    target = f"/v1/{kind.word}s/{alias.noun_id}"
    path = f"{target}/aliases/{alias.alias}"
    return record_of(
        alias, AliasOut, id=alias.noun_id, links=AliasLinks(self=path, target=target, moves=f"{path}/moves")
    )
