"""Jobs of workers that fell silent, and of workers that could not reach the database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service import repository
from service.db import Database, db_now
from service.jobs import transitions
from service.tables import Job
from tests.worker.reconcile.rounds import claim
from tests.worker.workbench import wait_for
from worker.reconcile.leases import LeaseKeeper, expire_deadlines


class Reached(Database):
    away = False
    full = False

    @contextmanager
    def write(self) -> Iterator[Session]:
        with super().write() as session:
            if self.away:
                raise OperationalError("SELECT 1", {}, OSError("connection refused"))
            connection = session.connection().connection.driver_connection
            before = connection.total_changes
            yield session
            if self.full and connection.total_changes != before:
                raise OperationalError("COMMIT", {}, OSError("database or disk is full"))


@pytest.fixture
def reached(bench) -> Iterator[Reached]:
    database = Reached(bench.settings.database_url)
    yield database
    database.close()


def test_expired_leases_are_taken_away(bench, rounds):
    silent, alive = bench.submit(), bench.submit()
    claim(bench, silent, lease_seconds=-1)
    claim(bench, alive)
    assert rounds["expire_leases"]() == 1
    assert rounds["expire_leases"]() == 0
    assert (bench.job(silent).state, bench.job(alive).state) == ("queued", "running")


def two(bench) -> tuple[str, str]:
    silent, alive = bench.submit(), bench.submit()
    for job_id in (silent, alive):
        claim(bench, job_id, lease_seconds=-1)
    return silent, alive


def renewed_and_expired(bench, keeper, silent: str, alive: str) -> bool:
    """Of two that were spared, the one that is renewed goes on, and the other is taken away."""
    with bench.database.write() as session:
        assert transitions.renew(session, alive, 1, lease_seconds=60).alive
    wait_for(keeper.expire)
    return bench.states(silent, alive) == ["queued", "running"]


def absence(keeper, reached) -> int:
    """The database is away for a round; what the next one does."""
    reached.away = True
    with pytest.raises(OperationalError):
        keeper.expire()
    reached.away = False
    return keeper.expire()


def test_after_the_database_was_away_a_living_worker_comes_first(bench, reached):
    keeper = LeaseKeeper(reached, lease_seconds=0.3, is_new=False)
    assert keeper.expire() == 0
    jobs = two(bench)
    assert absence(keeper, reached) == 0, "nobody could renew: nobody is blamed yet"
    assert renewed_and_expired(bench, keeper, *jobs)


def test_a_database_that_stands_still_within_a_round_takes_no_job_away(bench, monkeypatch):
    """The round has seen leases that had not ended; the statement that ends them is executed much later."""
    keeper = LeaseKeeper(bench.database, lease_seconds=0.3, is_new=False)
    jobs = bench.submit(), bench.submit()
    keeper.expire()
    for job_id in jobs:
        claim(bench, job_id, lease_seconds=0.3)
    with monkeypatch.context() as frozen:
        frozen.setattr(transitions, "try_to_write", lambda *_, **__: time.sleep(0.5))
        assert keeper.expire() == 0
    assert keeper.expire() == 0, "nobody could renew: nobody is blamed yet"
    assert renewed_and_expired(bench, keeper, *jobs)


def test_a_database_that_stands_still_within_a_round_ends_no_deadline(bench, monkeypatch):
    job_id = bench.submit(deadline_seconds=0.3)
    real = transitions.expire_deadlines

    def later(session, **options):
        time.sleep(0.5)
        return real(session, **options)

    monkeypatch.setattr(transitions, "expire_deadlines", later)
    assert expire_deadlines(bench.database) == 0, "the next round knows of the absence"
    assert bench.states(job_id) == ["queued"]


def test_after_the_database_took_no_writes_a_living_worker_comes_first(bench, reached):
    """Leases that ran out meanwhile are taken from nobody, though the reconciler had nothing to write itself."""
    keeper = LeaseKeeper(reached, lease_seconds=60, is_new=False)
    job_id = bench.submit()
    claim(bench, job_id, lease_seconds=60)
    keeper.expire()
    reached.full = True
    assert keeper.expire() == 0, "a lease that is renewed in time costs no write"
    with bench.database.write() as session:
        session.execute(update(Job).values(lease_until=db_now() + 20))
    with pytest.raises(OperationalError):
        keeper.expire()
    reached.full = False
    with bench.database.write() as session:
        session.execute(update(Job).values(lease_until=db_now() - 1))
    assert keeper.expire() == 0
    assert bench.states(job_id) == ["running"]


def test_a_reconciler_that_starts_with_the_database_is_patient(bench):
    """Nobody could renew while both were away, and it has seen nothing of that."""
    jobs = two(bench)
    keeper = LeaseKeeper(bench.database, lease_seconds=0.3)
    assert keeper.expire() == 0
    assert renewed_and_expired(bench, keeper, *jobs)


def test_one_that_is_started_over_and_over_spares_them_once(bench, clock):
    jobs = [bench.submit() for _ in range(2)]
    for job_id in jobs:
        claim(bench, job_id, lease_seconds=-1)
    taken = 0
    for _ in range(8):  # each dies of its second round
        keeper = LeaseKeeper(bench.database, lease_seconds=60)
        taken += keeper.expire()
        with bench.database.write() as session:  # 11 s later
            session.execute(update(Job).values(lease_until=Job.lease_until - 11))
        clock[0] += 11
    assert (taken, bench.states(*jobs)) == (2, ["queued", "queued"])


def test_the_other_reconciler_spares_them_too_and_every_absence_anew(bench, reached):
    """It noticed nothing: what one of them saw stands in the leases."""
    other, keeper = (LeaseKeeper(db, lease_seconds=3600, is_new=False) for db in (bench.database, reached))
    job_id, _ = two(bench)
    until = []
    for _ in range(2):
        assert [absence(keeper, reached), other.expire(), keeper.expire()] == [0, 0, 0]
        until.append(bench.job(job_id).lease_until)
    assert bench.job(job_id).state == "running"
    assert until[0] < until[1]


def test_a_reconciler_that_slept_with_the_machine_is_patient_but_not_for_ever(bench):
    """With leases of no time at all every round comes after a long pause."""
    keeper = LeaseKeeper(bench.database, lease_seconds=0, is_new=False)
    assert keeper.expire() == 0
    job_id = bench.submit()
    claim(bench, job_id, lease_seconds=-1)
    assert keeper.expire() == 0
    assert wait_for(keeper.expire) == 1
    assert bench.job(job_id).state == "queued"


def test_a_longer_lease_stays_as_it_is(bench):
    job_id = bench.submit()
    claim(bench, job_id, lease_seconds=60)
    before = bench.job(job_id).lease_until
    assert LeaseKeeper(bench.database, lease_seconds=5).expire() == 0
    assert bench.job(job_id).lease_until == before


@pytest.fixture
def clock(monkeypatch) -> Iterator[list[float]]:
    """What the database's clock says to the keeper: the true time, and how far ahead it is of that."""
    ahead = [0.0]
    real = repository.now_seconds
    monkeypatch.setattr(repository, "now_seconds", lambda session: real(session) + ahead[0])
    yield ahead


