"""The page of a report, its filter of layers, its changed samples, and the links that show it to others."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.comparison.changed import changes
from service.comparison.samples import Samples, read_samples
from service.contracts.dataset import DatasetSummary, Thumbnails
from service.contracts.report import Report
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.keys import keyring as keyrings
from service.principal import DEFAULT_TENANT, INSTALLATION_KEY, NO_KEY
from service.settings import Settings
from tests.api.conftest import front_of
from tests.api.test_evaluations import new_evaluation, succeed
from tests.support.front import Front, dataset_summary, npz_bytes
from tests.support.reports import (
    HOSTILE,
    PICTURE,
    SCRIPT,
    full_document,
    full_report,
    hostile_document,
    large_report,
)

KEY = "a key of an installation that has just one"
BEARER = {"Authorization": f"Bearer {KEY}"}


def job_with(front: Front, report: Report, samples: bytes | None = None, **body: Any) -> str:
    job_id = front.new_job(**body)
    kept = []
    if samples is not None:
        kept = [NewArtifact("samples", "samples.npz", "application/octet-stream", front.store(samples), len(samples))]
    front.finish(job_id, QuantizeOutcome(report, tuple(kept)))
    return job_id


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def listed(page: str) -> str:
    return text_of(page[page.index('id="layer-list"') : page.index('id="changed"')])


@pytest.mark.parametrize(
    "fact",
    [
        "FAIL", "Read this first", "Output SQNR: what each kept algorithm gained", "top1: what each kept algorithm",
        "2.50 dB better", "1.00 points better", "Bit widths", "weights int8", "clips below", "Find a layer",
        "The job keeps no results by sample", "Make a link", "softmax-range",
    ],
)  # fmt: skip
def test_the_page_shows_the_sections_and_more(sqlite_front: Front, fact: str) -> None:
    answer = sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report())}/report")
    assert answer.status_code == 200
    assert fact in text_of(answer.text)


def test_the_page_has_no_style_or_script_of_its_own(sqlite_front: Front) -> None:
    page = sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report())}/report").text
    assert "<style" not in page
    assert not re.search(r"<[^>]+\s(style|on\w+)=", page)
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []


def test_hostile_names_are_text(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, Report.model_validate(hostile_document()))
    for query in ({}, {"layer": "script"}, {"op": SCRIPT}, {"layer": PICTURE}):
        answer = sqlite_front.http.get(f"/jobs/{job_id}/report", params=query)
        assert answer.status_code == 200
        assert "<script>" not in answer.text
        assert "<img src=x" not in answer.text
        assert "<b onload" not in answer.text
        assert SCRIPT in text_of(answer.text.replace("&lt;", "\u2039")).replace("\u2039", "<")
    shared = sqlite_front.http.post(f"/jobs/{job_id}/share", data={"days": "1"})
    document = sqlite_front.http.get(link_in(shared.text)).text
    assert "<script" not in document
    assert html.escape(HOSTILE[0]) in document


@pytest.mark.parametrize(
    ("query", "there", "gone"),
    [
        ({}, ["/features/0", "/softmax", "4 of 4 layers"], []),
        ({"layer": "FEATURES"}, ["/features/0", "/features/2", "2 of 4 layers"], ["/softmax"]),
        ({"layer": "/features/1"}, ["/features/0"], ["/features/2"]),
        ({"kind": "float"}, ["/softmax", "its output needs more than 8 bits"], ["/features/0"]),
        ({"op": "Conv", "kind": "quantized"}, ["/features/2"], ["/shape"]),
        ({"layer": "no such"}, ["No layer is like this."], ["/softmax"]),
    ],
)
def test_the_filter_of_layers(sqlite_front: Front, query: dict[str, str], there: list[str], gone: list[str]) -> None:
    page = sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report())}/report", params=query).text
    assert all(one in listed(page) for one in there)
    assert not any(one in listed(page) for one in gone)


def test_a_filter_that_is_none_is_refused(sqlite_front: Front) -> None:
    answer = sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report())}/report", params={"kind": "other"})
    assert answer.status_code == 422


def test_advice_can_be_tried_in_one_click(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, full_report())
    page = sqlite_front.http.get(f"/jobs/{job_id}/report").text
    links = [html.unescape(one) for one in re.findall(r'href="(/new\?from=[^"]*patch=[^"]*)"', page)]
    assert len(links) == 1
    query = parse_qs(urlsplit(links[0]).query)
    assert query["from"] == [job_id]
    assert json.loads(query["patch"][0]) == {"exclude": ["/features/0", "/classifier"]}


def test_advice_that_no_address_holds_is_no_link(sqlite_front: Front) -> None:
    advice = {**full_document()["advice"][0], "config": {"exclude": ["n" * 7000]}}
    page = sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report(advice=[advice]))}/report").text
    assert "patch=" not in page


def decisions(**more: Any) -> bytes:
    before = np.arange(32, dtype=np.int32) % 5
    after = before.copy()
    after[[2, 7]] = 4
    sure = np.full(32, 0.75, np.float32)
    sure[7] = np.nan
    return npz_bytes(float_class=before, quantized_class=after, float_confidence=sure, **more)


def test_changed_samples_are_listed(sqlite_front: Front) -> None:
    labels = np.full(32, 2, np.int32)
    page = sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report(), decisions(label=labels))}/report").text
    told = text_of(page[page.index('id="changed"') :])
    assert "2 of 32 samples are decided otherwise" in told
    assert "2 2 2 ✔ right 4 ✖ wrong 75.0 %" in told
    assert "7 2 2 ✔ right 4 ✖ wrong –" in told


def test_changed_samples_of_pictures_are_shown_with_them_and_class_names(sqlite_front: Front) -> None:
    media = {"archive": "zip", "codecs": {}, "classes": ("cat", "dog", "owl", "cow", SCRIPT),
             "smallest": (8, 8), "largest": (8, 8)}  # fmt: skip
    sheet = Thumbnails(file="thumbnails.png", sha256=sqlite_front.store(b"sheet"), size_bytes=5)
    facts = dataset_summary().model_dump() | {"media": media, "thumbnails": sheet.model_dump(), "format": "pictures"}
    dataset_id = sqlite_front.ready_dataset(DatasetSummary.model_validate(facts))
    fidelity = {**full_document()["fidelity"], "source": "calibration"}
    job_id = job_with(sqlite_front, full_report(fidelity=fidelity), decisions(), calibration_dataset_id=dataset_id)
    page = sqlite_front.http.get(f"/jobs/{job_id}/report").text
    changed = page[page.index('id="changed"') :]
    assert "2 owl" in text_of(changed)
    assert f"4 {SCRIPT}" in html.unescape(changed)
    # every other sample stands on the sheet of 16, four in a row
    assert re.findall(r'viewBox="([^"]*)"', changed) == ["136 4 128 128"]
    assert f'href="/v1/datasets/{dataset_id}/thumbnails"' in changed


def test_changes_know_what_is_not_known() -> None:
    found = changes(read_samples(decisions()), 1)
    assert found is not None
    assert (found.samples, found.total, len(found.first)) == (32, 2, 1)
    assert found.first[0] == (2, None, 2, 4, 0.75)


def test_models_without_classes_have_no_changes() -> None:
    assert changes(Samples(None, {}), 50) is None


def test_results_by_sample_that_are_damaged_leave_the_rest_of_the_page(sqlite_front: Front) -> None:
    answer = sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report(), b'no archive')}/report")
    assert answer.status_code == 200
    assert "samples.npz cannot be read" in text_of(answer.text)


def test_a_job_without_a_report_is_told(sqlite_front: Front) -> None:
    assert sqlite_front.http.get(f"/jobs/{sqlite_front.new_job()}/report").status_code in (404, 409)


def link_in(page: str) -> str:
    found = re.search(r'href="(http[^"]*/shared/[^"]*)"', page)
    assert found is not None, page
    return found[1]


def test_a_link_shows_the_report_and_may_be_embedded(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, full_report())
    made = sqlite_front.http.post(f"/jobs/{job_id}/share", data={"days": "7"})
    assert made.status_code == 200
    answer = sqlite_front.http.get(link_in(made.text))
    assert answer.status_code == 200
    assert answer.text == sqlite_front.http.get(f"/v1/jobs/{job_id}/report.html").text
    assert "x-frame-options" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert answer.headers["cache-control"].startswith("private")
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors *" in policy
    assert "default-src 'none'" in policy
    again = sqlite_front.http.get(link_in(made.text), headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    other = sqlite_front.http.get(f"/jobs/{job_id}/report")
    assert other.headers["x-frame-options"] == "DENY"
    assert sqlite_front.http.get(f"/v1/jobs/{job_id}/report.html").headers["x-frame-options"] == "DENY"


def test_a_large_report_lists_its_first_layers_and_all_on_demand(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, large_report(300))
    page = sqlite_front.http.get(f"/jobs/{job_id}/report?kind=quantized").text
    listed = page[page.index('id="layer-list"') : page.index('id="changed"')]
    assert listed.count('<tr><th scope="row"') == 100
    assert "kind=quantized&amp;every=yes#layer-list" in listed
    every = sqlite_front.http.get(f"/jobs/{job_id}/report?every=yes").text
    whole = every[every.index('id="layer-list"') : every.index('id="changed"')]
    assert whole.count('<tr><th scope="row"') == len(large_report(300).layers)


def test_what_was_lost_stands_in_the_head_with_its_cause(sqlite_front: Front) -> None:
    lost = text_of(sqlite_front.http.get(f"/jobs/{job_with(sqlite_front, full_report())}/report").text)
    assert "rmse got worse by 0.125. Most of the error" in lost
    assert "about 92 %, comes from this: one scale serves channels of a weight" in lost
    report = full_document()
    del report["causes"]
    job_id = job_with(sqlite_front, Report.model_validate(report))
    assert "Most of the error" not in sqlite_front.http.get(f"/jobs/{job_id}/report").text


@pytest.mark.parametrize("days", ["", "2", "365", "-1", "x"])
def test_links_last_for_one_of_three_times(sqlite_front: Front, days: str) -> None:
    answer = sqlite_front.http.post(f"/jobs/{job_with(sqlite_front, full_report())}/share", data={"days": days})
    assert answer.status_code == 422
    assert "/shared/" not in answer.text


@pytest.fixture
def closed(app: FastAPI, tmp_path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """The front desk of an installation with a key."""
    monkeypatch.delenv("QUANTMILL_OPEN", raising=False)
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, api_key=KEY, open=False)
    with front_of(app, settings) as front:
        front.http.headers.update(BEARER)
        yield front


def refused(front: Front, token: str) -> None:
    stranger = TestClient(front.http.app, raise_server_exceptions=False)
    answer = stranger.get(f"/shared/{token}")
    assert answer.status_code == 404
    assert "This link shows nothing any more" in answer.text


def test_links_need_no_key_and_open_nothing_else(closed: Front) -> None:
    job_id = job_with(closed, full_report())
    link = link_in(closed.http.post(f"/jobs/{job_id}/share", data={"days": "1"}).text)
    stranger = TestClient(closed.http.app, raise_server_exceptions=False)
    assert stranger.get(link).status_code == 200
    token = link.rpartition("/")[2]
    assert (
        stranger.get(f"/v1/jobs/{job_id}/report.html", headers={"Authorization": f"Bearer {token}"}).status_code == 401
    )
    assert stranger.get(f"/v1/jobs/{job_id}/events?token={token}").status_code == 401
    assert stranger.post(f"/jobs/{job_id}/share", data={"days": "1"}).status_code == 401


def test_forged_and_foreign_tokens_are_refused(closed: Front) -> None:
    job_id = job_with(closed, full_report())
    keyring = closed.desk.keyring
    good, _ = keyring.share_token(DEFAULT_TENANT, INSTALLATION_KEY, job_id, 1)
    session = keyring.session_token(KEY)
    assert session is not None
    stream, _ = keyring.stream_token(DEFAULT_TENANT, INSTALLATION_KEY, f"{job_id} {INSTALLATION_KEY}")
    nobody, _ = keyring.share_token(DEFAULT_TENANT, NO_KEY, job_id, 1)
    ended, _ = keyring.share_token(DEFAULT_TENANT, "key_that_has_ended", job_id, 1)
    tampered = ("A" if good[0] != "A" else "B") + good[1:]
    for token in (tampered, good[:-4], "x", "é", session[0], stream, nobody, ended, good + "A" * 100):
        refused(closed, token)


def test_expired_links_are_refused(closed: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring, job_id = closed.desk.keyring, job_with(closed, full_report())
    token, ends_at = keyring.share_token(DEFAULT_TENANT, INSTALLATION_KEY, job_id, 1)
    assert keyring.look_up_share(token) == (DEFAULT_TENANT, job_id)
    monkeypatch.setattr(keyrings.time, "time", lambda: ends_at)
    assert keyring.look_up_share(token) is None


def test_another_key_of_the_installation_ends_its_links(closed: Front) -> None:
    job_id = job_with(closed, full_report())
    token, _ = closed.desk.keyring.share_token(DEFAULT_TENANT, INSTALLATION_KEY, job_id, 1)
    settings = closed.desk.settings.model_copy(update={"api_key": type(closed.desk.settings.api_key)("another " + KEY)})
    assert keyrings.Keyring(settings, closed.desk.database).look_up_share(token) is None


@pytest.mark.parametrize("reference", [True, False])
def test_an_evaluation_has_a_plain_page(sqlite_front: Front, reference: bool) -> None:
    job_id = new_evaluation(sqlite_front)
    succeed(sqlite_front, job_id, reference=reference)
    page = sqlite_front.http.get(f"/jobs/{job_id}/report")
    assert page.status_code == 200
    told = text_of(page.text)
    assert "measured on 32 samples" in told
    assert "89.50 %" in told
    assert ("Reference" in told) == reference
