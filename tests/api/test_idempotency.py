"""One key, one deed, the same answer: on every route that takes a key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from service.contracts.errors import EngineError
from service.tables import Base, IdempotencyKey
from tests.db.test_concurrency import at_once
from tests.support.batches import fail, grid_body, job_of, submitted
from tests.support.front import Front, npz_bytes, problem
from tests.support.hand_overs import put
from tests.support.schedules import add_schedule

KEY = {"Idempotency-Key": "nightly-2026-11-20"}
Request = tuple[str, dict[str, Any] | None]


def model(front: Front) -> Request:
    return "/v1/models", {"name": "m", "files": [{"upload_id": front.upload(), "path": "net.onnx"}]}


def dataset(front: Front) -> Request:
    return "/v1/datasets", {"name": "d", "upload_id": front.upload(npz_bytes(), "data.npz")}


def job(front: Front) -> Request:
    return "/v1/jobs", front.job_body(name="a", labels={"a": "1", "b": "2"})


def evaluation(front: Front) -> Request:
    return "/v1/evaluations", {"model_id": front.ready_model(), "evaluation_dataset_id": front.ready_dataset()}


def batch(front: Front) -> Request:
    return "/v1/batches", grid_body(front)


def retried_batch(front: Front) -> Request:
    made = submitted(front, grid_body(front, models=1, presets=("int8",)))
    fail(front, job_of(made, 0))
    return f"/v1/batches/{made['id']}/retry-failed", None


def schedule(front: Front) -> Request:
    return "/v1/schedules", {"name": "nightly", "cron": "0 2 * * *", "template": front.job_body()}


def run(front: Front) -> Request:
    return f"/v1/schedules/{add_schedule(front, front.job_body())['id']}/run", None


def webhook(_: Front) -> Request:
    return "/v1/webhooks", {"url": "https://8.8.8.8/"}


def targets(front: Front) -> Request:
    return f"/v1/jobs/{front.new_job()}/hand-over", {"targets": [{**put(), "url": "https://8.8.8.8/"}]}


def repeated(front: Front, verb: str, body: dict[str, Any] | None) -> Request:
    job_id = front.new_job()
    front.fail(job_id, EngineError("It broke."))
    return f"/v1/jobs/{job_id}/{verb}", body


REQUESTS: dict[str, Callable[[Front], Request]] = {
    "model": model,
    "dataset": dataset,
    "job": job,
    "evaluation": evaluation,
    "batch": batch,
    "retried batch": retried_batch,
    "schedule": schedule,
    "run": run,
    "webhook": webhook,
    "hand-over": targets,
    "retry": lambda front: repeated(front, "retry", None),
    "clone": lambda front: repeated(front, "clone", {"name": "other"}),
}
# What a body that leaves it out means.
MEANT: dict[str, dict[str, Any]] = {"job": {"config": {}}, "batch": {"configs": [], "priority": 0}}
OTHERS: dict[str, dict[str, Any]] = {
    "webhook": {"description": "another"},
    "hand-over": {"targets": [{**put(), "url": "https://8.8.4.4/"}]},
    "evaluation": {"evaluation": {"latency_runs": 3}},
}
AGAIN = ("model", "dataset", "job", "evaluation", "batch", "webhook", "clone")


def rows(front: Front) -> dict[str, int]:
    """How many rows each table has."""
    with front.desk.database.read() as session:
        tables = Base.metadata.sorted_tables
        return {table.name: session.scalar(select(func.count()).select_from(table)) or 0 for table in tables}


@pytest.mark.both_databases
@pytest.mark.parametrize("what", REQUESTS)
def test_the_first_answer_comes_back_and_nothing_is_done_twice(front: Front, what: str) -> None:
    path, body = REQUESTS[what](front)
    first = front.http.post(path, json=body, headers=KEY)
    assert first.status_code in (201, 202), first.text
    assert "idempotent-replayed" not in first.headers
    then = rows(front)
    if what == "job":
        front.claim(first.json()["id"])
    meant = body and {**dict(reversed(body.items())), **MEANT.get(what, {})}
    again = front.http.post(path, json=meant, headers=KEY)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    for name in ("location", "etag", "retry-after", "cache-control"):
        assert again.headers.get(name) == first.headers.get(name)
    if body is not None:
        other = front.http.post(path, json={**body, **OTHERS.get(what, {"name": "yet another"})}, headers=KEY)
        told = problem(other, 422, "idempotency-key-reuse")
        assert [error["where"] for error in told["errors"]] == [{"header": "Idempotency-Key"}]
    now = rows(front)
    assert {name: now[name] - then[name] for name in now if now[name] != then[name]}.keys() <= {"job_events"}
    if what in AGAIN:
        others = [front.http.post(path, json=body, headers=headers) for headers in ({}, {"Idempotency-Key": "other"})]
        assert len({answer.json()["id"] for answer in (first, *others)}) == 3


@pytest.mark.parametrize(("what", "field"), [("model", "files"), ("dataset", "upload_id"), ("job", "model_id")])
def test_a_refused_request_leaves_the_key_free(front: Front, what: str, field: str) -> None:
    path, body = REQUESTS[what](front)
    assert body is not None
    missing: Any = {"files": [{"upload_id": f"upl_{'0' * 26}", "path": "net.onnx"}]}.get(field, f"upl_{'0' * 26}")
    assert front.http.post(path, json={**body, field: missing}, headers=KEY).status_code == 404
    assert front.http.post(path, json=body, headers=KEY).status_code in (201, 202)


def test_an_old_key_is_forgotten(front: Front) -> None:
    path, body = job(front)
    first = front.http.post(path, json=body, headers=KEY)
    with front.desk.database.write() as session:
        session.execute(update(IdempotencyKey).values(created_at=1.0))
    again = front.http.post(path, json=body, headers=KEY)
    assert "idempotent-replayed" not in again.headers
    assert again.json()["id"] != first.json()["id"]


def test_a_key_means_something_on_its_own_route_only(sqlite_front: Front) -> None:
    for what in ("model", "dataset", "job"):
        path, body = REQUESTS[what](sqlite_front)
        answer = sqlite_front.http.post(path, json=body, headers=KEY)
        assert answer.status_code in (201, 202)
        assert "idempotent-replayed" not in answer.headers


def test_keys_have_a_form(sqlite_front: Front) -> None:
    path, body = job(sqlite_front)
    for key in ("a" * 256, "a b", ""):
        answer = sqlite_front.http.post(path, json=body, headers={"Idempotency-Key": key})
        named = [error.get("where") for error in problem(answer, 422, "invalid-request")["errors"]]
        assert {"header": "Idempotency-Key"} in named


@pytest.mark.both_databases
def test_twins_make_one_job(front: Front) -> None:
    path, body = job(front)
    before = rows(front)["jobs"]

    def send(_: int) -> tuple[int, str]:
        answer = front.http.post(path, json=body, headers=KEY)
        if answer.status_code == 409:
            assert problem(answer, 409, "idempotency-in-flight")
            assert answer.headers["retry-after"] == "1"
            return 409, ""
        return answer.status_code, answer.json()["id"]

    answers = at_once(8, send)
    assert {status for status, _ in answers} <= {202, 409}
    assert len({job_id for status, job_id in answers if status == 202}) == 1
    assert rows(front)["jobs"] == before + 1


@pytest.mark.both_databases
@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_twin_in_flight_is_told_to_come_back(front: Front) -> None:
    """On SQLite the second write transaction waits for the first, and then replays."""
    path, body = job(front)
    digest = hashlib.sha256("\0".join(("default", f"POST {path}", KEY["Idempotency-Key"])).encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True)
    with front.desk.database.write() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
        problem(front.http.post(path, json=body, headers=KEY), 409, "idempotency-in-flight")
    assert front.http.post(path, json=body, headers=KEY).status_code == 202
