"""Messages of queued jobs: sent once, and again when they were lost."""

from __future__ import annotations

import json
from pathlib import Path

from service.jobs import transitions
from tests.worker.reconcile.rounds import age_messages, claim, messages
from tests.worker.workbench import Workbench


def test_a_job_without_a_message_gets_one(bench, reconciler):
    job_id = bench.submit()
    assert reconciler.redispatch() == 1
    assert len(messages(bench)) == 1
    assert bench.job(job_id).dispatched_at is not None
    assert reconciler.redispatch() == 0, "a young message is not sent again"


def test_a_lost_message_is_sent_again(bench, reconciler):
    bench.submit()
    reconciler.redispatch()
    messages(bench)[0].unlink()
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


def test_a_new_job_is_sent_although_others_wait(bench, reconciler):
    for _ in range(3):
        bench.submit()
    reconciler.redispatch()
    bench.submit()
    assert reconciler.redispatch() == 1


def test_a_job_whose_time_has_not_come_is_not_sent(bench, reconciler):
    job_id = bench.submit()
    job = claim(bench, job_id)
    with bench.database.write() as session:
        transitions.requeue(session, job_id, job.attempt, delay_seconds=60, charged=True, reason="test")
    assert reconciler.redispatch() == 0


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


def test_the_message_holds_nothing_but_the_job_id(bench, reconciler):
    job_id = bench.submit()
    reconciler.redispatch()
    message = json.loads(messages(bench)[0].read_text())
    assert message["content-type"] == "application/json"
    assert message["headers"]["task"] == "run_job"
    assert job_id in message["headers"]["argsrepr"]


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
    """The one message of a queue."""
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
