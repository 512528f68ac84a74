"""Reports as pages and files over HTTP: same rules as the report itself, safe headers, entity tags."""

from __future__ import annotations

import csv
import io
from xml.etree import ElementTree

import pytest
from sqlalchemy import select

import service.reports.router as reports_router
from service.contracts.errors import EngineError
from service.contracts.report import Report
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.reports.formats import FORMATS, FormatName, rendered, renderer_version
from service.reports.html import SECURITY_POLICY
from service.tables import ReportRow
from tests.support.front import Front, make_report, problem
from tests.support.reports import full_report, hostile_document

FORMS = tuple(FORMATS)


def job_with(front: Front, report: Report) -> str:
    model = NewArtifact("model", "model.onnx", "application/octet-stream", front.store(b"x"), 1)
    job_id = front.new_job()
    front.finish(job_id, QuantizeOutcome(report, (model,)))
    return job_id


def path_of(job_id: str, form: FormatName) -> str:
    return f"/v1/jobs/{job_id}/{FORMATS[form].path}"


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_what_the_report_renders_to(front: Front, form: FormatName) -> None:
    report = full_report()
    job_id = job_with(front, report)
    answer = front.http.get(path_of(job_id, form))
    assert answer.status_code == 200
    assert answer.content == rendered(report, form)
    assert answer.headers["content-type"] == FORMATS[form].media_type
    stored = front.http.get(f"/v1/jobs/{job_id}/report").json()
    assert rendered(Report.model_validate(stored), form) == answer.content


@pytest.mark.parametrize("form", FORMS)
def test_no_answer_can_do_anything_in_a_browser(sqlite_front: Front, form: FormatName) -> None:
    job_id = job_with(sqlite_front, Report.model_validate(_json_ready(hostile_document())))
    headers = sqlite_front.http.get(path_of(job_id, form)).headers
    policy = headers["content-security-policy"].split("; ")
    assert policy[0] == "sandbox"
    assert set(SECURITY_POLICY.split("; ")) < set(policy)
    assert "frame-ancestors 'none'" in policy
    assert not any("script" in part for part in policy)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    place = "inline" if form == "html" else "attachment"
    assert headers["content-disposition"] == f'{place}; filename="{job_id}{FORMATS[form].suffix}"'
    assert headers["cache-control"] == "private, no-cache"


@pytest.mark.parametrize("form", FORMS)
def test_what_a_client_has_is_not_sent_again(
    sqlite_front: Front, form: FormatName, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(sqlite_front.succeeded_job(), form)
    first = sqlite_front.http.get(path)
    again = sqlite_front.http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert renderer_version() in first.headers["etag"]
    monkeypatch.setattr(reports_router, "renderer_version", lambda: "another")
    newer = sqlite_front.http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert newer.status_code == 200
    assert newer.content == first.content


def test_every_form_has_a_tag_of_its_own(sqlite_front: Front) -> None:
    job_id = sqlite_front.succeeded_job()
    paths = [path_of(job_id, form) for form in FORMS] + [f"/v1/jobs/{job_id}/report"]
    assert len({sqlite_front.http.get(path).headers["etag"] for path in paths}) == len(paths)


@pytest.mark.parametrize("form", FORMS)
def test_there_is_none_before_the_job_has_succeeded(front: Front, form: FormatName) -> None:
    job_id = front.new_job()
    answer = front.http.get(path_of(job_id, form))
    problem(answer, 409, "report-not-ready")
    assert answer.headers["retry-after"] == "2"
    front.fail(job_id, EngineError("x"))
    problem(front.http.get(path_of(job_id, form)), 404, "report-not-found")
    problem(front.http.get(path_of("job_x", form)), 404, "job-not-found")


def test_reports_of_version_1_are_rendered(sqlite_front: Front) -> None:
    job_id = sqlite_front.succeeded_job()
    old = make_report("pass").to_json_dict()
    old["schema_version"] = 1
    _store(sqlite_front, job_id, old)
    assert "PASS" in sqlite_front.http.get(path_of(job_id, "html")).text


@pytest.mark.parametrize("form", FORMS)
def test_a_report_of_a_later_version_is_refused_with_a_hint(sqlite_front: Front, form: FormatName) -> None:
    job_id = sqlite_front.succeeded_job()
    _store(sqlite_front, job_id, {**make_report().to_json_dict(), "schema_version": 99})
    told = problem(sqlite_front.http.get(path_of(job_id, form)), 500, "report-not-renderable")
    assert f"/v1/jobs/{job_id}/report" in told["hint"]


def test_ci_and_spreadsheets_can_read_their_forms(sqlite_front: Front) -> None:
    job_id = job_with(sqlite_front, full_report())
    root = ElementTree.fromstring(sqlite_front.http.get(path_of(job_id, "junit")).content)
    assert root.attrib["failures"] == "2"
    text = sqlite_front.http.get(path_of(job_id, "layers_csv")).content.decode()
    assert next(csv.DictReader(io.StringIO(text, newline="")))["name"] == "/features/0"


def test_the_document_tells_of_all_forms(sqlite_front: Front) -> None:
    paths = sqlite_front.http.get("/openapi.json").json()["paths"]
    for form in FORMATS.values():
        responses = paths[f"/v1/jobs/{{job_id}}/{form.path}"]["get"]["responses"]
        assert list(responses["200"]["content"]) == [form.media_type.partition(";")[0]]
        assert {"200", "304", "401", "404", "409", "500", "503"} <= set(responses)
        assert responses["404"]["x-problem-codes"] == ["job-not-found", "report-form-missing", "report-not-found"]


def test_the_renderer_has_one_version_per_process() -> None:
    assert renderer_version() == renderer_version()
    assert len(renderer_version()) == 16


def _store(front: Front, job_id: str, body: dict) -> None:
    with front.desk.database.write() as session:
        session.execute(select(ReportRow).where(ReportRow.job_id == job_id)).scalar_one().body = body


def _json_ready(document: dict) -> dict:
    """What a database can hold: without the surrogate and the NUL of the hostile names."""
    if isinstance(document, dict):
        return {_json_ready(key): _json_ready(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_json_ready(value) for value in document]
    return document.replace("\ud800", "?").replace("\0", "?") if isinstance(document, str) else document
