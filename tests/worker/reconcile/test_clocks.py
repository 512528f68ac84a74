"""Jobs that were queued while the clock of the database was ahead."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import update

from service.jobs import transitions
from service.tables import Job
from tests.worker.reconcile.rounds import claim

AHEAD_SECONDS = 2 * 3600.0


def put_clock_back(bench) -> None:
    """As if all that was written so far had been written while the clock was ahead."""
    moments = {name: getattr(Job, name) + AHEAD_SECONDS for name in ("created_at", "queued_at", "not_before")}
    with bench.database.write() as session:
        session.execute(update(Job).values(**moments))


def claimed(bench, job_id: str) -> bool:
    with bench.database.write() as session:
        return transitions.claim(session, job_id, worker_id="w", lease_seconds=60) is not None


def test_they_start_when_the_clock_was_put_right(bench, reconciler):
    new, tried = bench.submit(), bench.submit()
    claim(bench, tried)
    with bench.database.write() as session:
        assert transitions.requeue(session, tried, 1, delay_seconds=500.0, charged=True, reason="a passing trouble")
    put_clock_back(bench)
    assert not claimed(bench, new)
    assert reconciler.bring_forward() == 2
    assert reconciler.bring_forward() == 0
    assert reconciler.redispatch() == 1, "and the workers are told of it"
    paused = bench.job(tried)
    assert paused.not_before - paused.queued_at == timedelta(seconds=500), "its pause is as long as it was"
    assert [claimed(bench, job_id) for job_id in (new, tried)] == [True, False]


def test_others_are_left_as_they_are(bench, reconciler):
    ended = bench.submit()
    bench.cancel(ended)
    put_clock_back(bench)
    due, paused = bench.submit(), bench.submit()
    claim(bench, paused)
    with bench.database.write() as session:
        assert transitions.requeue(session, paused, 1, delay_seconds=5000.0, charged=True, reason="a passing trouble")
    before = [bench.job(job_id).row_version for job_id in (ended, due, paused)]
    assert reconciler.bring_forward() == 0
    assert [bench.job(job_id).row_version for job_id in (ended, due, paused)] == before
