"""The logs of a batch's jobs as one: in pages and as a stream, each event once, from any position on."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from service.db import db_now
from service.jobs import events
from service.tables import JobEvent
from tests.api.test_events import parse
from tests.support.batches import fail, grid_body, job_of, submitted, succeed
from tests.support.front import Front, problem
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess

JSON = {"Accept": "application/json"}


def tell(front: Front, job_id: str, message: str) -> None:
    with front.desk.database.write() as session:
        events.append(session, job_id, 1, "log", {"level": "info", "message": message})


def page(front: Front, batch: dict[str, Any], after: str = "0", limit: int = 50) -> dict[str, Any]:
    path = f"/v1/batches/{batch['id']}/events?after={after}&limit={limit}"
    answer = front.http.get(path, headers=JSON)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ended_batch(front: Front) -> dict[str, Any]:
    """Two models by two presets; their events are mixed."""
    batch = submitted(front, grid_body(front))
    for k in range(3):
        for member in (2, 0, 3):
            tell(front, job_of(batch, member), f"{member}.{k}")
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


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_pages_tell_each_event_once(front: Front, limit: int) -> None:
    batch = ended_batch(front)
    whole = told(page(front, batch)["items"])
    seen: list[tuple[str, int]] = []
    after, more = "0", True
    while more:
        found = page(front, batch, after, limit)
        assert len(found["items"]) <= limit
        seen += told(found["items"])
        after, more = found["next_after"], found["has_more"]
    assert seen == whole
    assert page(front, batch, after)["items"] == []


def test_going_on_from_any_event_tells_exactly_the_rest(front: Front) -> None:
    batch = ended_batch(front)
    items = page(front, batch)["items"]
    for k, item in enumerate(items):
        assert told(page(front, batch, item["position"])["items"]) == told(items[k + 1 :])


def test_a_clock_that_was_set_back_hides_no_event(front: Front) -> None:
    batch = submitted(front, grid_body(front, models=1))
    for k in range(4):
        for member in (0, 1):
            tell(front, job_of(batch, member), str(k))
    with front.desk.database.write() as session:
        early = {"created_at": db_now() - 3600}
        session.execute(update(JobEvent).where(JobEvent.job_id == job_of(batch, 0), JobEvent.seq == 4).values(early))
    seen: list[tuple[str, int]] = []
    after, more = "0", True
    while more:
        found = page(front, batch, after, 2)
        seen += told(found["items"])
        after, more = found["next_after"], found["has_more"]
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
    for wrong in ("x", "1.", "-1", "01", "1..2", "99999999999"):
        problem(front.http.get(f"{path}?after={wrong}", headers=JSON), 422, "invalid-request")
        problem(front.http.get(path, headers={"Last-Event-ID": wrong, **JSON}), 422, "invalid-request")
    problem(front.http.get("/v1/batches/bat_none/events"), 404, "batch-not-found")
    assert len(page(front, batch, "0.0.0.7")["items"]) == 2, "numbers beyond its jobs say nothing"


def test_a_live_stream_follows_all_jobs_to_the_end_of_the_last(front: Front) -> None:
    batch = submitted(front, grid_body(front, models=1))
    server = ApiProcess(front.desk.settings.model_copy(update={"ping_seconds": 0.2}))

    def work() -> None:
        succeed(front, job_of(batch, 1))
        tell(front, job_of(batch, 0), "meanwhile")
        succeed(front, job_of(batch, 0))

    worker = threading.Thread(target=work)
    text, url = "", f"{server.url}/v1/batches/{batch['id']}/events"
    try:
        with httpx.stream("GET", url, timeout=PATIENCE_SECONDS) as answer:
            for part in answer.iter_text():
                text += part
                if ": ping" in text and worker.ident is None:
                    worker.start()
    finally:
        server.close()
    worker.join()
    found = parse(text)
    assert found[-1]["data"]["state"] == "succeeded"
    assert sorted(told([event["data"] for event in found[:-1]])) == sorted(all_events(front, batch))
