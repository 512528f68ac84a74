"""Who waits for whom: stale messages hold nobody up, and validation does not stand behind long jobs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from sqlalchemy import update

from service.db import db_now
from service.tables import Job
from tests.support.patience import PATIENCE_SECONDS
from tests.support.services import redis_trouble, require
from tests.support.tiny import Tiny
from tests.worker.running import INSPECTOR, Service
from tests.worker.workbench import Workbench, finish, wait_for
from worker.turns import repository

CANCELED = 40
SLOW = {"evaluation": {"latency_runs": 1000, "layer_samples": 1024}}


def next_due(bench: Workbench, *queues: str) -> str | None:
    with bench.database.read() as session:
        return repository.next_due(session, queues)


def test_kinds_have_their_queues(bench: Workbench) -> None:
    assert bench.job(bench.submit()).queue == "inspect"
    assert bench.job(bench.submit(kind="inspect_dataset", dataset_id=bench.add_dataset())).queue == "inspect"
    quantize = {"model_id": bench.add_model(), "calibration_dataset_id": bench.add_dataset(), "config": {}}
    assert bench.job(bench.submit(kind="quantize", **quantize)).queue == "cpu"
    assert bench.job(bench.submit(kind="quantize", queue="gpu", **quantize)).queue == "gpu"


def test_the_next_job_is_the_most_urgent_then_the_oldest_that_may_start(bench: Workbench) -> None:
    assert next_due(bench, "inspect") is None
    early, late, other, canceled, expired = (
        bench.submit(), bench.submit(), bench.submit(queue="gpu"), bench.submit(priority=9), bench.submit(priority=9),
    )  # fmt: skip
    bench.cancel(canceled)
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == early).values(not_before=db_now() + 60))
        session.execute(update(Job).where(Job.id == expired).values(deadline_at=db_now() - 1))
    assert next_due(bench, "inspect") == late
    assert next_due(bench, "gpu", "inspect") == late
    assert next_due(bench, "gpu") == other
    urgent = bench.submit(priority=1)
    assert next_due(bench, "inspect", "gpu") == urgent


def test_a_worker_woken_in_vain_runs_the_next_job(bench: Workbench) -> None:
    supervisor = bench.supervisor("succeed()")
    assert not supervisor.run_next(["inspect"])
    first, second = bench.submit(), bench.submit()
    bench.cancel(first)
    assert not supervisor.run(first)
    assert not supervisor.run_next(["cpu"])
    assert supervisor.run_next(["cpu", "inspect"])
    assert (bench.job(second).state, bench.job(second).attempt) == ("succeeded", 1)
    assert not supervisor.run_next(["cpu", "inspect"])


def test_workers_that_look_at_once_run_every_job_once(bench: Workbench) -> None:
    supervisors = [bench.supervisor("succeed()") for _ in range(3)]
    jobs = [bench.submit() for _ in range(6)]

    def run(number: int) -> None:
        while next_due(bench, "inspect") is not None:
            supervisors[number].run_next(["inspect"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        finish(thread)
    assert [(bench.job(job).state, bench.job(job).attempt) for job in jobs] == [("succeeded", 1)] * 6


def test_a_worker_that_stops_looks_for_nothing(bench: Workbench) -> None:
    bench.submit()
    assert not bench.supervisor("", stopping=lambda: True).run_next(["inspect"])


def waiting_behind_canceled_jobs(service: Service, tiny: Tiny, count: Callable[[], int]) -> int:
    """Messages in the queue while a job runs that was submitted after CANCELED jobs, which were canceled there."""
    inputs = service.upload(tiny)
    worker = service.one("cli worker")
    service.kill(worker, signal.SIGSTOP)  # the messages pile up
    try:
        for _ in range(CANCELED):
            service.client.cancel(service.client.submit(**inputs).id)
        job = service.client.submit(**inputs, config=SLOW)
        assert count() >= CANCELED  # one may be on its way to the stopped worker
    finally:
        service.kill(worker, signal.SIGCONT)
    service.wait_for_state(job.id, "running")
    waiting = count()
    assert service.client.job(job.id).state == "running"
    service.client.cancel(job.id)
    service.wait_for_state(job.id, "canceled")
    return waiting


def test_canceled_jobs_hold_nobody_up(service: Service, tiny: Tiny) -> None:
    queue = service.folder / "broker" / "queue"
    assert waiting_behind_canceled_jobs(service, tiny, lambda: len(list(queue.glob("*.cpu.msg")))) > 0.9 * CANCELED


@pytest.mark.redis
def test_canceled_jobs_hold_nobody_up_on_redis(tmp_path: Path, tiny: Tiny, redis_url: str) -> None:
    require(redis_trouble())
    with (
        Service(tmp_path / "home", QUANTMILL_BROKER_URL=redis_url, QUANTMILL_LEASE_SECONDS="10") as service,
        redis.Redis.from_url(redis_url) as client,
    ):
        assert waiting_behind_canceled_jobs(service, tiny, lambda: client.llen("cpu")) > 0.9 * CANCELED


def test_an_upload_is_validated_while_a_long_job_runs(service: Service, tiny: Tiny) -> None:
    inputs = service.upload(tiny)
    job = service.client.submit(**inputs, config=SLOW)
    (runner,) = wait_for(lambda: service.pids("worker.runner"), message="no runner")
    service.wait_for_state(job.id, "running")
    service.kill(runner, signal.SIGSTOP)  # as long a job as can be; its lease is renewed by the worker
    try:
        service.upload(tiny)
        assert service.client.job(job.id).state == "running"
    finally:
        service.kill(runner, signal.SIGCONT)
    assert service.wait_for_state(job.id, "succeeded", "failed").attempt == 1


def test_a_killed_inspector_is_restarted(service: Service, tiny: Tiny) -> None:
    before = service.one(INSPECTOR)
    service.kill(before)
    wait_for(lambda: service.pids(INSPECTOR) not in ([], [before]), message="it was not restarted")
    service.upload(tiny)


def test_a_lost_message_of_a_validation_is_sent_to_its_own_queue(service: Service, tiny: Tiny) -> None:
    inspector = service.one(INSPECTOR)
    service.kill(inspector, signal.SIGSTOP)
    try:
        model = service.client.push_model(tiny.model)
        queue = service.folder / "broker" / "queue"
        for message in wait_for(lambda: list(queue.glob("*.inspect.msg"))):
            message.unlink()
    finally:
        service.kill(inspector, signal.SIGCONT)
    assert service.client.wait_ready(model, timeout_seconds=PATIENCE_SECONDS).status == "ready"
