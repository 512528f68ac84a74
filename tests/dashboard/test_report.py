"""The page of a report, its filter of layers, its changed samples, and the links that show it to others."""

from __future__ import annotations

import html
import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from service.comparison.differences import changes
from service.comparison.samples import Samples, read_samples
from service.contracts.dataset import DatasetSummary, Thumbnails
from service.contracts.report import Report
from service.jobs.outcome import QuantizeOutcome
from service.keys import keyring as keyrings
from service.principal import DEFAULT_TENANT, INSTALLATION_KEY, NO_KEY
from tests.api.test_evaluations import new_evaluation, succeed
from tests.dashboard.conftest import KEY
from tests.support.front import Front, dataset_summary, make_report, npz_bytes
from tests.support.reports import HOSTILE, PICTURE, SCRIPT, full_document, full_report, hostile_document, large_report


def job_with(front: Front, report: Report, samples: bytes | None = None, **body: Any) -> str:
    job_id = front.new_job(**body)
    kept = [] if samples is None else [front.kept("samples", "samples.npz", samples)]
    front.finish(job_id, QuantizeOutcome(report, tuple(kept)))
    return job_id


def page_of(front: Front, job_id: str, **query: str) -> str:
    answer = front.http.get(f"/jobs/{job_id}/report", params=query)
    assert answer.status_code == 200, answer.text
    return answer.text


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def listed(page: str) -> str:
    return page[page.index('id="layer-list"') : page.index('id="changed"')]


def link_in(page: str) -> str:
    found = re.search(r'href="(http[^"]*/shared/[^"]*)"', page)
    assert found is not None, page
    return found[1]


def test_the_page_shows_the_sections_and_more(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, full_report())
    page = page_of(sqlite_front, job_id)
    for fact in (
        "Gate failed", "Findings", "Output SQNR by algorithm", "top1 by algorithm", "+2.50 dB", "+1.00 points",
        "Bit widths", "weights int8", "clips below", "Find a layer",
        "The job stores no results per sample", "Create link", "softmax-range",
        "Largest error contribution", "Cause: ", "91.5 % of all error", "Try first",
    ):  # fmt: skip
        assert fact in text_of(page)
    assert not re.search(r"<style|<[^>]+\s(style|on\w+)=|<script(?![^>]*\ssrc=)", page)
    (link,) = {html.unescape(one) for one in re.findall(r'href="(/new\?from=[^"]*patch=[^"]*)"', page)}
    query = parse_qs(urlsplit(link).query)
    assert query["from"] == [job_id]
    assert json.loads(query["patch"][0]) == {"exclude": ["/features/0", "/classifier"]}


def test_what_the_report_does_not_tell_the_page_does_not(sqlite_front: Front) -> None:
    report = full_document()
    report["advice"] = [{**report["advice"][0], "config": {"exclude": ["n" * 7000]}}]
    del report["causes"]
    page = page_of(sqlite_front, job_with(sqlite_front, Report.model_validate(report), b"no archive"))
    assert "This cause" not in page
    assert "patch=" not in page, "no address holds it"
    assert "samples.npz cannot be read" in text_of(page)
    assert sqlite_front.http.get(f"/jobs/{sqlite_front.new_job()}/report").status_code in (404, 409)


def test_hostile_names_are_text(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, Report.model_validate(hostile_document()))
    for query in ({}, {"layer": "script"}, {"op": SCRIPT}, {"layer": PICTURE}):
        page = page_of(sqlite_front, job_id, **query)
        assert not any(attack in page for attack in ("<script>", "<img src=x", "<b onload"))
        assert SCRIPT in text_of(page.replace("&lt;", "\u2039")).replace("\u2039", "<")
    shared = sqlite_front.http.post(f"/jobs/{job_id}/share", data={"days": "1"})
    document = sqlite_front.http.get(link_in(shared.text)).text
    assert "<script" not in document and html.escape(HOSTILE[0]) in document


