"""Requests that are executed once, however often they are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from service import failpoints
from service.audit.service import note
from service.deps import AppState
from service.idempotency import repository as keys
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest
from service.principal import Principal
from service.tables import Job

# The answer, and the job, or the jobs, to be run; None: there is none, or another's result will do.
Stored = tuple[Answer, Job | Sequence[Job] | None]
_Checked = TypeVar("_Checked")


def submit_once(
    app: AppState,
    by: Principal,
    request: KeyedRequest,
    check: Callable[[Session], _Checked] | None,
    store: Callable[[_Checked, Session], Stored],
    *,
    tenant_id: str | None = None,
) -> Answer:
    """Do the request in one transaction with the memory of its answer, then have its job run.

    Args:
        app: of the process.
        by: who asks; keys of different tenants have nothing to do with each other.
        request: with a key that is known for the same body, the first answer comes back.
        check: reads what the request is checked against, and computes, before: nobody else may write while a
            transaction does. None: there is nothing to check.
        store: stores what ``check`` gave in the transaction that it is given.
        tenant_id: for whom it is done; None: the asker's tenant.

    Raises:
        IdempotencyKeyReuseError: the key was used for another body.
        IdempotencyInFlightError: a request with the same key is being worked on.
        QuantmillError: raised by ``check`` or ``store``; nothing was stored and the key is free.
    """
    kept_seconds = app.settings.idempotency_seconds
    checked: Any = None
    if check is not None:
        with app.database.read() as session:
            known = keys.recall(session, by.tenant_id, request, kept_seconds=kept_seconds)
            if known is not None:
                return known
            checked = check(session)
    with app.database.write() as session:
        known = keys.recall(session, by.tenant_id, request, kept_seconds=kept_seconds, hold=True)
        if known is not None:
            return known
        answer, made = store(checked, session)
        keys.remember(session, by.tenant_id, request, answer)
        action = _action(request.route, made=made is not None or answer.status == 201)
        note(session, by, action, answer.body["id"], tenant_id=tenant_id)
        failpoints.reach("before_submit_commit")
    failpoints.reach("after_submit_commit")
    if made:
        app.dispatch()
    return answer


def _action(route: str, *, made: bool) -> str:
    """``POST /v1/models`` makes a model: ``model.create``; what is done to one of them bears its own name."""
    resources, _, action = route.partition("/v1/")[2].partition("/")
    singular = resources.removesuffix("es") if resources.endswith("ches") else resources.removesuffix("s")
    return f"{singular}.{action.rpartition('/')[2] or ('create' if made else 'reuse')}"
