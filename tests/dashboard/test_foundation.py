"""Signing in and out, the guard of forms, assets, and what the pages of jobs show: through the real application."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from service.dashboard import jobs as jobs_pages
from service.jobs import events
from service.keys import service as keys
from service.keys.cookies import COOKIE, GUARD_HEADER
from service.tables import Job
from tests.dashboard.signing import BY, new_key, sign_in
from tests.support.filled import HOSTILE_LABELS, HOSTILE_NAME, run
from tests.support.front import Front, problem
from tests.support.source import ROOT


def guard_of(front: Front, path: str = "/jobs") -> str:
    """What the forms of a page send along."""
    found = re.search(r'<meta name="csrf" content="([0-9a-f]{64})">', front.http.get(path).text)
    assert found is not None
    return found[1]


def test_who_is_not_signed_in_is_asked_for_a_key(closed: Front) -> None:
    answer = closed.http.get("/jobs?state=failed")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/sign-in?next=%2Fjobs%3Fstate%3Dfailed"
    form = closed.http.get(answer.headers["location"])
    assert form.status_code == 200
    assert 'value="/jobs?state=failed"' in form.text


def test_a_good_key_opens_a_session(closed: Front) -> None:
    key = new_key(closed).text
    answer = closed.http.post("/sign-in", data={"key": key, "next": "/jobs?state=failed"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/jobs?state=failed"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert key not in cookie
    assert closed.http.get("/jobs").status_code == 200


@pytest.mark.parametrize("key", ["", "nonsense", "qm_" + "a" * 26 + "_" + "b" * 43])
def test_a_wrong_key_opens_none(closed: Front, key: str) -> None:
    answer = closed.http.post("/sign-in", data={"key": key, "next": "/jobs"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert 'aria-invalid="true"' in answer.text
    assert 'value="/jobs"' in answer.text
    if key:
        assert key not in answer.text
    assert closed.http.get("/jobs").status_code == 303


@pytest.mark.parametrize(
    "place", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\tx", "jobs"]
)
def test_signing_in_leads_nowhere_else(closed: Front, place: str) -> None:
    key = new_key(closed).text
    assert closed.http.post("/sign-in", data={"key": key, "next": place}).headers["location"] == "/"
    assert "evil" not in closed.http.get("/sign-in", params={"next": place}).text


def test_signing_out_ends_it_here(closed: Front) -> None:
    sign_in(closed)
    answer = closed.http.post("/sign-out")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert closed.http.get("/jobs").status_code == 303


def test_a_session_ends_with_its_key(closed: Front) -> None:
    made = new_key(closed)
    assert closed.http.post("/sign-in", data={"key": made.text}).status_code == 303
    assert closed.http.get("/jobs").status_code == 200
    with closed.desk.database.write() as session:
        keys.revoke(session, BY, made.row.id)
    assert closed.http.get("/jobs").status_code == 303
    problem(closed.http.get("/v1/jobs"), 401, "unauthorized")


def test_a_forged_session_is_none(closed: Front) -> None:
    sign_in(closed)
    token = closed.http.cookies[COOKIE]
    for forged in (token[:-1], "A" + token[1:], "", "x" * 2000, "{}"):
        closed.http.cookies.clear()
        assert closed.http.get("/jobs", headers={"Cookie": f"{COOKIE}={forged}"}).status_code == 303, forged


def test_a_form_needs_the_guard(closed: Front) -> None:
    sign_in(closed)
    path = "/jobs/job_nothing/cancel"
    for body in ({}, {"csrf": "0" * 64}, {"csrf": ""}):
        refused = closed.http.post(path, data=body)
        assert refused.status_code == 403
        assert "guard-missing" in refused.text
        assert refused.headers["content-type"].startswith("text/html")
    guard = guard_of(closed)
    # past the guard, there is no such job
    assert closed.http.post(path, data={"csrf": guard}).status_code == 404
    assert closed.http.post(path, headers={GUARD_HEADER: guard}).status_code == 404
    sign_in(closed)
    assert closed.http.post(path, data={"csrf": guard}).status_code == 403, "the guard of another session"


def test_the_api_takes_a_session_with_its_guard(closed: Front) -> None:
    sign_in(closed)
    assert closed.http.get("/v1/jobs").status_code == 200
    body = {"filename": "model.onnx", "size_bytes": 10}
    problem(closed.http.post("/v1/uploads", json=body), 403, "guard-missing")
    assert closed.http.post("/v1/uploads", json=body, headers={GUARD_HEADER: guard_of(closed)}).status_code == 201


def test_a_key_beside_a_session_needs_no_guard(closed: Front) -> None:
    sign_in(closed)
    key = new_key(closed).text
    body = {"filename": "model.onnx", "size_bytes": 10}
    headers = {"Authorization": f"Bearer {key}"}
    assert closed.http.post("/v1/uploads", json=body, headers=headers).status_code == 201


def test_a_session_may_what_its_key_may(closed: Front) -> None:
    sign_in(closed, "read")
    page = closed.http.get("/jobs").text
    assert 'href="/jobs"' in page
    assert 'href="/new"' not in page
    assert 'href="/admin"' not in page
    refused = closed.http.post("/jobs/job_nothing/cancel", data={"csrf": guard_of(closed)})
    assert refused.status_code == 403
    assert refused.headers["content-type"].startswith("text/html")


def test_forgetting_a_job_needs_what_the_api_asks_for(closed: Front) -> None:
    sign_in(closed, "submit")
    answer = closed.http.post("/jobs/job_nothing/delete", data={"csrf": guard_of(closed)})
    assert answer.status_code == 403


def test_pages_hold_to_their_policy(sqlite_front: Front) -> None:
    for path in ("/", "/jobs", "/jobs/job_nothing", "/style"):
        answer = sqlite_front.http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "no-store" in answer.headers["cache-control"]
        assert answer.headers["referrer-policy"] == "same-origin", "or browsers send forms with an origin of null"
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", answer.text)


def test_assets_are_kept_by_browsers(sqlite_front: Front) -> None:
    page = sqlite_front.http.get("/jobs").text
    named = re.findall(r'"(/static/[^"]+)"', page)
    assert len(named) >= 3
    for address in named:
        answer = sqlite_front.http.get(address)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "asset", ["nothing.css", "..%2fpages.py", "%2e%2e%2fassets.py", "pages.py", ".css", "layout.html.jinja", "a%00.css"]
)
def test_there_are_no_other_assets(sqlite_front: Front, asset: str) -> None:
    problem(sqlite_front.http.get(f"/static/{asset}"), 404, "route-not-found")


def test_what_is_missing_is_told_as_a_page(sqlite_front: Front) -> None:
    answer = sqlite_front.http.get("/jobs/job_nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "job-not-found" in answer.text


def test_the_page_of_components_is_for_open_services(closed: Front) -> None:
    sign_in(closed, "admin")
    assert closed.http.get("/style").status_code == 404


def test_every_component_is_shown(sqlite_front: Front) -> None:
    page = sqlite_front.http.get("/style").text
    parts = Path(jobs_pages.__file__).with_name("templates") / "parts.html.jinja"
    source = parts.with_name("style_page.html.jinja").read_text()
    # of a guard nothing can be seen
    components = set(re.findall(r"{% macro (\w+)\(", parts.read_text())) - {"guard"}
    assert len(components) >= 8
    for name in components:
        assert re.search(rf"{{{{ {name}\(", source), name
    assert page.count('class="state ') > 10


def test_jobs_are_filtered(sqlite_front: Front) -> None:
    both = {"model_id": sqlite_front.ready_model(), "calibration_dataset_id": sqlite_front.ready_dataset()}
    first = sqlite_front.new_job(name="alpha", labels={"team": "vision"}, **both)
    second = sqlite_front.new_job(name="beta", config={"preset": "int8"}, **both)
    sqlite_front.http.post(f"/v1/jobs/{second}/cancel")

    def found(query: str) -> set[str]:
        text = sqlite_front.http.get(f"/jobs{query}").text
        return {job_id for job_id in (first, second) if f'href="/jobs/{job_id}"' in text}

    assert found("") == {first, second}
    assert found("?search=alph") == {first}
    assert found("?state=canceled") == {second}
    assert found("?state=queued&search=beta") == set()
    assert found("?label=team%3Dvision") == {first}
    assert found("?label=team%3Dother") == set()
    assert found("?verdict=pass") == set()
    assert found(f"?model_id={both['model_id']}") == {first, second}
    assert "No job is like this." in sqlite_front.http.get("/jobs?search=gamma").text
    assert 'value="alph"' in sqlite_front.http.get("/jobs?search=alph").text, "what was asked for is kept"


@pytest.mark.parametrize(
    "query", ["state=nonsense", "verdict=maybe", "label=team", "label=%3Dx", "cursor=nonsense", "search=" + "x" * 201]
)
def test_bad_filters_are_told(sqlite_front: Front, query: str) -> None:
    answer = sqlite_front.http.get(f"/jobs?{query}")
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"].startswith("text/html")
    assert "<h1" in answer.text


def test_jobs_are_shown_page_by_page(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_pages, "_LIMIT", 2)
    both = {"model_id": sqlite_front.ready_model(), "calibration_dataset_id": sqlite_front.ready_dataset()}
    made = [sqlite_front.new_job(name=f"job {k}", **both) for k in range(5)]
    path, seen = "/jobs?search=job", []
    for _ in range(3):
        text = sqlite_front.http.get(path).text
        seen += re.findall(r'<a href="/jobs/(job_\w+)"', text)
        older = re.search(r'rel="next" href="([^"]+)"', text)
        path = "/jobs" + older[1].replace("&amp;", "&") if older else ""
    assert seen == made[::-1]
    assert path == ""


def test_a_job_tells_what_differs_from_its_preset(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job(config={"preset": "int8", "seed": 7}, labels={"team": "vision"})
    text = sqlite_front.http.get(f"/jobs/{job_id}").text
    table = text[text.index("What differs from the preset") :]
    assert "<code>/seed</code>" in table
    assert "<mark><code>7</code></mark>" in table
    plain = sqlite_front.http.get(f"/jobs/{sqlite_front.new_job(config={'preset': 'int8'})}").text
    assert "The preset int8, unchanged." in plain


def test_a_job_can_be_done_again_from_its_page(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job(name="it's", config={"preset": "int8", "seed": 7})
    text = sqlite_front.http.get(f"/jobs/{job_id}").text
    assert f"client.retry(&#39;{job_id}&#39;)" in text
    sent = text[text.index("&lt;&lt;&#39;JSON&#39;\n") :].split("\n", 1)[1].split("\nJSON", 1)[0]
    body = json.loads(sent.replace("&#34;", '"').replace("&#39;", "'"))
    assert body["config"]["seed"] == 7
    assert sqlite_front.http.post("/v1/jobs", json=body).status_code == 202


def test_a_job_that_runs_shows_how_far_it_is(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    run(sqlite_front, job_id)
    text = sqlite_front.http.get(f"/jobs/{job_id}").text
    timeline = text.partition('id="timeline"')[2].partition("</ol>")[0]
    assert timeline.index("queued") < timeline.index("running") < timeline.index("claimed")
    assert "job.queued" not in timeline
    assert 'value="0.5"' in text
    assert "finetune" in text
    assert "Layer &lt;b&gt;conv&lt;/b&gt; is tuned." in text
    assert text.count("<svg") == 2
    assert "finetune: loss" in text
    part = sqlite_front.http.get(f"/jobs/{job_id}/curves").text
    assert part.count("<svg") == 2
    assert 'id="live"' in part


def test_steps_of_a_later_attempt_take_the_place_of_the_first(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    sqlite_front.claim(job_id)
    with sqlite_front.desk.database.write() as session:
        for attempt, loss in ((1, 111.5), (2, 222.5)):
            for step in (0, 1):
                events.append(session, job_id, attempt, "metric", {"stage": "finetune", "step": step, "loss": loss})
    text = sqlite_front.http.get(f"/jobs/{job_id}/curves").text
    assert "222.5" in text
    assert "111.5" not in text


def test_forms_cancel_repeat_and_forget_a_job(sqlite_front: Front) -> None:
    sqlite_front.http.follow_redirects = False
    job_id = sqlite_front.new_job()

    def post(what: str) -> Any:
        return sqlite_front.http.post(f"/jobs/{job_id}/{what}")

    assert post("delete").status_code == 409, "it has not ended"
    assert post("cancel").headers["location"] == f"/jobs/{job_id}"
    assert sqlite_front.http.get(f"/v1/jobs/{job_id}").json()["state"] == "canceled"
    again = post("retry")
    assert again.status_code == 303
    assert sqlite_front.http.get(f"/v1{again.headers['location']}").json()["retry_of"] == job_id
    assert post("delete").headers["location"] == "/jobs"
    assert post("delete").status_code == 404


def test_hostile_names_are_text(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job()
    with sqlite_front.desk.database.write() as session:
        named = {"name": HOSTILE_NAME, "labels": HOSTILE_LABELS}
        session.execute(update(Job).where(Job.id == job_id).values(named))
    for path in ("/", "/jobs", f"/jobs/{job_id}"):
        text = sqlite_front.http.get(path).text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "\u202e" not in text


def test_a_class_is_styled_by_itself_in_one_file_alone() -> None:
    files = sorted((ROOT / "service" / "dashboard" / "static").glob("*.css"))
    found: dict[str, set[str]] = {}
    for file in files:
        for word in re.findall(r"(?:^|[},])\s*\.([\w-]+)\s*(?=[,{])", file.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(word, set()).add(file.name)
    assert len(files) > 1 and found
    # all of them are one sheet: of two pages that mean something else by a word one would get the other's look
    assert {word: names for word, names in found.items() if len(names) > 1} == {}
