"""Statements of the worker and the reconciler that belong to no single noun."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import delete, or_, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.db import db_now
from service.tables import Artifact, Dataset, IdempotencyKey, Job, ModelFile, Upload
from service.tables.jobs import LIVE_STATES


def referenced_digests(session: Session, digests: Collection[str]) -> set[str]:
    """Which of the ``digests`` (sha256) some row still names."""
    columns: tuple[InstrumentedAttribute[Any], ...] = (
        ModelFile.sha256,
        Dataset.sha256,
        Dataset.thumbnails_sha256,
        Artifact.sha256,
        Upload.sha256,
    )
    return set(session.scalars(union(*(select(column).where(column.in_(digests)) for column in columns))))


def running_attempts(session: Session) -> set[tuple[str, int]]:
    """(job id, attempt) of every running job."""
    return {
        (job_id, attempt)
        for job_id, attempt in session.execute(select(Job.id, Job.attempt).where(Job.state == "running"))
    }


def live_jobs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Which of the ``job_ids`` are jobs that have not ended."""
    return set(session.scalars(select(Job.id).where(Job.id.in_(list(job_ids)), Job.state.in_(LIVE_STATES))))


def next_due(session: Session, queues: Collection[str]) -> str | None:
    """Id of the queued job of these queues whose turn it is; None if no job may start now."""
    now = db_now()
    return session.scalar(
        select(Job.id)
        .where(
            Job.state == "queued",
            Job.queue.in_(queues),
            Job.not_before <= now,
            or_(Job.deadline_at.is_(None), Job.deadline_at > now),
        )
        .order_by(Job.priority.desc(), Job.not_before, Job.id)
        .limit(1)
    )


def delete_expired_uploads(session: Session, limit: int) -> list[str]:
    """Delete the rows of uploads past their expiry, finished or not; returns their ids.

    What a model or a dataset was made of stays: those rows name the stored file themselves.
    """
    expired = select(Upload.id).where(Upload.expires_at < db_now()).order_by(Upload.expires_at).limit(limit)
    ids = list(session.scalars(expired))
    session.execute(delete(Upload).where(Upload.id.in_(ids)))
    return ids


def known_uploads(session: Session, ids: Collection[str]) -> set[str]:
    """Which of the ``ids`` are uploads that still have their row."""
    return set(session.scalars(select(Upload.id).where(Upload.id.in_(ids))))


def delete_old_idempotency_keys(session: Session, age_seconds: float) -> int:
    """Forget answers that nobody will ask for again; returns how many."""
    old = delete(IdempotencyKey).where(IdempotencyKey.created_at < db_now() - age_seconds)
    return len(session.execute(old.returning(IdempotencyKey.key)).all())
