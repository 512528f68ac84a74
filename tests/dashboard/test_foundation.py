"""Signing in and out, the guard of forms and the scopes of all pages, their policy and their assets."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import iter_route_contexts

from service.dashboard.router import router
from service.keys import service as keys
from service.keys.cookies import COOKIE, GUARD_HEADER
from tests.dashboard.signing import BY, new_key, sign_in
from tests.support.each import each
from tests.support.front import Front, problem

RANKS = ("read", "submit", "manage", "admin", "operator")
NO_FILE = {"none": ("", b"")}


def guard_of(front: Front, path: str = "/jobs") -> str:
    """What the forms of a page send along."""
    found = re.search(r'<meta name="csrf" content="([0-9a-f]{64})">', front.http.get(path).text)
    assert found is not None
    return found[1]


def test_a_good_key_opens_a_session_until_it_is_signed_out(closed: Front) -> None:
    asked = closed.http.get("/jobs?state=failed")
    assert (asked.status_code, asked.headers["location"]) == (303, "/sign-in?next=%2Fjobs%3Fstate%3Dfailed")
    form = closed.http.get(asked.headers["location"])
    assert form.status_code == 200 and 'value="/jobs?state=failed"' in form.text
    key = new_key(closed).text
    answer = closed.http.post("/sign-in", data={"key": key, "next": "/jobs?state=failed"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=failed")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=") and key not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert closed.http.get("/jobs").status_code == 200
    out = closed.http.post("/sign-out")
    assert (out.status_code, out.headers["location"]) == (303, "/sign-in")
    assert closed.http.get("/jobs").status_code == 303
    for referer, back in (
        ("", "%2F"),
        ("http://evil.example/keys", "%2F"),
        (f"{closed.http.base_url}/jobs?a=b", "%2Fjobs%3Fa%3Db"),
    ):
        late = closed.http.post("/keys", data={"name": "ci"}, headers={"Referer": referer})
        assert late.status_code == 401 and "Bearer" not in late.text
        assert f'<a href="/sign-in?next={back}">Sign in</a>' in late.text


@each("key", ["", "qm_" + "a" * 26 + "_" + "b" * 43])
def test_a_wrong_key_opens_none(closed: Front, key: str) -> None:
    answer = closed.http.post("/sign-in", data={"key": key, "next": "/jobs"})
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert 'aria-invalid="true"' in answer.text and 'value="/jobs"' in answer.text
    assert not key or key not in answer.text
    assert closed.http.get("/jobs").status_code == 303


@each("place", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\tx", "jobs"])
def test_signing_in_leads_nowhere_else(closed: Front, place: str) -> None:
    key = new_key(closed).text
    assert closed.http.post("/sign-in", data={"key": key, "next": place}).headers["location"] == "/"
    assert "evil" not in closed.http.get("/sign-in", params={"next": place}).text


def test_a_session_ends_with_its_key_and_a_forged_one_is_none(closed: Front) -> None:
    made = new_key(closed)
    assert closed.http.post("/sign-in", data={"key": made.text}).status_code == 303
    assert closed.http.get("/jobs").status_code == 200
    token = closed.http.cookies[COOKIE]
    closed.http.cookies.clear()
    other = "B" if token.startswith("A") else "A"
    for forged in (token[:-1], other + token[1:], "", "x" * 2000, "{}"):
        assert closed.http.get("/jobs", headers={"Cookie": f"{COOKIE}={forged}"}).status_code == 303, forged
    closed.http.cookies.set(COOKIE, token)
    assert closed.http.get("/jobs").status_code == 200
    with closed.app.database.write() as session:
        keys.revoke(session, BY, made.row.id)
    assert closed.http.get("/jobs").status_code == 303
    problem(closed.http.get("/v1/jobs"), 401, "unauthorized")


def test_a_form_needs_the_guard_of_its_session(closed: Front) -> None:
    sign_in(closed)
    path = "/jobs/job_nothing/cancel"
    for body in ({}, {"csrf": "0" * 64}, {"csrf": ""}):
        refused = closed.http.post(path, data=body)
        assert refused.status_code == 403 and "guard-missing" in refused.text
        assert refused.headers["content-type"].startswith("text/html")
    guard = guard_of(closed)
    # past the guard, there is no such job
    assert closed.http.post(path, data={"csrf": guard}).status_code == 404
    assert closed.http.post(path, headers={GUARD_HEADER: guard}).status_code == 404
    sign_in(closed)
    assert closed.http.post(path, data={"csrf": guard}).status_code == 403, "the guard of another session"


def test_the_api_takes_a_session_with_its_guard_and_a_key_without(closed: Front) -> None:
    sign_in(closed)
    assert closed.http.get("/v1/jobs").status_code == 200
    body = {"filename": "model.onnx", "size_bytes": 10}
    problem(closed.http.post("/v1/uploads", json=body), 403, "guard-missing")
    for headers in ({GUARD_HEADER: guard_of(closed)}, {"Authorization": f"Bearer {new_key(closed).text}"}):
        assert closed.http.post("/v1/uploads", json=body, headers=headers).status_code == 201


def wanted(method: str, path: str) -> str:
    """The least scope that may do it."""
    if path.startswith(("/admin", "/keys", "/audit", "/tenants")):
        return "operator" if path.startswith(("/admin/quotas", "/audit/verify", "/tenants/")) else "admin"
    ends = ("/delete", "/aliases", "/aliases/end", "/release", "/pause", "/resume", "/schedules/new")
    edited = path.startswith("/schedules") and path.endswith("/edit")
    if path.startswith("/webhooks") or path.endswith(ends) or edited:
        return "manage"
    return "submit" if method == "POST" or path == "/new" else "read"


def routes(method: str) -> list[str]:
    """Paths of all pages that need a key."""
    found = [str(one.path) for one in iter_route_contexts(router.routes) if method in one.methods]
    return [path for path in found if not path.startswith(("/sign-", "/static", "/shared"))]


def test_every_form_needs_the_guard(closed: Front) -> None:
    sign_in(closed, "operator")
    paths = routes("POST")
    assert len(paths) > 30
    for path in paths:
        refused = closed.http.post(re.sub(r"\{\w+\}", "none", path), files=NO_FILE)
        assert refused.status_code == 403 and "not sent by a page of this session" in refused.text, path


@pytest.mark.parametrize("scope", RANKS)
def test_every_page_needs_its_scope(closed: Front, scope: str) -> None:
    guard = sign_in(closed, scope)
    for method in ("GET", "POST"):
        for path in routes(method):
            sent = {"headers": {GUARD_HEADER: guard}, "files": NO_FILE} if method == "POST" else {}
            answer = closed.http.request(method, re.sub(r"\{\w+\}", "none", path), **sent)
            may = RANKS.index(scope) >= RANKS.index(wanted(method, path))
            assert (answer.status_code != 403) is may, f"{method} {path}: {answer.status_code}"
            assert may or "Permission denied" in answer.text
    shown = closed.http.get("/jobs").text
    linked = {"/jobs": "read", "/new": "submit", "/webhooks": "manage", "/keys": "admin", "/tenants": "admin"}
    for path, least in linked.items():
        assert (f'href="{path}"' in shown) is (RANKS.index(scope) >= RANKS.index(least)), path
    assert closed.http.get("/style").status_code == 404, "a page for services that are open"


def test_pages_hold_to_their_policy(sqlite_front: Front) -> None:
    for path, status in (("/", 200), ("/jobs", 200), ("/jobs/job_nothing", 404), ("/style", 200)):
        answer = sqlite_front.http.get(path)
        assert answer.status_code == status and answer.headers["content-type"].startswith("text/html")
        assert (status == 404) is ("job-not-found" in answer.text)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "no-store" in answer.headers["cache-control"]
        assert answer.headers["referrer-policy"] == "same-origin", "or browsers send forms with an origin of null"
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", answer.text)


def test_assets_are_kept_by_browsers(sqlite_front: Front) -> None:
    named = re.findall(r'"(/static/[^"]+)"', sqlite_front.http.get("/jobs").text)
    assert len(named) >= 3
    for address in named:
        answer = sqlite_front.http.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@each("asset", ["nothing.css", "..%2fpages.py", "%2e%2e%2fassets.py", "pages.py", ".css", "a%00.css"])
def test_there_are_no_other_assets(sqlite_front: Front, asset: str) -> None:
    problem(sqlite_front.http.get(f"/static/{asset}"), 404, "route-not-found")
