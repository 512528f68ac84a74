"""One key, one job, the same answer. On both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select, text, update

from service.tables import IdempotencyKey, Job
from tests.db.test_concurrency import at_once
from tests.support.front import Front, npz_bytes, problem

KEY = {"Idempotency-Key": "nightly-2026-11-20"}


def quantize_jobs(front: Front) -> int:
    with front.desk.database.read() as session:
        return session.scalar(select(func.count()).where(Job.kind == "quantize"))


def test_the_first_answer_comes_back(front: Front) -> None:
    body = front.job_body(name="a", labels={"a": "1", "b": "2"})
    first = front.http.post("/v1/jobs", json=body, headers=KEY)
    front.claim(first.json()["id"])
    reordered = {**dict(reversed(body.items())), "labels": {"a": "1", "b": "2"}, "config": {}}
    second = front.http.post("/v1/jobs", json=reordered, headers=KEY)
    assert first.status_code == second.status_code == 202
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert second.json() == first.json()
    assert second.headers["location"] == first.headers["location"]
    assert quantize_jobs(front) == 1


def test_another_body_is_refused(front: Front) -> None:
    body = front.job_body()
    front.http.post("/v1/jobs", json=body, headers=KEY)
    problem(front.http.post("/v1/jobs", json={**body, "name": "b"}, headers=KEY), 422, "idempotency-key-reuse")
    assert quantize_jobs(front) == 1


def test_without_or_with_another_key_there_is_another_job(front: Front) -> None:
    body = front.job_body()
    for headers in ({}, {}, KEY, {"Idempotency-Key": "other"}):
        assert front.http.post("/v1/jobs", json=body, headers=headers).status_code == 202
    assert quantize_jobs(front) == 4


def test_a_refused_request_leaves_the_key_free(front: Front) -> None:
    body = front.job_body()
    bad = {**body, "model_id": "mdl_00000000000000000000000000"}
    problem(front.http.post("/v1/jobs", json=bad, headers=KEY), 404, "model-not-found")
    assert front.http.post("/v1/jobs", json=body, headers=KEY).status_code == 202


def test_an_old_key_is_forgotten(front: Front) -> None:
    body = front.job_body()
    front.http.post("/v1/jobs", json=body, headers=KEY)
    with front.desk.database.write() as session:
        session.execute(update(IdempotencyKey).values(created_at=1.0))
    again = front.http.post("/v1/jobs", json=body, headers=KEY)
    assert "idempotent-replayed" not in again.headers
    assert quantize_jobs(front) == 2


def noun_request(front: Front, noun: str) -> tuple[str, dict[str, object]]:
    """Path and body that make a model or a dataset."""
    if noun == "models":
        return "/v1/models", {"name": "m", "files": [{"upload_id": front.upload(), "path": "net.onnx"}]}
    return "/v1/datasets", {"name": "d", "upload_id": front.upload(npz_bytes(), "data.npz")}


@pytest.mark.parametrize("noun", ["models", "datasets"])
def test_nouns_are_made_once_too(front: Front, noun: str) -> None:
    path, body = noun_request(front, noun)
    first = front.http.post(path, json=body, headers=KEY)
    again = front.http.post(path, json=dict(reversed(body.items())), headers=KEY)
    assert first.status_code == again.status_code == 201
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.json() == first.json() == front.http.get(first.headers["location"]).json()
    assert {again.headers[name] == first.headers[name] for name in ("location", "etag", "retry-after")} == {True}
    assert len(front.http.get(path).json()["items"]) == 1
    with front.desk.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1, "and validated once"
    problem(front.http.post(path, json={**body, "name": "other"}, headers=KEY), 422, "idempotency-key-reuse")
    front.http.post(path, json=body, headers={"Idempotency-Key": "other"})
    front.http.post(path, json=body)
    assert len(front.http.get(path).json()["items"]) == 3


@pytest.mark.parametrize("noun", ["models", "datasets"])
def test_a_refused_noun_leaves_the_key_free(sqlite_front: Front, noun: str) -> None:
    path, body = noun_request(sqlite_front, noun)
    missing = "upl_00000000000000000000000000"
    bad = {**body, "files": [{"upload_id": missing, "path": "net.onnx"}]} if noun == "models" else {**body}
    if noun == "datasets":
        bad["upload_id"] = missing
    problem(sqlite_front.http.post(path, json=bad, headers=KEY), 404, "upload-not-found")
    assert sqlite_front.http.post(path, json=body, headers=KEY).status_code == 201


def test_a_key_means_something_on_its_own_route_only(sqlite_front: Front) -> None:
    for noun in ("models", "datasets"):
        path, body = noun_request(sqlite_front, noun)
        assert sqlite_front.http.post(path, json=body, headers=KEY).status_code == 201
    assert sqlite_front.http.post("/v1/jobs", json=sqlite_front.job_body(), headers=KEY).status_code == 202


def test_keys_have_a_form(sqlite_front: Front) -> None:
    for key in ("a" * 256, "a b", ""):
        answer = sqlite_front.http.post("/v1/jobs", json={}, headers={"Idempotency-Key": key})
        problem(answer, 422, "invalid-request")


def test_twins_make_one_job(front: Front) -> None:
    body = front.job_body()

    def send(_: int) -> tuple[int, str]:
        answer = front.http.post("/v1/jobs", json=body, headers=KEY)
        if answer.status_code == 409:
            assert problem(answer, 409, "idempotency-in-flight")
            assert answer.headers["retry-after"] == "1"
            return 409, ""
        return answer.status_code, answer.json()["id"]

    answers = at_once(8, send)
    assert {status for status, _ in answers} <= {202, 409}
    assert len({job_id for status, job_id in answers if status == 202}) == 1
    assert quantize_jobs(front) == 1


def test_a_twin_in_flight_is_told_to_come_back(front: Front) -> None:
    if front.desk.database.engine.dialect.name != "postgresql":
        return  # on SQLite the second write transaction waits for the first, and then replays
    body = front.job_body()
    import hashlib

    digest = hashlib.sha256("\0".join(("default", "POST /v1/jobs", KEY["Idempotency-Key"])).encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True)
    with front.desk.database.write() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
        problem(front.http.post("/v1/jobs", json=body, headers=KEY), 409, "idempotency-in-flight")
    assert front.http.post("/v1/jobs", json=body, headers=KEY).status_code == 202
