"""Events of a job, and of the jobs of a batch as one: listed, followed and ended, each once, from any position on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import update

from service.contracts.errors import EngineError
from service.db import db_now
from service.http import poll
from service.jobs import events, service, transitions
from service.jobs.events import latest_metrics
from service.jobs.schemas import EventOut
from service.jobs.streaming import event_stream
from service.jobs.views import JobView
from service.tables import Job, JobEvent
from tests.api.serving import served
from tests.support.batches import fail, grid_body, job_of, submitted, succeed
from tests.support.front import Front, problem, taken
from tests.support.patience import PATIENCE_SECONDS

STREAM = {"Accept": "text/event-stream"}
JSON = {"Accept": "application/json"}


def parse(text: str) -> list[dict[str, Any]]:
    """Events of a stream: {event, data, id}; comments and retry are left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "event" in fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def log(front: Front, job_id: str, message: str) -> None:
    with front.app.database.write() as session:
        events.append(session, job_id, 1, "log", {"level": "info", "message": message})


def finished_job(front: Front) -> str:
    job_id = front.new_job()
    front.claim(job_id)
    log(front, job_id, "one\ntwo")
    with front.app.database.write() as session:
        assert transitions.fail(session, job_id, 1, problem=EngineError("x").problem())
    return job_id


@pytest.mark.both_databases
def test_as_json_in_pages(front: Front) -> None:
    path = f"/v1/jobs/{finished_job(front)}/events"
    page = front.http.get(path, headers=JSON).json()
    told = [(event["seq"], event["type"], event["attempt"]) for event in page["items"]]
    assert told == [(1, "state", 0), (2, "state", 1), (3, "log", 1), (4, "state", 1)]
    assert page["items"][2]["data"] == {"level": "info", "message": "one\ntwo"}
    assert (page["next_after"], page["has_more"], page["state"]) == (4, False, "failed")
    seen, after, more = [], 0, True
    while more:
        found = front.http.get(f"{path}?after={after}&limit=3", headers=JSON).json()
        seen += found["items"]
        after, more = found["next_after"], found["has_more"]
    assert seen == page["items"]
    beyond = front.http.get(f"{path}?after=99", headers=JSON).json()
    assert (beyond["items"], beyond["next_after"]) == ([], 99)
    chosen = front.http.get(path, params={"format": "json"}, headers=STREAM)
    assert chosen.json() == page
    assert front.http.get(path, params={"format": "xml"}).status_code == 422


@pytest.mark.both_databases
def test_a_stream_of_an_ended_job_is_replayed_and_ends(front: Front) -> None:
    job_id = finished_job(front)
    for accept in ("text/event-stream", "*/*", "text/event-stream, application/json"):
        answer = front.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": accept})
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.text.startswith("retry: ")
        found = parse(answer.text)
        told = [(event["event"], event.get("id")) for event in found]
        assert told == [("state", "1"), ("state", "2"), ("log", "3"), ("state", "4"), ("end", None)]
        assert found[2]["data"]["data"]["message"] == "one\ntwo"
        assert found[3]["data"]["data"]["name"] == "job.failed"
        assert found[4]["data"] == {"job_id": job_id, "state": "failed"}
    for query, last_seen in (("", "3"), ("?after=3", None), ("?after=1", "3")):
        headers = STREAM if last_seen is None else {**STREAM, "Last-Event-ID": last_seen}
        answer = front.http.get(f"/v1/jobs/{job_id}/events{query}", headers=headers)
        assert [event.get("id") for event in parse(answer.text)] == ["4", None]


def test_metrics_are_events_of_their_own(front: Front) -> None:
    job_id = front.new_job()
    front.claim(job_id)
    steps = [{"stage": "qat", "step": step, "train_loss": 1.0 / (step + 1), "metric": None} for step in range(3)]
    with front.app.database.write() as session:
        told: list[events.Entry] = [("metric", step) for step in steps]
        assert events.append_all(session, job_id, 1, [("log", {"level": "info", "message": "x"}), *told]) == 6
        assert transitions.fail(session, job_id, 1, problem=EngineError("x").problem())
    items = front.http.get(f"/v1/jobs/{job_id}/events?after=3", headers=JSON).json()["items"]
    assert [event["type"] for event in items] == ["metric", "metric", "metric", "state"]
    assert [event["data"] for event in items[:3]] == steps
    found = parse(front.http.get(f"/v1/jobs/{job_id}/events", headers=STREAM).text)
    assert [event["data"]["data"] for event in found if event["event"] == "metric"] == steps
    curves = latest_metrics(EventOut.model_validate(event) for event in items)
    assert curves == {"qat": {step: {"train_loss": 1.0 / (step + 1), "metric": None} for step in range(3)}}


