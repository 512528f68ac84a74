"""The form of a new job: ranges of another job, and hand-overs, whose URLs stand in no address."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from service.dashboard import new_job
from service.hand_overs import asking
from service.jobs.outcome import QuantizeOutcome
from service.settings import Settings
from tests.api.conftest import front_of
from tests.dashboard.test_new_job import form, job, nouns, send, start
from tests.support.front import Front, make_report, model_summary
from tests.support.hand_overs import SIGNATURE, post, put
from tests.support.webhooks import HOST, PEPPER

RANGES = {"x": {"minimum": -1.0, "maximum": 1.0}}


@pytest.fixture
def peppered(app: FastAPI, tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A service that can keep URLs; inner.example is within the house."""
    monkeypatch.setattr(
        asking, "system_resolver", lambda host, _: ["10.0.0.7"] if host == "inner.example" else ["8.8.8.8"]
    )
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, key_pepper=PEPPER)
    with front_of(app, settings) as front:
        yield front


def calibrated(front: Front, **asked: Any) -> str:
    """A job that has succeeded, with ranges."""
    job_id = front.new_job(**asked)
    report = make_report().to_json_dict() | {"tensor_ranges": RANGES}
    front.finish(job_id, QuantizeOutcome(type(make_report()).model_validate(report), ()))
    return job_id


def test_ranges_of_a_job_are_taken_over_by_a_new_one_and_by_a_clone(sqlite_front: Front) -> None:
    chosen = nouns(sqlite_front)
    source = calibrated(sqlite_front, **chosen)
    page = form(sqlite_front, f"/new?ranges_from={source}")
    assert page["ranges_from"] == source
    made = start(sqlite_front, page, **chosen)
    assert job(sqlite_front, made)["config"]["tensor_ranges"] == RANGES
    clone = start(sqlite_front, form(sqlite_front, f"/new?from={made}"), name="again")
    assert job(sqlite_front, clone)["config"]["tensor_ranges"] == RANGES
    page = form(sqlite_front, f"/new?from={source}")
    assert source in page.described["ranges_from"]
    seen = job(sqlite_front, start(sqlite_front, page, ranges_from=source))
    assert (seen["cloned_from"], seen["config"]["tensor_ranges"]) == (source, RANGES)


def test_a_job_without_ranges_is_told_at_its_field(sqlite_front: Front) -> None:
    fields, blank = nouns(sqlite_front), form(sqlite_front)
    other = calibrated(sqlite_front, model_id=sqlite_front.ready_model(model_summary(sha256="9" * 64)))
    for action, written, status, told in (
        ("check", "job_nothing", 404, "no job"),
        ("start", sqlite_front.new_job(), 422, "no ranges"),
        ("start", other, 422, "graph"),
        ("check", "x" * 65, 422, "64"),
    ):
        page = send(sqlite_front, action, blank, status, **fields, ranges_from=written)
        assert told in page.described["ranges_from"]
        assert page["ranges_from"] == written


def test_results_are_handed_over_and_those_of_a_clone_to_what_it_says_itself(peppered: Front) -> None:
    fields = nouns(peppered)
    written = json.dumps([put(), post()], indent=2)
    page = send(peppered, "check", form(peppered), **fields, hand_over=written)
    assert page["hand_over"] == written
    made = start(peppered, page)
    kept = peppered.http.get(f"/v1/jobs/{made}/hand-over").json()["items"]
    assert [(one["kind"], one["host"]) for one in kept] == [("put", HOST), ("post", HOST)]
    clone = form(peppered, f"/new?from={made}")
    assert clone["hand_over"] == ""
    other = start(peppered, clone, hand_over=json.dumps([post()]))
    assert [one["kind"] for one in peppered.http.get(f"/v1/jobs/{other}/hand-over").json()["items"]] == ["post"]


def test_what_is_wrong_with_a_hand_over_stands_at_its_field(peppered: Front) -> None:
    chosen, blank = nouns(peppered), form(peppered)
    inner = json.dumps([{**post(), "url": "https://inner.example/in"}])
    for action, written, told in (
        ("check", "[", "not JSON"),
        ("start", "{}", "list"),
        ("check", json.dumps([{**post(), "kind": "get"}]), "0/kind: "),
        ("start", json.dumps([put(), {"kind": "put"}]), "1/url: "),
        ("check", inner, "0/url: "),
        ("start", inner, "0/url: "),
    ):
        page = send(peppered, action, blank, 422, **chosen, hand_over=written)
        assert told in page.described["hand_over"]
        assert page["hand_over"] == written
    assert peppered.http.get("/v1/jobs").json()["items"] == []


def test_no_url_of_a_hand_over_comes_into_an_address(peppered: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_job, "_WAIT_SECONDS", 0)
    written = json.dumps([put()])
    fields = form(peppered).with_fields({"hand_over": written, "name": "kept"})
    files = [("model_files", ("net.onnx", b"graph"))]
    answer = peppered.http.post("/new/model", data=fields, files=files, follow_redirects=False)
    assert answer.status_code == 200
    assert SIGNATURE in answer.text and 'value="kept"' in answer.text
    assert SIGNATURE not in peppered.http.get("/new", params={"hand_over": written}).text
