"""Many at once: one claim wins, events stay gap-free, a key is used once. On both databases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from service.db import Database, db_now
from service.jobs import events, transitions
from service.tables import Job
from tests.db.test_transitions import claim, submit
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.both_databases

THREADS = 8
_Got = TypeVar("_Got")


def at_once(count: int, action: Callable[[int], _Got]) -> list[_Got]:
    """Run ``action(0..count-1)`` in threads that start together."""
    barrier = threading.Barrier(count)

    def run(number: int) -> _Got:
        barrier.wait(timeout=PATIENCE_SECONDS)
        return action(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count), timeout=PATIENCE_SECONDS))


def test_eight_claim_one_wins(database: Database) -> None:
    for _ in range(5):
        with database.write() as session:
            job = submit(session)

        def claim(number: int, job_id: str = job.id) -> bool:
            with database.write() as session:
                won = transitions.claim(session, job_id, worker_id=f"w{number}", lease_seconds=60)
            return won is not None

        won = at_once(THREADS, claim)

        assert won.count(True) == 1
        with database.read() as session:
            stored = session.get_one(type(job), job.id)
        assert (stored.attempt, stored.worker_id) == (1, f"w{won.index(True)}")


def test_events_stay_gap_free(database: Database) -> None:
    with database.write() as session:
        job = submit(session)

    def append(number: int) -> None:
        for _ in range(10):
            with database.write() as session:
                events.append(session, job.id, 0, "log", {"message": str(number)})

    at_once(THREADS, append)

    with database.read() as session:
        log = events.list_after(session, "default", job.id, 0, 1000)
    assert [event.seq for event in log] == list(range(1, THREADS * 10 + 2))


def test_cancel_against_claim_ends_in_one_of_both(database: Database) -> None:
    for _ in range(10):
        with database.write() as session:
            job = submit(session)

        def race(number: int, job_id: str = job.id) -> bool:
            with database.write() as session:
                if number == 0:
                    transitions.request_cancel(session, "default", job_id)
                    return True
                return transitions.claim(session, job_id, worker_id="w", lease_seconds=60) is not None

        claimed = at_once(2, race)[1]
        with database.read() as session:
            stored = session.get_one(type(job), job.id)
        assert stored.cancel_requested_at is not None
        assert stored.state == ("running" if claimed else "canceled")


def test_several_reconcilers_expire_a_lease_once(database: Database) -> None:
    with database.write() as session:
        jobs = [submit(session) for _ in range(5)]
        for job in jobs:
            assert transitions.claim(session, job.id, worker_id="w", lease_seconds=-1)

    def expire(_: int) -> list[str]:
        with database.write() as session:
            return [job.id for job in transitions.expire_leases(session)]

    expired = [job_id for found in at_once(4, expire) for job_id in found]
    assert sorted(expired) == sorted(job.id for job in jobs)


BULK: dict[str, Callable[[Session], int]] = {
    "defer_deadlines": lambda session: transitions.defer_deadlines(session, datetime.fromtimestamp(0, UTC)),
    "bring_forward": transitions.bring_forward,
    "spare_leases": lambda session: transitions.spare_leases(session, lease_seconds=3600.0),
    "shorten_leases": lambda session: transitions.shorten_leases(session, lease_seconds=1.0),
}


@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
@pytest.mark.parametrize("bulk", BULK.values(), ids=BULK)
def test_who_changes_many_jobs_holds_them_in_the_order_of_their_ids(
    database: Database, bulk: Callable[[Session], int]
) -> None:
    """While the first is held by somebody else, the second is free: else two wait for each other."""
    with database.write() as session:
        jobs = sorted((submit(session) for _ in range(2)), key=lambda job: job.id)
        for job in reversed(jobs):  # in the table, and by time, they stand the other way round
            at = db_now() + 100.0 * (2 - jobs.index(job))
            values = {"deadline_at": at, "queued_at": at, "not_before": at}
            if bulk in (BULK["spare_leases"], BULK["shorten_leases"]):
                claim(session, job)
                values = {"lease_until": at}
            session.execute(update(Job).where(Job.id == job.id).values(**values))

    def change() -> int:
        with database.write() as session:
            return bulk(session)

    def waits() -> bool:
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with database.read() as session:
            return session.scalar(text(asked)) == 1

    with ThreadPoolExecutor(1) as pool:
        with database.write() as session:
            session.execute(update(Job).where(Job.id == jobs[0].id).values(row_version=Job.row_version + 1))
            changed = pool.submit(change)
            while not waits() and not changed.done():
                time.sleep(0.005)
            session.execute(select(Job.id).where(Job.id == jobs[1].id).with_for_update(nowait=True))
        assert changed.result(PATIENCE_SECONDS) == 2
