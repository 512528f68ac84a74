"""Deadlines and leases of jobs that wait for the installation, and under a database's clock that was put back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from service.db import Database, db_now
from service.jobs import transitions
from service.jobs.schemas import Waiting
from service.tables import Dataset, Job, JobEvent, Model
from tests.db.test_transitions import FULL, claim, inspecting, row, running, submit
from tests.support.each import each
from worker.reconcile.leases import bring_forward

pytestmark = pytest.mark.both_databases

AHEAD_SECONDS = 2 * 3600.0
HOUR = 3600.0
# Of two readings of the clock in one transaction.
CLOSE = timedelta(seconds=1)


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
        held, ahead = running(session), running(session)
        session.execute(update(Job).where(Job.id == ahead.id).values(lease_until=Job.lease_until + AHEAD_SECONDS))
    before = row(database, held.id)["lease_until"]
    assert bring_forward(database, lease_seconds=60) == 1
    assert bring_forward(database, lease_seconds=60) == 0
    assert row(database, held.id)["lease_until"] == before
    assert timedelta(0) <= row(database, ahead.id)["lease_until"] - before < timedelta(seconds=60)


def test_no_lease_ends_while_nobody_could_renew_it(database: Database) -> None:
    with database.write() as session:
        silent, other, waits = (submit(session) for _ in range(3))
        claim(session, silent, -5.0)
        claim(session, other, 600.0)
    before = {job.id: row(database, job.id) for job in (other, waits)}
    with database.write() as session:
        assert transitions.spare_leases(session, lease_seconds=60) == 1
        assert transitions.expire_leases(session) == []
        assert not transitions.renew(session, silent.id, 2, lease_seconds=60).alive
        assert transitions.renew(session, silent.id, 1, lease_seconds=60).alive
    assert {job_id: row(database, job_id) for job_id in before} == before


def test_an_attempt_begun_by_a_clock_that_was_ahead_shortens_no_deadline(database: Database) -> None:
    with database.write() as session:
        job = running(session, deadline_seconds=600.0)
        session.execute(update(JobEvent).values(created_at=JobEvent.created_at + AHEAD_SECONDS))
    before = row(database, job.id)["deadline_at"]
    with database.write() as session:
        assert transitions.interrupt(session, job.id, 1, delay_seconds=20.0, waiting=FULL)
    put_off = row(database, job.id)["deadline_at"] - before
    assert timedelta(seconds=20) <= put_off < timedelta(seconds=60)


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


@each("code", ["storage-full", "storage-away", "database-away", "runner-not-started"])
def test_what_a_job_loses_by_the_installation_does_not_count(database: Database, code: str) -> None:
    job = claimed_an_hour_ago(database, deadline_seconds=100.0)
    before = row(database, job.id)
    interrupt(database, job, code)
    after = row(database, job.id)
    assert abs(after["deadline_at"] - before["deadline_at"] - timedelta(seconds=HOUR + 60.0)) < CLOSE
    assert abs(after["deadline_at"] - after["not_before"] - (before["deadline_at"] - began(database, job))) < CLOSE
    with database.write() as session:
        assert transitions.expire_deadlines(session) == []


def test_what_a_job_or_a_deploy_costs_counts(database: Database) -> None:
    fault, restarted = (claimed_an_hour_ago(database, deadline_seconds=100.0) for _ in range(2))
    endless = claimed_an_hour_ago(database)
    before = {job.id: row(database, job.id)["deadline_at"] for job in (fault, restarted)}
    interrupt(database, fault, "worker-fault")
    interrupt(database, endless, "storage-full")
    with database.write() as session:
        assert transitions.requeue(session, restarted.id, 1, delay_seconds=5.0, charged=False, reason="deploy")
    assert {job_id: row(database, job_id)["deadline_at"] for job_id in before} == before
    assert row(database, endless.id)["deadline_at"] is None


def began(database: Database, job: Job) -> object:
    with database.read() as session:
        events = select(JobEvent.created_at).where(JobEvent.job_id == job.id, JobEvent.attempt == job.attempt)
        return session.scalars(events.order_by(JobEvent.seq)).first()


@pytest.mark.parametrize(("noun", "state"), [("model", "queued"), ("model", "running"), ("dataset", "running")])
def test_validation_that_lacked_time_goes_on_and_rejects_nothing(database: Database, noun: str, state: str) -> None:
    table = Model if noun == "model" else Dataset
    with database.write() as session:
        job, noun_id = inspecting(session, noun, deadline_seconds=100.0)
        if state == "running":
            claim(session, job)
    late(database, job.id, after_seconds=100)
    before = row(database, job.id)
    with database.write() as session:
        assert [moved.id for moved in transitions.expire_deadlines(session)] == [job.id]
        assert transitions.expire_deadlines(session) == []
        assert not transitions.renew(session, job.id, 1, lease_seconds=60).alive, "an attempt that ran is fenced off"
    after = row(database, job.id)
    assert (after["state"], after["worker_id"], after["lease_until"], after["error"]) == ("queued", None, None, None)
    assert after["attempt"] - after["interruptions"] == 0, "nothing is charged for it"
    assert after["waiting"]["code"] == "validation-overdue"
    assert after["deadline_at"] - after["created_at"] >= timedelta(seconds=200), "twice the time"
    assert (after["not_before"] > before["not_before"]) is (state == "running")
    with database.read() as session:
        found = session.get_one(table, noun_id)
        assert (found.status, found.problems, found.waiting) == ("validating", None, after["waiting"])
        version = found.row_version
    with database.write() as session:
        session.get_one(Job, job.id).not_before = job.created_at
    with database.write() as session:
        claim(session, job)
        found = session.get_one(table, noun_id, populate_existing=True)
        assert (found.waiting, found.row_version) == (None, version + 1)


def test_validation_that_is_asked_to_stop_gets_no_more_time(database: Database) -> None:
    with database.write() as session:
        job = running(session, kind="inspect_model", deadline_seconds=100.0)
        transitions.request_cancel(session, "default", job.id)
    late(database, job.id, after_seconds=100)
    before = row(database, job.id)
    with database.write() as session:
        assert transitions.expire_deadlines(session) == []
    assert row(database, job.id) == before
    with database.write() as session:
        assert transitions.finish_cancel(session, job.id, 1)


def late(database: Database, job_id: str, *, after_seconds: float) -> None:
    """Let the job have been submitted so long ago that its deadline has just passed."""
    then = {"created_at": db_now() - after_seconds - 1, "deadline_at": db_now() - 1}
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(**then))