def test_the_filter_of_layers(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, full_report())
    for query, there, gone in (
        ({}, ["/features/0", "/softmax", "4 of 4 layers"], []),
        ({"layer": "FEATURES"}, ["/features/0", "/features/2", "2 of 4 layers"], ["/softmax"]),
        ({"layer": "/features/1"}, ["/features/0"], ["/features/2"]),
        ({"kind": "float"}, ["/softmax", "its output needs more than 8 bits"], ["/features/0"]),
        ({"op": "Conv", "kind": "quantized"}, ["/features/2"], ["/shape"]),
        ({"layer": "no such"}, ["No matching layers"], ["/softmax"]),
    ):
        found = text_of(listed(page_of(sqlite_front, job_id, **query)))
        assert all(one in found for one in there) and not any(one in found for one in gone), query
    assert sqlite_front.http.get(f"/jobs/{job_id}/report", params={"kind": "other"}).status_code == 422


def test_a_large_report_lists_its_first_layers_and_all_on_demand(sqlite_front: Front) -> None:
    report = large_report(150)
    job_id = job_with(sqlite_front, report)
    first = listed(page_of(sqlite_front, job_id, kind="quantized"))
    assert first.count('<tr><th scope="row"') == 100
    assert "kind=quantized&amp;every=yes#layer-list" in first
    assert listed(page_of(sqlite_front, job_id, every="yes")).count('<tr><th scope="row"') == len(report.layers)


def decisions(**more: Any) -> bytes:
    before = np.arange(32, dtype=np.int32) % 5
    after = before.copy()
    after[[2, 7]] = 4
    sure = np.full(32, 0.75, np.float32)
    sure[7] = np.nan
    return npz_bytes(float_class=before, quantized_class=after, float_confidence=sure, **more)


def test_changed_samples_are_listed(sqlite_front: Front) -> None:
    labels = np.full(32, 2, np.int32)
    page = page_of(sqlite_front, job_with(sqlite_front, full_report(), decisions(label=labels)))
    told = text_of(page[page.index('id="changed"') :])
    assert "for 2 of 32 samples" in told
    assert "2 2 2 ✔ correct 4 ✖ wrong 75.0 %" in told
    assert "7 2 2 ✔ correct 4 ✖ wrong –" in told


def test_changed_samples_of_pictures_are_shown_with_them_and_class_names(sqlite_front: Front) -> None:
    media = {"archive": "zip", "codecs": {}, "classes": ("cat", "dog", "owl", "cow", SCRIPT),
             "smallest": (8, 8), "largest": (8, 8)}  # fmt: skip
    sheet = Thumbnails(file="thumbnails.png", sha256=sqlite_front.store(b"sheet"), size_bytes=5)
    facts = dataset_summary().model_dump() | {"media": media, "thumbnails": sheet.model_dump(), "format": "pictures"}
    dataset_id = sqlite_front.ready_dataset(DatasetSummary.model_validate(facts))
    fidelity = {**full_document()["fidelity"], "source": "calibration"}
    report = full_report(fidelity=fidelity)
    page = page_of(sqlite_front, job_with(sqlite_front, report, decisions(), calibration_dataset_id=dataset_id))
    changed = page[page.index('id="changed"') :]
    assert "2 owl" in text_of(changed) and f"4 {SCRIPT}" in html.unescape(changed)
    # every other sample stands on the sheet of 16, four in a row
    assert re.findall(r'viewBox="([^"]*)"', changed) == ["136 4 128 128"]
    assert f'href="/v1/datasets/{dataset_id}/thumbnails"' in changed


def test_changes_know_what_is_not_known() -> None:
    found = changes(read_samples(decisions()), 1)
    assert found is not None
    assert (found.samples, found.total, len(found.first)) == (32, 2, 1)
    assert found.first[0] == (2, None, 2, 4, 0.75)
    assert changes(Samples(None, {}), 50) is None, "a model without classes"


