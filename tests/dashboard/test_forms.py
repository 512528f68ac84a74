"""What is wrong in a form is told at its field, with what was typed, and nothing is done."""

from __future__ import annotations

from typing import Any

import pytest

from service.keys import desk as keys
from service.principal import DEFAULT_TENANT
from service.quotas import desk as quotas
from tests.dashboard.signing import sign_in
from tests.support.front import Front
from tests.support.webhooks import add_endpoint, deliveries

URL = "https://hooks.example/in?token=abc"
SCHEDULE = "/schedules/new"
# By path: fields that are right, and what is wrong by field.
FORMS: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "/admin/keys": (
        {"name": "ci", "scope": "read"},
        [("name", ""), ("name", "x" * 201), ("days", "-1"), ("days", "soon")],
    ),
    "/admin/quotas/other": (
        {"open_streams": "3"},
        [("stored_bytes", "-1"), ("stored_bytes", "much"), ("jobs_queued", "1.5")],
    ),
    "/webhooks/new": (
        {"url": URL, "event_types": ["job.*"]},
        [("url", "http://hooks.example/"), ("url", "https://inner.example/"), ("url", ""), ("description", "x" * 201),
         ("event_types", [])],
    ),
    SCHEDULE: (
        {"name": "every night", "cron": "0 3 * * *", "timezone": "UTC", "newest": "yes"},
        [("cron", "99 3 * * *"), ("timezone", "Nowhere"), ("max_drop", "-1"), ("promote_to", "A b")],
    ),
}  # fmt: skip


@pytest.fixture
def guarded(closed: Front, monkeypatch: pytest.MonkeyPatch) -> Front:
    """An admin is signed in; inner.example is within the house."""
    inner = ["10.0.0.7"]
    resolve = lambda host, _: inner if host == "inner.example" else ["8.8.8.8"]  # noqa: E731
    monkeypatch.setattr("service.webhooks.service.system_resolver", resolve)
    closed.http.headers["X-CSRF-Token"] = sign_in(closed, "admin")
    return closed


@pytest.mark.parametrize("path", FORMS)
def test_what_is_not_right_stands_at_its_field(guarded: Front, path: str) -> None:
    good, wrong = FORMS[path]
    if path == SCHEDULE:
        good = {**good, "from": guarded.succeeded_job()}
    for field, value in wrong:
        fields = {**good, field: value}
        answer = guarded.http.post(path, data=fields)
        assert answer.status_code == 422, (field, value)
        if value == []:
            assert "✖" in answer.text.partition('id="h-events"')[2][:1200]
        else:
            assert 'aria-invalid="true"' in answer.text.partition(f'id="f-{field}"')[2][:700], (field, value)
        for name in {"url", "cron", "open_streams", field} & {name for name, typed in fields.items() if typed != []}:
            around = answer.text.partition(f'id="f-{name}"')[2][:700]
            assert f'value="{fields[name]}"' in around or f">{fields[name]}<" in around, (field, value, name)
    assert len(keys.list_keys(guarded.desk, DEFAULT_TENANT)) == 1
    assert quotas.get(guarded.desk, "other").own == {}
    for noun in ("webhooks", "schedules"):
        assert guarded.http.get(f"/v1/{noun}").json()["items"] == []


def test_what_is_of_another_tenant_is_not_found(guarded: Front) -> None:
    theirs, _ = add_endpoint(guarded.desk.database, URL, tenant="other")
    assert theirs not in guarded.http.get("/webhooks").text
    for path in (f"/webhooks/{theirs}", f"/webhooks/{theirs}/edit"):
        assert guarded.http.get(path).status_code == 404
    for deed in ("edit", "delete", "rotate", "ping"):
        fields = {"url": URL, "event_types": "*", "etag": "*", "grace_seconds": "0"}
        assert guarded.http.post(f"/webhooks/{theirs}/{deed}", data=fields).status_code == 404, deed
    assert deliveries(guarded.desk.database) == []
