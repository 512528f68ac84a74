"""Messages to the workers: what they carry, and how long a broker may hold up the sender."""

from __future__ import annotations

import base64
import json
import socket
from contextlib import closing
from pathlib import Path

import pytest
import redis

from service import tracing
from service.dispatch.broker import QUEUES, TASK_OF_KIND, TaskSender, celery_settings
from service.dispatch.release import Released
from service.jobs.errors import DispatchError
from service.settings import Settings
from service.tables.jobs import JOB_KINDS

TRACE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
JOB = Released("job_1", "default", "inspect_dataset", "inspect", "short", 3, 55.5, TRACE)


def test_every_kind_of_job_has_its_task() -> None:
    assert set(TASK_OF_KIND) == set(JOB_KINDS)


@pytest.mark.redis
def test_a_message_is_an_entry_on_redis(tmp_path: Path, redis_url: str) -> None:
    with closing(TaskSender(Settings(data_dir=tmp_path, broker_url=redis_url))) as sender:
        with tracing.span("job.dispatch", {}, parent=tracing.remote(JOB.trace_context)):
            sender.send(JOB)
        sender.ping()
    with redis.Redis.from_url(redis_url) as client:
        assert client.llen("cpu") == 0
        message = json.loads(client.lpop("inspect"))
    headers = message["headers"]
    assert (headers["task"], headers["id"], headers["retries"]) == ("inspect", "job_1.3", 2)
    assert headers["timelimit"] == [55.5, None]
    assert TRACE.items() <= headers.items()
    assert message["content-type"] == "application/json"
    assert json.loads(base64.b64decode(message["body"]))[:2] == [["job_1"], {}]


def test_a_broker_that_refuses_is_told_at_once_and_one_that_swallows_all_costs_the_time_given(tmp_path: Path) -> None:
    with closing(
        TaskSender(Settings(data_dir=tmp_path, broker_url="redis://127.0.0.1:1/0", publish_seconds=30.0))
    ) as sender:
        with pytest.raises(DispatchError, match="refused"):
            sender.send(JOB)
        with pytest.raises(DispatchError):
            sender.ping()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        with closing(TaskSender(Settings(data_dir=tmp_path, broker_url=url, publish_seconds=0.3))) as sender:
            for _ in range(2):
                with pytest.raises(DispatchError):
                    sender.send(JOB)


def test_settings_that_workers_and_senders_share(tmp_path: Path) -> None:
    for broker_url, is_redis in (("amqp://127.0.0.1", False), ("redis://127.0.0.1/0", True)):
        shared = celery_settings(Settings(data_dir=tmp_path, broker_url=broker_url))
        assert (shared["accept_content"], shared["task_serializer"]) == (["json"], "json")
        assert (shared["worker_disable_prefetch"], shared["task_acks_late"]) == (is_redis, not is_redis)
        assert set(shared["task_queues"]) == set(QUEUES)
