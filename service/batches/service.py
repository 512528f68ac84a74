"""Batches: all members are checked before any is stored, and all are stored in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy.orm import Session

from service.audit.service import note
from service.batches import repository
from service.batches.grid import Coordinates, Fault, MemberRequest
from service.batches.repository import NewMember
from service.batches.schemas import (
    MOST_JOBS,
    BatchCreate,
    BatchListed,
    BatchNotEndedError,
    BatchRefusedError,
    NothingToRetryError,
)
from service.batches.views import BatchView, batch_listed, batch_out, counts_of, location
from service.contracts.errors import QuantmillError
from service.deps import AppState
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest, NoBody, RepeatableBody
from service.idempotency.service import submit_once
from service.jobs import repository as jobs
from service.jobs import transitions
from service.jobs.repeats import same_request
from service.jobs.schemas import JobCreate
from service.jobs.submission import Submission, checked_submission, same_result, store_job
from service.jobs.views import views
from service.names import repository as names
from service.pagination import Position
from service.principal import Principal
from service.quotas import service as quotas
from service.tables import Batch, BatchMember, Job

_REFERENCES = ("model_id", "calibration_dataset_id", "evaluation_dataset_id")
_AGAIN = frozenset({"failed", "canceled"})
Given = list[tuple[Coordinates, Submission]]


class _BatchMeaning(RepeatableBody):
    """What makes two requests for a batch the same, however they are spelled."""

    name: str | None
    labels: dict[str, str]
    grid: dict[str, Any] | None
    members: list[JobCreate]


def create(app: AppState, by: Principal, body: BatchCreate, *, key: str | None) -> Answer:
    """Store a batch with a job for each of its members, and have them run; with a known key, answer as then.

    Args:
        app: of the process.
        by: who asks.
        body: the request.
        key: its Idempotency-Key.

    Raises:
        BatchRefusedError: some members cannot be run; names all of them. Nothing was stored.
        QuotaError: the tenant may not have so many jobs more. Nothing was stored.
    """
    meaning = _BatchMeaning(
        name=body.name, labels=body.labels, grid=body.grid, members=[one.body for one in body.asked]
    )
    meaning._sent = body._sent
    if body.faults:  # what it means is not known
        key = None
    request = KeyedRequest.of("POST /v1/batches", key, meaning)
    check = partial(_checked, app=app, by=by, body=body)
    return submit_once(app, by, request, check, partial(_store, app=app, by=by, body=body))


def retry_failed(app: AppState, by: Principal, batch_id: str, *, key: str | None) -> Answer:
    """Have the members that have failed or were canceled run once more, unchanged: each gets a new job.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
        BatchNotEndedError: some jobs are queued or running.
        NothingToRetryError: none has failed or was canceled, or the batch would have too many jobs.
        BatchRefusedError: some cannot be run any more; names all of them. Nothing was stored.
        QuotaError: the tenant may not have so many jobs more. Nothing was stored.
    """
    request = KeyedRequest.of(f"POST /v1/batches/{batch_id}/retry-failed", key, NoBody())
    check = partial(_checked_again, app=app, by=by, batch_id=batch_id)
    return submit_once(app, by, request, check, partial(_store_again, app=app, by=by))


def get(app: AppState, tenant_id: str, batch_id: str) -> BatchView:
    """The batch with its members.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
    """
    with app.database.read() as session:
        return _view(app, session, tenant_id, repository.get(session, tenant_id, batch_id))


def require(app: AppState, tenant_id: str, batch_id: str) -> None:
    """See that the batch is there.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
    """
    with app.database.read() as session:
        repository.get(session, tenant_id, batch_id)


def list_page(
    app: AppState, tenant_id: str, *, name: str | None, after: Position | None, limit: int
) -> tuple[list[BatchListed], Position | None]:
    """One page of batches, newest first, and the position to go on from."""
    with app.database.read() as session:
        rows, last = repository.list_page(session, tenant_id, name=name, after=after, limit=limit)
        standings = repository.member_counts(session, tenant_id, [row.id for row in rows])
    return [batch_listed(row, counts_of(standings.get(row.id, ()))) for row in rows], last


def cancel(app: AppState, by: Principal, batch_id: str) -> BatchView:
    """Cancel its queued jobs and ask its running ones to stop; those that were reused are left alone.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
    """
    with app.database.write() as session:
        batch = repository.get(session, by.tenant_id, batch_id, locked=True)
        own = {row.job_id for row in repository.members(session, by.tenant_id, batch_id) if not row.reused}
        # in one order for all, so that two who cancel the same do not wait for each other
        for job_id in sorted(repository.live(session, by.tenant_id, own)):
            transitions.request_cancel(session, by.tenant_id, job_id)
        note(session, by, "batch.cancel", batch.id)
    return get(app, by.tenant_id, batch_id)


def remove(app: AppState, by: Principal, batch_id: str) -> None:
    """Forget a batch that has ended; its jobs stay.

    Raises:
        BatchNotFoundError: the tenant has no such batch.
        BatchNotEndedError: some of its jobs are queued or running.
    """
    with app.database.write() as session:
        batch = repository.get(session, by.tenant_id, batch_id, locked=True)
        mine = [row.job_id for row in repository.members(session, by.tenant_id, batch_id)]
        live = repository.live(session, by.tenant_id, mine)
        if live:
            raise BatchNotEndedError(batch_id, len(live))
        repository.remove(session, batch)
        note(session, by, "batch.delete", batch_id)


def _checked(session: Session, app: AppState, by: Principal, body: BatchCreate) -> Given:
    """What is to be stored; or all that keeps it from that is told at once."""
    known: dict[tuple[str, str], str] = {}
    given: Given = []
    faults = list(body.faults)
    for one in body.asked:
        # a reference means the same for all members, whatever happens meanwhile
        named = {name: getattr(one.body, name) for name in _REFERENCES}
        ids = {name: known[name, text] for name, text in named.items() if (name, text) in known}
        found = _submission(session, app, by, MemberRequest(one.at, one.body.model_copy(update=ids)), faults)
        if found is not None:
            known |= {(name, text): getattr(found.job, name) for name, text in named.items() if text is not None}
            given.append((one.at, found))
    if faults:
        raise BatchRefusedError(body.size, sorted(faults, key=lambda fault: fault[0]["member"]))
    return given


def _checked_again(session: Session, app: AppState, by: Principal, batch_id: str) -> tuple[BatchView, Given]:
    seen = _view(app, session, by.tenant_id, repository.get(session, by.tenant_id, batch_id))
    again = _to_repeat(seen)
    given: Given = []
    faults: list[Fault] = []
    for row in again:
        at = Coordinates(row.member, row.model, {"": ""}, row.preset, row.config)
        try:
            body = same_request(jobs.get(session, by.tenant_id, row.job_id), JobCreate)
        except QuantmillError as error:
            faults.append(at.fault(error))
            continue
        found = _submission(session, app, by, MemberRequest(at, body), faults)
        if found is not None:
            given.append((at, found.made_of(retry_of=row.job_id)))
    if faults:
        raise BatchRefusedError(len(again), faults)
    return seen, given


def _submission(
    session: Session, app: AppState, by: Principal, one: MemberRequest, faults: list[Fault]
) -> Submission | None:
    """The member as it may be stored; None: what is wrong with it was added to the ``faults``."""
    try:
        return checked_submission(session, app.settings, by.tenant_id, one.body)
    except QuantmillError as error:
        faults.append(one.at.fault(error))
        return None


def _to_repeat(seen: BatchView) -> list[BatchMember]:
    live = sum(row.job_id in seen.jobs and not seen.jobs[row.job_id].ended for row in seen.current)
    if live:
        raise BatchNotEndedError(seen.batch.id, live)
    again = [row for row in seen.current if row.job_id in seen.jobs and seen.jobs[row.job_id].job.state in _AGAIN]
    if not again:
        raise NothingToRetryError(
            f"No member of batch {seen.batch.id} failed or was canceled.", hint="Submit a new batch."
        )
    if len(seen.members) + len(again) > MOST_JOBS:
        raise NothingToRetryError(
            f"Batch {seen.batch.id} would have more than {MOST_JOBS} jobs, including retries.",
            hint="Submit a new batch with the members that failed.",
        )
    return again


def _store(
    given: Given, session: Session, app: AppState, by: Principal, body: BatchCreate
) -> tuple[Answer, Sequence[Job]]:
    batch = repository.create(
        session, by.tenant_id, name=body.name, labels=body.labels, grid=body.grid, request_id=by.request_id
    )
    made = _store_members(app, session, by, batch, 0, given)
    return _answer(_view(app, session, by.tenant_id, batch)), made


def _store_again(
    checked: tuple[BatchView, Given], session: Session, app: AppState, by: Principal
) -> tuple[Answer, Sequence[Job]]:
    seen, given = checked
    batch = repository.get(session, by.tenant_id, seen.batch.id, locked=True)
    if repository.size(session, by.tenant_id, batch.id) != len(seen.members):
        raise NothingToRetryError(
            f"Members of batch {batch.id} were already retried by another request.",
            hint="Get the batch again to see its current state.",
        )
    repository.supersede(session, batch, [at.member for at, _ in given])
    made = _store_members(app, session, by, batch, len(seen.members), given)
    return _answer(_view(app, session, by.tenant_id, batch)), made


def _store_members(app: AppState, session: Session, by: Principal, batch: Batch, first: int, given: Given) -> list[Job]:
    """Store the jobs, at the positions from ``first`` on; returns those that are new."""
    names.hold(session, by.tenant_id, *(named for _, one in given for named in one.named))
    wanted = {
        one.job.fingerprint if one.reuse else at.member
        for at, one in given
        if not one.reuse or same_result(session, one) is None
    }
    if wanted:
        quotas.admit_jobs(session, app.settings, by.tenant_id, len(wanted))
    rows: list[NewMember] = []
    made: list[Job] = []
    for at, one in given:
        job, is_new = store_job(session, app.settings, by, one)
        rows.append(NewMember(at.member, job.id, not is_new, at.model, at.preset, at.config))
        if is_new:
            made.append(job)
    # one that another member of this batch has made is the batch's own
    own = {job.id for job in made}
    repository.add_members(session, batch, first, [row.of(own) for row in rows])
    return made


def _view(app: AppState, session: Session, tenant_id: str, batch: Batch) -> BatchView:
    # whatever happens after this was read is news to who waits
    version = repository.version(session, tenant_id, batch.id)
    members = repository.members(session, tenant_id, batch.id)
    rows = repository.jobs(session, tenant_id, {row.job_id for row in members})
    told = {view.job.id: view for view in views(app, session, tenant_id, rows)}
    return BatchView(batch, members, told, version)


def _answer(view: BatchView) -> Answer:
    body = batch_out(view).model_dump(mode="json", by_alias=True)
    return Answer(202, body, {"Location": location(view.batch), "Retry-After": "2", "ETag": view.etag})
