"""What is no message of ours is thrown away with one line in the log; the worker lives on. On both brokers."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from service.ids import new_id
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from tests.worker.running import worker
from tests.worker.workbench import Workbench, wait_for
from worker.transport.messages import ForeignMessageError, clean_message, named_job

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def sent_message(folder: Path, job_id: str) -> dict[str, Any]:
    settings = Settings(data_dir=folder)
    settings.make_folders()
    dispatcher = Dispatcher(settings)
    dispatcher.publish(job_id, "cpu")
    dispatcher.close()
    (file,) = (settings.broker_dir / "queue").iterdir()
    message: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return message


def body_of(document: object) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def foreign_messages(good: dict[str, Any], job_id: str, canary: Path) -> list[bytes]:
    """Everything that somebody could drop into a queue by mistake or by malice."""
    headers, properties = good["headers"], good["properties"]
    pickled = base64.b64encode(f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()).decode()
    documents: list[object] = [
        None, 7, "text", [], {}, {"body": 1}, {"properties": {}, "body": ""},
        {**good, "body": "not base64!"}, {**good, "body": body_of("text")},
        {**good, "body": body_of([[{"a": 1}], {}, {}])}, {**good, "body": body_of([[job_id, job_id], {}, {}])},
        {**good, "body": body_of([["job_'; DROP TABLE jobs"], {}, {}])}, {**good, "body": body_of([[], {}, {}])},
        {**good, "body": body_of([[job_id]])}, {**good, "body": None},
        {**good, "headers": []}, {**good, "headers": {**headers, "task": []}},
        {**good, "headers": {**headers, "task": "os.system"}}, {**good, "content-type": "application/x-yaml"},
        {**good, "content-type": "application/x-python-serialize", "body": pickled, "content-encoding": "binary"},
        {**good, "properties": {**properties, "body_encoding": "rot13"}}, {**good, "properties": None},
        {"__type__": "datetime", "__value__": "never"}, {"__type__": "uuid", "__value__": {}},
        {"__type__": [], "__value__": 1},
    ]  # fmt: skip
    return [b"not json", b"", b"\xff\xfe\x00", b"[" * 100_000, *(json.dumps(item).encode() for item in documents)]


def check_worker_survives(bench: Workbench, put: Callable[[int, bytes], None], waiting: Callable[[], int]) -> None:
    job_id, spared, canary = bench.submit(), bench.submit(), bench.folder / "canary"
    foreign = foreign_messages(sent_message(bench.folder / "sender", spared), spared, canary)
    dispatcher = Dispatcher(bench.settings)
    with worker(bench, "--queues", "cpu,inspect") as process:
        log = bench.folder / "worker.log"
        for number, message in enumerate(foreign):
            put(number, message)
        dispatcher.publish(job_id, "cpu")
        wait_for(lambda: bench.job(job_id).state != "queued", message="the good message woke nobody")
        wait_for(lambda: waiting() == 0)
        assert process.poll() is None
        text = log.read_text()
        assert text.count("broker.message_rejected") == len(foreign), text[-6000:]
        assert "Traceback" not in text
    dispatcher.close()
    assert not canary.exists()


@pytest.mark.slow
def test_files(bench: Workbench) -> None:
    queue = bench.settings.broker_dir / "queue"

    def put(number: int, message: bytes) -> None:
        part = queue / f"{number}.part"
        part.write_bytes(message)
        part.rename(queue / f"0{number:03}_{secrets.token_hex(4)}.cpu.msg")

    check_worker_survives(bench, put, lambda: len(list(queue.iterdir())))


@pytest.mark.slow
@pytest.mark.redis
def test_redis(tmp_path: Path, redis_url: str) -> None:
    bench = Workbench(tmp_path, broker_url=redis_url)
    with redis.Redis.from_url(redis_url) as client:
        check_worker_survives(
            bench, lambda _, message: client.lpush("cpu", message), lambda: client.llen("cpu") + client.hlen("unacked")
        )
    bench.close()


@pytest.mark.redis
def test_a_sent_message_is_read_from_redis(tmp_path: Path, redis_url: str) -> None:
    job_id = new_id("job")
    dispatcher = Dispatcher(Settings(data_dir=tmp_path, broker_url=redis_url))
    dispatcher.publish(job_id, "cpu")
    dispatcher.close()
    with redis.Redis.from_url(redis_url) as client:
        assert named_job(json.loads(client.lpop("cpu"))) == job_id


def test_a_sent_message_names_its_job_and_nothing_else_of_a_forged_one_goes_on(tmp_path: Path) -> None:
    job_id = new_id("job")
    message = sent_message(tmp_path, job_id)
    assert named_job(message) == job_id
    clean = clean_message(job_id, "cpu")
    assert named_job(clean) == job_id
    assert set(clean) == set(message)
    own = {name: clean["headers"][name] for name in ("id", "root_id", "argsrepr")}
    assert clean["headers"].items() <= {**message["headers"], **own}.items()
    message["headers"] |= {"eta": "2100-01-01T00:00:00", "timelimit": "soon", "retries": "x", "id": []}
    message["properties"] |= {"delivery_tag": 1, "reply_to": "elsewhere"}
    message["body"] = body_of([[job_id], {}, {"callbacks": [{"task": "os.system", "args": ["true"]}]}])
    clean = clean_message(named_job(message), "cpu")
    assert "os.system" not in base64.b64decode(clean["body"]).decode()
    assert (clean["headers"]["eta"], clean["headers"]["timelimit"]) == (None, [None, None])


@given(JSON)
def test_any_json_and_any_body_are_refused_in_a_typed_way(document: object) -> None:
    for message in (document, {**clean_message(new_id("job"), "cpu"), "body": body_of(document)}):
        with pytest.raises(ForeignMessageError):
            named_job(message)
