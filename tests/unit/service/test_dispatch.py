"""Messages to the workers: what they carry, and how long a broker may hold up the sender."""

from __future__ import annotations

import base64
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import redis

from service.jobs.dispatch import QUEUES, Dispatcher, celery_settings
from service.jobs.errors import DispatchError
from service.settings import Settings


def embedded(tmp_path: Path) -> Settings:
    settings = Settings(data_dir=tmp_path)
    settings.make_folders()
    return settings


def check_message(message: dict, job_id: str) -> None:
    assert message["headers"]["task"] == "run_job"
    assert message["content-type"] == "application/json"
    arguments, keywords, _ = json.loads(base64.b64decode(message["body"]))
    assert (arguments, keywords) == ([job_id], {})


def test_a_message_is_a_file_on_the_embedded_broker(tmp_path: Path) -> None:
    settings = embedded(tmp_path)
    with closing(Dispatcher(settings)) as dispatcher:
        dispatcher.publish("job_1", "cpu")
        dispatcher.publish("job_2", "gpu")
        dispatcher.ping()
    queue = settings.broker_dir / "queue"
    for job_id, name in (("job_1", "cpu"), ("job_2", "gpu")):
        (file,) = queue.glob(f"*.{name}.msg")
        check_message(json.loads(file.read_text()), job_id)
        file.unlink()
    queue.rmdir()
    with closing(Dispatcher(settings)) as dispatcher, pytest.raises(DispatchError):
        dispatcher.publish("job_1", "cpu")


def test_whoever_takes_messages_while_they_are_sent_reads_each_as_a_whole(tmp_path: Path) -> None:
    settings = embedded(tmp_path)
    sent, taken, done = 60, [], threading.Event()

    def take() -> None:
        while True:
            last = done.is_set()  # looked at before the folder
            for file in (settings.broker_dir / "queue").glob("*.cpu.msg"):
                taken.append(json.loads(file.read_bytes()))
                file.unlink()
            if last:
                return

    with closing(Dispatcher(settings)) as dispatcher, ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take)
        for number in range(sent):
            dispatcher.publish(f"job_{number}", "cpu")
        done.set()
        taking.result()
    ids = [json.loads(base64.b64decode(message["body"]))[0][0] for message in taken]
    assert sorted(ids) == sorted(f"job_{number}" for number in range(sent))
    assert not list((settings.broker_dir / "queue").iterdir())


def test_senders_that_start_at_once_know_every_queue(tmp_path: Path) -> None:
    settings = embedded(tmp_path)
    dispatchers = [Dispatcher(settings) for _ in QUEUES]
    with ThreadPoolExecutor(len(QUEUES)) as pool:
        list(pool.map(lambda sender, name: sender.publish("job_1", name), dispatchers, QUEUES))
    for dispatcher in dispatchers:
        dispatcher.close()
    files = [file.name.partition(".")[2] for file in (settings.broker_dir / "queue").iterdir()]
    assert sorted(files) == sorted(f"{name}.msg" for name in QUEUES)


@pytest.mark.redis
def test_a_message_is_an_entry_on_redis(tmp_path: Path, redis_url: str) -> None:
    with closing(Dispatcher(Settings(data_dir=tmp_path, broker_url=redis_url))) as dispatcher:
        dispatcher.publish("job_1", "gpu")
        dispatcher.ping()
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen("cpu") == 0
        check_message(json.loads(client.lpop("gpu")), "job_1")


def test_a_broker_that_refuses_is_told_at_once_and_one_that_swallows_all_costs_the_time_given(tmp_path: Path) -> None:
    dispatcher = Dispatcher(Settings(data_dir=tmp_path, broker_url="redis://127.0.0.1:1/0", publish_seconds=30.0))
    for _ in range(3):
        with pytest.raises(DispatchError, match="refused"):
            dispatcher.publish("job_1", "cpu")
    with pytest.raises(DispatchError):
        dispatcher.ping()
    dispatcher.close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        dispatcher = Dispatcher(Settings(data_dir=tmp_path, broker_url=url, publish_seconds=0.3))
        for _ in range(2):
            with pytest.raises(DispatchError):
                dispatcher.publish("job_1", "cpu")
        dispatcher.close()


def test_settings_that_workers_and_senders_share(tmp_path: Path) -> None:
    for broker_url in ("filesystem://", "redis://127.0.0.1/0"):
        shared = celery_settings(Settings(data_dir=tmp_path, broker_url=broker_url))
        assert (shared["accept_content"], shared["task_serializer"]) == (["json"], "json")
        assert shared["task_acks_late"] is True and shared["task_reject_on_worker_lost"] is False
        assert shared["worker_prefetch_multiplier"] == 1
        assert set(shared["task_queues"]) == set(QUEUES)
