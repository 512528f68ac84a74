"""Batches are forgotten some time after the last of their jobs."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, select, update

from service.batches import repository as batches
from service.batches.repository import NewMember
from service.db import Database, db_now
from service.tables import Batch, BatchMember, Job, JobEvent
from tests.db.test_transitions import submit
from tests.worker.upkeep.test_retention import DAY, collector

__all__ = ["collector"]


def make(database: Database, *, age_seconds: float) -> tuple[str, str]:
    """A batch of one queued job; ids of both."""
    with database.write() as session:
        job = submit(session)
        batch = batches.create(session, "default", name=None, labels={}, grid=None, request_id=None)
        batches.add_members(session, batch, 0, [NewMember(0, job.id, False, "net@1", None, None)])
        session.execute(update(Batch).where(Batch.id == batch.id).values(created_at=db_now() - age_seconds))
    return batch.id, job.id


def forget(database: Database, job_id: str) -> None:
    with database.write() as session:
        session.execute(delete(JobEvent).where(JobEvent.job_id == job_id))
        session.execute(delete(Job).where(Job.id == job_id))


def test_batches_go_after_their_jobs(database: Database, collector: Any) -> None:
    kept, _ = make(database, age_seconds=100 * DAY)
    young, young_job = make(database, age_seconds=1)
    _, gone_job = make(database, age_seconds=100 * DAY)
    for job_id in (young_job, gone_job):
        forget(database, job_id)
    found = collector("batches", job_retention_seconds=2 * DAY)
    assert (found.count().items, found.collect(10).items, found.count().items) == (1, 1, 0)
    with database.read() as session:
        assert set(session.scalars(select(Batch.id))) == {kept, young}
        assert set(session.scalars(select(BatchMember.batch_id))) == {kept, young}


def test_batches_are_kept_for_ever_unless_told_otherwise(database: Database, collector: Any) -> None:
    _, job_id = make(database, age_seconds=100 * DAY)
    forget(database, job_id)
    assert collector("batches").collect is None


@pytest.mark.parametrize("ages", [(3, 1), (1, 3)])
def test_no_batch_goes_while_a_repeated_request_is_answered_with_it(
    database: Database, collector: Any, ages: tuple[int, int]
) -> None:
    _, job_id = make(database, age_seconds=2 * DAY)
    forget(database, job_id)
    found = collector("batches", job_retention_seconds=ages[0] * DAY, idempotency_seconds=ages[1] * DAY)
    assert found.collect(10).items == 0
