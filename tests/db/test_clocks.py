"""A database whose clock was put back, on both databases."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import update

from service.db import Database
from service.jobs import transitions
from service.jobs.schemas import Waiting
from service.tables import Job, JobEvent
from tests.db.test_transitions import row, submit

FULL = Waiting(code="storage-full", message="The disk is full.", hint="Free some space.")
AHEAD_SECONDS = 2 * 3600.0


def test_jobs_of_a_clock_that_was_ahead_count_as_queued_now(database: Database) -> None:
    with database.write() as session:
        job, due = submit(session), submit(session)
        moved = {"queued_at": Job.queued_at + AHEAD_SECONDS, "not_before": Job.not_before + AHEAD_SECONDS + 30.0}
        session.execute(update(Job).where(Job.id == job.id).values(**moved))
    before = {job_id: row(database, job_id) for job_id in (job.id, due.id)}
    with database.write() as session:
        assert transitions.queued_ahead(session)
        assert transitions.bring_forward(session) == 1
        assert not transitions.queued_ahead(session)
        assert transitions.bring_forward(session) == 0
    after = row(database, job.id)
    assert after["not_before"] - after["queued_at"] == timedelta(seconds=30)
    assert after["queued_at"] <= after["updated_at"]
    assert after["row_version"] == before[job.id]["row_version"] + 1
    assert row(database, due.id) == before[due.id]


def test_leases_of_a_clock_that_was_ahead_last_as_long_as_new_ones(database: Database) -> None:
    with database.write() as session:
        held, ahead = submit(session), submit(session)
        for job in (held, ahead):
            assert transitions.claim(session, job.id, worker_id="w", lease_seconds=60) is not None
        moved = {"lease_until": Job.lease_until + AHEAD_SECONDS}
        session.execute(update(Job).where(Job.id == ahead.id).values(**moved))
    before = {job_id: row(database, job_id)["lease_until"] for job_id in (held.id, ahead.id)}
    with database.write() as session:
        assert transitions.leased_ahead(session, lease_seconds=60)
        assert transitions.shorten_leases(session, lease_seconds=60) == 1
        assert not transitions.leased_ahead(session, lease_seconds=60)
    assert row(database, held.id)["lease_until"] == before[held.id]
    assert timedelta(0) <= row(database, ahead.id)["lease_until"] - before[held.id] < timedelta(seconds=60)


def test_no_lease_ends_while_nobody_could_renew_it(database: Database) -> None:
    with database.write() as session:
        silent, other, waits = (submit(session) for _ in range(3))
        for job, seconds in ((silent, -5.0), (other, 600.0)):
            assert transitions.claim(session, job.id, worker_id="w", lease_seconds=seconds) is not None
    before = {job.id: row(database, job.id) for job in (other, waits)}
    with database.write() as session:
        assert transitions.spare_leases(session, lease_seconds=60) == 1
        assert transitions.expire_leases(session) == []
        assert not transitions.renew(session, silent.id, 2, lease_seconds=60).alive
        assert transitions.renew(session, silent.id, 1, lease_seconds=60).alive
    assert {job_id: row(database, job_id) for job_id in before} == before


def test_an_attempt_begun_by_a_clock_that_was_ahead_shortens_no_deadline(database: Database) -> None:
    with database.write() as session:
        job = submit(session, deadline_seconds=600.0)
        assert transitions.claim(session, job.id, worker_id="w", lease_seconds=60) is not None
        session.execute(update(JobEvent).values(created_at=JobEvent.created_at + AHEAD_SECONDS))
    before = row(database, job.id)["deadline_at"]
    with database.write() as session:
        assert transitions.interrupt(session, job.id, 1, delay_seconds=20.0, waiting=FULL)
    put_off = row(database, job.id)["deadline_at"] - before
    assert timedelta(seconds=20) <= put_off < timedelta(seconds=60)
