"""What is wrong in a form is told at its field and nothing is done; what goes wrong outside of any page is a page."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy.exc import OperationalError

from service.contracts.quota import Quota
from service.jobs import service as jobs
from service.keys import actions as keys
from service.keys.cookies import COOKIE
from service.principal import DEFAULT_TENANT
from service.quotas import router as quotas
from service.quotas.service import set_quota
from tests.dashboard.signing import BY, sign_in
from tests.support.each import each
from tests.support.front import Front, problem
from tests.support.webhooks import add_endpoint, deliveries

URL = "https://hooks.example/in?token=abc"
SCHEDULE = "/schedules/new"
# By path: fields that are right, and what is wrong by field.
FORMS: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "/keys": (
        {"name": "ci", "scope": "read"},
        [("name", ""), ("name", "x" * 201), ("days", "-1"), ("days", "soon")],
    ),
    "/tenants/other": (
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
    """An operator is signed in; inner.example is within the house."""
    inner = ["10.0.0.7"]
    resolve = lambda host, _: inner if host == "inner.example" else ["8.8.8.8"]  # noqa: E731
    monkeypatch.setattr("service.webhooks.service.system_resolver", resolve)
    closed.http.headers["X-CSRF-Token"] = sign_in(closed, "operator")
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
        if field == "cron":
            assert answer.text.count("day of week") == answer.text.count("Not a valid cron") == 0
        for name in {"url", "cron", "open_streams", field} & {name for name, typed in fields.items() if typed != []}:
            around = answer.text.partition(f'id="f-{name}"')[2][:700]
            assert f'value="{fields[name]}"' in around or f">{fields[name]}<" in around, (field, value, name)
    assert len(keys.list_keys(guarded.app, DEFAULT_TENANT)) == 1
    assert quotas.get(guarded.app, "other").own == {}
    for noun in ("webhooks", "schedules"):
        assert guarded.http.get(f"/v1/{noun}").json()["items"] == []


def test_what_is_of_another_tenant_is_not_found(guarded: Front) -> None:
    theirs, _ = add_endpoint(guarded.app.database, URL, tenant="other")
    assert theirs not in guarded.http.get("/webhooks").text
    for path in (f"/webhooks/{theirs}", f"/webhooks/{theirs}/edit"):
        assert guarded.http.get(path).status_code == 404
    for deed in ("edit", "delete", "rotate", "ping"):
        fields = {"url": URL, "event_types": "*", "etag": "*", "grace_seconds": "0"}
        assert guarded.http.post(f"/webhooks/{theirs}/{deed}", data=fields).status_code == 404, deed
    assert deliveries(guarded.app.database) == []


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_an_address_that_is_none_is_a_page_for_browsers(sqlite_front: Front) -> None:
    answer = sqlite_front.http.get("/nowhere", headers=BROWSER)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "There is no page at <code>/nowhere</code>" in answer.text and 'href="/models"' in answer.text
    assert "endpoint" not in answer.text
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    other = sqlite_front.http.delete("/jobs", headers=BROWSER)
    assert (other.status_code, other.headers["allow"]) == (405, "GET")
    assert other.headers["content-type"].startswith("text/html")
    problem(sqlite_front.http.get("/nowhere"), 404, "route-not-found")
    problem(sqlite_front.http.get("/v1/nowhere", headers=BROWSER), 404, "route-not-found")


@pytest.mark.parametrize(
    ("fault", "status", "title"),
    [
        (OperationalError("SELECT 1", {}, Exception("database is locked")), 503, "The database cannot be reached"),
        (RuntimeError("a fault of ours"), 500, "a fault of the service"),
    ],
)
def test_what_fails_below_a_page_is_a_page(
    sqlite_front: Front, monkeypatch: pytest.MonkeyPatch, fault: Exception, status: int, title: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(jobs, "list_page", fail)
    answer = sqlite_front.http.get("/jobs", headers={**BROWSER, "X-Request-ID": "of-mine"})
    assert answer.status_code == status
    assert title in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-request-id"] == "of-mine"
    assert "of-mine" in answer.text


def test_a_log_tells_no_token_of_a_link(
    sqlite_front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("service.dashboard.report.shared", fail)
    with caplog.at_level(logging.ERROR):
        assert sqlite_front.http.get("/shared/who-has-this-may-read").status_code == 500
    told = [record.getMessage() for record in caplog.records if record.name.startswith("service")]
    assert any("/shared/***" in one for one in told)
    assert not any("who-has-this" in one for one in told)


def test_files_of_who_may_not_send_any_are_not_even_read(closed: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = sign_in(closed, "read")
    files = [("model_files", ("a.onnx", b"x"))]

    async def never(*_: object, **__: object) -> None:
        raise AssertionError("the form was read")

    monkeypatch.setattr("starlette.requests.Request._get_form", never)
    for fields in ({}, {"csrf": guard}):
        refused = closed.http.post("/new/model", data=fields, files=files)
        assert refused.status_code == 403 and "Permission denied" in refused.text


def test_a_form_with_files_is_refused_before_it_is_held(closed: Front) -> None:
    guard = sign_in(closed)
    files = [("model_files", ("a.onnx", b"x"))]
    sent = closed.http.build_request("POST", "/new/model", data={"csrf": guard}, files=files)
    sent.headers["Content-Length"] = str(closed.app.settings.max_upload_bytes + 1)
    answer = closed.http.send(sent)
    problem(answer, 413, "body-too-large")
    sent.headers["Accept"] = BROWSER["Accept"]
    shown = closed.http.send(sent)
    assert shown.status_code == 413 and "Request body too large" in shown.text
    assert shown.headers["content-type"].startswith("text/html")


@each(
    ("guarded", "length", "stored_bytes", "status", "pieces"),
    [(False, None, None, 403, 1), (True, 60_000_000, 1000, 413, 0), (True, None, 120_000, 413, 4),
     (True, None, None, 303, 9)],
)  # fmt: skip
def test_files_are_taken_from_who_may_send_them_as_many_as_fit(
    closed: Front, app: FastAPI, monkeypatch: pytest.MonkeyPatch,
    guarded: bool, length: int | None, stored_bytes: int | None, status: int, pieces: int,
) -> None:  # fmt: skip
    """Before anything is written, and not to where temporary files lie, which may be memory."""
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with closed.app.database.write() as session:
        set_quota(session, BY, "default", Quota(stored_bytes=stored_bytes))
    guard = sign_in(closed) if guarded else f"{sign_in(closed)}x"
    part = '--b\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
    file = part.format('model_files"; filename="a.onnx').encode()
    blocks = [part.format("csrf").encode() + f"{guard}\r\n".encode() + file, *[b"x" * 50_000] * 7, b"\r\n--b--\r\n"]
    headers = {"content-type": "Multipart/Form-Data; boundary=b", "cookie": f"{COOKIE}={closed.http.cookies[COOKIE]}"}
    headers |= {} if length is None else {"content-length": str(length)}
    sent, answers = iter(blocks), []

    async def receive() -> dict[str, Any]:
        block = next(sent)
        return {"type": "http.request", "body": block, "more_body": block is not blocks[-1]}

    async def send(message: dict[str, Any]) -> None:
        answers.append(message)

    scope = {"type": "http", "method": "POST", "path": "/new/model", "query_string": b"", "http_version": "1.1",
             "headers": [(name.encode(), value.encode()) for name, value in headers.items()], "scheme": "http",
             "server": ("testserver", 80), "client": ("testclient", 1), "root_path": ""}  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert (answers[0]["status"], len(blocks) - len(list(sent))) == (status, pieces), answers
    assert closed.app.meter_of("default").arriving_bytes == 0
