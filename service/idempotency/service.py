"""Requests that are done once, however often they are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import BaseModel
from sqlalchemy.orm import Session

from service import failpoints
from service.audit.service import note
from service.deps import AppState
from service.idempotency import repository as keys
from service.idempotency.answers import Answer
from service.idempotency.digests import request_digests
from service.principal import Principal
from service.tables import Job

# Stores everything; gives the answer and the job, or the jobs, to be run; None: another's result will do.
Work = Callable[[Session], tuple[Answer, Job | Sequence[Job] | None]]


class NoBody(BaseModel):
    """A request that says all by its path."""


def submit_checked(
    app: AppState,
    by: Principal,
    route: str,
    key: str | None,
    body: BaseModel,
    check: Callable[[Session], Work],
) -> Answer:
    """As ``submit_once``, for requests that take computing to check: nobody else may write while a transaction does.

    Args:
        app: as for ``submit_once``.
        by: likewise.
        route: likewise.
        key: likewise.
        body: likewise.
        check: reads what the request is checked against, and gives the work that stores it.

    Raises:
        QuantmillError: as for ``submit_once``, or raised by ``check``.
    """
    with app.database.read() as session:
        if key is not None:
            kept = app.settings.idempotency_seconds
            known = keys.look_up(session, by.tenant_id, route, key, request_digests(body), kept_seconds=kept)
            if known is not None:
                return known
        work = check(session)
    return submit_once(app, by, route, key, body, work)


def submit_once(
    app: AppState,
    by: Principal,
    route: str,
    key: str | None,
    body: BaseModel,
    work: Work,
) -> Answer:
    """Do ``work`` in one transaction with the memory of its answer, then have its job run.

    Args:
        app: of the process.
        by: who asks; keys of different tenants have nothing to do with each other.
        route: the endpoint, such as ``POST /v1/jobs``.
        key: the request's Idempotency-Key; with one that is known for the same body, the first answer comes back.
        body: the request.
        work: see Work.

    Raises:
        IdempotencyKeyReuseError: the key was used for another body.
        IdempotencyInFlightError: a request with the same key is being worked on.
        QuantmillError: raised by ``work``; nothing was stored and the key is free.
    """
    digests = request_digests(body)
    with app.database.write() as session:
        if key is not None:
            kept = app.settings.idempotency_seconds
            known = keys.recall(session, by.tenant_id, route, key, digests, kept_seconds=kept)
            if known is not None:
                return known
        answer, made = work(session)
        if key is not None:
            keys.remember(session, by.tenant_id, route, key, digests, answer)
        note(session, by, _deed(route, made=made is not None or answer.status == 201), answer.body["id"])
        failpoints.reach("before_submit_commit")
    failpoints.reach("after_submit_commit")
    if made:
        app.dispatch()
    return answer


def _deed(route: str, *, made: bool) -> str:
    """``POST /v1/models`` makes a model: ``model.create``; what is done to one of them bears its own name."""
    noun, _, deed = route.partition("/v1/")[2].partition("/")
    singular = noun.removesuffix("es") if noun.endswith("ches") else noun.removesuffix("s")
    return f"{singular}.{deed.rpartition('/')[2] or ('create' if made else 'reuse')}"
