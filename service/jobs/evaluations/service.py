"""Evaluations: checked before anything is stored, then job, event and idempotency key in one transaction."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.deps import AppState
from service.idempotency.answers import Answer
from service.idempotency.service import Work, submit_checked
from service.jobs.evaluations.checking import checked_evaluation
from service.jobs.evaluations.schemas import EvaluationCreate
from service.jobs.evaluations.submission import store_evaluation
from service.jobs.submission import Origin
from service.principal import Principal


def create(app: AppState, by: Principal, body: EvaluationCreate, *, key: str | None) -> Answer:
    """Store an evaluation and have it run; with a key known from before, answer as then.

    Args:
        app: of the process.
        by: who asks.
        body: the request.
        key: its Idempotency-Key.

    Raises:
        QuantmillError: something about the request is wrong; nothing was stored.
    """

    def work_of(session: Session) -> Work:
        given = checked_evaluation(session, app.settings, by.tenant_id, body, Origin())
        return lambda writing: store_evaluation(app, writing, by, given)

    return submit_checked(app, by, "POST /v1/evaluations", key, body, work_of)
