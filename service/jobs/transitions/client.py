"""Transitions by clients: submit and cancel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from service import tracing
from service.db import db_now
from service.ids import new_id
from service.jobs import announcing, events, repository
from service.jobs.queues import CPU_QUEUE, queue_of
from service.jobs.transitions import rows
from service.jobs.transitions.attempts import MAX_ATTEMPTS
from service.tables import Job


@dataclass(frozen=True)
class NewJob:
    """What a job is asked for with: columns of its row, but for ``deadline_seconds``, which counts from now.

    Without a queue and a size class it gets those of its kind.
    """

    tenant_id: str
    kind: str
    queue: str | None = None
    model_id: str | None = None
    reference_model_id: str | None = None
    dataset_id: str | None = None
    calibration_dataset_id: str | None = None
    evaluation_dataset_id: str | None = None
    config: dict[str, Any] | None = None
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    priority: int = 0
    size_class: str | None = None
    device: str = "auto"
    retry_of: str | None = None
    cloned_from: str | None = None
    fingerprint: str | None = None
    max_attempts: int = MAX_ATTEMPTS
    deadline_seconds: float | None = None
    request_id: str | None = None


def submit(session: Session, new: NewJob) -> Job:
    """T1: insert a queued job with its first event."""
    now, config = db_now(), new.config
    columns = vars(new).copy()
    deadline_seconds = columns.pop("deadline_seconds")
    columns["queue"] = new.queue or queue_of(new.kind)
    columns["size_class"] = new.size_class or ("long" if queue_of(new.kind) == CPU_QUEUE else "short")
    columns["id"] = new_id("job")
    told = {"job_id": columns["id"], "tenant_id": new.tenant_id, "job_kind": new.kind}
    with tracing.span("job.submit", told, kind=tracing.SpanKind.PRODUCER):
        statement = (
            insert(Job)
            .values(
                **columns,
                state=rows.SUBMIT.target,
                preset=None if config is None else config.get("preset"),
                algorithms=None if config is None else [entry["method"] for entry in config.get("algorithms", ())],
                attempt=0,
                interruptions=0,
                not_before=now,
                deadline_at=None if deadline_seconds is None else now + deadline_seconds,
                row_version=1,
                last_seq=1,
                trace_context=tracing.carrier(),
                created_at=now,
                queued_at=now,
                updated_at=now,
            )
            .returning(Job)
        )
        job = session.scalars(statement).one()
        if events.record_state(session, job, {"name": rows.SUBMIT.event, "state": job.state}):
            announcing.tell_job(session, job)
    return job


def request_cancel(session: Session, tenant_id: str, job_id: str) -> Job:
    """T8 queued -> canceled at once; a running job is asked to stop; a finished one is left as it is.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    job = repository.hold(session, tenant_id, job_id)
    if job.state == "queued":
        return rows.cancel(session, rows.CANCEL, job) or job
    if job.state == "running" and job.cancel_requested_at is None:
        asked = rows.touch(session, rows.ASK_TO_STOP, job.id, job.attempt, cancel_requested_at=db_now())
        if asked is not None:
            data = {"name": rows.ASK_TO_STOP.event, "state": "canceling"}
            events.record(session, events.EventKey.newest(asked), "state", data)
            return asked
    return job


def rename(session: Session, job: Job, *, name: str | None, labels: dict[str, str]) -> Job:
    """Give a job that is held another name and other labels."""
    changes = {"name": name, "labels": labels, "row_version": Job.row_version + 1, "updated_at": db_now()}
    statement = update(Job).where(Job.id == job.id).values(**changes).returning(Job)
    return session.scalars(statement, execution_options={"populate_existing": True}).one()