def test_a_link_shows_the_report_and_may_be_embedded(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, full_report())
    made = sqlite_front.http.post(f"/jobs/{job_id}/share", data={"days": "7"})
    assert made.status_code == 200
    answer = sqlite_front.http.get(link_in(made.text))
    own = sqlite_front.http.get(f"/v1/jobs/{job_id}/report.html")
    assert (answer.status_code, answer.text) == (200, own.text)
    assert "x-frame-options" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert answer.headers["cache-control"].startswith("private")
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors *" in policy and "default-src 'none'" in policy
    again = sqlite_front.http.get(link_in(made.text), headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
    for other in (own, sqlite_front.http.get(f"/jobs/{job_id}/report")):
        assert other.headers["x-frame-options"] == "DENY"
    for days in ("", "2", "365", "-1", "x"):
        refused = sqlite_front.http.post(f"/jobs/{job_id}/share", data={"days": days})
        assert refused.status_code == 422 and "/shared/" not in refused.text, days


def test_links_need_no_key_and_open_nothing_else(closed: Front) -> None:
    closed.http.headers["Authorization"] = f"Bearer {KEY}"
    job_id = job_with(closed, full_report())
    link = link_in(closed.http.post(f"/jobs/{job_id}/share", data={"days": "1"}).text)
    stranger = TestClient(closed.http.app, raise_server_exceptions=False)
    assert stranger.get(link).status_code == 200
    token = link.rpartition("/")[2]
    bearer = {"Authorization": f"Bearer {token}"}
    assert stranger.get(f"/v1/jobs/{job_id}/report.html", headers=bearer).status_code == 401
    assert stranger.get(f"/v1/jobs/{job_id}/events?token={token}").status_code == 401
    assert stranger.post(f"/jobs/{job_id}/share", data={"days": "1"}).status_code == 401


def test_forged_foreign_and_ended_links_show_nothing(closed: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    closed.http.headers["Authorization"] = f"Bearer {KEY}"
    job_id, keyring = job_with(closed, full_report()), closed.app.keyring
    good, ends_at = keyring.share_token(DEFAULT_TENANT, INSTALLATION_KEY, job_id, 1)
    session = keyring.session_token(KEY, "")
    assert session is not None
    stream, _ = keyring.stream_token(DEFAULT_TENANT, INSTALLATION_KEY, f"{job_id} {INSTALLATION_KEY}")
    nobody, _ = keyring.share_token(DEFAULT_TENANT, NO_KEY, job_id, 1)
    ended, _ = keyring.share_token(DEFAULT_TENANT, "key_that_has_ended", job_id, 1)
    tampered = ("A" if good[0] != "A" else "B") + good[1:]
    stranger = TestClient(closed.http.app, raise_server_exceptions=False)
    for token in (tampered, good[:-4], "x", "é", session[0], stream, nobody, ended, good + "A" * 100):
        answer = stranger.get(f"/shared/{token}")
        assert answer.status_code == 404 and "Link is no longer valid" in answer.text, token
    assert keyring.look_up_share(good) == (DEFAULT_TENANT, job_id)
    other = closed.app.settings.model_copy(update={"api_key": SecretStr(f"another {KEY}")})
    assert keyrings.Keyring(other, closed.app.database).look_up_share(good) is None
    monkeypatch.setattr(keyrings.time, "time", lambda: ends_at)
    assert keyring.look_up_share(good) is None


@pytest.mark.parametrize("reference", [True, False])
def test_an_evaluation_has_a_plain_page(sqlite_front: Front, reference: bool) -> None:
    job_id = new_evaluation(sqlite_front)
    succeed(sqlite_front, job_id, reference=reference)
    told = text_of(page_of(sqlite_front, job_id))
    assert "measured on 32 samples" in told and "89.50 %" in told
    assert ("Reference" in told) == reference


def test_layers_lead_to_the_graph_on_the_page_and_not_in_the_file(sqlite_front: Front) -> None:
    layer = {"name": "block/conv 1", "op": "Conv", "sqnr_db": 31.5, "error_percent": 80.0}
    cause = {"kind": "clipping", "message": "Values are clipped", "error_percent": 80.0, "places": []}
    report = Report.model_validate({**make_report().to_json_dict(), "layers": [layer], "causes": [cause]})
    job_id = sqlite_front.new_job()
    sqlite_front.finish(job_id, QuantizeOutcome(report, ()))
    link = f'href="/jobs/{job_id}/graph?node=block%2Fconv%201#node"'
    assert sqlite_front.http.get(f"/jobs/{job_id}/report").text.count(link) == 3
    assert "/graph?" not in sqlite_front.http.get(f"/v1/jobs/{job_id}/report.html").text
