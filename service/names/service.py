"""Names: what a reference stands for at this moment, and what people say of it."""

from __future__ import annotations

from service.audit.service import note
from service.conditions import Conditions
from service.deps import AppState
from service.ids import is_id
from service.names import repository
from service.names.kinds import Kind, Named
from service.names.repository import NounQuery
from service.names.schemas import NounPatch
from service.pagination import Position
from service.principal import Principal
from service.tables import Dataset, Model


def identify(app: AppState, kind: Kind[Named], tenant_id: str, text: str, *, query: str | None = None) -> str:
    """The id that an id or a reference means; whether an id is anybody's is asked by who looks for it.

    Raises:
        NounNotFoundError: the tenant has none that is called so.
        NounNotReadyError, NounRejectedError: ``NAME@latest``, and no version is ready.
    """
    if is_id(text, kind.prefix):
        return text
    with app.database.read() as session:
        return repository.look_up(session, kind, tenant_id, text, query=query).id


def list_page(
    app: AppState, kind: Kind[Named], tenant_id: str, query: NounQuery, *, after: Position | None, limit: int
) -> tuple[list[Named], Position | None]:
    """One page of models or datasets, newest first, and the position to go on from."""
    with app.database.read() as session:
        return repository.list_page(session, kind, tenant_id, query, after=after, limit=limit)


def update(
    app: AppState, by: Principal, kind: Kind[Named], text: str, patch: NounPatch, conditions: Conditions
) -> Named:
    """Change what people say of a model or a dataset.

    Raises:
        NounNotFoundError: the tenant has none that is called so.
        PreconditionRequiredError, PreconditionFailedError: no condition, or one that does not hold.
    """
    noun_id = identify(app, kind, by.tenant_id, text)
    with app.database.write() as session:
        row = repository.lock(session, kind, by.tenant_id, noun_id)
        conditions.require("Send If-Match with the ETag of what you have seen, or If-Match: *.")
        conditions.check(row_etag(row), f"{kind.word} {row.id}")
        repository.change(session, row, **patch.model_dump(exclude_unset=True))
        note(session, by, f"{kind.word}.update", row.id)
        return row


def row_etag(row: Model | Dataset) -> str:
    """Entity tag: changes whenever the model or the dataset does."""
    return f'"{row.row_version}"'
