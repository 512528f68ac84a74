"""Statements of upkeep: what is past its time."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, delete, exists, func, select, tuple_
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs import repository as jobs
from service.tables import (
    Batch,
    BatchMember,
    HandOver,
    IdempotencyKey,
    Job,
    JobEvent,
    ScheduleRun,
    Upload,
    WebhookDelivery,
)
from service.tables.jobs import TERMINAL_STATES
from service.tables.schedules import OPEN_STATES


def expired_uploads(session: Session, limit: int | None = None) -> list[str]:
    """Ids of uploads past their expiry, finished or not."""
    return list(session.scalars(select(Upload.id).where(*_expired()).order_by(Upload.expires_at).limit(limit)))


def delete_expired_uploads(session: Session, ids: Collection[str]) -> list[str]:
    """Delete those of the uploads that are still past their expiry; returns their ids.

    One that a model or a dataset is being made of at this moment is held by that transaction: it is passed over here.
    What was made of others stays: those rows name the stored file themselves.
    """
    due = select(Upload.id).where(Upload.id.in_(ids), *_expired()).with_for_update(skip_locked=True)
    gone = list(session.scalars(due))
    session.execute(delete(Upload).where(Upload.id.in_(gone)))
    return gone


def known_uploads(session: Session, ids: Collection[str]) -> set[str]:
    """Which of the ``ids`` are uploads that still have their row."""
    return set(session.scalars(select(Upload.id).where(Upload.id.in_(ids))))


def count_open_uploads(session: Session) -> int:
    """How many uploads have not got all their bytes."""
    return session.scalars(select(func.count()).select_from(Upload).where(Upload.state == "open")).one()


def running_jobs(session: Session) -> list[tuple[str, int]]:
    """Id and attempt of every job that runs."""
    statement = select(Job.id, Job.attempt).where(Job.state == "running").order_by(Job.id)
    return [(job_id, attempt) for job_id, attempt in session.execute(statement)]


def count_old_answers(session: Session, age_seconds: float) -> int:
    """How many answers are kept for repeated requests that are older."""
    old = IdempotencyKey.created_at < db_now() - age_seconds
    return session.scalars(select(func.count()).select_from(IdempotencyKey).where(old)).one()


def delete_old_answers(session: Session, age_seconds: float, limit: int) -> int:
    """Forget answers that nobody will ask for again; returns how many."""
    key = (IdempotencyKey.tenant_id, IdempotencyKey.route, IdempotencyKey.key)
    old = select(*key).where(IdempotencyKey.created_at < db_now() - age_seconds).limit(limit)
    found = [tuple(row) for row in session.execute(old)]
    if found:
        session.execute(delete(IdempotencyKey).where(tuple_(*key).in_(found)))
    return len(found)


def count_old_progress(session: Session, age_seconds: float) -> int:
    """How many progress events there are of jobs that ended so long ago."""
    statement = select(func.count()).select_from(JobEvent).join(Job, Job.id == JobEvent.job_id)
    return session.scalars(statement.where(*_old_progress(age_seconds))).one()


def delete_old_progress(session: Session, age_seconds: float, limit: int) -> int:
    """Drop progress events of jobs that ended so long ago; states, logs and metrics stay. Returns how many."""
    key = (JobEvent.job_id, JobEvent.seq)
    old = select(*key).join(Job, Job.id == JobEvent.job_id).where(*_old_progress(age_seconds)).limit(limit)
    found = [tuple(row) for row in session.execute(old)]
    if found:
        session.execute(delete(JobEvent).where(tuple_(*key).in_(found)))
    return len(found)


def count_old_deliveries(session: Session, age_seconds: float) -> int:
    """How many deliveries of events are older."""
    old = WebhookDelivery.created_at < db_now() - age_seconds
    return session.scalars(select(func.count()).select_from(WebhookDelivery).where(old)).one()


def delete_old_deliveries(session: Session, age_seconds: float, limit: int) -> int:
    """Forget deliveries that are older, sent or not; returns how many. One under way ends unnoted."""
    old = select(WebhookDelivery.id).where(WebhookDelivery.created_at < db_now() - age_seconds)
    ids = list(session.scalars(old.order_by(WebhookDelivery.created_at).limit(limit).with_for_update(skip_locked=True)))
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.id.in_(ids)))
    return len(ids)


def count_old_runs(session: Session, age_seconds: float) -> int:
    """How many runs of schedules have ended and are older."""
    return session.scalars(select(func.count()).select_from(ScheduleRun).where(*_old_runs(age_seconds))).one()


def delete_old_runs(session: Session, age_seconds: float, limit: int) -> int:
    """Forget runs of schedules that have ended and are older; returns how many."""
    old = select(ScheduleRun.id).where(*_old_runs(age_seconds)).order_by(ScheduleRun.created_at).limit(limit)
    ids = list(session.scalars(old.with_for_update(skip_locked=True)))
    session.execute(delete(ScheduleRun).where(ScheduleRun.id.in_(ids)))
    return len(ids)


def count_old_jobs(session: Session, age_seconds: float) -> int:
    """How many jobs ended so long ago, and nothing refers to them."""
    return session.scalars(select(func.count()).select_from(Job).where(*_old_jobs(session, age_seconds))).one()


def delete_old_jobs(session: Session, age_seconds: float, limit: int) -> int:
    """Forget jobs that ended so long ago, with events, report and artifacts; returns how many."""
    old = select(Job.id).where(*_old_jobs(session, age_seconds)).order_by(Job.finished_at).limit(limit)
    ids = list(session.scalars(old.with_for_update(skip_locked=True)))
    jobs.remove(session, ids)
    return len(ids)


def count_old_batches(session: Session, age_seconds: float) -> int:
    """How many batches were made so long ago, and none of their jobs is there."""
    return session.scalars(select(func.count()).select_from(Batch).where(*_old_batches(age_seconds))).one()


def delete_old_batches(session: Session, age_seconds: float, limit: int) -> int:
    """Forget batches that were made so long ago, and none of whose jobs is there; returns how many."""
    old = select(Batch.id).where(*_old_batches(age_seconds)).order_by(Batch.created_at).limit(limit)
    ids = list(session.scalars(old.with_for_update(skip_locked=True)))
    session.execute(delete(BatchMember).where(BatchMember.batch_id.in_(ids)))
    session.execute(delete(Batch).where(Batch.id.in_(ids)))
    return len(ids)


def _old_batches(age_seconds: float) -> list[ColumnElement[bool]]:
    member = select(BatchMember.job_id).join(Job, Job.id == BatchMember.job_id).where(BatchMember.batch_id == Batch.id)
    return [Batch.created_at < db_now() - age_seconds, ~member.exists()]


def _expired() -> list[ColumnElement[bool]]:
    return [Upload.expires_at < db_now()]


def _old_progress(age_seconds: float) -> list[ColumnElement[bool]]:
    return [JobEvent.type == "progress", *_ended(age_seconds)]


def _old_runs(age_seconds: float) -> list[ColumnElement[bool]]:
    return [ScheduleRun.state.not_in(OPEN_STATES), ScheduleRun.created_at < db_now() - age_seconds]


def _old_jobs(session: Session, age_seconds: float) -> list[ColumnElement[bool]]:
    sending = exists().where(HandOver.job_id == Job.id, HandOver.state == "pending")
    kept = Job.id.in_(jobs.named_by_gates(session))
    return [*_ended(age_seconds), *(~reference for reference in jobs.references()), ~sending, ~kept]


def _ended(age_seconds: float) -> list[ColumnElement[bool]]:
    return [Job.state.in_(TERMINAL_STATES), Job.finished_at < db_now() - age_seconds]
