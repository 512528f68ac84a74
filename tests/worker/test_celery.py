"""The worker as operators of Celery know it, on a real Redis; and what is no message of ours, which changes nothing."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.command_errors import InvalidSettingsError
from service.dispatch.broker import TaskSender, celery_settings, task_id
from service.dispatch.dispatcher import Dispatcher, open_dispatcher
from service.dispatch.release import Released
from service.ids import new_id
from service.queues import repository as queues
from tests.support import services
from tests.support.flower import flower, flower_trouble
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import make_tiny
from tests.worker.running import QUICK, environment
from tests.worker.workbench import Workbench, wait_for
from worker.celery_app import make_app
from worker.redis_transport import clean_message

pytestmark = [pytest.mark.redis, pytest.mark.slow]
# Trains for longer than any test.
ENDLESS = {"preset": "int8", "algorithms": [{"method": "adaround", "num_iterations": 100_000, "solver": "gradient"}]}


@pytest.fixture
def bench(tmp_path: Path, redis_url: str) -> Iterator[Workbench]:
    bench = Workbench(tmp_path, broker_url=redis_url)
    yield bench
    bench.close()


@pytest.fixture
def dispatcher(bench: Workbench) -> Iterator[Dispatcher]:
    made = open_dispatcher(
        bench.settings.model_copy(update={"redispatch_seconds": 2.0}), bench.database, period_seconds=0.1
    )
    assert made is not None
    made.wake()
    yield made
    made.close()


@pytest.fixture
def control(bench: Workbench) -> Iterator[Any]:
    """What ``celery inspect`` and ``celery control`` use."""
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(bench.settings))
    yield app.control
    app.close()


@contextmanager
def celery_worker(bench: Workbench, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    places = {"QUANTMILL_DATA_DIR": str(bench.settings.data_dir), "QUANTMILL_BROKER_URL": bench.settings.broker_url}
    command = [sys.executable, "-m", "celery", "-A", "worker.celery_app", "worker", "-l", "INFO", *options]
    with (bench.folder / "worker.log").open("wb") as stream:
        process = subprocess.Popen(command, env=environment(**QUICK, **places), stderr=stream, stdout=stream)
    try:
        wait_for(lambda: " ready." in log_of(bench) or process.poll() is not None)
        assert process.poll() is None, "it did not start"
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)


def log_of(bench: Workbench) -> str:
    return (bench.folder / "worker.log").read_text(errors="replace")


def endless(bench: Workbench, **values: Any) -> str:
    tiny = make_tiny(bench.folder)
    model = bench.add_model({"net.onnx": tiny.model.read_bytes()})
    data = bench.add_dataset(tiny.calibration.read_bytes())
    return bench.submit(kind="quantize", model_id=model, calibration_dataset_id=data, config=ENDLESS, **values)


def test_what_operators_ask_and_order(bench: Workbench, dispatcher: Dispatcher, control: Any) -> None:
    with celery_worker(bench, "-Q", "cpu,inspect", "-c", "2") as process:
        running, queued, _ = endless(bench), endless(bench), bench.submit()
        wait_for(lambda: bench.states(running) == ["running"])
        ((node, tasks),) = wait_for(lambda: control.inspect().active() or {}).items()
        ours = [task for task in tasks if task["name"] == "quantize"]
        assert [(task["id"], task["args"]) for task in ours] == [(task_id(running, 1), [running])]
        assert control.inspect().reserved() == {node: []}, "nothing is taken before a slot is free"
        assert control.inspect().registered() == {node: ["evaluate", "inspect", "quantize"]}
        assert control.inspect().stats()[node]["pool"]["max-concurrency"] == 2
        assert control.ping() == [{node: {"ok": "pong"}}]
        assert bench.job(running).worker_id.startswith(node)

        control.cancel_consumer("cpu", reply=True)
        wait_for(lambda: slots_of(bench, "cpu") is None)
        control.add_consumer("cpu", reply=True)
        wait_for(lambda: slots_of(bench, "cpu") == 2)

        control.revoke([task_id(queued, 1), task_id(running, 1), task_id(running, 7), "of somebody else"])
        wait_for(lambda: bench.states(running, queued) == ["canceled"] * 2)
        last = endless(bench)
        wait_for(lambda: bench.states(last) == ["running"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    assert bench.standing(last) == ("queued", 1, 1), "put back, and not charged"
    assert slots_of(bench, "cpu") is None


def test_flower_shows_what_runs_and_counts_what_happened(
    bench: Workbench, dispatcher: Dispatcher, redis_url: str
) -> None:
    services.require(flower_trouble())
    with flower(bench.folder, redis_url) as url, httpx.Client(base_url=url, trust_env=False) as http:

        def tasks() -> dict[str, dict[str, Any]]:
            found: dict[str, dict[str, Any]] = http.get("/api/tasks").raise_for_status().json()
            return found

        with celery_worker(bench, "-Q", "cpu,inspect", "-c", "2") as process:
            network = {"net.onnx": make_tiny(bench.folder).model.read_bytes()}
            good, failed = bench.submit(model_id=bench.add_model(network)), bench.submit()
            wait_for(lambda: bench.states(good, failed) == ["succeeded", "failed"])
            running = endless(bench)
            name = task_id(running, 1)
            wait_for(lambda: tasks().get(name, {}).get("state") == "STARTED")
            (node,) = http.get("/api/workers?refresh=true").raise_for_status().json()
            shown = tasks()[name]
            assert (shown["name"], shown["args"], shown["worker"]) == ("quantize", f"['{running}']", node)
            assert shown["retries"] == 0
            done, broken = (wait_for(lambda job=job: ended(tasks()[task_id(job, 1)])) for job in (good, failed))
            assert (done["name"], done["state"], done["result"]) == ("inspect", "SUCCESS", "'succeeded'")
            assert done["runtime"] > 0
            assert broken["state"] == "FAILURE"
            assert bench.job(failed).error["code"] in broken["exception"]
            for page in ("/workers", f"/worker/{node}", f"/task/{name}"):
                assert node in http.get(page, follow_redirects=True).raise_for_status().text, page
            assert running in http.get(f"/task/{name}").text
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: tasks()[name]["state"] == "RETRY")
        with celery_worker(bench, "-Q", "cpu", "-c", "1"):
            again = task_id(running, 2)
            wait_for(lambda: tasks().get(again, {}).get("state") == "STARTED")
            assert tasks()[again]["retries"] == 1
        counted = http.get("/metrics").raise_for_status().text
    for event in ("task-started", "task-failed", "task-retried"):
        assert re.search(rf'flower_events_total{{[^}}]*type="{event}"[^}}]*}} [1-9]', counted), event


def ended(task: dict[str, Any]) -> dict[str, Any] | None:
    return task if task["state"] in ("SUCCESS", "FAILURE") else None


def slots_of(bench: Workbench, queue: str) -> int | None:
    with bench.database.read() as session:
        crew = queues.worker_figures(session).get(queue)
    return None if crew is None else crew.slots


def test_another_pool_and_no_broker_are_refused(bench: Workbench) -> None:
    with (
        pytest.raises(AssertionError, match="did not start"),
        celery_worker(bench, "-P", "solo", "-c", "1") as process,
    ):
        process.wait()
    assert "Omit -P" in log_of(bench)
    with pytest.raises(InvalidSettingsError, match="No broker"):
        make_app(bench.settings.model_copy(update={"broker_url": ""}))


def foreign_messages(good: dict[str, Any], canary: Path) -> list[bytes]:
    """Everything that somebody could drop into a queue by mistake or by malice."""
    headers = good["headers"]
    pickled = base64.b64encode(f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()).decode()
    documents: list[object] = [
        None, 7, "text", [], {}, {"body": 1}, {"properties": {}, "body": ""},
        {**good, "headers": []}, {**good, "headers": {**headers, "task": []}},
        {**good, "headers": {**headers, "id": 1}},
        {**good, "headers": {**headers, "task": "os.system"}}, {**good, "headers": {**headers, "id": "job_x.1"}},
        {"content-type": "application/x-python-serialize", "body": pickled, "content-encoding": "binary"},
        {"__type__": "datetime", "__value__": "never"}, {"__type__": "uuid", "__value__": {}},
        {"__type__": [], "__value__": 1},
    ]  # fmt: skip
    return [b"not json", b"", b"\xff\xfe\x00", b"[" * 100_000, *(json.dumps(item).encode() for item in documents)]


def test_what_is_no_message_of_ours_is_thrown_away_and_a_forged_one_changes_nothing(
    bench: Workbench, redis_url: str
) -> None:
    spared, taken, canary = bench.submit(queue="gpu"), bench.submit(), bench.folder / "canary"
    with redis.Redis.from_url(redis_url) as client:
        sender = TaskSender(bench.settings)
        sender.send(Released(spared, "default", "inspect_model", "inspect", "short", 1, None))
        good = json.loads(client.lpop("inspect"))
        foreign = foreign_messages(good, canary)
        with celery_worker(bench, "-Q", "cpu,inspect", "-c", "1") as process:
            for message in foreign:
                client.lpush("inspect", message)
            client.lpush("inspect", json.dumps({**good, "properties": None, "body": "not base64!"}))  # not released
            bench.release(taken)
            for attempt in (1, 1, 2):
                sender.send(Released(taken, "default", "inspect_model", "inspect", "short", attempt, None))
            wait_for(lambda: bench.states(taken) == ["failed"], message="the good message woke nobody")
            wait_for(lambda: client.llen("inspect") == 0)
            assert process.poll() is None
        sender.close()
    assert log_of(bench).count("broker.message_rejected") == len(foreign)
    assert "Traceback" not in log_of(bench)
    assert bench.standing(spared) == ("queued", 0, 0)
    assert bench.job(taken).attempt == 1
    assert not canary.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_of_any_message_nothing_goes_on_but_its_task_and_its_id(document: object) -> None:
    assert clean_message(document, "cpu") is None
    assert clean_message({"headers": document}, "cpu") is None
    headers = {"task": "quantize", "id": task_id(new_id("job"), 3)}
    clean = clean_message({"headers": {"timelimit": document, "eta": document} | headers, "body": document}, "cpu")
    assert clean is not None
    assert clean["headers"].items() >= {**headers, "eta": None, "retries": 2}.items()


def test_a_worker_comes_back_after_its_connections_broke(bench: Workbench, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client, celery_worker(bench, "-Q", "inspect", "-c", "1") as process:
        ours = client.connection_pool.connection_kwargs["db"]
        for found in client.client_list():
            if int(found["db"]) == ours and int(found["id"]) != client.client_id():  # others are of other tests
                client.client_kill_filter(_id=found["id"])
        heard = bench.submit()
        bench.release(heard)
        sender = TaskSender(bench.settings)
        sender.send(Released(heard, "default", "inspect_model", "inspect", "short", 1, None))
        wait_for(lambda: bench.states(heard) == ["failed"])
        sender.close()
        assert process.poll() is None