def test_a_clock_that_jumps_ahead_is_no_silence_of_workers(bench, clock):
    keeper = LeaseKeeper(bench.database, lease_seconds=60, is_new=False)
    assert keeper.expire() == 0
    claim(bench, bench.submit(), lease_seconds=-1)
    clock[0] = 2 * 3600.0
    assert keeper.expire() == 0


def test_an_absence_counts_against_no_queued_job(bench, clock):
    """The loop of deadlines may come first: it waits until they have been put off."""
    keeper = LeaseKeeper(bench.database, lease_seconds=60, is_new=False)
    clock[0] = -7200.0
    assert keeper.expire() == 0
    given = {"kind": "quantize", "model_id": bench.add_model(), "config": {}}
    saved, missed = (bench.submit(deadline_seconds=seconds, **given) for seconds in (-3600.0, -36000.0))
    before = bench.job(saved).deadline_at
    clock[0] = 0.0
    assert expire_deadlines(bench.database, is_behind=keeper.is_behind) == 0
    assert keeper.expire() == 0
    assert expire_deadlines(bench.database, is_behind=keeper.is_behind) == 1
    assert (bench.job(saved).state, bench.job(missed).state) == ("queued", "failed")
    assert timedelta(seconds=7199) < bench.job(saved).deadline_at - before
    before = bench.job(saved).deadline_at
    assert keeper.expire() == 0
    assert bench.job(saved).deadline_at == before, "put off once"


def test_a_pause_within_a_lease_is_no_absence(bench, clock):
    keeper = LeaseKeeper(bench.database, lease_seconds=60, is_new=False)
    job_id = bench.submit(deadline_seconds=100.0)
    before = bench.job(job_id).deadline_at
    clock[0] = -50.0
    for clock[0] in (-50.0, 0.0):
        assert keeper.expire() == 0
    assert bench.job(job_id).deadline_at == before


def lapsed(bench, job_id: str) -> None:
    """The job's lease ends, as all of them do while the clock goes on and nobody can renew."""
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_until=db_now() - 1))


@pytest.mark.parametrize("earlier", [[], [1.0]], ids=["a quiet time", "just spared"])
def test_leases_that_ended_in_a_pause_shorter_than_theirs_are_taken_from_nobody(bench, clock, earlier):
    """The last renewal may lie some time before the pause, and a row of absences may have begun just now."""
    keeper = LeaseKeeper(bench.database, lease_seconds=60, is_new=bool(earlier))
    job_id = bench.submit()
    claim(bench, job_id)
    for clock[0] in [0.0, *earlier]:
        assert keeper.expire() == 0
    lapsed(bench, job_id)
    clock[0] += 55.0
    assert keeper.expire() == 0
    assert bench.states(job_id) == ["running"]


def test_pauses_over_and_over_keep_no_lease_from_its_end(bench, clock):
    keeper = LeaseKeeper(bench.database, lease_seconds=60, is_new=False)
    job_id = bench.submit()
    claim(bench, job_id)
    keeper.expire()
    taken_after = 0
    while bench.states(job_id) == ["running"] and taken_after < 20:
        taken_after += 1
        lapsed(bench, job_id)
        clock[0] += 40.0
        keeper.expire()
    assert taken_after == 5, "two leases of 60 seconds, begun in the first pause"
