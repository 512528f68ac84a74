"""Names of schedules: each once for a tenant, and good for the id on every route. On both databases."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from service.ids import new_id
from tests.db.test_concurrency import at_once
from tests.support.front import Front, pointers, problem
from tests.support.schedules import add_schedule, hourly

ANY = {"If-Match": "*"}
NAME = "nächtlich, 2 Uhr"
AT = f"/v1/schedules/{quote(NAME)}"


@pytest.fixture
def template(front: Front) -> dict[str, Any]:
    return front.job_body()


def test_a_name_stands_for_the_id_on_every_route(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, name=NAME)
    http = front.http
    assert http.get(AT).json() == http.get(made["links"]["self"]).json()
    run = http.post(f"{AT}/run")
    assert run.headers["location"].startswith(made["links"]["self"])
    runs = http.get(f"{AT}/runs", params={"limit": 1})
    assert [item["id"] for item in runs.json()["items"]] == [run.json()["id"]]
    assert http.get(f"{AT}/runs/{run.json()['id']}").json()["schedule_id"] == made["id"]
    assert http.post(f"{AT}/pause").json()["paused_at"]
    assert http.post(f"{AT}/resume").json()["paused_at"] is None
    assert http.patch(AT, json={"cron": "0 4 * * *"}, headers=ANY).json()["id"] == made["id"]
    assert http.delete(AT).status_code == 204
    problem(http.get(AT), 404, "schedule-not-found")


@pytest.mark.both_databases
def test_a_name_of_the_past_is_free_and_case_counts(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, name="one")
    add_schedule(front, template, name="One")
    assert front.http.get("/v1/schedules/ONE").status_code == 404
    assert front.http.patch("/v1/schedules/one", json={"name": "two"}, headers=ANY).status_code == 200
    assert add_schedule(front, template, name="one")["id"] != made["id"]
    assert front.http.patch("/v1/schedules/two", json={"name": "two"}, headers=ANY).json()["id"] == made["id"]


@pytest.mark.both_databases
def test_a_name_that_is_taken_is_refused(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, name="one")
    other = add_schedule(front, template, name="two")
    body = {"name": "one", "cron": hourly(), "template": template}
    found = problem(front.http.post("/v1/schedules", json=body), 409, "schedule-name-taken")
    assert pointers(found) == ["/name"]
    assert made["id"] in found["detail"]
    changed = front.http.patch(other["links"]["self"], json={"name": "one"}, headers=ANY)
    problem(changed, 409, "schedule-name-taken")
    like = problem(front.http.post("/v1/schedules", json={**body, "name": new_id("sch")}), 422, "invalid-request")
    assert pointers(like) == ["/name"]


@pytest.mark.both_databases
def test_of_many_who_take_a_name_at_once_one_has_it(front: Front, template: dict[str, Any]) -> None:
    body = {"name": "one", "cron": hourly(), "template": template}
    found = at_once(6, lambda _: front.http.post("/v1/schedules", json=body).status_code)
    assert sorted(found) == [201] + [409] * 5
