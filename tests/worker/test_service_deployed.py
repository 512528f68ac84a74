"""The same processes on PostgreSQL and Redis, by URL alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import redis

from tests.support.patience import PATIENCE_SECONDS
from tests.support.services import (
    new_postgres_database,
    own_redis_database,
    postgres_trouble,
    redis_trouble,
    require,
)
from tests.support.tiny import Tiny, make_tiny
from tests.worker.running import Service, processes_of
from tests.worker.workbench import wait_for

pytestmark = [pytest.mark.postgres, pytest.mark.redis]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    require(redis_trouble())
    with own_redis_database() as url:
        yield url


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Service]:
    require(postgres_trouble())
    folder = tmp_path_factory.mktemp("deployed") / "home"
    with new_postgres_database() as database:
        with Service(folder, QUANTMILL_DATABASE_URL=database, QUANTMILL_BROKER_URL=broker) as running:
            yield running
        assert processes_of(folder) == {}
        assert not (folder / "service.db").exists(), "the embedded database was used"
        assert not (folder / "broker").exists(), "the embedded broker was used"


@pytest.fixture(scope="module")
def inputs(service: Service, tiny: Tiny) -> dict[str, str]:
    return service.upload(tiny)


def run(service: Service, inputs: dict[str, str]) -> str:
    """Run the main job; gives the sha256 of the quantized model."""
    job = service.client.create_job(**inputs, config={"preset": "int8"})
    done = service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    assert done.attempt == 1
    (artifact,) = [item for item in service.client.artifacts(job.id) if item.kind == "model"]
    assert artifact.sha256 == service.client.report(job.id).manifest.output_sha256
    return artifact.sha256


def test_the_main_job_gives_the_same_bytes_as_on_the_embedded_default(service, inputs, tiny, tmp_path):
    with Service(tmp_path / "home") as embedded:
        expected = run(embedded, embedded.upload(tiny))
    assert run(service, inputs) == expected


def test_a_killed_worker_loses_its_lease_and_the_job_runs_again(service, inputs):
    job = service.client.create_job(**inputs, config={"evaluation": {"latency_runs": 1000}})
    runner = wait_for(lambda: next(iter(service.pids("worker.runner")), None))
    service.kill(runner, signal.SIGSTOP)
    service.wait_for_state(job.id, "running")
    service.kill(service.one("cli worker"))
    done = service.wait_for_state(job.id, "succeeded", "failed")
    assert (done.state, done.attempt) == ("succeeded", 2)


def test_messages_that_the_broker_lost_are_sent_again(service, inputs, broker):
    worker = service.one("cli worker")
    service.kill(worker, signal.SIGSTOP)
    try:
        job = service.client.create_job(**inputs)
        with redis.Redis.from_url(broker) as client:
            client.delete("cpu", "unacked", "unacked_index")
        assert service.client.job(job.id).state == "queued"
    finally:
        service.kill(worker, signal.SIGCONT)
    done = service.wait_for_state(job.id, "succeeded", "failed")
    assert (done.state, done.attempt) == ("succeeded", 1)
