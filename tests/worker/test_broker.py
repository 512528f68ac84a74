"""The depth of a queue, on both brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from tests.support.services import own_redis_database, redis_trouble, require
from worker.broker import QueueDepths


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
def test_depth_of_queues_in_redis(tmp_path: Path) -> None:
    require(redis_trouble())
    with own_redis_database() as url:
        check_depths(Settings(data_dir=tmp_path, broker_url=url))
