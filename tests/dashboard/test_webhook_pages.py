"""The pages of webhooks, as a browser without scripts uses them."""

from __future__ import annotations

import re

import pytest

from service.principal import DEFAULT_TENANT
from service.webhooks import service
from tests.dashboard.form_of import Form
from tests.dashboard.signing import sign_in
from tests.support.front import Front
from tests.support.webhooks import add_endpoint, deliveries, endpoint, set_endpoint

URL = "https://hooks.example/in?token=abc"


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were looked up; none.example is within the house."""
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
    assert "No webhook yet" in closed.http.get("/webhooks").text
    form = Form(closed.http.get("/webhooks/new").text, "webhook")
    fields = form.with_fields({"url": URL, "event_types": ["job.*", "model.ready"], "description": "ours"})
    made = closed.http.post("/webhooks/new", data=fields)
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    assert addresses == ["hooks.example"]
    secret = re.search(r">(whsec_[^<]+)<", made.text)
    assert secret is not None
    (listed,) = closed.http.get("/webhooks").text.split("<tbody>")[1:]
    assert "hooks.example" in listed and "job.*, model.ready" in listed and "ours" in listed
    webhook_id = re.findall(r"/webhooks/(whk_\w+)", listed)[0]
    page = closed.http.get(f"/webhooks/{webhook_id}")
    assert page.status_code == 200 and "whsec_" not in page.text
    again = closed.http.post(f"/webhooks/{webhook_id}/rotate", data={"csrf": guard, "grace_seconds": "86400"})
    assert again.status_code == 200 and again.headers["cache-control"] == "no-store"
    other = re.search(r">(whsec_[^<]+)<", again.text)
    assert other is not None and other[1] != secret[1]
    assert "signs beside the new one" in closed.http.get(f"/webhooks/{webhook_id}").text
    refused = closed.http.post(f"/webhooks/{webhook_id}/rotate", data={"csrf": guard, "grace_seconds": "7"})
    assert refused.status_code == 422


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"url": "http://hooks.example/"}, 'id="f-url"'),
        ({"url": "https://inner.example/"}, 'id="f-url"'),
        ({"url": ""}, 'id="f-url"'),
        ({"event_types": []}, 'id="h-events"'),
        ({"description": "x" * 201}, 'id="f-description"'),
    ],
)
def test_what_is_not_right_stands_at_its_field(
    closed: Front, guard: str, fields: dict[str, str | list[str]], where: str
) -> None:
    answer = closed.http.post("/webhooks/new", data={"csrf": guard, "url": URL, "event_types": ["job.*"], **fields})
    assert answer.status_code == 422
    assert "✖" in answer.text.partition(where)[2][:1200]
    assert f'value="{fields.get("url", URL)}"' in answer.text
    assert "No webhook yet" in closed.http.get("/webhooks").text


def test_a_change_needs_the_version_that_was_seen(closed: Front, guard: str, addresses: list[str]) -> None:
    page = f"/webhooks/{new(closed, guard)}"
    addresses.clear()
    form = Form(closed.http.get(f"{page}/edit").text, "webhook")
    assert (form["url"], form["event_types"]) == (URL, "*")
    fields = form.with_fields({"description": "renamed", "enabled": []})
    assert closed.http.post(f"{page}/edit", data=fields).headers["location"] == page
    assert addresses == []
    shown = closed.http.get(page).text
    assert "renamed" in shown and "It is disabled" in shown and "Send a ping" not in shown
    assert closed.http.post(f"{page}/edit", data={**fields, "etag": ""}).status_code == 428
    moved = Form(closed.http.get(f"{page}/edit").text, "webhook").with_fields({"url": "https://inner.example/"})
    refused = closed.http.post(f"{page}/edit", data=moved)
    assert refused.status_code == 422 and addresses == ["inner.example"]
    assert Form(refused.text, "webhook")["etag"] == moved["etag"][0]
    stale = closed.http.post(f"{page}/delete", data={"csrf": guard, "etag": '"1"'})
    assert stale.status_code == 412
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
    assert "mine" in shown and "other.example" in shown and "It is disabled" in shown


def test_deliveries_are_shown_by_state_and_sent_again(closed: Front, guard: str) -> None:
    webhook_id = new(closed, guard)
    page, database = f"/webhooks/{webhook_id}", closed.desk.database
    assert "Nothing was sent yet" in closed.http.get(page).text
    assert closed.http.post(f"{page}/ping", data={"csrf": guard}).headers["location"] == page
    (delivery,) = deliveries(database)
    assert "webhook.ping" in closed.http.get(page, params={"state": "waiting"}).text
    assert "No delivery is like this" in closed.http.get(page, params={"state": "failed"}).text
    assert closed.http.get(page, params={"state": "lost"}).status_code == 422
    again = closed.http.post(f"{page}/deliveries/{delivery.id}/redeliver", data={"csrf": guard})
    assert again.headers["location"] == page
    assert closed.http.post(f"{page}/deliveries/dlv_none/redeliver", data={"csrf": guard}).status_code == 404
    set_endpoint(database, webhook_id, failing_since=1.0, dropped_events=3)
    shown = closed.http.get(page).text
    assert "It is failing" in shown and "3 events" in shown
    assert "✖ failing" in closed.http.get("/webhooks").text


def test_a_webhook_of_another_tenant_is_not_found(closed: Front, guard: str) -> None:
    theirs, _ = add_endpoint(closed.desk.database, URL, tenant="other")
    assert theirs not in closed.http.get("/webhooks").text
    for path in (f"/webhooks/{theirs}", f"/webhooks/{theirs}/edit"):
        assert closed.http.get(path).status_code == 404
    for deed in ("edit", "delete", "rotate", "ping"):
        fields = {"csrf": guard, "url": URL, "event_types": "*", "etag": "*", "grace_seconds": "0"}
        assert closed.http.post(f"/webhooks/{theirs}/{deed}", data=fields).status_code == 404, deed
    assert endpoint(closed.desk.database, theirs).row_version == 1


def test_who_may_only_submit_is_refused(closed: Front) -> None:
    guard = sign_in(closed, "submit")
    mine, _ = add_endpoint(closed.desk.database, URL, tenant=DEFAULT_TENANT)
    assert ">Webhooks<" not in closed.http.get("/jobs").text
    for path in ("/webhooks", "/webhooks/new", f"/webhooks/{mine}", f"/webhooks/{mine}/edit"):
        refused = closed.http.get(path)
        assert refused.status_code == 403 and "hooks.example" not in refused.text, path
    for path in ("new", *(f"{mine}/{deed}" for deed in ("edit", "delete", "rotate", "ping", "deliveries/x/redeliver"))):
        refused = closed.http.post(f"/webhooks/{path}", data={"csrf": guard, "url": URL})
        assert refused.status_code == 403 and "may not do this" in refused.text, path
    assert endpoint(closed.desk.database, mine).row_version == 1


def test_nothing_is_done_without_the_guard(closed: Front, guard: str) -> None:
    webhook_id = new(closed, guard)
    for deed in ("edit", "delete", "rotate", "ping", "deliveries/x/redeliver"):
        refused = closed.http.post(f"/webhooks/{webhook_id}/{deed}", data={"etag": "*", "grace_seconds": "0"})
        assert refused.status_code == 403 and "does not come from a page" in refused.text, deed
    assert endpoint(closed.desk.database, webhook_id).row_version == 1
