"""The same processes on PostgreSQL and Redis, by URL alone."""

from __future__ import annotations

import signal

import pytest
import redis

from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import Service
from tests.worker.workbench import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.slow]


@pytest.fixture(scope="module")
def service(deployed: Service) -> Service:
    return deployed


@pytest.fixture(scope="module")
def inputs(service: Service, tiny: Tiny) -> dict[str, str]:
    return service.upload(tiny)


def run(service: Service, inputs: dict[str, str]) -> str:
    """Run the main job; gives the sha256 of the quantized model."""
    job = service.client.submit(**inputs, config={"preset": "int8"})
    done = service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    assert done.attempt == 1
    (artifact,) = [item for item in service.client.artifacts(job.id) if item.kind == "model"]
    assert artifact.sha256 == service.client.report(job.id).manifest.output_sha256
    return artifact.sha256


def test_the_main_job_gives_the_same_bytes_as_on_the_embedded_default(service, inputs, embedded, tiny):
    assert run(service, inputs) == run(embedded, embedded.upload(tiny))


@pytest.mark.long
def test_a_killed_worker_loses_its_lease_and_the_job_runs_again(service, inputs):
    job = service.client.submit(**inputs, config={"evaluation": {"latency_runs": 1000}})
    runner = wait_for(lambda: next(iter(service.pids("worker.runner")), None))
    service.kill(runner, signal.SIGSTOP)
    service.wait_for_state(job.id, "running")
    service.kill(service.one("cli worker"))
    done = service.wait_for_state(job.id, "succeeded", "failed")
    assert (done.state, done.attempt) == ("succeeded", 2)


@pytest.mark.long
def test_messages_that_the_broker_lost_are_sent_again(service, inputs, broker):
    worker = service.one("cli worker")
    service.kill(worker, signal.SIGSTOP)
    try:
        job = service.client.submit(**inputs)
        with redis.Redis.from_url(broker) as client:
            client.delete("cpu", "unacked", "unacked_index")
        assert service.client.job(job.id).state == "queued"
    finally:
        service.kill(worker, signal.SIGCONT)
    done = service.wait_for_state(job.id, "succeeded", "failed")
    assert (done.state, done.attempt) == ("succeeded", 1)
