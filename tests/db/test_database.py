"""Transactions, the clock and the pragmas."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import StatementError

from service.db import Database, db_now
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