def followed(url: str, work: Callable[[], None]) -> str:
    """A stream to its end, of which something is told while it is read: ``work`` is done after the first ping."""
    worker, text = threading.Thread(target=work), ""
    with httpx.stream("GET", url, headers=STREAM, timeout=PATIENCE_SECONDS) as answer:
        for part in answer.iter_text():
            text += part
            if ": ping" in text and worker.ident is None:
                worker.start()
    worker.join()
    return text


@pytest.mark.both_databases
def test_a_live_stream_follows_the_job(app: FastAPI, front: Front) -> None:
    object.__setattr__(front.app.settings, "ping_seconds", 0.2)
    job_id = front.new_job()

    def work() -> None:
        front.claim(job_id)
        for number in range(3):
            log(front, job_id, str(number))
        with front.app.database.write() as session:
            assert transitions.fail(session, job_id, 1, problem=EngineError("x").problem())

    with served(app) as url:
        text = followed(f"{url}/v1/jobs/{job_id}/events", work)
    assert [event["event"] for event in parse(text)] == ["state", "state", "log", "log", "log", "state", "end"]


def page(front: Front, batch: dict[str, Any], after: str = "0", limit: int = 50) -> dict[str, Any]:
    path = f"/v1/batches/{batch['id']}/events?after={after}&limit={limit}"
    return taken(front.http.get(path, headers=JSON))


def all_pages(front: Front, batch: dict[str, Any], limit: int) -> list[tuple[str, int]]:
    """Of so many events each, one after the other."""
    seen: list[tuple[str, int]] = []
    after, more = "0", True
    while more:
        found = page(front, batch, after, limit)
        assert len(found["items"]) <= limit
        seen += told(found["items"])
        after, more = found["next_after"], found["has_more"]
    assert page(front, batch, after)["items"] == []
    return seen


def ended_batch(front: Front) -> dict[str, Any]:
    """Two models by two presets; their events are mixed."""
    batch = submitted(front, grid_body(front))
    for k in range(3):
        for member in (2, 0, 3):
            log(front, job_of(batch, member), f"{member}.{k}")
    succeed(front, job_of(batch, 0))
    fail(front, job_of(batch, 3))
    for member in (1, 2):
        front.http.post(f"/v1/jobs/{job_of(batch, member)}/cancel")
    return batch


def told(items: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(item["job_id"], item["seq"]) for item in items]


def all_events(front: Front, batch: dict[str, Any]) -> set[tuple[str, int]]:
    """As the logs of the jobs themselves have them."""
    found = set()
    for member in batch["members"]:
        items = front.http.get(f"/v1/jobs/{member['job_id']}/events?limit=200", headers=JSON).json()["items"]
        found |= {(member["job_id"], item["seq"]) for item in items}
    return found


@pytest.mark.both_databases
def test_every_event_of_every_job_is_there_in_order(front: Front) -> None:
    batch = ended_batch(front)
    found = page(front, batch)
    items = found["items"]
    assert set(told(items)) == all_events(front, batch)
    assert len(items) == len(set(told(items)))
    moments = [item["created_at"] for item in items]
    assert moments == sorted(moments)
    messages = [item["data"]["message"] for item in items if item["type"] == "log"]
    assert sorted(messages) == ["0.0", "0.1", "0.2", "2.0", "2.1", "2.2", "3.0", "3.1", "3.2"]
    for member in "023":  # of two members within one millisecond either may come first
        assert [message for message in messages if message[0] == member] == [f"{member}.{k}" for k in range(3)]
    for item in items:
        assert [batch["members"][k]["job_id"] for k in item["members"]] == [item["job_id"]]
    assert (found["state"], found["has_more"], found["next_after"]) == ("failed", False, items[-1]["position"])
    for limit in (1, 3, 7):
        assert all_pages(front, batch, limit) == told(items)
    for k, item in enumerate(items):
        assert told(page(front, batch, item["position"])["items"]) == told(items[k + 1 :])


@pytest.mark.both_databases
def test_a_clock_that_was_set_back_hides_no_event(front: Front) -> None:
    batch = submitted(front, grid_body(front, models=1))
    for k in range(4):
        for member in (0, 1):
            log(front, job_of(batch, member), str(k))
    with front.app.database.write() as session:
        early = {"created_at": db_now() - 3600}
        session.execute(update(JobEvent).where(JobEvent.job_id == job_of(batch, 0), JobEvent.seq == 4).values(early))
    seen = all_pages(front, batch, 2)
    assert sorted(seen) == sorted(all_events(front, batch))
    for member in (0, 1):
        assert [seq for job_id, seq in seen if job_id == job_of(batch, member)] == [1, 2, 3, 4, 5]


def test_a_position_stays_good_when_members_are_retried(front: Front) -> None:
    batch = ended_batch(front)
    after = page(front, batch)["next_after"]
    again = front.http.post(f"/v1/batches/{batch['id']}/retry-failed").json()
    new = page(front, batch, after)["items"]
    assert set(told(new)) == {(job_of(again, member), 1) for member in (1, 2, 3)}
    assert {k for item in new for k in item["members"]} == {1, 2, 3}


