"""Schedules over HTTP: made, changed, paused, run by request; judged, promoted, told. On both databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select, update

from service.contracts.errors import NotOnnxError
from service.deps import AppState
from service.jobs import repository as jobs
from service.names.aliases import service as aliases
from service.schedules import service
from service.settings import Settings
from service.tables import AliasMove, ReportRow, WebhookDelivery
from tests.support.front import Front, pointers, problem, taken
from tests.support.schedules import (
    add_schedule,
    fire,
    make_due,
    reconciling_app,
    run_by_request,
    runs,
    schedule,
    settle,
    succeed,
)
from tests.support.webhooks import add_endpoint, deliveries

ANY = {"If-Match": "*"}
DROP = {"kind": "max_drop", "metric": "top1", "max_drop": 0.5}


@pytest.fixture
def template(front: Front) -> dict[str, Any]:
    return front.job_body()


def shown(front: Front, schedule_id: str) -> dict[str, Any]:
    found: dict[str, Any] = front.http.get(f"/v1/schedules/{schedule_id}").json()
    return found


@pytest.mark.both_databases
def test_a_schedule_is_made_and_shown(front: Front, template: dict[str, Any]) -> None:
    body = {"name": "nightly", "cron": " 30  2 * * * ", "timezone": "Europe/Berlin", "template": template}
    answer = front.http.post("/v1/schedules", json={**body, "jitter_seconds": 1800})
    made = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/schedules/{made['id']}" == made["links"]["self"]
    plain = (made["cron"], made["overlap"], made["misfire"], made["gate"]["clauses"])
    assert plain == ("30 2 * * *", "skip", "run_once", [])
    due, fires = (datetime.fromisoformat(made[name]) for name in ("next_due_at", "fires_at"))
    assert timedelta(0) < due - datetime.now(UTC) <= timedelta(hours=25)
    assert due.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M") == "02:30"
    assert timedelta(0) <= fires - due < timedelta(seconds=1800)
    assert schedule(front.app.database, made["id"]).fires_at == fires
    assert fire(front.app) == 0, "jitter is waited for"
    assert made["template"]["model_id"] == template["model_id"]
    assert made["template"]["config"]["seed"] == 0, "the config is resolved"
    again = front.http.get(made["links"]["self"])
    assert again.json() == made
    assert front.http.get(made["links"]["self"], headers={"If-None-Match": again.headers["etag"]}).status_code == 304
    (listed,) = front.http.get("/v1/schedules").json()["items"]
    assert listed == {name: value for name, value in made.items() if name not in ("template", "warnings")}
    assert front.http.get(made["links"]["runs"]).json()["items"] == []


def test_what_is_refused_says_where_and_makes_no_schedule(
    front: Front, template: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"name": "n", "cron": "0 2 * * *", "template": {"model_id": "m@latest"}}
    clauses = [{**DROP, "max_drop": -1}]
    for name, value, pointer in (
        ("cron", "61 * * * *", "/cron"),
        ("cron", "0 0 30 2 *", "/cron"),
        ("timezone", "Mars/Olympus", "/timezone"),
        ("jitter_seconds", -1, "/jitter_seconds"),
        ("promote_to", "latest", "/promote_to"),
        ("gate", {"clauses": clauses}, "/gate/clauses/0/max_drop"),
        ("other", 1, "/other"),
    ):
        found = problem(front.http.post("/v1/schedules", json={**body, name: value}), 422, "invalid-request")
        assert any(place.startswith(pointer) for place in pointers(found))
    body["template"] = {**template, "model_id": "nothing@prod"}
    problem(front.http.post("/v1/schedules", json=body), 404, "model-not-found")
    assert front.http.get("/v1/schedules").json()["items"] == []
    monkeypatch.setattr(service, "MOST_SCHEDULES", 1)
    add_schedule(front, template)
    problem(front.http.post("/v1/schedules", json={**body, "template": template}), 409, "too-many-schedules")


@pytest.mark.both_databases
def test_a_change_needs_the_version_that_was_seen(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, promote_to="prod", timezone="Europe/Berlin")
    path = made["links"]["self"]
    seen = front.http.get(path).headers["etag"]
    problem(front.http.patch(path, json={"name": "x"}), 428, "precondition-required")
    changed = taken(front.http.patch(path, json={"cron": "15 4 1 1 *"}, headers={"If-Match": seen}))
    assert changed["next_due_at"].endswith("-01-01T03:15:00Z"), "planned anew, on the zone that it had"
    assert (changed["promote_to"], changed["timezone"]) == ("prod", "Europe/Berlin")
    problem(front.http.patch(path, json={"name": "y"}, headers={"If-Match": seen}), 412, "precondition-failed")
    assert front.http.patch(path, json={"promote_to": None}, headers=ANY).json()["promote_to"] is None
    assert front.http.patch(path, json={"cron": None}, headers=ANY).json()["cron"] == "15 4 1 1 *"
    problem(front.http.delete(path, headers={"If-Match": seen}), 412, "precondition-failed")
    run_by_request(front, made["id"])
    assert front.http.delete(path).status_code == 204
    problem(front.http.get(path), 404, "schedule-not-found")
    assert runs(front.app.database) == []
    assert front.http.get("/v1/jobs").json()["items"], "its jobs stay"


def test_pause_and_resume_may_be_repeated_and_a_paused_one_runs_by_request(
    front: Front, template: dict[str, Any]
) -> None:
    made = add_schedule(front, template, paused=True)
    path = made["links"]["self"]
    assert made["next_due_at"] is None
    assert made["paused_at"] is not None
    assert front.http.post(f"{path}/pause").json()["row_version"] == made["row_version"]
    assert run_by_request(front, made["id"])["trigger"] == "request"
    assert front.http.patch(path, json={"cron": "0 5 * * *"}, headers=ANY).json()["next_due_at"] is None
    resumed = front.http.post(f"{path}/resume").json()
    assert resumed["next_due_at"].endswith("05:00:00Z")
    assert front.http.post(f"{path}/resume").json() == resumed


@pytest.mark.both_databases
def test_runs_are_shown_and_listed_by_state(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template)
    first = run_by_request(front, made["id"])
    assert front.http.get(f"/v1/schedules/{made['id']}/runs/{first['id']}").json() == first
    problem(front.http.get(f"/v1/schedules/{made['id']}/runs/run_0"), 404, "run-not-found")
    assert front.http.get(first["links"]["job"]).json()["scheduled"]["run_id"] == first["id"]
    make_due(front.app.database, made["id"])
    fire(front.app)
    path = made["links"]["runs"]
    assert [run["state"] for run in front.http.get(path).json()["items"]] == ["skipped", "running"]
    assert [run["id"] for run in front.http.get(path, params={"state": "running"}).json()["items"]] == [first["id"]]
    page = front.http.get(path, params={"limit": 1}).json()
    assert page["has_more"]
    rest = front.http.get(path, params={"limit": 1, "cursor": page["next_cursor"]}).json()
    assert [run["id"] for run in rest["items"]] == [first["id"]]


def judged(front: Front, made: dict[str, Any], **figures: Any) -> dict[str, Any]:
    """A run by request whose job comes to these figures."""
    run = run_by_request(front, made["id"])
    succeed(front, run["job_id"], **figures)
    assert settle(front.app) == 1
    assert settle(front.app) == 0
    found: dict[str, Any] = front.http.get(f"/v1/schedules/{made['id']}/runs/{run['id']}").json()
    return found


def alias(front: Front, template: dict[str, Any], word: str = "prod") -> dict[str, Any] | None:
    answer = front.http.get(f"/v1/models/{template['model_id']}/aliases/{word}")
    return answer.json() if answer.status_code == 200 else None


@pytest.mark.both_databases
def test_what_passes_moves_the_alias_and_what_fails_moves_nothing_and_says_why(
    front: Front, template: dict[str, Any]
) -> None:
    database = front.app.database
    wanted = ["schedule.*", "alias.*"]
    told_to, _ = add_endpoint(database, "https://hooks.invalid/", tenant="default", event_types=wanted)
    made = add_schedule(front, template, gate={"clauses": [DROP]}, promote_to="prod")
    first = judged(front, made, top1=90.0)
    assert (first["state"], first["promoted_to"]) == ("passed", "prod")
    assert "not accepted any job yet" in first["clauses"][0]["reason"]
    stands = alias(front, template)
    assert stands is not None
    assert (stands["id"], stands["updated_by"]) == (template["model_id"], made["id"])
    assert shown(front, made["id"])["last_pass_job_id"] == first["job_id"]

    second = judged(front, made, top1=89.0)
    assert (second["state"], second["reason"], second["promoted_to"]) == ("failed", "gate", None)
    (clause,) = second["clauses"]
    assert (clause["baseline_job_id"], clause["value"], clause["holds"]) == (first["job_id"], 1.0, False)
    assert alias(front, template) == stands
    assert shown(front, made["id"])["last_pass_job_id"] == first["job_id"]
    job = front.http.get(f"/v1/jobs/{second['job_id']}").json()
    assert (job["scheduled"]["state"], job["scheduled"]["detail"]) == ("failed", second["detail"])
    logs = [front.http.get(f"/v1/jobs/{run['job_id']}/logs").text for run in (first, second)]
    assert f"schedule '{made['name']}': accepted; prod now refers to its model" in logs[0]
    assert f"schedule '{made['name']}': not accepted (gate: {second['detail']})" in logs[1]
    events = [(row.type, row.payload) for row in deliveries(database) if row.endpoint_id == told_to]
    assert [kind for kind, _ in events] == [
        "schedule.fired", "schedule.passed", "alias.moved", "schedule.fired", "schedule.failed",
    ]  # fmt: skip
    assert second["detail"] in events[-1][1]


def test_a_job_that_fails_is_a_failed_run_and_its_etag_changes(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, promote_to="prod")
    run = run_by_request(front, made["id"])
    front.fail(run["job_id"], NotOnnxError("It broke."))
    before = front.http.get(f"/v1/jobs/{run['job_id']}").headers["etag"]
    assert settle(front.app) == 1
    (found,) = runs(front.app.database)
    assert (found.state, found.reason) == ("failed", "job-failed")
    assert "It broke." in (found.detail or "")
    assert front.http.get(f"/v1/jobs/{run['job_id']}").headers["etag"] != before
    assert alias(front, template) is None


def test_a_run_whose_job_fell_back_says_so(front: Front, template: dict[str, Any]) -> None:
    database = front.app.database
    add_endpoint(database, "https://hooks.invalid/", tenant="default", event_types=["schedule.passed"])
    made = add_schedule(front, template)
    found = [judged(front, made, verdict="pass", **more)["fallback"] for more in ({"fallback": "float"}, {})]
    assert found == ["float", None]
    assert [json.loads(row.payload)["data"]["fallback"] for row in deliveries(database)] == found
    # an undecided verdict falls unless it is said otherwise
    assert judged(front, made, verdict="undecided")["reason"] == "verdict"
    front.http.patch(made["links"]["self"], json={"gate": {"on_undecided": "pass"}}, headers=ANY)
    assert judged(front, made, verdict="undecided")["state"] == "passed"


def test_baselines_are_a_job_or_what_an_alias_stands_for(front: Front, template: dict[str, Any]) -> None:
    earlier = front.new_job(**template)
    succeed(front, earlier, top1=92.0)
    for baseline in ({"kind": "job", "job_id": earlier}, {"kind": "alias", "alias": "prod"}):
        if baseline["kind"] == "alias":
            path = f"/v1/models/{template['model_id']}/aliases/prod"
            assert front.http.put(path, headers={"If-None-Match": "*"}).status_code == 201
        made = add_schedule(front, template, gate={"clauses": [DROP], "baseline": baseline})
        found = judged(front, made, top1=91.0)
        assert (found["state"], found["clauses"][0]["baseline_job_id"]) == ("failed", earlier)
        assert found["clauses"][0]["value"] == 1.0
        front.http.delete(f"/v1/jobs/{found['job_id']}")


def test_the_job_that_the_next_is_judged_by_cannot_be_deleted(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate={"clauses": [DROP]})
    first = judged(front, made)
    refused = front.http.delete(f"/v1/jobs/{first['job_id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "job-in-use")
    assert made["id"] in refused.json()["detail"]
    assert judged(front, made)["state"] == "passed"
    assert front.http.delete(f"/v1/jobs/{first['job_id']}").status_code == 204
    last = shown(front, made["id"])["last_pass_job_id"]
    assert front.http.delete(f"/v1/schedules/{made['id']}").status_code == 204
    assert front.http.delete(f"/v1/jobs/{last}").status_code == 204
    # one that is gone before it is judged
    run = run_by_request(front, add_schedule(front, template)["id"])
    succeed(front, run["job_id"])
    assert front.http.delete(f"/v1/jobs/{run['job_id']}").status_code == 204
    assert settle(front.app) == 1
    (found,) = runs(front.app.database)
    assert (found.state, found.reason) == ("failed", "job-gone")


def test_a_baseline_that_is_gone_is_undecided(front: Front, template: dict[str, Any]) -> None:
    first = judged(front, add_schedule(front, template))
    baseline = {"kind": "job", "job_id": first["job_id"]}
    made = add_schedule(front, template, gate={"clauses": [DROP], "baseline": baseline})
    assert front.http.delete(f"/v1/schedules/{first['schedule_id']}").status_code == 204
    refused = problem(front.http.delete(f"/v1/jobs/{first['job_id']}"), 409, "job-in-use")
    assert made["id"] in refused["detail"], "its gate names the job"
    with front.app.database.write() as session:
        jobs.remove(session, [first["job_id"]])
    second = judged(front, made)
    assert (second["state"], second["clauses"][0]["holds"]) == ("failed", None)
    assert first["job_id"] in second["clauses"][0]["reason"]


PROD = {"kind": "alias", "alias": "prod"}


def test_an_alias_that_the_schedule_is_to_give_may_be_missing_at_first(front: Front, template: dict[str, Any]) -> None:
    gate = {"clauses": [DROP], "baseline": PROD}
    made = add_schedule(front, template, gate=gate, promote_to="prod")
    first = judged(front, made, top1=90.0)
    assert (first["state"], first["promoted_to"]) == ("passed", "prod")
    assert judged(front, made, top1=80.0)["state"] == "failed"
    live = f"/v1/models/{template['model_id']}/aliases/live"
    assert front.http.put(live, headers={"If-None-Match": "*"}).status_code == 201
    later = add_schedule(front, template, gate={"clauses": [DROP], "baseline": {**PROD, "alias": "live"}})
    assert front.http.delete(live).status_code == 204
    other = judged(front, later)
    assert (other["state"], other["clauses"][0]["holds"]) == ("failed", None)
    assert "/aliases/live" in other["clauses"][0]["reason"]


def test_with_new_data_a_job_that_was_measured_on_it_is_the_baseline(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate={"clauses": [DROP]})
    old = judged(front, made, top1=90.0)
    stuck = judged(front, made, top1=90.0, measured_on="7" * 64)
    assert (stuck["state"], stuck["clauses"][0]["holds"]) == ("failed", None)
    assert "same data" in stuck["clauses"][0]["reason"]
    # refused jobs are no measure, though they were measured on the same data
    assert judged(front, made, top1=90.0, measured_on="7" * 64)["clauses"][0]["baseline_job_id"] == old["job_id"]
    again = front.http.post("/v1/jobs", json=template).json()["id"]
    succeed(front, again, top1=85.0, measured_on="7" * 64)
    # nor are those by another recipe, or those that their own gate refused
    for changes, verdict in (({"config": {"preset": "int4_weights"}}, "none"), ({}, "fail")):
        other = front.http.post("/v1/jobs", json={**template, **changes}).json()["id"]
        succeed(front, other, top1=10.0, measured_on="7" * 64, verdict=verdict)
    found = judged(front, made, top1=84.8, measured_on="7" * 64)
    assert (found["state"], found["clauses"][0]["baseline_job_id"]) == ("passed", again)


def test_a_report_that_nobody_can_read_ends_its_run(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate={"clauses": [DROP]})
    first = judged(front, made)
    spoil(front, first["job_id"])
    second = judged(front, made)
    assert (second["state"], second["clauses"][0]["holds"]) == ("failed", None)
    assert "form" in second["clauses"][0]["reason"]
    run = run_by_request(front, made["id"])
    succeed(front, run["job_id"])
    spoil(front, run["job_id"])
    assert settle(front.app) == 1
    third = front.http.get(f"/v1/schedules/{made['id']}/runs/{run['id']}").json()
    assert (third["state"], third["reason"]) == ("failed", "report")


def spoil(front: Front, job_id: str) -> None:
    """Have a job's report be of a form of another day."""
    with front.app.database.write() as session:
        session.execute(update(ReportRow).where(ReportRow.job_id == job_id).values(body={"schema_version": "99"}))


