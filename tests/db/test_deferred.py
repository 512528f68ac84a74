"""Deadlines of jobs that wait for the installation, on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.db import Database, db_now
from service.jobs import transitions
from service.jobs.schemas import Waiting
from service.tables import Job, JobEvent
from tests.db.test_transitions import row, running

HOUR = 3600.0
# Of two readings of the clock in one transaction.
CLOSE = timedelta(seconds=1)


def interrupt(database: Database, job: Job, code: str) -> None:
    told = Waiting(code=code, message="It cannot go on.", hint="Look into it.")
    with database.write() as session:
        assert transitions.interrupt(session, job.id, job.attempt, delay_seconds=60.0, waiting=told)


def claimed_an_hour_ago(database: Database, **values: float) -> Job:
    """A job whose attempt has run for an hour."""
    with database.write() as session:
        job = running(session, **values)
        session.execute(update(JobEvent).where(JobEvent.job_id == job.id).values(created_at=db_now() - HOUR))
    return job


@pytest.mark.parametrize("code", ["storage-full", "storage-away", "database-away", "runner-not-started"])
def test_what_a_job_loses_by_the_installation_does_not_count(database: Database, code: str) -> None:
    """The attempt that came to nothing, and the pause."""
    job = claimed_an_hour_ago(database, deadline_seconds=100.0)
    before = row(database, job.id)
    interrupt(database, job, code)
    after = row(database, job.id)
    assert abs(after["deadline_at"] - before["deadline_at"] - timedelta(seconds=HOUR + 60.0)) < CLOSE
    assert abs(after["deadline_at"] - after["not_before"] - (before["deadline_at"] - began(database, job))) < CLOSE
    with database.write() as session:
        assert transitions.expire_deadlines(session) == []


def test_a_disk_that_is_full_for_days_fails_no_job(database: Database) -> None:
    job = claimed_an_hour_ago(database, deadline_seconds=100.0)
    for _ in range(5):
        interrupt(database, job, "storage-full")
        with database.write() as session:
            assert transitions.expire_deadlines(session) == []
            session.execute(update(Job).where(Job.id == job.id).values(not_before=db_now() - 1))
            again = transitions.claim(session, job.id, worker_id="w", lease_seconds=60)
            assert again is not None
            of_attempt = JobEvent.job_id == job.id, JobEvent.attempt == again.attempt
            session.execute(update(JobEvent).where(*of_attempt).values(created_at=db_now() - HOUR))
        job = again
    assert row(database, job.id)["deadline_at"] > row(database, job.id)["created_at"] + timedelta(seconds=5 * HOUR)


def test_a_job_that_fails_its_worker_ends_by_its_deadline(database: Database) -> None:
    job = claimed_an_hour_ago(database, deadline_seconds=100.0)
    before = row(database, job.id)
    interrupt(database, job, "worker-fault")
    assert row(database, job.id)["deadline_at"] == before["deadline_at"]


def test_a_restart_of_a_worker_does_not_put_a_deadline_off(database: Database) -> None:
    job = claimed_an_hour_ago(database, deadline_seconds=100.0)
    before = row(database, job.id)
    with database.write() as session:
        assert transitions.requeue(session, job.id, 1, delay_seconds=5.0, charged=False, reason="deploy")
    assert row(database, job.id)["deadline_at"] == before["deadline_at"]


def test_a_job_without_a_deadline_has_none_afterwards(database: Database) -> None:
    job = claimed_an_hour_ago(database)
    interrupt(database, job, "storage-full")
    assert row(database, job.id)["deadline_at"] is None


def began(database: Database, job: Job) -> object:
    with database.read() as session:
        events = select(JobEvent.created_at).where(JobEvent.job_id == job.id, JobEvent.attempt == job.attempt)
        return session.scalars(events.order_by(JobEvent.seq)).first()
