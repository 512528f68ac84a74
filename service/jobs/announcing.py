"""Webhook events of jobs and of validated objects, written in the transaction that changes them."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy.orm import Session

from service.contracts.base import read_stored
from service.contracts.errors import Problem
from service.datasets import repository as datasets
from service.models import repository as models
from service.tables import Job
from service.tables.jobs import USERS_KINDS
from service.webhooks.outbox import emit

# Characters of an error's detail; whoever wants all of it asks for the job.
_DETAIL = 500


def tell_job(session: Session, job: Job, verdict: str | None = None, fallback: str | None = None) -> None:
    """A job that was asked for has come into another state, or is queued again; others are nobody's by themselves.

    Args:
        session: of the transaction.
        job: as it is now.
        verdict: of its report, if it has succeeded.
        fallback: which model it returns, if the planned one was too slow.
    """
    if job.kind not in USERS_KINDS:
        return

    def data() -> dict[str, Any]:
        return {
            "id": job.id,
            "kind": job.kind,
            "state": job.state,
            "verdict": verdict,
            "fallback": fallback,
            "name": job.name,
            "labels": job.labels,
            "model_id": job.model_id,
            "attempt": job.attempt,
            "error": _error(job.error),
        }

    emit(session, job.tenant_id, f"job.{job.state}", data)


def tell_uploaded(
    session: Session, job: Job, word: Literal["model", "dataset"], state: str, problem: Problem | None = None
) -> None:
    """The model or dataset that the job validated is ready, or rejected."""

    def data() -> dict[str, Any]:
        if word == "model":
            row_id, model = job.model_id, models.find(session, job.model_id or "")
            named = {} if model is None else {"name": model.name, "version": model.version}
        else:
            row_id, dataset = job.dataset_id, datasets.find(session, job.dataset_id or "")
            named = {} if dataset is None else {"name": dataset.name}
        return {"id": row_id or "", "state": state, **named, "error": _told(problem)}

    emit(session, job.tenant_id, f"{word}.{state}", data)


def _told(problem: Problem | None) -> dict[str, str] | None:
    return None if problem is None else {"code": problem.code, "detail": problem.detail[:_DETAIL]}


def _error(document: dict[str, Any] | None) -> dict[str, str] | None:
    return None if document is None else _told(read_stored(Problem, document))
