"""Events for webhooks are written with what they tell of, or not at all. On both databases."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import event, update

from service.contracts.errors import NonFiniteDataError, NotOnnxError
from service.contracts.webhooks import patterns
from service.db import Database
from service.jobs import transitions
from service.jobs.outcome import QuantizeOutcome
from service.tables import Job, WebhookEndpoint
from service.webhooks import outbox, repository
from service.webhooks.outbox import matches
from service.webhooks.repository import hold_endpoint
from tests.api.conftest import app, front
from tests.support.front import Front, fallen_back, make_report
from tests.support.webhooks import TENANT, add_endpoint, deliveries, endpoint

__all__ = ["app", "front"]
pytestmark = pytest.mark.both_databases
URL = "https://hooks.example/in"
AT = datetime(2027, 1, 15, 8, tzinfo=UTC)
KEPT = {"id": "job_1", "state": "x", "verdict": "pass", "fallback": "float"}


def told(database: Database, endpoint_id: str) -> list[dict[str, Any]]:
    return [json.loads(row.payload) for row in deliveries(database, endpoint_id=endpoint_id)]


def types(database: Database, endpoint_id: str) -> list[str]:
    return [row.type for row in deliveries(database, endpoint_id=endpoint_id)]


@pytest.fixture
def hook(front: Front) -> str:
    return add_endpoint(front.app.database, URL, ["job.*"], tenant="default")[0]


def test_every_state_of_a_job_is_told(front: Front, hook: str) -> None:
    database = front.app.database
    fell = front.new_job()
    front.finish(fell, QuantizeOutcome(fallen_back(make_report("pass"), "float"), ()))
    failed = front.new_job(labels={"build": "12"}, name="nightly")
    front.fail(failed, NotOnnxError("It is none."))
    canceled = front.new_job()
    assert front.http.post(f"/v1/jobs/{canceled}/cancel").is_success
    again = front.new_job()
    job = front.claim(again)
    with database.write() as session:
        transitions.requeue(session, again, job.attempt, delay_seconds=0, charged=True, reason="it fell")
    front.claim(again)
    found = told(database, hook)
    wanted = {fell: ["queued", "running", "succeeded"], failed: ["queued", "running", "failed"]}
    wanted |= {canceled: ["queued", "canceled"], again: ["queued", "running", "queued", "running"]}
    assert [(entry["type"], entry["data"]["id"]) for entry in found] == [
        (f"job.{state}", job_id) for job_id, states in wanted.items() for state in states
    ]
    data = {job_id: [entry["data"] for entry in found if entry["data"]["id"] == job_id] for job_id in wanted}
    outcomes = [(entry["verdict"], entry["fallback"]) for entry in data[fell]]
    assert outcomes == [(None, None), (None, None), ("pass", "float")]
    assert data[failed][-1]["error"] == {"code": "not-onnx", "detail": "It is none."}
    assert data[failed][-1]["labels"] == {"build": "12"}
    assert data[failed][0]["name"] == "nightly"
    assert [entry["attempt"] for entry in data[again]] == [0, 1, 1, 2]


def test_models_and_datasets_are_told_once_they_are_judged(front: Front) -> None:
    hook, _ = add_endpoint(front.app.database, URL, ["model.*", "dataset.*"], tenant="default")
    made = (front.ready_model(), front.rejected_model(), front.ready_dataset(), front.rejected_dataset())
    found = told(front.app.database, hook)
    names = ("model.ready", "model.rejected", "dataset.ready", "dataset.rejected")
    assert [(entry["type"], entry["data"]["id"]) for entry in found] == list(zip(names, made, strict=True))
    errors = [entry["data"]["error"] for entry in found]
    assert [error and error["code"] for error in errors] == [None, NotOnnxError.code, None, NonFiniteDataError.code]
    assert [entry["data"]["name"] for entry in found] == ["tiny", "tiny", "data", "data"]


def test_what_is_rolled_back_is_not_told(front: Front, hook: str) -> None:
    job_id = front.new_job()
    job = front.claim(job_id)
    before = types(front.app.database, hook)
    problem = NotOnnxError("It is none.").problem()
    with pytest.raises(ZeroDivisionError), front.app.database.write() as session:
        assert transitions.fail(session, job_id, job.attempt, problem=problem)
        raise ZeroDivisionError
    with front.app.database.write() as session:
        assert not transitions.fail(session, job_id, job.attempt + 1, problem=problem)  # fenced off
    assert types(front.app.database, hook) == before
    with front.app.database.read() as session:
        assert session.get_one(Job, job_id).state == "running"


def emit(database: Database, event_type: str, data: Any, tenant: str = TENANT) -> int:
    with database.write() as session:
        return outbox.emit(session, tenant, event_type, data)


def test_only_who_has_subscribed_is_told(database: Database) -> None:
    everything, _ = add_endpoint(database, URL)
    jobs, _ = add_endpoint(database, URL, ["job.*"])
    one, _ = add_endpoint(database, URL, ["job.succeeded", "model.ready"])
    disabled, _ = add_endpoint(database, URL)
    other, _ = add_endpoint(database, URL, tenant="other")
    with database.write() as session:
        repository.disable(session, disabled, "client")
    counts = [emit(database, name, {"id": 1}) for name in ("job.failed", "job.succeeded", "model.ready", "alias.moved")]
    assert counts == [2, 3, 2, 1]
    assert types(database, everything) == ["job.failed", "job.succeeded", "model.ready", "alias.moved"]
    assert types(database, jobs) == ["job.failed", "job.succeeded"]
    assert types(database, one) == ["job.succeeded", "model.ready"]
    assert types(database, disabled) == types(database, other) == []
    events = {row.event_id for row in deliveries(database, type="job.succeeded")}
    assert len(events) == 1, "one event has one id, whoever is told"


def test_a_tenant_without_endpoints_costs_one_statement(database: Database) -> None:
    add_endpoint(database, URL, tenant="other")
    with pytest.raises(ValueError, match=r"nobody\.came"):
        emit(database, "nobody.came", {})
    statements: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *found: statements.append(found[2]))
    with database.write() as session:
        assert outbox.emit(session, TENANT, "job.queued", lambda: pytest.fail("nobody is told")) == 0
    assert [found.split()[0] for found in statements if not found.startswith("BEGIN")] == ["SELECT"]


def test_patterns() -> None:
    assert {"*", "job.*", "model.*", "dataset.*", "alias.*", "schedule.*", "job.succeeded"} <= set(patterns())
    for name in ("job.succeeded", "alias.yet_to_come"):
        noun = name.partition(".")[0]
        assert all(matches(name, [pattern]) for pattern in ("*", f"{noun}.*", name))
        assert not matches(name, [f"{noun}x.*", f"{name}x", "*.*"])


def test_a_payload_is_thin_stable_and_bounded() -> None:
    whole = outbox.payload_of("job.queued", AT, {"id": "job_1", "labels": {"größe": "1"}})
    assert whole == (
        '{"type":"job.queued","timestamp":"2027-01-15T08:00:00.000Z","schema_version":1,'
        '"data":{"id":"job_1","labels":{"größe":"1"}}}'
    )
    labels = {f"{number:063d}": "\U0001f600" * 255 for number in range(32)}
    cut = outbox.payload_of("job.succeeded", AT, {**KEPT, "labels": labels})
    assert len(cut.encode()) <= outbox.MOST_BYTES
    assert json.loads(cut)["data"] == {**KEPT, "truncated": True}


def test_no_more_waits_than_may(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_WAITING", 3)
    full, _ = add_endpoint(database, URL)
    assert [emit(database, "job.queued", {"id": number}) for number in range(5)] == [1, 1, 1, 0, 0]
    other, _ = add_endpoint(database, URL)
    assert emit(database, "job.queued", {"id": 5}) == 1
    assert {entry["data"]["id"] for entry in told(database, full)} == {0, 1, 2}
    assert (endpoint(database, full).dropped_events, endpoint(database, other).dropped_events) == (3, 0)


def test_what_is_held_is_due_once_its_endpoint_is_enabled(database: Database) -> None:
    hook, _ = add_endpoint(database, URL)
    emit(database, "job.queued", {})
    with database.write() as session:
        repository.disable(session, hook, "client")
    assert [row.next_attempt_at for row in deliveries(database)] == [None]
    assert emit(database, "job.queued", {}) == 0
    with database.write() as session:
        repository.enable(session, hook)
    assert [row.next_attempt_at is not None for row in deliveries(database)] == [True]


@pytest.mark.postgres
def test_an_endpoint_that_is_being_deleted_fails_no_transition(postgres_url: str) -> None:
    """The transaction that tells of something holds the endpoint until its delivery is there; who deletes it waits."""
    database = Database(postgres_url)
    hook, _ = add_endpoint(database, URL)
    deleting = Database(postgres_url, lock_seconds=0.2)
    with database.write() as session:
        assert [found.id for found in repository.enabled(session, TENANT)] == [hook]
        with pytest.raises(Exception, match="lock"), deleting.write() as other:
            repository.get(other, TENANT, hook, locked=True)
        assert outbox.emit(session, TENANT, "job.queued", {}) == 1
    with deleting.write() as other:
        repository.get(other, TENANT, hook, locked=True)
        repository.remove(other, hook)
    assert deliveries(database) == []
    database.close()
    deleting.close()


@pytest.mark.postgres
def test_telling_waits_for_nobody_who_delivers(postgres_url: str) -> None:
    """A reconciler that holds the endpoint's row keeps no transition waiting."""
    delivering, telling = Database(postgres_url), Database(postgres_url, lock_seconds=0.2)
    hook, _ = add_endpoint(delivering, URL)
    with delivering.write() as session:
        assert hold_endpoint(session, hook) is not None
        session.execute(update(WebhookEndpoint).where(WebhookEndpoint.id == hook).values(failing_since=1.0))
        assert emit(telling, "job.queued", {}) == 1
    delivering.close()
    telling.close()
