"""The log of a job: as JSON, and as a stream that is replayed, followed and ended."""

from __future__ import annotations

import json
import threading
from typing import Any

import httpx
import pytest

from service.contracts.errors import EngineError
from service.jobs import events, transitions
from service.jobs.metric_events import latest_metrics
from service.jobs.schemas import EventOut
from tests.support.front import Front, problem
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess

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
    with front.desk.database.write() as session:
        events.append(session, job_id, 1, "log", {"level": "info", "message": message})


def finished_job(front: Front) -> str:
    job_id = front.new_job()
    front.claim(job_id)
    log(front, job_id, "one\ntwo")
    with front.desk.database.write() as session:
        assert transitions.fail(session, job_id, 1, problem=EngineError("x").problem())
    return job_id


def test_as_json(front: Front) -> None:
    job_id = finished_job(front)
    page = front.http.get(f"/v1/jobs/{job_id}/events", headers=JSON).json()
    assert [(event["seq"], event["type"], event["attempt"]) for event in page["items"]] == [
        (1, "state", 0),
        (2, "state", 1),
        (3, "log", 1),
        (4, "state", 1),
    ]
    assert page["items"][2]["data"] == {"level": "info", "message": "one\ntwo"}
    assert (page["next_after"], page["has_more"], page["state"]) == (4, False, "failed")


def test_as_pages_of_json(front: Front) -> None:
    job_id = finished_job(front)
    seen, after, more = [], 0, True
    while more:
        path = f"/v1/jobs/{job_id}/events?after={after}&limit=3"
        page = front.http.get(path, headers=JSON).json()
        seen += [event["seq"] for event in page["items"]]
        after, more = page["next_after"], page["has_more"]
    assert seen == [1, 2, 3, 4]
    beyond = front.http.get(f"/v1/jobs/{job_id}/events?after=99", headers=JSON).json()
    assert (beyond["items"], beyond["next_after"]) == ([], 99)


@pytest.mark.parametrize("accept", ["text/event-stream", "*/*", "text/event-stream, application/json"])
def test_a_stream_of_an_ended_job_is_replayed_and_ends(front: Front, accept: str) -> None:
    job_id = finished_job(front)
    answer = front.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.text.startswith("retry: ")
    found = parse(answer.text)
    assert [(event["event"], event.get("id")) for event in found] == [
        ("state", "1"),
        ("state", "2"),
        ("log", "3"),
        ("state", "4"),
        ("end", None),
    ]
    assert found[2]["data"]["data"]["message"] == "one\ntwo"
    assert found[3]["data"]["data"]["name"] == "job.failed"
    assert found[4]["data"] == {"job_id": job_id, "state": "failed"}


def test_metrics_are_events_of_their_own(front: Front) -> None:
    job_id = front.new_job()
    front.claim(job_id)
    steps = [{"stage": "qat", "step": step, "train_loss": 1.0 / (step + 1), "metric": None} for step in range(3)]
    with front.desk.database.write() as session:
        told: list[events.Entry] = [("metric", step) for step in steps]
        assert events.append_all(session, job_id, 1, [("log", {"level": "info", "message": "x"}), *told]) == 6
        assert transitions.fail(session, job_id, 1, problem=EngineError("x").problem())
    page = front.http.get(f"/v1/jobs/{job_id}/events?after=3", headers=JSON).json()
    assert [(event["seq"], event["type"], event["attempt"]) for event in page["items"]] == [
        (4, "metric", 1), (5, "metric", 1), (6, "metric", 1), (7, "state", 1),
    ]  # fmt: skip
    assert [event["data"] for event in page["items"][:3]] == steps
    found = parse(front.http.get(f"/v1/jobs/{job_id}/events", headers=STREAM).text)
    assert [event["event"] for event in found] == [
        "state",
        "state",
        "log",
        "metric",
        "metric",
        "metric",
        "state",
        "end",
    ]
    assert [event["data"]["data"] for event in found if event["event"] == "metric"] == steps
    curves = latest_metrics(EventOut.model_validate(event) for event in page["items"])
    assert curves == {"qat": {step: {"train_loss": 1.0 / (step + 1), "metric": None} for step in range(3)}}


@pytest.mark.parametrize("how", ["header", "parameter", "both"])
def test_a_stream_goes_on_after_the_last_event_seen(front: Front, how: str) -> None:
    job_id = finished_job(front)
    headers, query = dict(STREAM), ""
    if how != "parameter":
        headers["Last-Event-ID"] = "3"
    if how != "header":
        query = "?after=3" if how == "parameter" else "?after=1"
    answer = front.http.get(f"/v1/jobs/{job_id}/events{query}", headers=headers)
    assert [event.get("id") for event in parse(answer.text)] == ["4", None]


@pytest.mark.parametrize("after", ["-1", "x", "99999999999999999999"])
def test_bad_places(sqlite_front: Front, after: str) -> None:
    path = "/v1/jobs/job_x/events"
    problem(sqlite_front.http.get(f"{path}?after={after}", headers=STREAM), 422, "invalid-request")
    problem(sqlite_front.http.get(path, headers={**STREAM, "Last-Event-ID": after}), 422, "invalid-request")


def test_a_live_stream_follows_the_job(front: Front) -> None:
    settings = front.desk.settings.model_copy(update={"ping_seconds": 0.2})
    job_id = front.new_job()
    server = ApiProcess(settings)
    url = f"{server.url}/v1/jobs/{job_id}/events"

    def work() -> None:
        front.claim(job_id)
        for number in range(3):
            log(front, job_id, str(number))
        with front.desk.database.write() as session:
            assert transitions.fail(session, job_id, 1, problem=EngineError("x").problem())

    worker = threading.Thread(target=work)
    text = ""
    try:
        with httpx.stream("GET", url, headers=STREAM, timeout=PATIENCE_SECONDS) as answer:
            for part in answer.iter_text():
                text += part
                if ": ping" in text and worker.ident is None:
                    worker.start()
    finally:
        server.close()
    worker.join()
    assert [event["event"] for event in parse(text)] == ["state", "state", "log", "log", "log", "state", "end"]


def test_a_shutdown_does_not_wait_for_streams(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    server = ApiProcess(sqlite_front.desk.settings)
    url = f"{server.url}/v1/jobs/{job_id}/events"
    try:
        with httpx.stream("GET", url, headers=STREAM, timeout=PATIENCE_SECONDS) as answer:
            assert next(answer.iter_text()).startswith("retry")
            server.stop()
    finally:
        server.close()
