"""A Redis that takes connections and says nothing: workers look for jobs themselves, and hear again once it goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from tests.fault.harness.servers import RedisServer, servers_trouble
from tests.support.patience import PATIENCE_SECONDS
from tests.support.services import require
from tests.worker.test_worker_process import worker
from tests.worker.workbench import Workbench, wait_for


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    require(servers_trouble())
    server = RedisServer()
    yield server
    server.heal()
    server.close()


@pytest.mark.redis
def test_a_frozen_redis_holds_up_no_job(tmp_path: Path, redis: RedisServer) -> None:
    """No reconciler runs. A broker that does not answer is no reason to end: a new connection would carry nothing."""
    bench = Workbench(tmp_path, broker_url=redis.url)
    with worker(bench, QUANTMILL_BROKER_URL=redis.url, QUANTMILL_DEAF_SECONDS="1") as process:
        redis.process.send(signal.SIGSTOP)
        jobs = [bench.submit() for _ in range(2)]
        wait_for(lambda: all(bench.job(job).state == "failed" for job in jobs))  # no ONNX
        log = tmp_path / "worker.log"
        wait_for(lambda: b"worker.deaf " in log.read_bytes())
        redis.process.resume()
        heard = bench.submit()
        dispatcher = Dispatcher(Settings(data_dir=bench.settings.data_dir, broker_url=redis.url))
        dispatcher.publish(heard, "inspect")
        wait_for(lambda: bench.job(heard).state == "failed")
        wait_for(lambda: b"worker.hears_again" in log.read_bytes())
        dispatcher.close()
        assert process.poll() is None
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) == 0
    bench.close()
