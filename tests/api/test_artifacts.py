"""What a job made: artifacts whole or in ranges, and its report as pages and files; with digests and safe names."""

from __future__ import annotations

import base64
import hashlib

import pytest
from sqlalchemy import select

import service.reports.router as reports_router
from service.artifacts import service as artifacts
from service.contracts.errors import EngineError
from service.contracts.report import Report
from service.files.serving import ServedFile
from service.jobs.outcome import QuantizeOutcome
from service.reports.formats import FORMATS, FormatName, rendered, renderer_version
from service.reports.html import SECURITY_POLICY
from service.storage import StoredFileCorruptError
from service.tables import ReportRow
from tests.support.front import Front, make_report, problem
from tests.support.reports import full_report, hostile_document

DATA = bytes(range(256)) * 3000


@pytest.fixture
def artifact(front: Front) -> str:
    """Path of an artifact's content."""
    job_id = front.succeeded_job(DATA)
    item = front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]
    path: str = item["links"]["content"]
    return path


def test_files_of_a_job_are_listed_and_downloaded(front: Front) -> None:
    files = {
        "model": front.kept("model", "model.onnx", DATA),
        "table": front.kept("table", "table.csv", b"a,b", "text/csv"),
        "page": front.kept("page", "page.html", b"<script>", "text/html"),
    }
    job_id = front.new_job()
    assert front.http.get(f"/v1/jobs/{job_id}/artifacts").json() == {"items": []}
    front.finish(job_id, QuantizeOutcome(make_report(), tuple(files.values())))
    items = front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"]
    told = [(item["kind"], item["filename"], item["size_bytes"]) for item in items]
    assert told == [("model", "tiny.int8.onnx", len(DATA)), ("page", "page.html", 8), ("table", "table.csv", 3)]
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert [(item["kind"], item["filename"], item["size_bytes"]) for item in job["artifacts"]] == told
    for item, listed in zip(job["artifacts"], items, strict=True):
        assert front.http.get(listed["links"]["self"]).json() == listed
        assert item["content"] == listed["links"]["content"]
        answer = front.http.get(item["content"])
        assert answer.status_code == 200
        assert hashlib.sha256(answer.content).hexdigest() == listed["sha256"] == files[item["kind"]].sha256
        # whatever the type says: a browser stores it, and never shows it as a page of this service
        assert answer.headers["content-disposition"] == f'attachment; filename="{item["filename"]}"'
        assert answer.headers["content-type"].startswith(files[item["kind"]].media_type)
        assert "sandbox" in answer.headers["content-security-policy"]


def test_whole(front: Front, artifact: str) -> None:
    answer = front.http.get(artifact)
    digest = hashlib.sha256(DATA)
    assert (answer.status_code, answer.content) == (200, DATA)
    assert answer.headers["etag"] == f'"sha256:{digest.hexdigest()}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-length"] == str(len(DATA))
    assert answer.headers["x-content-type-options"] == "nosniff"
    head = front.http.head(artifact)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag"):
        assert head.headers[name] == answer.headers[name]
    for tag, status in ((f'"x", W/{answer.headers["etag"]}', 304), ('"x"', 200)):
        assert front.http.get(artifact, headers={"If-None-Match": tag}).status_code == status


def test_ranges_are_served_passed_over_or_outside_the_file(front: Front, artifact: str) -> None:
    last = len(DATA) - 1
    for given, begin, end in (("10-19", 10, 19), ("-5", last - 4, last), ("5-99999999", 5, last)):
        answer = front.http.get(artifact, headers={"Range": f"bytes={given}"})
        assert (answer.status_code, answer.content) == (206, DATA[begin : end + 1])
        assert answer.headers["content-range"] == f"bytes {begin}-{end}/{len(DATA)}"
        assert answer.headers["content-length"] == str(end - begin + 1)
    for header in ("bytes=9-5", "items=0-1", "bytes=0-1,5-6", "bytes=-", "bytes=a-b", "bytes"):
        answer = front.http.get(artifact, headers={"Range": header})
        assert (answer.status_code, answer.content) == (200, DATA)
    for header in (f"bytes={len(DATA)}-", "bytes=999999999999-", "bytes=-0"):
        answer = front.http.get(artifact, headers={"Range": header})
        told = problem(answer, 416, "range-not-satisfiable")
        assert told["errors"][0]["where"] == {"header": "Range"}
        assert answer.headers["content-range"] == f"bytes */{len(DATA)}"
    tag = front.http.head(artifact).headers["etag"]
    fresh = front.http.get(artifact, headers={"Range": "bytes=0-3", "If-Range": tag})
    stale = front.http.get(artifact, headers={"Range": "bytes=0-3", "If-Range": '"other"'})
    assert (fresh.status_code, fresh.content) == (206, DATA[:4])
    assert (stale.status_code, stale.content) == (200, DATA)


def test_a_missing_or_shortened_file_is_never_served(front: Front, artifact: str) -> None:
    path = front.app.store.path(hashlib.sha256(DATA).hexdigest())
    path.chmod(0o600)
    path.write_bytes(DATA[:-1])
    problem(front.http.get(artifact), 500, "stored-file-corrupt")
    path.unlink()
    problem(front.http.get(artifact), 500, "stored-file-missing")


def flip_a_byte(front: Front, data: bytes, at: int) -> str:
    """Damage the stored file of these bytes; returns its digest."""
    sha256 = hashlib.sha256(data).hexdigest()
    path = front.app.store.path(sha256)
    path.chmod(0o600)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    return sha256


