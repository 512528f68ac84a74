"""The pages of webhooks and of schedules, as a browser without scripts uses them."""

from __future__ import annotations

import re

import httpx
import pytest

from service.reports.figures import metric_title
from service.webhooks import service
from tests.dashboard.form_of import Form
from tests.dashboard.signing import sign_in
from tests.support.filled import succeed
from tests.support.front import Front
from tests.support.reports import full_report
from tests.support.webhooks import deliveries, set_endpoint

URL = "https://hooks.example/in?token=abc"
SECRET = re.compile(r">(whsec_[^<]+)<")


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were looked up; inner.example is within the house."""
    asked: list[str] = []

    def resolve(host: str, _: float) -> list[str]:
        asked.append(host)
        return ["10.0.0.7"] if host == "inner.example" else ["8.8.8.8"]

    monkeypatch.setattr(service, "system_resolver", resolve)
    return asked


@pytest.fixture
def guard(closed: Front) -> str:
    return sign_in(closed, "manage")


def new(front: Front, guard: str) -> str:
    made = front.http.post("/webhooks/new", data={"csrf": guard, "url": URL, "event_types": ["*"], "enabled": "yes"})
    assert made.status_code == 200, made.text
    found = re.search(r"/webhooks/(whk_\w+)", made.text)
    assert found is not None
    return found[1]


def test_a_webhook_is_made_and_its_secret_shown_once(closed: Front, guard: str, addresses: list[str]) -> None:
    assert "No webhooks yet" in closed.http.get("/webhooks").text
    form = Form(closed.http.get("/webhooks/new").text, "webhook")
    assert "event_types" not in form.fields, "none is ticked"
    refused = closed.http.post("/webhooks/new", data=form.with_fields({"url": URL}))
    assert refused.status_code == 422 and "Select at least one event." in refused.text
    refused = closed.http.post("/webhooks/new", data=form.with_fields({"url": "http://hooks.example/"}))
    assert "Select at least one event." in refused.text and "✖" in Form(refused.text, "webhook").described["url"]
    fields = form.with_fields({"url": URL, "event_types": ["job.*", "model.ready"], "description": "ours"})
    made = closed.http.post("/webhooks/new", data=fields)
    assert (made.status_code, made.headers["cache-control"]) == (200, "no-store")
    assert set(addresses) == {"hooks.example"}
    secret = SECRET.search(made.text)
    assert secret is not None
    (listed,) = closed.http.get("/webhooks").text.split("<tbody>")[1:]
    assert "hooks.example" in listed and "job.*, model.ready" in listed and "ours" in listed
    page = f"/webhooks/{re.findall(r'/webhooks/(whk_[a-z0-9]+)', listed)[0]}"
    shown = closed.http.get(page)
    assert shown.status_code == 200 and "whsec_" not in shown.text
    again = closed.http.post(f"{page}/rotate", data={"csrf": guard, "grace_seconds": "86400"})
    assert (again.status_code, again.headers["cache-control"]) == (200, "no-store")
    other = SECRET.search(again.text)
    assert other is not None and other[1] != secret[1]
    assert "Old secret" in closed.http.get(page).text
    assert closed.http.post(f"{page}/rotate", data={"csrf": guard, "grace_seconds": "7"}).status_code == 422


def test_a_change_needs_the_version_that_was_seen(closed: Front, guard: str, addresses: list[str]) -> None:
    page = f"/webhooks/{new(closed, guard)}"
    addresses.clear()
    form = Form(closed.http.get(f"{page}/edit").text, "webhook")
    assert (form["url"], form["event_types"]) == (URL, "*")
    fields = form.with_fields({"description": "renamed", "enabled": []})
    assert closed.http.post(f"{page}/edit", data=fields).headers["location"] == page
    assert addresses == []
    shown = closed.http.get(page).text
    assert "renamed" in shown and ">Disabled<" in shown and "Send test event" not in shown
    assert closed.http.post(f"{page}/edit", data={**fields, "etag": ""}).status_code == 428
    moved = Form(closed.http.get(f"{page}/edit").text, "webhook").with_fields({"url": "https://inner.example/"})
    refused = closed.http.post(f"{page}/edit", data=moved)
    assert refused.status_code == 422 and addresses == ["inner.example"]
    assert Form(refused.text, "webhook")["etag"] == moved["etag"][0]
    assert closed.http.post(f"{page}/delete", data={"csrf": guard, "etag": '"1"'}).status_code == 412
    gone = closed.http.post(f"{page}/delete", data={"csrf": guard, "etag": moved["etag"][0]})
    assert gone.headers["location"] == "/webhooks"
    assert closed.http.get(page).status_code == 404


def test_a_change_that_somebody_else_was_faster_with_is_asked_for_again(closed: Front, guard: str) -> None:
    page = f"/webhooks/{new(closed, guard)}"
    seen = Form(closed.http.get(f"{page}/edit").text, "webhook")
    closed.http.post(f"{page}/edit", data=seen.with_fields({"description": "theirs", "event_types": ["job.*"]}))
    mine = {"url": "https://other.example/in", "description": "mine", "event_types": ["model.ready"], "enabled": []}
    late = closed.http.post(f"{page}/edit", data=seen.with_fields(mine))
    assert late.status_code == 412
    told = late.text.partition("changed meanwhile")[2].partition("<form")[0]
    assert "theirs" in told and "job.*" in told and "hooks.example" in told
    again = Form(late.text, "webhook")
    assert (again["url"], again["description"], again["event_types"]) == (mine["url"], "mine", "model.ready")
    assert "enabled" not in again.fields
    assert "theirs" in closed.http.get(page).text
    assert closed.http.post(f"{page}/edit", data=again.fields).headers["location"] == page
    shown = closed.http.get(page).text
    assert "mine" in shown and "other.example" in shown and ">Disabled<" in shown


def test_deliveries_are_shown_by_state_and_sent_again(closed: Front, guard: str) -> None:
    webhook_id = new(closed, guard)
    page, database = f"/webhooks/{webhook_id}", closed.app.database
    assert "No deliveries yet." in closed.http.get(page).text
    assert closed.http.post(f"{page}/ping", data={"csrf": guard}).headers["location"] == page
    (delivery,) = deliveries(database)
    assert "webhook.ping" in closed.http.get(page, params={"state": "waiting"}).text
    assert "No matching deliveries." in closed.http.get(page, params={"state": "failed"}).text
    assert closed.http.get(page, params={"state": "lost"}).status_code == 422
    again = closed.http.post(f"{page}/deliveries/{delivery.id}/redeliver", data={"csrf": guard})
    assert again.headers["location"] == page
    assert closed.http.post(f"{page}/deliveries/dlv_none/redeliver", data={"csrf": guard}).status_code == 404
    set_endpoint(database, webhook_id, failing_since=1.0, dropped_events=3)
    shown = closed.http.get(page).text
    assert "Failing since" in shown and "disabled after 24 h of failures" in shown and "3 events" in shown
    assert "✖ Failing" in closed.http.get("/webhooks").text


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
    assert f'<option value="{job_id}"' in sqlite_front.http.get("/schedules/new").text
    made = make(sqlite_front, job_id, max_drop="0.5", promote_to="prod")
    assert made.status_code == 303, made.text
    page = made.headers["location"]
    schedule = sqlite_front.http.get(f"/v1{page}").json()
    assert (schedule["template"]["model_id"], schedule["promote_to"]) == ("tiny@latest", "prod")
    (clause,) = schedule["gate"]["clauses"]
    assert (clause["kind"], clause["metric"], clause["max_drop"]) == ("max_drop", full_report().metrics[0].name, 0.5)
    assert all("every night" in sqlite_front.http.get(path).text for path in ("/schedules", "/"))
    listed = sqlite_front.http.get("/schedules").text
    assert "drops by at most 0.5" in listed and "none yet" in listed and 'href="/schedules/new"' in listed
    assert "No runs yet" in sqlite_front.http.get(page).text
    for step in ("pause", "resume", "run"):
        assert sqlite_front.http.post(f"{page}/{step}", follow_redirects=False).status_code == 303
        paused = sqlite_front.http.get(f"/v1{page}").json()["paused_at"]
        assert (paused is not None) is (step == "pause")
    assert "Running" in sqlite_front.http.get("/schedules").text
    (run,) = sqlite_front.http.get(f"/v1{page}/runs").json()["items"]
    succeed(sqlite_front, run["job_id"], full_report())
    shown = sqlite_front.http.get(page).text
    assert run["job_id"] in shown and "Accuracy by run" in shown and "Recent jobs" in shown
    assert sqlite_front.http.post(f"{page}/delete", follow_redirects=False).headers["location"] == "/schedules"
    assert sqlite_front.http.get(page).status_code == 404


def test_a_schedule_shows_what_it_runs_and_is_edited(sqlite_front: Front, job_id: str) -> None:
    page = make(sqlite_front, job_id, max_drop="0.5", promote_to="prod").headers["location"]
    shown = sqlite_front.http.get(page).text
    metric = metric_title(full_report().metrics[0].name)
    for words in (
        "At 03:00 every day",
        "tiny@latest",
        f"{metric} drops by at most 0.5 points from the last accepted job.",
    ):
        assert words in shown
    form = Form(sqlite_front.http.get(f"{page}/edit").text, "schedule")
    assert (form["cron"], form["max_drop"], form["model_id"]) == ("0 3 * * *", "0.5", "tiny@latest")
    before = sqlite_front.http.get(f"/v1{page}").json()

    wrong = sqlite_front.http.post(f"{page}/edit", data=form.with_fields({"cron": "99 3 * * *"}))
    assert wrong.status_code == 422 and 'aria-invalid="true"' in wrong.text.partition('id="f-cron"')[2][:300]
    wrong = sqlite_front.http.post(f"{page}/edit", data=form.with_fields({"model_id": "nobody@latest"}))
    assert wrong.status_code == 422 and 'aria-invalid="true"' in wrong.text.partition('id="f-model_id"')[2][:300]
    assert sqlite_front.http.get(f"/v1{page}").json() == before

    changed = form.with_fields({"cron": "0 5 * * *", "promote_to": ""})
    assert sqlite_front.http.post(f"{page}/edit", data=changed, follow_redirects=False).headers["location"] == page
    after = sqlite_front.http.get(f"/v1{page}").json()
    assert (after["cron"], after["promote_to"], after["next_due_at"][11:16]) == ("0 5 * * *", None, "05:00")
    assert (after["gate"], after["template"]) == (before["gate"], before["template"])

    stale = sqlite_front.http.post(f"{page}/edit", data=changed | {"cron": "0 6 * * *"})
    assert stale.status_code == 412 and "was changed meanwhile" in stale.text and "0 5 * * *" in stale.text
    again = Form(stale.text, "schedule").with_fields({"max_drop": "", "model_id": "tiny@1"})
    assert sqlite_front.http.post(f"{page}/edit", data=again, follow_redirects=False).status_code == 303
    last = sqlite_front.http.get(f"/v1{page}").json()
    assert (last["cron"], last["gate"]["clauses"], last["template"]["model_id"]) == ("0 6 * * *", [], "tiny@1")


def test_a_gate_that_the_form_does_not_show_stays(sqlite_front: Front, job_id: str) -> None:
    page = make(sqlite_front, job_id).headers["location"]
    gate = {"clauses": [{"kind": "size", "max_ratio": 1.1}, {"kind": "latency", "max_ratio": 1.2}]}
    sqlite_front.http.patch(f"/v1{page}", json={"gate": gate}, headers={"If-Match": "*"}).raise_for_status()
    shown = sqlite_front.http.get(page).text
    assert "Size is at most 1.1x" in shown and "Latency is at most 1.2x" in shown
    form = sqlite_front.http.get(f"{page}/edit").text
    assert 'name="max_drop"' not in form and "stay as they are" in form
    kept = Form(form, "schedule").with_fields({"name": "another"})
    assert sqlite_front.http.post(f"{page}/edit", data=kept, follow_redirects=False).status_code == 303
    assert len(sqlite_front.http.get(f"/v1{page}").json()["gate"]["clauses"]) == 2


def test_a_cron_expression_is_read_in_words(sqlite_front: Front, job_id: str) -> None:
    form = sqlite_front.http.get("/schedules/new", params={"from": job_id}).text
    assert 'name="timezone" type="text" value="UTC"' in form
    assert "At 03:00 every day" in form and form.count("data-local>") == 3
    asked = {"cron": "30 6 * * 1", "timezone": "Europe/Berlin"}
    found = sqlite_front.http.get("/schedules/reading", params=asked).text
    assert "At 06:30 on Monday" in found and "(Europe/Berlin)" in found and found.count("<time ") == 3
    assert "Not a valid" in sqlite_front.http.get("/schedules/reading", params={"cron": "99 * * * *"}).text


def test_the_edit_form_names_what_a_schedule_runs(sqlite_front: Front, job_id: str) -> None:
    page = make(sqlite_front, job_id, newest="").headers["location"]
    model_id = sqlite_front.http.get(f"/v1{page}").json()["template"]["model_id"]
    form = sqlite_front.http.get(f"{page}/edit").text
    assert f'<option value="{model_id}" selected>tiny@1</option>' in form
    assert '<option value="tiny@latest">tiny@latest</option>' in form


def test_boxes_stay_as_they_were_ticked(sqlite_front: Front, job_id: str) -> None:
    for ticked in ((), ("newest",), ("skip_unchanged",), ("newest", "skip_unchanged")):
        boxes = {name: "yes" if name in ticked else "" for name in ("newest", "skip_unchanged")}
        answer = make(sqlite_front, job_id, cron="99 3 * * *", **boxes)
        assert answer.status_code == 422
        assert tuple(re.findall(r'name="(\w+)" value="yes" checked', answer.text)) == ticked
