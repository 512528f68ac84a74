"""The pages of schedules, as a browser without scripts uses them."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.support.filled import succeed
from tests.support.front import Front
from tests.support.reports import full_report


@pytest.fixture
def job_id(sqlite_front: Front) -> str:
    made = sqlite_front.new_job(name="nightly")
    succeed(sqlite_front, made, full_report())
    return made


def make(front: Front, job_id: str, **fields: str) -> httpx.Response:
    asked = {"from": job_id, "name": "every night", "cron": "0 3 * * *", "timezone": "UTC", "newest": "yes", **fields}
    return front.http.post("/schedules/new", data=asked, follow_redirects=False)


def test_a_job_becomes_a_schedule_that_runs_pauses_and_goes(sqlite_front: Front, job_id: str) -> None:
    form = sqlite_front.http.get("/schedules/new", params={"from": job_id})
    assert form.status_code == 200 and 'name="cron"' in form.text
    made = make(sqlite_front, job_id, max_drop="0.5", promote_to="prod")
    assert made.status_code == 303, made.text
    page = made.headers["location"]
    schedule = sqlite_front.http.get(f"/v1{page}").json()
    assert (schedule["template"]["model_id"], schedule["promote_to"]) == ("tiny@latest", "prod")
    (clause,) = schedule["gate"]["clauses"]
    assert (clause["kind"], clause["metric"], clause["max_drop"]) == ("max_drop", full_report().metrics[0].name, 0.5)
    assert "every night" in sqlite_front.http.get("/schedules").text
    assert "It has not run yet" in sqlite_front.http.get(page).text
    for step in ("pause", "resume", "run"):
        assert sqlite_front.http.post(f"{page}/{step}", follow_redirects=False).status_code == 303
        paused = sqlite_front.http.get(f"/v1{page}").json()["paused_at"]
        assert (paused is not None) is (step == "pause")
    (run,) = sqlite_front.http.get(f"/v1{page}/runs").json()["items"]
    succeed(sqlite_front, run["job_id"], full_report())
    shown = sqlite_front.http.get(page).text
    assert run["job_id"] in shown and "Accuracy over the runs" in shown
    assert sqlite_front.http.post(f"{page}/delete", follow_redirects=False).headers["location"] == "/schedules"
    assert sqlite_front.http.get(page).status_code == 404


def test_boxes_stay_as_they_were_ticked(sqlite_front: Front, job_id: str) -> None:
    for ticked in ((), ("newest",), ("skip_unchanged",), ("newest", "skip_unchanged")):
        boxes = {name: "yes" if name in ticked else "" for name in ("newest", "skip_unchanged")}
        answer = make(sqlite_front, job_id, cron="99 3 * * *", **boxes)
        assert answer.status_code == 422
        assert tuple(re.findall(r'name="(\w+)" value="yes" checked', answer.text)) == ticked