def test_a_stream_of_an_ended_batch_is_replayed_and_ends(front: Front) -> None:
    batch = ended_batch(front)
    whole = page(front, batch)["items"]
    answer = front.http.get(f"/v1/batches/{batch['id']}/events", headers={"Accept": "text/event-stream"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = parse(answer.text)
    assert found[-1]["data"] == {"batch_id": batch["id"], "state": "failed"}
    assert found[-1]["event"] == "end"
    assert [event["data"] for event in found[:-1]] == whole
    assert [event["id"] for event in found[:-1]] == [item["position"] for item in whole]
    middle = whole[5]["position"]
    rest = front.http.get(f"/v1/batches/{batch['id']}/events?after=0", headers={"Last-Event-ID": middle})
    assert [event["data"] for event in parse(rest.text)[:-1]] == whole[6:]


def test_what_is_no_position_is_refused(front: Front) -> None:
    batch = submitted(front, grid_body(front, models=1))
    path = f"/v1/batches/{batch['id']}/events"
    for wrong in ("-1", "x", "99999999999999999999"):
        problem(front.http.get(f"/v1/jobs/job_x/events?after={wrong}", headers=STREAM), 422, "invalid-request")
        headers = {**STREAM, "Last-Event-ID": wrong}
        problem(front.http.get("/v1/jobs/job_x/events", headers=headers), 422, "invalid-request")
    for wrong in ("x", "1.", "-1", "01", "1..2", "99999999999"):
        problem(front.http.get(f"{path}?after={wrong}", headers=JSON), 422, "invalid-request")
        problem(front.http.get(path, headers={"Last-Event-ID": wrong, **JSON}), 422, "invalid-request")
    assert len(page(front, batch, "0.0.0.7")["items"]) == 2, "numbers beyond its jobs say nothing"


def test_a_live_stream_follows_all_jobs_to_the_end_of_the_last(app: FastAPI, front: Front) -> None:
    object.__setattr__(front.app.settings, "ping_seconds", 0.2)
    batch = submitted(front, grid_body(front, models=1))

    def work() -> None:
        succeed(front, job_of(batch, 1))
        log(front, job_of(batch, 0), "meanwhile")
        succeed(front, job_of(batch, 0))

    with served(app) as url:
        found = parse(followed(f"{url}/v1/batches/{batch['id']}/events", work))
    assert found[-1]["data"]["state"] == "succeeded"
    assert sorted(told([event["data"] for event in found[:-1]])) == sorted(all_events(front, batch))


WAITING = 20


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """After which event each read of a log was."""
    found: list[int] = []
    real = service.log_after

    def counted(*arguments):
        found.append(arguments[3])
        return real(*arguments)

    monkeypatch.setattr(service, "log_after", counted)
    return found


def test_long_polls_on_one_job_share_their_looks(front: Front) -> None:
    job_id = front.new_job()
    looks: list[str] = []

    def look() -> JobView:
        looks.append(job_id)
        return service.get(front.app, "default", job_id)

    async def wait() -> JobView:
        return await poll(
            front.app,
            Job,
            job_id,
            look,
            version=lambda seen: (seen.job.row_version, seen.job.last_seq),
            done=lambda seen: seen.job.state == "canceled",
            wait_seconds=PATIENCE_SECONDS,
        )

    async def crowd() -> list[JobView]:
        tasks = [asyncio.create_task(wait()) for _ in range(WAITING)]
        while len(looks) < WAITING:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(front.http.post, f"/v1/jobs/{job_id}/cancel")
        return await asyncio.gather(*tasks)

    assert [view.job.state for view in asyncio.run(crowd())] == ["canceled"] * WAITING
    # one each at first, and few for all after that: one per version
    assert len(looks) <= WAITING + 3
    assert front.app.notifier._watches == {}


def test_streams_of_one_job_share_what_is_read(front: Front, reads: list[int]) -> None:
    job_id = front.new_job()

    async def follow(begun: list[bool]) -> bytes:
        text = b""
        async for part in event_stream(front.app, "default", job_id, 0):
            if b"job.queued" in part:
                begun.append(True)
            text += part
        return text

    async def crowd() -> list[bytes]:
        begun: list[bool] = []
        tasks = [asyncio.create_task(follow(begun)) for _ in range(WAITING)]
        while len(begun) < WAITING:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(front.http.post, f"/v1/jobs/{job_id}/cancel")
        return await asyncio.gather(*tasks)

    texts = asyncio.run(crowd())
    assert len(set(texts)) == 1
    assert texts[0].count(b"event: state") == 2
    assert b"event: end" in texts[0]
    assert len(reads) < WAITING, "not each stream reads for itself"
