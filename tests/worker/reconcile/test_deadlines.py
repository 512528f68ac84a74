"""Jobs whose time is over."""

from __future__ import annotations

from sqlalchemy import update

from service.db import db_now
from service.tables import Job
from tests.worker.reconcile.rounds import claim


def submit(bench, deadline_seconds):
    given = {"kind": "quantize", "model_id": bench.add_model(), "config": {}}
    return bench.submit(deadline_seconds=deadline_seconds, **given)


def test_deadlines_expire_for_queued_and_running_jobs(bench, reconciler):
    queued, running, calm = submit(bench, -1), submit(bench, 60), submit(bench, 60)
    claim(bench, running)
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == running).values(deadline_at=db_now() - 1))
    assert reconciler.expire_deadlines() == 2
    assert reconciler.expire_deadlines() == 0
    assert [bench.job(job).state for job in (queued, running, calm)] == ["failed", "failed", "queued"]


def test_validation_of_uploads_has_more_time_and_is_sent_again(bench, reconciler):
    queued, running = bench.submit(deadline_seconds=100), bench.submit(deadline_seconds=100)
    claim(bench, running)
    with bench.database.write() as session:
        session.execute(update(Job).values(created_at=db_now() - 101, deadline_at=db_now() - 1))
    assert reconciler.expire_deadlines() == 2
    assert reconciler.expire_deadlines() == 0
    assert [bench.job(job).state for job in (queued, running)] == ["queued", "queued"]
    assert reconciler.redispatch() == 1, "the one that ran has to wait a little"
    assert claim(bench, queued).attempt == 1