def test_an_alias_that_cannot_be_moved_fails_the_run_and_the_next_is_judged_by_the_same(
    front: Front, template: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = add_schedule(front, template, promote_to="prod")
    monkeypatch.setattr(aliases, "MOST_ALIASES", 0)
    found = judged(front, made)
    assert (found["state"], found["reason"], found["promoted_to"]) == ("failed", "promotion", None)
    assert found["problem"]["code"] == "too-many-aliases"
    assert shown(front, made["id"])["last_pass_job_id"] is None
    assert alias(front, template) is None


@pytest.fixture
def others(settings: Settings) -> Iterator[list[AppState]]:
    with ExitStack() as stack:
        apps = [reconciling_app(settings) for _ in range(3)]
        for app in apps:
            stack.callback(app.close)
        yield apps


@pytest.mark.both_databases
def test_three_who_judge_at_once_promote_once(front: Front, template: dict[str, Any], others: list[AppState]) -> None:
    database = front.app.database
    told_to, _ = add_endpoint(database, "https://hooks.invalid/", tenant="default", event_types=["schedule.passed"])
    made = [add_schedule(front, template, promote_to=f"prod-{k}") for k in range(5)]
    for one in made:
        succeed(front, run_by_request(front, one["id"])["job_id"])
    done: list[int] = []
    threads = [Thread(target=lambda app=app: done.append(settle(app))) for app in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while settle(front.app):
        pass
    assert {run.state for run in runs(database)} == {"passed"}
    with database.read() as session:
        assert len(session.scalars(select(AliasMove)).all()) == len(made)
        told = session.scalars(select(WebhookDelivery).where(WebhookDelivery.endpoint_id == told_to)).all()
    assert len(told) == len(made)
