"""What goes wrong outside of any page is a page for browsers, and a problem for programs."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy.exc import OperationalError

from service.jobs import service as jobs
from tests.dashboard.signing import sign_in
from tests.support.front import Front, problem

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_an_address_that_is_none_is_a_page_for_browsers(sqlite_front: Front) -> None:
    answer = sqlite_front.http.get("/nowhere", headers=BROWSER)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "There is nothing at /nowhere." in answer.text
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
        assert refused.status_code == 403 and "may not do this" in refused.text


def test_a_form_with_files_is_refused_before_it_is_held(closed: Front) -> None:
    guard = sign_in(closed)
    files = [("model_files", ("a.onnx", b"x"))]
    sent = closed.http.build_request("POST", "/new/model", data={"csrf": guard}, files=files)
    sent.headers["Content-Length"] = str(closed.desk.settings.max_upload_bytes + 1)
    answer = closed.http.send(sent)
    problem(answer, 413, "body-too-large")
    sent.headers["Accept"] = BROWSER["Accept"]
    shown = closed.http.send(sent)
    assert shown.status_code == 413 and "The body is too large" in shown.text
    assert shown.headers["content-type"].startswith("text/html")
