"""Transactions, the clock and the pragmas."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import StatementError
from sqlalchemy.orm import Session

from service.contracts.errors import EngineError
from service.db import Database, db_now, one_by_one
from service.jobs import events, transitions
from service.jobs.transitions import expiry
from service.tables import Job
from tests.db.test_concurrency import at_once
from tests.db.test_transitions import submit

pytestmark = pytest.mark.both_databases


def test_the_clock_is_utc_and_moves(database: Database) -> None:
    begin = time.time()
    with database.write() as session:
        first = session.scalar(select(db_now()))
        second = first
        while second == first:
            second = session.scalar(select(db_now()))
    end = time.time()
    assert begin - 1 < first < second < end + 1, "the database may have another clock than the test"


def test_texts_that_no_database_keeps_are_cleaned(database: Database) -> None:
    bad, good = "a\0b\ud800\\u0000é😀", "a\ufffdb\ufffd\\u0000é😀"
    with database.write() as session:
        job = submit(session, name=bad, labels={"k": bad})
        claimed = transitions.claim(session, job.id, worker_id="w", lease_seconds=60)
        assert claimed is not None
        events.append_all(session, job.id, 1, [("log", {"message": [one], one: 1}) for one in (bad, good)])
        problem = EngineError(bad, hint=bad, where=bad).problem()
        assert transitions.fail(session, job.id, claimed.attempt, problem=problem)
    with database.read() as session:
        stored = session.get_one(Job, job.id)
        assert (stored.name, stored.error["detail"], stored.error["hint"]) == (good, good, good)
        told = events.list_after(session, stored.tenant_id, job.id, 0, 9, only="log")
        assert [event.data for event in told] == [{"message": [good], good: 1}] * 2
        found = select(Job.id).where(Job.labels["k"].as_string() == bad, Job.name == bad)
        assert session.scalars(found).all() == [job.id]


def test_a_broken_job_keeps_no_other_from_its_end(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with database.write() as session:
        jobs = [submit(session).id for _ in range(3)]
        for job_id in jobs:
            transitions.claim(session, job_id, worker_id="w", lease_seconds=-1)
    real = expiry._expire

    def expire(session: Session, job: Job) -> Job | None:
        if job.id == jobs[1]:
            session.execute(insert(Job).values(id=job.id))  # what a database refuses
        return real(session, job)

    monkeypatch.setattr(expiry, "_expire", expire)
    with database.write() as session:
        assert {job.id for job in transitions.expire_leases(session)} == {jobs[0], jobs[2]}
    assert one_by_one("job", jobs, lambda job_id: expire_in(database, expire, job_id)) == 0


def expire_in(database: Database, expire: Any, job_id: str) -> bool:
    with database.write() as session:
        return expire(session, session.get_one(Job, job_id)) is not None


def test_timestamps_come_back_as_they_went_in_and_naive_ones_are_refused(database: Database) -> None:
    moment = datetime(2026, 11, 20, 12, 30, 15, 123456, tzinfo=UTC)
    with database.write() as session:
        job = submit(session)
        session.execute(update(Job).where(Job.id == job.id).values(not_before=moment))
    with pytest.raises(StatementError, match="naive"), database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(not_before=datetime(2026, 1, 1)))  # noqa: DTZ001
    with database.read() as session:
        stored = session.get_one(Job, job.id)
        assert abs(stored.not_before - moment) < timedelta(microseconds=2)
        assert stored.not_before.tzinfo is UTC
        assert session.scalar(select(Job.id).where(Job.not_before < moment + timedelta(seconds=1))) == job.id


def test_a_failed_block_and_a_reading_one_leave_nothing(database: Database) -> None:
    with pytest.raises(ZeroDivisionError), database.write() as session:
        submit(session)
        raise ZeroDivisionError
    with database.read() as session:
        submit(session)
    with database.read() as session:
        assert session.scalars(select(Job)).all() == []


def test_read_then_write_loses_no_update(database: Database) -> None:
    with database.write() as session:
        job = submit(session)

    def bump(_: int) -> None:
        for _ in range(5):
            with database.write() as session:
                found = session.scalars(select(Job).where(Job.id == job.id).with_for_update()).one()
                found.priority += 1

    at_once(4, bump)
    with database.read() as session:
        assert session.get_one(Job, job.id).priority == 20


def test_sqlite_is_durable_and_strict(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with database.read() as session:
        found = {
            name: session.scalar(text(f"PRAGMA {name}"))
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    database.close()
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}
