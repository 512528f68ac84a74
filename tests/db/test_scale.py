"""Lists, claims, event streams and retention in a database of many rows: none of them reads a table from end to end.

PostgreSQL itself says what each statement of the service's own functions looked at, those of foreign keys included.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.scale.looks import DISPATCH, FIGURES, LISTS, READS, RECONCILER, RETENTION, Look, Sample
from service.audit.service import link, verify
from service.db import Database, migrate
from tests.support import services
from tests.support.many_rows import Amount, fill
from tests.support.plans import Plan, plans_of
from worker.upkeep.repository import OLD_ROWS

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

AMOUNT = Amount(jobs=20_000, events=200_000, queued=1000, running=100, workers=50, audit=20_000)
# Tables that grow with what is done. Others have a row for each worker or tenant.
GROWING = frozenset({"jobs", "job_events", "reports", "artifacts", "audit_events", "new_audit_events"})
# Rows and entries of indexes; 20 times as many jobs would add few. A page has 50 jobs, a log 10 events.
MOST_EXAMINED = {
    **dict.fromkeys(LISTS, 1500), **dict.fromkeys(READS, 300), **dict.fromkeys(DISPATCH, 1500),
    # the jobs that run, and those that wait
    **dict.fromkeys(RECONCILER, 400), **dict.fromkeys(FIGURES, 5000),
    # a batch, with what goes with it
    **dict.fromkeys(RETENTION, 10_000),
}  # fmt: skip
LOOKS: dict[str, Look] = {**LISTS, **READS, **FIGURES, **DISPATCH, **RECONCILER, **RETENTION}
OLD_SECONDS = 45 * 86_400.0


@pytest.fixture(scope="module")
def full_url() -> Iterator[str]:
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as url:
        migrate(url)
        fill(url, AMOUNT)
        yield url


@pytest.fixture(scope="module")
def sample(full_url: str) -> Sample:
    database = Database(full_url)
    while link(database):
        pass
    with database.read() as session:
        found = Sample.of(session)
    database.close()
    return found


@pytest.mark.parametrize("name", LOOKS)
def test_many_rows_make_nothing_slow(full_url: str, sample: Sample, name: str) -> None:
    plans = plans_of(full_url, lambda session: LOOKS[name](session, sample))
    told = "\n".join(map(str, plans))
    assert plans, "nothing was asked"
    assert not GROWING & _scanned(plans), told
    assert sum(plan.examined for plan in plans) <= MOST_EXAMINED[name], told


def _scanned(plans: list[Plan]) -> set[str]:
    return {table for plan in plans for table in plan.scanned}


def test_renewals_and_progress_write_no_index(full_url: str, sample: Sample) -> None:
    """Of what changes then, no index holds anything: PostgreSQL makes such updates within a row's page."""
    database = Database(full_url)
    counted = (
        "SELECT pg_stat_force_next_flush(), n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'jobs'"
    )
    try:
        with database.engine.connect() as connection:
            _, updates, hot = connection.exec_driver_sql(counted).one()
        for _ in range(20):
            with database.write() as session:
                DISPATCH["renew a lease"](session, sample)
                DISPATCH["progress"](session, sample)
        database.close()  # which has its sessions tell what they have counted
        with database.engine.connect() as connection:
            _, after, hot_after = connection.exec_driver_sql(counted).one()
    finally:
        database.close()
    assert after - updates >= 40
    assert hot_after - hot >= 0.8 * (after - updates)


def test_what_is_left_of_the_audit_log_can_be_verified(full_url: str, sample: Sample) -> None:
    rows = next(one for one in OLD_ROWS if one.name == "audit")
    database = Database(full_url)
    try:
        with database.read() as session:
            before, old = verify(session).rows, rows.count(session, OLD_SECONDS)
        done = [0]
        while len(done) == 1 or done[-1]:
            with database.write() as session:
                done.append(rows.delete(session, OLD_SECONDS, rows.batch))
        assert sum(done) == old > max(done) == rows.batch
        with database.read() as session:
            left = verify(session)
        assert (left.rows, left.fault) == (before - old, None)
    finally:
        database.close()
