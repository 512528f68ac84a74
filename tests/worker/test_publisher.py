"""The thread that sends messages, which outlives a process without threads, and the depth of the queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.jobs.dispatch import Dispatcher
from service.jobs.publisher import Publisher
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import Workbench, threads_refused, wait_for
from worker.broker import QueueDepths


@pytest.fixture
def publisher(bench: Workbench) -> Iterator[Publisher]:
    dispatcher = Dispatcher(bench.settings)
    publisher = Publisher(dispatcher, bench.database, pause_seconds=0.0)
    yield publisher
    publisher.close()
    dispatcher.close()


@pytest.mark.parametrize("prefix", ["dispatch", "publisher"])
def test_messages_go_on_once_there_are_threads_again(bench, publisher, monkeypatch, prefix):
    first, second = bench.submit(), bench.submit()
    with monkeypatch.context() as exhausted:
        refused = threads_refused(exhausted, prefix)
        publisher.put(first, "inspect")
        assert refused.wait(PATIENCE_SECONDS)
    publisher.put(second, "inspect")
    wait_for(lambda: bench.job(second).dispatched_at)


def test_an_error_that_nobody_foresaw_ends_no_thread(bench, publisher, monkeypatch, caplog):
    first, second = bench.submit(), bench.submit()
    with monkeypatch.context() as broken:
        broken.setattr(Dispatcher, "publish", lambda *_: 1 / 0)
        publisher.put(first, "inspect")
        wait_for(lambda: "dispatch.left_to_reconciler" in caplog.text)
    publisher.put(second, "inspect")
    wait_for(lambda: bench.job(second).dispatched_at)
    assert bench.job(first).dispatched_at is None, "the reconciler sends it"


def check_depths(settings: Settings) -> None:
    settings.make_folders()
    depths = QueueDepths(settings)
    assert depths.waiting("cpu") == 0, "a queue to which nothing was sent holds nothing"
    dispatcher = Dispatcher(settings)
    try:
        dispatcher.publish("job_one", "cpu")
        dispatcher.publish("job_two", "cpu")
    finally:
        dispatcher.close()
    assert depths.waiting("cpu") == 2
    assert depths.waiting("gpu") == 0


def test_depth_of_queues_of_files(tmp_path: Path) -> None:
    check_depths(Settings(data_dir=tmp_path))


@pytest.mark.redis
def test_depth_of_queues_in_redis(tmp_path: Path, redis_url: str) -> None:
    check_depths(Settings(data_dir=tmp_path, broker_url=redis_url))