@pytest.mark.parametrize("at", [0, len(DATA) - 1])
def test_a_damaged_file_is_never_served_whole(
    front: Front, artifact: str, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    sha256 = flip_a_byte(front, DATA, at)
    answer = front.http.get(artifact)
    assert len(answer.content) < int(answer.headers["content-length"]), "the transfer breaks off"
    assert [r.levelname for r in caplog.records if "stored_file.corrupt" in r.message and sha256 in r.message] == [
        "ERROR"
    ]


def test_no_range_of_a_damaged_file_is_served_once_it_is_known(front: Front, artifact: str) -> None:
    """A client whose download broke off goes on by a range: that would hide what the break told."""
    part = {"Range": "bytes=10-19"}
    flip_a_byte(front, DATA, 5)
    assert front.http.get(artifact, headers=part).status_code == 206, "nobody has read all of it yet"
    whole = front.http.get(artifact)
    assert len(whole.content) < len(DATA)
    for headers in (part, {"Range": f"bytes={len(whole.content)}-"}, {}):
        problem(front.http.get(artifact, headers=headers), 500, "stored-file-corrupt")
    repair(front, DATA)
    assert front.http.get(artifact, headers=part).content == DATA[10:20]


def test_what_was_replaced_while_it_was_read_is_not_flagged(front: Front, artifact: str) -> None:
    flip_a_byte(front, DATA, 5)
    row = artifacts.get(front.app, "default", artifact.split("/")[-2])
    with artifacts.open_content(front.app, row).stream as stream:
        read = ServedFile(stream, row.sha256, front.app.database, front.app.store)
        repair(front, DATA)
        with pytest.raises(StoredFileCorruptError):
            read.check(hashlib.sha256(stream.read()).hexdigest())
    assert front.http.get(artifact).content == DATA


def repair(front: Front, data: bytes) -> None:
    """As a user does it: by an upload of the same bytes."""
    front.upload(data)


def test_a_small_damaged_file_is_a_problem(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    data = b"quantized bytes"
    job_id = front.succeeded_job(data)
    item = front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]
    sha256 = flip_a_byte(front, data, 3)
    told = problem(front.http.get(item["links"]["content"]), 500, "stored-file-corrupt")
    assert told["where"]["file"] == sha256
    assert {r.levelname for r in caplog.records if sha256 in r.message} == {"ERROR"}
    part = front.http.get(item["links"]["content"], headers={"Range": "bytes=0-1"})
    problem(part, 500, "stored-file-corrupt")


FORMS = tuple(FORMATS)


def job_with(front: Front, report: Report) -> str:
    job_id = front.new_job()
    front.finish(job_id, QuantizeOutcome(report, (front.kept("model", "model.onnx", b"x"),)))
    return job_id


def path_of(job_id: str, form: FormatName) -> str:
    return f"/v1/jobs/{job_id}/{FORMATS[form].path}"


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_what_the_report_renders_to(front: Front, form: FormatName, monkeypatch: pytest.MonkeyPatch) -> None:
    report = full_report()
    path = path_of(job_with(front, report), form)
    first = front.http.get(path)
    assert first.status_code == 200
    assert first.content == rendered(report, form)
    assert first.headers["content-type"] == FORMATS[form].media_type
    # what a client has is not sent again, until another version renders it
    tag = {"If-None-Match": first.headers["etag"]}
    again = front.http.get(path, headers=tag)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert renderer_version() in first.headers["etag"]
    monkeypatch.setattr(reports_router, "renderer_version", lambda: "another")
    newer = front.http.get(path, headers=tag)
    assert (newer.status_code, newer.content) == (200, first.content)


def test_no_answer_can_do_anything_in_a_browser(front: Front) -> None:
    job_id = job_with(front, Report.model_validate(_json_ready(hostile_document())))
    for form in FORMS:
        headers = front.http.get(path_of(job_id, form)).headers
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


def test_every_form_has_a_tag_of_its_own(front: Front) -> None:
    job_id = front.succeeded_job()
    paths = [path_of(job_id, form) for form in FORMS] + [f"/v1/jobs/{job_id}/report"]
    assert len({front.http.get(path).headers["etag"] for path in paths}) == len(paths)


def test_there_is_none_before_the_job_has_succeeded(front: Front) -> None:
    job_id = front.new_job()
    paths = [f"/v1/jobs/{job_id}/report", *(path_of(job_id, form) for form in FORMS)]
    for path in paths:
        answer = front.http.get(path)
        problem(answer, 409, "report-not-ready")
        assert answer.headers["retry-after"] == "2"
    front.fail(job_id, EngineError("x"))
    for path in paths:
        problem(front.http.get(path), 404, "report-not-found")


def test_reports_of_other_versions_are_rendered_or_refused_with_a_hint(front: Front) -> None:
    job_id = front.succeeded_job()
    _store(front, job_id, {**make_report("pass").to_json_dict(), "schema_version": 1})
    assert "Gate passed" in front.http.get(path_of(job_id, "html")).text
    _store(front, job_id, {**make_report("pass").to_json_dict(), "of_a_later_version": {}})
    assert "Gate passed" in front.http.get(path_of(job_id, "html")).text
    _store(front, job_id, {**make_report().to_json_dict(), "schema_version": 99})
    for form in FORMS:
        told = problem(front.http.get(path_of(job_id, form)), 500, "report-not-renderable")
        assert f"/v1/jobs/{job_id}/report" in told["hint"]


def _store(front: Front, job_id: str, body: dict) -> None:
    with front.app.database.write() as session:
        session.execute(select(ReportRow).where(ReportRow.job_id == job_id)).scalar_one().body = body


def _json_ready(document: dict) -> dict:
    """What a database can hold: without the surrogate and the NUL of the hostile names."""
    if isinstance(document, dict):
        return {_json_ready(key): _json_ready(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_json_ready(value) for value in document]
    return document.replace("\ud800", "?").replace("\0", "?") if isinstance(document, str) else document
