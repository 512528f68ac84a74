"""Quotas: what a tenant may have is counted without a race, told in the answer, and set by those who may."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import select, update
from sqlalchemy.orm import Session
from starlette.requests import ClientDisconnect

from service.contracts.errors import EngineError
from service.contracts.quota import Quota
from service.db import Database, db_now
from service.dispatch.repository import next_due
from service.jobs import transitions
from service.principal import DEFAULT_TENANT
from service.quotas import rates, repository, service
from service.quotas.schemas import LargerThanQuotaError, QuotaError
from service.settings import Settings
from service.tables import DeletedJob, Job
from service.uploads.service import Incoming, receive
from tests.api.conftest import front_of
from tests.db.test_transitions import add_dataset, add_model
from tests.security.conftest import BY, bearer, make_key
from tests.support.front import Front, problem

AT_ONCE, ALLOWED = 60, 10


def limit(database: Database, tenant: str = DEFAULT_TENANT, **limits: float | None) -> None:
    with database.write() as session:
        service.set_quota(session, BY, tenant, Quota.model_validate(limits))


def refused(response: Any, name: str) -> None:
    told = problem(response, 429, "quota-exceeded")
    assert told["where"]["quota"] == name
    assert int(response.headers["retry-after"]) >= 1


def add_job(session: Session, **values: Any) -> Job:
    return transitions.submit(
        session, transitions.NewJob(**{"tenant_id": DEFAULT_TENANT, "kind": "quantize", "config": {}, **values})
    )


@pytest.mark.both_databases
def test_many_at_once_take_no_more_than_there_is(database: Database, settings: Settings) -> None:
    limit(database, jobs_queued=ALLOWED)
    with database.write() as session:
        model_id, dataset_id = add_model(session), add_dataset(session)

    def submit(_: int) -> bool:
        try:
            with database.write() as session:
                service.admit_jobs(session, settings, DEFAULT_TENANT)
                add_job(session, model_id=model_id, calibration_dataset_id=dataset_id)
        except QuotaError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(submit, range(AT_ONCE))) == ALLOWED
    with database.read() as session:
        assert repository.queued(session, DEFAULT_TENANT) == ALLOWED


@pytest.mark.both_databases
def test_jobs_and_their_time_are_limited_and_counted_anew(front: Front) -> None:
    body, database = front.job_body(), front.app.database

    def submit() -> Any:
        return front.http.post("/v1/jobs", json=body)

    limit(database, "acme", jobs_queued=0)
    limit(database, jobs_queued=1)
    queued = submit().json()["id"]
    refused(submit(), "jobs_queued")
    front.claim(queued)
    assert submit().status_code == 202, "one has started"
    limit(database, jobs_per_day=2)
    answer = submit()
    refused(answer, "jobs_per_day")
    assert 86_000 < int(answer.headers["retry-after"]) <= 86_400
    with database.write() as session:
        session.execute(update(Job).where(Job.id == queued).values(created_at=db_now() - 86_401))
    last = submit()
    assert last.status_code == 202, "one is a day old"
    for deed in ("/v1/jobs/{}/cancel", "/v1/jobs/{}"):
        way = "DELETE" if deed.endswith("}") else "POST"
        assert front.http.request(way, deed.format(last.json()["id"])).is_success
    answer = submit()
    refused(answer, "jobs_per_day")
    assert 86_000 < int(answer.headers["retry-after"]) <= 86_400
    with database.write() as session:
        session.execute(update(DeletedJob).values(created_at=db_now() - 86_401))
    other = submit().json()["id"]
    front.fail(other, EngineError("It broke."))
    assert front.http.delete(f"/v1/jobs/{other}").is_success
    with database.read() as session:
        assert session.scalars(select(DeletedJob.job_id)).all() == [other], "older ones are forgotten"
    limit(database, jobs_per_day=None)
    limit(database, cpu_seconds_per_day=10)
    for seconds in (6.0, 5.0):
        assert submit().status_code == 202
        with database.write() as session:
            repository.add_cpu_seconds(session, DEFAULT_TENANT, seconds)
            repository.add_cpu_seconds(session, "other", 5.0)
    refused(submit(), "cpu_seconds_per_day")
    assert front.http.get("/v1/quota").json()["usage"]["cpu_seconds_per_day"] == 11.0


def test_bytes_are_limited_as_they_are_declared_and_as_they_come(front: Front) -> None:
    stored = []
    for _ in range(2):
        front.ready_model()
        stored.append(front.http.get("/v1/quota").json()["usage"]["stored_bytes"])
    assert stored[0] == stored[1] > 0, "equal files count once"
    limit(front.app.database, stored_bytes=stored[0] + 100, upload_bytes=80)
    sent = front.http.post("/v1/uploads", json={"filename": "a", "size_bytes": 10**7})
    told = problem(sent, 413, "larger-than-quota")
    assert told["detail"] == "The quota upload_bytes is 80 bytes, but this file has 10000000 bytes."
    assert front.http.post("/v1/uploads", json={"filename": "a", "size_bytes": 60}).status_code == 201
    refused(front.http.post("/v1/uploads", json={"filename": "b", "size_bytes": 41}), "stored_bytes")
    opened = front.http.post("/v1/uploads", json={"filename": "c"}).json()["id"]
    for body in (b"x" * 41, [b"x" * 41]):
        refused(front.http.put(f"/v1/uploads/{opened}/content", content=body), "stored_bytes")
    problem(front.http.put(f"/v1/uploads/{opened}/content", content=[b"x" * 81]), 413, "larger-than-quota")
    assert front.http.get("/v1/quota").json()["usage"]["stored_bytes"] == stored[0] + 60
    assert front.http.put(f"/v1/uploads/{opened}/content", content=b"x" * 40).status_code == 200
    assert front.http.get("/v1/quota").json()["usage"]["stored_bytes"] == stored[0] + 100


@pytest.mark.both_databases
def test_bytes_of_no_declared_size_end_at_the_quota_and_leave_none(front: Front) -> None:
    app, came = front.app, [0]
    limit(app.database, stored_bytes=100)

    async def blocks(at_most: int) -> AsyncIterator[bytes]:
        for came[0] in range(1, at_most + 1):
            yield bytes([came[0]]) * 30
        raise ClientDisconnect

    upload_id = front.http.post("/v1/uploads", json={"filename": "a"}).json()["id"]
    ends_so = ((9, 0, 4, LargerThanQuotaError), (9, 50, 2, QuotaError), (2, 0, 2, ClientDisconnect))
    for sends, others, ends, error in ends_so:
        meter, body = app.meter_of(DEFAULT_TENANT), Incoming(blocks(sends), None, None, None)
        meter.arriving_bytes = others
        with pytest.raises(error):
            asyncio.run(receive(app, BY, upload_id, body))
        assert (came[0], meter.arriving_bytes) == (ends, others), "no more is read than fits in"
        left = [path for path in app.store.root.rglob("*") if path.is_file() and path.stat().st_size]
        assert left == [], "nobody can go on from there"
    assert front.http.put(f"/v1/uploads/{upload_id}/content", content=b"x" * 100).status_code == 200


@pytest.mark.both_databases
def test_a_tenant_at_its_limit_of_running_jobs_hides_nobody(database: Database, settings: Settings) -> None:
    limit(database, jobs_running=1)
    with database.write() as session:
        ids = {
            tenant: [
                add_job(session, tenant_id=tenant, model_id=add_model(session, tenant), priority=priority).id
                for _ in range(2)
            ]
            for tenant, priority in ((DEFAULT_TENANT, 5), ("other", 0))
        }

    def take() -> str | None:
        with database.write() as session:
            full = service.running_limits(session, settings.quota).full()
            job_id = next_due(session, {"cpu": False}, without=full)
            if job_id is None:
                return None
            job = transitions.claim(session, job_id, worker_id="w", lease_seconds=60)
            return None if job is None else job.id

    assert take() in ids[DEFAULT_TENANT]
    with database.read() as session:
        assert not service.may_start(session, settings, DEFAULT_TENANT)
        assert service.may_start(session, settings, "other")
    assert {take(), take()} == set(ids["other"])
    assert take() is None


@pytest.mark.both_databases
def test_claims_at_once_take_no_more_than_may_run(database: Database, settings: Settings) -> None:
    limit(database, jobs_running=3)
    with database.write() as session:
        model_id = add_model(session)
        ids = [add_job(session, model_id=model_id).id for _ in range(24)]

    def claim(job_id: str) -> bool:
        with database.write() as session:
            if not service.may_start(session, settings, DEFAULT_TENANT):
                return False
            return transitions.claim(session, job_id, worker_id="w", lease_seconds=60) is not None

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(claim, ids)) == 3


def test_the_installations_limits_are_those_of_tenants_without_any(app: FastAPI, settings: Settings) -> None:
    default = settings.model_copy(update={"quota": Quota(jobs_queued=1, stored_bytes=10**9)})
    with front_of(app, default) as front:
        body = front.job_body()
        assert front.http.post("/v1/jobs", json=body).status_code == 202
        refused(front.http.post("/v1/jobs", json=body), "jobs_queued")
        limit(front.app.database, jobs_queued=None)
        assert front.http.post("/v1/jobs", json=body).status_code == 202
        told = front.http.get("/v1/quota").json()
        assert (told["quota"]["jobs_queued"], told["quota"]["stored_bytes"]) == (None, 10**9)
        assert told["own"] == {"jobs_queued": None}


@pytest.fixture
def known_for_no_time(monkeypatch) -> None:
    monkeypatch.setattr(rates, "KNOWN_SECONDS", 0.0)


@pytest.mark.usefixtures("known_for_no_time")
def test_too_many_requests_are_refused_and_told_beforehand(front: Front, monkeypatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert "ratelimit" not in front.http.get("/v1/jobs").headers
    limit(front.app.database, requests_per_second=0.5)
    left = []
    for _ in range(5):
        answer = front.http.get("/v1/jobs")
        assert answer.status_code == 200
        left.append(answer.headers["ratelimit"])
        assert answer.headers["ratelimit-policy"] == '"requests";q=5;w=10'
    assert left[0] == '"requests";r=4;t=2'
    assert left[-1] == '"requests";r=0;t=10'
    answer = front.http.get("/v1/jobs")
    problem(answer, 429, "rate-limited")
    assert answer.headers["retry-after"] == "2"
    assert front.http.get("/healthz").status_code == 200
    now[0] += 2.0
    assert front.http.get("/v1/jobs").status_code == 200


@pytest.mark.usefixtures("known_for_no_time")
def test_open_streams_are_limited(front: Front) -> None:
    job_id = front.succeeded_job()
    limit(front.app.database, open_streams=1)
    stream = {"Accept": "text/event-stream"}
    assert front.http.get(f"/v1/jobs/{job_id}/events", headers=stream).status_code == 200
    meter = front.app.meter_of(DEFAULT_TENANT)
    assert meter.streams == 0, "it has ended with the job"
    with meter.stream():
        refused(front.http.get(f"/v1/jobs/{job_id}/events", headers=stream), "open_streams")
        page = {"Accept": "application/json"}
        assert front.http.get(f"/v1/jobs/{job_id}/events", headers=page).status_code == 200
    assert front.http.get(f"/v1/jobs/{job_id}/events", headers=stream).status_code == 200


def test_uploads_are_slowed_down_to_their_pace(monkeypatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    meter = rates.RateMeter(Quota(upload_bytes_per_second=1024))
    assert meter.upload_pause_seconds(10 * 1024) == 0.0
    assert meter.upload_pause_seconds(2048) == pytest.approx(2.0)
    now[0] += 1.0
    assert meter.upload_pause_seconds(0) == pytest.approx(1.0)
    assert rates.RateMeter(Quota()).upload_pause_seconds(10**9) == 0.0


def test_operators_see_and_set_the_limits_of_all(front: Front) -> None:
    admin, other = (bearer(make_key(front, scope, "acme")[1]) for scope in ("operator", "admin"))
    place = "/v1/tenants/beta/quota"
    problem(front.http.put(place, json={"jobs_queued": 5}, headers=other), 403, "scope-missing")
    answer = front.http.put(place, json={"jobs_queued": 5}, headers=admin)
    assert (answer.status_code, answer.json()["own"]) == (200, {"jobs_queued": 5})
    assert front.http.get("/v1/tenants/beta", headers=admin).json()["quota"]["jobs_queued"] == 5
    problem(front.http.get("/v1/tenants/beta", headers=other), 403, "scope-missing")
    assert front.http.get("/v1/quota", headers=other).json()["tenant"] == "acme"
    problem(front.http.put(place, json={"jobs_queued": -1}, headers=admin), 422, "invalid-request")
    problem(front.http.put(place, json={"jobs": 1}, headers=admin), 422, "invalid-request")
    problem(front.http.put("/v1/tenants/a.b/quota", json={}, headers=admin), 422, "invalid-request")
