"""SQL statements of upkeep: deletion of old rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, TextClause, delete, exists, func, inspect, select, text, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.audit import repository as audit
from service.db import db_now
from service.jobs import repository as jobs
from service.tables import (
    AuditEvent,
    Batch,
    BatchMember,
    HandOver,
    IdempotencyKey,
    Job,
    JobEvent,
    ScheduleRun,
    WebhookDelivery,
)
from service.tables.batches import OPEN_STATES
from service.tables.jobs import IS_PROGRESS, TERMINAL_STATES

_Condition = ColumnElement[bool] | TextClause


@dataclass(frozen=True)
class OldRows:
    """Rows of one kind that go once they are old.

    Attributes:
        name, removes, rule: see ``Collector``; the rule with a place for the age.
        setting: the age; where it is not set, they are kept for ever.
        since: the moment from which the age of a row counts, by which there is an index.
        which: what else holds of those that go, told the moment before which they are old.
        remove: deletes rows by their keys, where other rows go with them.
        batch: rows that one transaction deletes: it takes milliseconds, and must not keep others waiting.
    """

    name: str
    removes: str
    rule: str
    setting: str
    since: InstrumentedAttribute[Any]
    which: Callable[[Session, ColumnElement[float]], list[_Condition]] = lambda session, before: []
    remove: Callable[[Session, list[Any]], None] | None = None
    batch: int = 1000

    def count(self, session: Session, age_seconds: float) -> int:
        """How many are older."""
        rows = select(func.count()).select_from(self.since.class_)
        return session.scalars(rows.where(*self._old(session, age_seconds))).one()

    def delete(self, session: Session, age_seconds: float, limit: int) -> int:
        """Forget those that are older, ``limit`` at most; returns how many. What somebody else holds is passed over."""
        table = self.since.class_
        key = inspect(table).primary_key
        old = select(*key).where(*self._old(session, age_seconds)).order_by(self.since).limit(limit)
        keys = [tuple(row) for row in session.execute(old.with_for_update(of=table, skip_locked=True))]
        if self.remove is not None:
            self.remove(session, [only for (only,) in keys])
        else:
            session.execute(delete(table).where(tuple_(*key).in_(keys)))
        return len(keys)

    def _old(self, session: Session, age_seconds: float) -> list[_Condition]:
        before = db_now() - age_seconds
        return [self.since < before, *self.which(session, before)]


class _AuditRows(OldRows):
    """They go from the beginning of their chain on."""

    def count(self, session: Session, age_seconds: float) -> int:
        """How many are older."""
        return audit.count_old(session, age_seconds)

    def delete(self, session: Session, age_seconds: float, limit: int) -> int:
        """Forget the first rows of the chain that are older, ``limit`` at most; returns how many."""
        return audit.delete_old(session, age_seconds, limit)


def _of_old_jobs(session: Session, before: ColumnElement[float]) -> list[_Condition]:
    """Of progress events, which are no younger than the end of their jobs: by that alone, all would be read again."""
    return [text(f"job_events.{IS_PROGRESS}"), JobEvent.job_id == Job.id, Job.finished_at < before, _ENDED]


def _unneeded(session: Session, before: ColumnElement[float]) -> list[_Condition]:
    """Of jobs that have ended, and nothing refers to them, or is still to be sent of them."""
    sending = exists().where(HandOver.job_id == Job.id, HandOver.state == "pending")
    kept = Job.id.in_(jobs.named_by_gates(session))
    return [_ENDED, *(~reference for reference in jobs.references()), ~sending, ~kept]


def _remove_batches(session: Session, ids: list[str]) -> None:
    session.execute(delete(BatchMember).where(BatchMember.batch_id.in_(ids)))
    session.execute(delete(Batch).where(Batch.id.in_(ids)))


_ENDED = Job.state.in_(TERMINAL_STATES)
_MEMBERS = select(BatchMember.job_id).join(Job, Job.id == BatchMember.job_id).where(BatchMember.batch_id == Batch.id)
OLD_ROWS = (
    OldRows(
        "answers",
        "stored responses for repeated requests",
        "after {}",
        "idempotency_seconds",
        IdempotencyKey.created_at,
    ),
    OldRows(
        "progress",
        "progress events; states, logs and metrics are kept",
        "{} after the end of their job",
        "progress_retention_seconds",
        JobEvent.created_at,
        _of_old_jobs,
    ),
    # one under way ends unnoted
    OldRows(
        "deliveries",
        "events for webhooks, sent or not",
        "after {}",
        "webhook_retention_seconds",
        WebhookDelivery.created_at,
    ),
    OldRows(
        "runs",
        "ended runs of schedules; their jobs are kept",
        "after {}",
        "schedule_run_retention_seconds",
        ScheduleRun.created_at,
        lambda *_: [ScheduleRun.state.not_in(OPEN_STATES)],
    ),
    OldRows(
        "jobs",
        "jobs with events, report and artifacts",
        "{} after their end, unless another object refers to them",
        "job_retention_seconds",
        Job.finished_at,
        _unneeded,
        remove=jobs.remove,
        batch=100,
    ),
    OldRows(
        "batches",
        "batches",
        "{} after they were created, when all their jobs were deleted",
        "job_retention_seconds",
        Batch.created_at,
        lambda *_: [~_MEMBERS.exists()],
        remove=_remove_batches,
        batch=100,
    ),
    _AuditRows(
        "audit",
        "entries of the audit log; the chain of the others starts after them",
        "after {}",
        "audit_retention_seconds",
        AuditEvent.at,
    ),
)
