"""Rounds of the reconciler: jobs whose time is over, clocks that were put back, and all loops together."""

from __future__ import annotations

import threading
from datetime import timedelta

from sqlalchemy import update

from service.db import db_now
from service.jobs import transitions
from service.tables import Job
from tests.worker.reconcile.rounds import claim
from tests.worker.workbench import finish, wait_for
from worker.reconcile.loops import run_forever


def test_jobs_queued_while_the_clock_was_ahead_start_when_it_was_put_right(bench, rounds):
    new, tried = bench.submit(), bench.submit()
    claim(bench, tried)
    with bench.database.write() as session:
        assert transitions.requeue(session, tried, 1, delay_seconds=500.0, charged=True, reason="a passing trouble")
        moments = {name: getattr(Job, name) + 7200.0 for name in ("created_at", "queued_at", "not_before")}
        session.execute(update(Job).values(**moments))
    assert [rounds["bring_forward"]() for _ in range(2)] == [2, 0]
    paused = bench.job(tried)
    assert paused.not_before - paused.queued_at == timedelta(seconds=500), "its pause is as long as it was"
    with bench.database.write() as session:
        claimed = [transitions.claim(session, job, worker_id="w", lease_seconds=60) for job in (new, tried)]
    assert [job is not None for job in claimed] == [True, False]


def test_deadlines_expire_for_queued_and_running_jobs_and_validation_has_more_time(bench, rounds):
    given = {"kind": "quantize", "model_id": bench.add_model(), "config": {}}
    jobs = [bench.submit(deadline_seconds=100, **given) for _ in range(3)]
    queued, running = bench.submit(deadline_seconds=100), bench.submit(deadline_seconds=100)
    for job_id in (jobs[1], running):
        claim(bench, job_id)
    with bench.database.write() as session:
        over = update(Job).where(Job.id.in_([*jobs[:2], queued, running]))
        session.execute(over.values(created_at=db_now() - 101, deadline_at=db_now() - 1))
    assert [rounds["expire_deadlines"]() for _ in range(2)] == [4, 0]
    assert bench.states(*jobs, queued, running) == ["failed", "failed", "queued", "queued", "queued"]
    assert claim(bench, queued).attempt == 1


def test_trouble_in_one_loop_does_not_stop_the_others(bench, loops, caplog):
    """The store's folder is gone: garbage collection fails, deadlines are still seen to."""
    bench.store.incoming.rename(bench.store.incoming.with_name("gone"))
    bench.store.incoming.symlink_to(bench.store.incoming)  # cannot be read
    job_id = bench.submit(kind="quantize", model_id=bench.add_model(), config={})
    thread = threading.Thread(target=run_forever, args=(loops, lambda: bench.states(job_id) == ["failed"]))
    thread.start()
    wait_for(lambda: "reconcile.failed loop=collect_leftovers" in caplog.text)
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(deadline_at=db_now() - 1))
    finish(thread)
