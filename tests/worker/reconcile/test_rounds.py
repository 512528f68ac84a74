"""Rounds of the reconciler: messages of queued jobs, jobs whose time is over, and all loops together."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path

from sqlalchemy import update

from service.db import db_now
from service.jobs import transitions
from service.tables import Job
from tests.worker.reconcile.rounds import age_messages, claim, messages
from tests.worker.workbench import Workbench, finish, wait_for
from worker.reconcile.loops import run_forever


def test_a_job_without_a_message_gets_one_and_another_if_it_is_lost(bench, reconciler):
    job_id = bench.submit()
    assert reconciler.redispatch() == 1
    assert bench.job(job_id).dispatched_at is not None
    (sent,) = messages(bench)
    message = json.loads(sent.read_text())
    assert (message["content-type"], message["headers"]["task"]) == ("application/json", "run_job")
    assert job_id in message["headers"]["argsrepr"]
    assert reconciler.redispatch() == 0, "a young message is not sent again"
    sent.unlink()
    assert reconciler.redispatch() == 0
    age_messages(bench)
    assert reconciler.redispatch() == 1
    assert len(messages(bench)) == 1


def test_a_message_that_only_waits_is_not_sent_again(bench, reconciler):
    for _ in range(3):
        bench.submit()
    assert reconciler.redispatch() == 3
    age_messages(bench)
    assert reconciler.redispatch() == 0
    messages(bench)[0].unlink()
    assert reconciler.redispatch() == 3, "one of them is lost, and nobody knows which"


def test_a_broker_that_is_away_leaves_jobs_as_they_are(bench, reconciler):
    job_id = bench.submit()
    queue = bench.settings.broker_dir / "queue"
    queue.rename(queue.with_name("gone"))
    queue.touch()  # a file where the folder should be
    assert reconciler.redispatch() == 0
    assert bench.job(job_id).dispatched_at is None
    queue.unlink()
    queue.with_name("gone").rename(queue)
    assert reconciler.redispatch() == 1


def test_many_late_jobs_of_one_queue_keep_no_other_waiting(bench, reconciler):
    """A lost message of the small queue is sent again, whatever the size and the place of the other."""
    for _ in range(130):
        bench.submit(queue="cpu", priority=5)
    lost = bench.submit(queue="inspect")
    assert reconciler.redispatch() == 101
    assert reconciler.redispatch() == 30, "the rest of the large queue comes in the next round"
    of_small_queue(bench, "inspect").unlink()
    age_messages(bench)
    assert reconciler.redispatch() == 1
    assert bench.job(lost).id in json.loads(of_small_queue(bench, "inspect").read_text())["headers"]["argsrepr"]


def of_small_queue(bench: Workbench, queue: str) -> Path:
    (found,) = [path for path in messages(bench) if f".{queue}." in path.name]
    return found


def test_a_lost_message_is_seen_behind_younger_ones(bench, reconciler):
    lost = bench.submit()
    reconciler.redispatch()
    messages(bench)[0].unlink()
    age_messages(bench)
    for _ in range(3):
        bench.submit()
    assert reconciler.redispatch() == 4
    assert any(lost in json.loads(path.read_text())["headers"]["argsrepr"] for path in messages(bench))


def test_young_messages_that_wait_are_none_that_are_lost(bench, reconciler):
    bench.submit()
    reconciler.redispatch()
    age_messages(bench)
    bench.submit()
    assert reconciler.redispatch() == 1
    assert reconciler.redispatch() == 0


def test_jobs_queued_while_the_clock_was_ahead_start_when_it_was_put_right(bench, reconciler):
    new, tried = bench.submit(), bench.submit()
    claim(bench, tried)
    with bench.database.write() as session:
        assert transitions.requeue(session, tried, 1, delay_seconds=500.0, charged=True, reason="a passing trouble")
        moments = {name: getattr(Job, name) + 7200.0 for name in ("created_at", "queued_at", "not_before")}
        session.execute(update(Job).values(**moments))
    assert reconciler.redispatch() == 0
    assert [reconciler.bring_forward() for _ in range(2)] == [2, 0]
    assert reconciler.redispatch() == 1, "and the workers are told of it"
    paused = bench.job(tried)
    assert paused.not_before - paused.queued_at == timedelta(seconds=500), "its pause is as long as it was"
    with bench.database.write() as session:
        claimed = [transitions.claim(session, job, worker_id="w", lease_seconds=60) for job in (new, tried)]
    assert [job is not None for job in claimed] == [True, False]


def test_deadlines_expire_for_queued_and_running_jobs_and_validation_has_more_time(bench, reconciler):
    given = {"kind": "quantize", "model_id": bench.add_model(), "config": {}}
    jobs = [bench.submit(deadline_seconds=100, **given) for _ in range(3)]
    queued, running = bench.submit(deadline_seconds=100), bench.submit(deadline_seconds=100)
    for job_id in (jobs[1], running):
        claim(bench, job_id)
    with bench.database.write() as session:
        over = update(Job).where(Job.id.in_([*jobs[:2], queued, running]))
        session.execute(over.values(created_at=db_now() - 101, deadline_at=db_now() - 1))
    assert [reconciler.expire_deadlines() for _ in range(2)] == [4, 0]
    assert bench.states(*jobs, queued, running) == ["failed", "failed", "queued", "queued", "queued"]
    assert reconciler.redispatch() == 2, "the validation that ran has to wait a little"
    assert claim(bench, queued).attempt == 1


def test_trouble_in_one_loop_does_not_stop_the_others(bench, reconciler, caplog):
    """The store's folder is gone: garbage collection fails, jobs are still sent."""
    bench.store.incoming.rename(bench.store.incoming.with_name("gone"))
    bench.store.incoming.symlink_to(bench.store.incoming)  # cannot be read
    thread = threading.Thread(target=run_forever, args=(reconciler, lambda: len(messages(bench)) > 0))
    thread.start()
    wait_for(lambda: "reconcile.failed loop=collect_leftovers" in caplog.text)
    bench.submit()
    finish(thread)
