"""Names: resolving references, updating descriptions and tags, deletion."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from service.audit.changes import changes_between
from service.audit.service import note
from service.contracts.base import MOST_TAGS, Description, Tags, parse
from service.contracts.errors import InvalidRequestError, QuantmillError
from service.deps import AppState
from service.http import PLAIN_TEXT, Conditions, etag_of, keyed_filters, keyed_parameter, poll, unless_changed
from service.idempotency.answers import Answer
from service.ids import is_id
from service.names import repository
from service.names.kinds import Named, ResourceKind
from service.names.repository import Needs, ResourceQuery
from service.pagination import Position
from service.principal import Principal
from service.resources import ResourceStatus
from service.tables import Dataset, Model

# What people may say of a model or a dataset, as seen over HTTP, and by what they find it.

TAG = "tag"
TAG_PARAMETER = keyed_parameter(TAG, MOST_TAGS)
FILTERS = ("status", "name", "sha256", "limit", "cursor")


class NounPatch(BaseModel):
    """Changes to a model or a dataset. Omitted fields are unchanged."""

    model_config = ConfigDict(extra="forbid")

    tags: Tags = Field(default_factory=dict, description="Tags; they replace all existing tags.")
    description: Description | None = Field(default=None, description="Description, for display; null removes it.")


def resource_query(
    request: Request,
    status: Annotated[ResourceStatus | None, Query()] = None,
    name: Annotated[
        str | None, Query(max_length=200, pattern=PLAIN_TEXT, description="Only versions of this name.")
    ] = None,
    sha256: Annotated[
        str | None, Query(pattern="^[0-9a-f]{64}$", description="Only resources whose main file has this SHA-256.")
    ] = None,
) -> ResourceQuery:
    """Filters of a list; any number of ``tag.KEY=VALUE`` parameters filter by tag."""
    return ResourceQuery(status, name, sha256, keyed_filters(request, TAG, most=MOST_TAGS))


def identify(app: AppState, kind: ResourceKind[Named], tenant_id: str, text: str, *, query: str | None = None) -> str:
    """The id that an id or a reference means; whether an id is anybody's is asked by who looks for it.

    Raises:
        ResourceNotFoundError: the tenant has none that is called so.
        ResourceNotReadyError, ResourceRejectedError: ``NAME@latest``, and no version is ready.
    """
    if is_id(text, kind.prefix):
        return text
    with app.database.read() as session:
        return repository.look_up(session, kind, tenant_id, text, query=query).id


def get(app: AppState, kind: ResourceKind[Named], tenant_id: str, text: str) -> Named:
    """The model or dataset that an id or a reference means.

    Raises:
        ResourceNotFoundError: the tenant has none that is called so.
        ResourceNotReadyError, ResourceRejectedError: ``NAME@latest``, and no version is ready.
    """
    with app.database.read() as session:
        return repository.look_up(session, kind, tenant_id, text)


async def waited_for(app: AppState, kind: ResourceKind[Named], tenant_id: str, text: str, wait_seconds: float) -> Named:
    """As ``get``, once validation has ended, or when the time is over."""
    found_id = await app.reads.run(lambda: identify(app, kind, tenant_id, text))
    return await poll(
        app,
        kind.table,
        found_id,
        lambda: get(app, kind, tenant_id, found_id),
        version=lambda seen: (seen.row_version, 0),
        done=lambda seen: seen.status != "validating",
        wait_seconds=wait_seconds,
    )


def answer_of(row: Model | Dataset, response: Response, if_none_match: str | None) -> Response | None:
    """The answer to who has this version already; None: the row is to be told, with the headers set here."""
    retry_seconds = 1 if row.status == "validating" else None
    return unless_changed(response, if_none_match, etag_of(row), retry_seconds=retry_seconds)


def created(kind: ResourceKind[Named], row: Named, shown: BaseModel) -> Answer:
    """The answer to the request that made it."""
    headers = {"Location": f"/v1/{kind.word}s/{row.id}", "Retry-After": "1", "ETag": etag_of(row)}
    return Answer(201, shown.model_dump(mode="json"), headers)


def list_page(
    app: AppState,
    kind: ResourceKind[Named],
    tenant_id: str,
    query: ResourceQuery,
    *,
    after: Position | None,
    limit: int,
) -> tuple[list[Named], Position | None]:
    """One page of models or datasets, newest first, and the position to go on from."""
    with app.database.read() as session:
        return repository.list_page(session, kind, tenant_id, query, after=after, limit=limit)


def update(
    app: AppState, by: Principal, kind: ResourceKind[Named], text: str, patch: NounPatch, conditions: Conditions
) -> Named:
    """Change what people say of a model or a dataset.

    Raises:
        ResourceNotFoundError: the tenant has none that is called so.
        PreconditionRequiredError, PreconditionFailedError: no condition, or one that does not hold.
    """
    resource_id = identify(app, kind, by.tenant_id, text)
    with app.database.write() as session:
        row = repository.lock(session, kind, by.tenant_id, resource_id)
        conditions.require("Send If-Match with the ETag of your last GET, or If-Match: *.")
        conditions.check(etag_of(row), f"{kind.word} {row.id}")
        values = patch.model_dump(exclude_unset=True)
        changes = changes_between({name: getattr(row, name) for name in values}, values)
        repository.change(session, row, **values)
        note(session, by, f"{kind.word}.update", row.id, changes=changes)
        return row


class Dependents(NamedTuple):
    """What refers to a model or a dataset that is to be deleted."""

    row: Model | Dataset
    needs: Needs  # that keep it from being deleted
    latest: list[str]  # schedules that go on with an older version then
    jobs: int  # of any state; they keep their results


def dependents(app: AppState, kind: ResourceKind[Named], tenant_id: str, text: str) -> Dependents:
    """What deleting would concern, by the same rule as ``delete``.

    Raises:
        ResourceNotFoundError: the tenant has none that is called so.
    """
    with app.database.read() as session:
        row = repository.look_up(session, kind, tenant_id, text)
        needs = repository.needs(session, kind, tenant_id, row)
        held = {name for word, name in needs.first if word == "schedule"}
        latest = [name for name in repository.latest_schedules(session, row) if name not in held]
        return Dependents(row, needs, latest, repository.count_jobs(session, kind, row))


def delete(app: AppState, by: Principal, kind: ResourceKind[Named], text: str) -> None:
    """Delete a model or a dataset that nothing needs; one that is deleted stays so.

    Its files are collected once nothing else names them. Jobs that ran on it keep what they have made, and its version
    is never given again.

    Raises:
        ResourceNotFoundError: the tenant never had one that is called so.
        InvalidRequestError: an alias or ``latest``, which would be another one the next time.
        ResourceInUseError: something needs it; says what.
    """
    reference = None if is_id(text, kind.prefix) else parse(text)
    if reference is not None and reference.word is not None:
        raise InvalidRequestError(
            f"{text!r} may refer to another {kind.word} next time.",
            path_parameter=f"{kind.word}_id",
            hint="Delete it by its id, or by NAME@VERSION.",
        )
    if reference is None and not is_id(text, kind.prefix):
        raise _missing(app, by, kind, text)
    with app.database.write() as session:
        row = repository.hold_any(session, kind, by.tenant_id, reference or text)
        if row is not None and row.deleted_at is None:
            _delete_held(session, by, kind, row)
    if row is None:
        raise _missing(app, by, kind, text)


def _delete_held(session: Session, by: Principal, kind: ResourceKind[Named], row: Named) -> None:
    needs = repository.needs(session, kind, by.tenant_id, row)
    if needs.count:
        raise kind.in_use(f"{row.name}@{row.version}", needed_by=needs.first, count=needs.count)
    repository.mark_deleted(session, row)
    note(session, by, f"{kind.word}.delete", row.id)


def _missing(app: AppState, by: Principal, kind: ResourceKind[Named], text: str) -> QuantmillError:
    """Says what there is instead; looked for outside of any transaction that others wait for."""
    try:
        identify(app, kind, by.tenant_id, text)
    except QuantmillError as error:
        return error
    return kind.not_found(text)
