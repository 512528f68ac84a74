"""Each loop of the reconciler on a real database, a real store and the real filesystem broker."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, update

from service.db import db_now
from service.ids import new_id
from service.jobs import transitions
from service.jobs.dispatch import Dispatcher
from service.tables import IdempotencyKey, Job, Upload
from tests.worker.workbench import Workbench, finish, wait_for
from worker.broker import QueueDepths
from worker.checkpoints import open_checkpoints
from worker.reconciler import Reconciler, run_forever, run_once
from worker.supervisor import scratch_name


@pytest.fixture
def reconciler(bench: Workbench) -> Iterator[Reconciler]:
    dispatcher = Dispatcher(bench.settings)
    yield Reconciler(bench.settings, bench.database, bench.store, dispatcher, QueueDepths(bench.settings))
    dispatcher.close()


def messages(bench: Workbench) -> list[Path]:
    return sorted((bench.settings.broker_dir / "queue").iterdir())


def age_messages(bench: Workbench, seconds: float = 60) -> None:
    with bench.database.write() as session:
        session.execute(update(Job).values(dispatched_at=db_now() - seconds))


def claim(bench: Workbench, job_id: str, lease_seconds: float = 60) -> Job:
    with bench.database.write() as session:
        job = transitions.claim(session, job_id, worker_id="w", lease_seconds=lease_seconds)
    assert job is not None
    return job


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


def test_expired_leases_are_taken_away(bench, reconciler):
    silent, alive = bench.submit(), bench.submit()
    claim(bench, silent, lease_seconds=-1)
    claim(bench, alive)
    assert reconciler.expire_leases() == 1
    assert reconciler.expire_leases() == 0
    assert (bench.job(silent).state, bench.job(alive).state) == ("queued", "running")


def test_deadlines_expire_for_queued_and_running_jobs(bench, reconciler):
    queued, running, calm = (
        bench.submit(deadline_seconds=-1), bench.submit(deadline_seconds=60), bench.submit(deadline_seconds=60),
    )  # fmt: skip
    claim(bench, running)
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == running).values(deadline_at=db_now() - 1))
    assert reconciler.expire_deadlines() == 2
    assert reconciler.expire_deadlines() == 0
    assert [bench.job(job).state for job in (queued, running, calm)] == ["failed", "failed", "queued"]


def add_upload(bench: Workbench, *, expires_in: float, sha256: str | None = None) -> str:
    upload_id = new_id("upl")
    with bench.database.write() as session:
        now = db_now()
        session.execute(
            insert(Upload).values(
                id=upload_id, tenant_id="default", filename="net.onnx", state="complete" if sha256 else "open",
                sha256=sha256, size_bytes=4 if sha256 else None, created_at=now, expires_at=now + expires_in,
            )
        )  # fmt: skip
    return upload_id


def test_expired_uploads_go_with_their_bytes(bench, reconciler):
    old, young = add_upload(bench, expires_in=-1), add_upload(bench, expires_in=60)
    for upload_id in (old, young):
        (bench.store.incoming / upload_id).write_bytes(b"part")
    add_upload(bench, expires_in=-1)  # nothing was received yet
    assert reconciler.expire_uploads() == 2
    assert reconciler.expire_uploads() == 0
    assert [path.name for path in bench.store.incoming.iterdir()] == [young]


def make_old(path: Path, seconds: float = 90_000) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_garbage_is_what_no_row_names_and_what_is_old(bench, reconciler):
    bench.add_model({"net.onnx": b"model"})
    bench.add_dataset(b"dataset")
    uploaded, garbage, fresh = (bench.put(data) for data in (b"upload", b"garbage", b"fresh garbage"))
    add_upload(bench, expires_in=60, sha256=uploaded)
    for folder in bench.store.blobs.iterdir():
        for path in folder.iterdir():
            if path.name != fresh:
                make_old(path)
    assert reconciler.collect_garbage() == 1
    assert reconciler.collect_garbage() == 0
    assert not bench.store.path(garbage).exists()
    assert sum(len(list(folder.iterdir())) for folder in bench.store.blobs.iterdir()) == 4


def test_garbage_that_is_stored_again_is_spared(bench, reconciler):
    sha256 = bench.put(b"twice")
    make_old(bench.store.path(sha256))
    assert bench.put(b"twice") == sha256
    assert reconciler.collect_garbage() == 0
    assert bench.store.path(sha256).exists()


def test_leftovers_of_uploads_are_garbage(bench, reconciler):
    known = add_upload(bench, expires_in=60)
    for name in (known, "tmpabc.copy", new_id("upl")):
        (bench.store.incoming / name).write_bytes(b"part")
        make_old(bench.store.incoming / name)
    assert reconciler.collect_garbage() == 2
    assert [path.name for path in bench.store.incoming.iterdir()] == [known]


def test_scratch_of_attempts_that_do_not_run_is_removed(bench, reconciler):
    running = bench.submit()
    claim(bench, running)
    for name in (scratch_name(running, 1), scratch_name(running, 0), "job_x.1", "young.1"):
        folder = bench.settings.scratch_dir / name
        (folder / "model").mkdir(parents=True)
        make_old(folder, 0 if name == "young.1" else 3600)
    assert reconciler.collect_scratch() == 2
    assert bench.scratch_folders() == sorted([scratch_name(running, 1), "young.1"])


def test_checkpoints_are_kept_for_jobs_that_may_run_again(bench, reconciler):
    queued, running, ended = bench.submit(), bench.submit(), bench.submit()
    claim(bench, running)
    bench.cancel(ended)
    for job_id in (queued, running, ended, "job_unknown"):
        make_old(open_checkpoints(bench.settings.scratch_dir, job_id, limit_bytes=0), 3600)
    assert reconciler.collect_scratch() == 2
    assert bench.scratch_folders() == sorted(f"{job_id}.checkpoints" for job_id in (queued, running))


def test_old_answers_are_forgotten(bench, reconciler):
    with bench.database.write() as session:
        for key, age in (("old", 10 * 86400.0), ("new", 60.0)):
            session.execute(
                insert(IdempotencyKey).values(
                    tenant_id="default", route="jobs", key=key, request_sha256="0" * 64, status=202, headers={},
                    body={}, created_at=db_now() - age,
                )
            )  # fmt: skip
    assert reconciler.forget_answers() == 1
    with bench.database.read() as session:
        assert session.scalar(select(func.count()).select_from(IdempotencyKey)) == 1


def test_one_round_of_everything(bench, reconciler):
    bench.submit()
    done = run_once(reconciler)
    assert done["redispatch"] == 1
    assert set(done) == {loop.name for loop in reconciler.loops}


def test_trouble_in_one_loop_does_not_stop_the_others(bench, reconciler, caplog):
    """The store's folder is gone: garbage collection fails, jobs are still sent."""
    bench.store.incoming.rename(bench.store.incoming.with_name("gone"))
    bench.store.incoming.symlink_to(bench.store.incoming)  # cannot be read
    failed = "reconcile.failed loop=collect_garbage"
    thread = threading.Thread(target=run_forever, args=(reconciler, lambda: len(messages(bench)) > 0))
    thread.start()
    wait_for(lambda: failed in caplog.text)
    bench.submit()
    finish(thread)
    assert not thread.is_alive()
