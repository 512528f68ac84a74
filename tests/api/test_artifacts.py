"""Artifacts: found, downloaded whole or in ranges, with digests and safe names."""

from __future__ import annotations

import base64
import hashlib

import pytest

from service.artifacts import service as artifacts
from service.files.serving import ServedFile
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.storage import StoredFileCorruptError
from tests.support.front import Front, make_report, problem

DATA = bytes(range(256)) * 3000


@pytest.fixture
def artifact(sqlite_front: Front) -> str:
    """Path of an artifact's content."""
    job_id = sqlite_front.succeeded_job(DATA)
    item = sqlite_front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]
    path: str = item["links"]["content"]
    return path


def test_files_of_a_job_are_listed_and_downloaded(front: Front) -> None:
    files = {
        "model": NewArtifact("model", "model.onnx", "application/octet-stream", front.store(DATA), len(DATA)),
        "table": NewArtifact("table", "table.csv", "text/csv", front.store(b"a,b"), 3),
        "page": NewArtifact("page", "page.html", "text/html", front.store(b"<script>"), 8),
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


def test_whole(sqlite_front: Front, artifact: str) -> None:
    answer = sqlite_front.http.get(artifact)
    digest = hashlib.sha256(DATA)
    assert (answer.status_code, answer.content) == (200, DATA)
    assert answer.headers["etag"] == f'"sha256:{digest.hexdigest()}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["content-length"] == str(len(DATA))
    assert answer.headers["x-content-type-options"] == "nosniff"
    head = sqlite_front.http.head(artifact)
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag"):
        assert head.headers[name] == answer.headers[name]


@pytest.mark.parametrize(
    ("header", "begin", "end"),
    [
        ("bytes=0-0", 0, 0),
        ("bytes=10-19", 10, 19),
        ("bytes=1000-", 1000, len(DATA) - 1),
        ("bytes=-5", len(DATA) - 5, len(DATA) - 1),
        ("bytes=-99999999", 0, len(DATA) - 1),
        ("bytes=5-99999999", 5, len(DATA) - 1),
    ],
)
def test_ranges(sqlite_front: Front, artifact: str, header: str, begin: int, end: int) -> None:
    answer = sqlite_front.http.get(artifact, headers={"Range": header})
    assert answer.status_code == 206
    assert answer.content == DATA[begin : end + 1]
    assert answer.headers["content-range"] == f"bytes {begin}-{end}/{len(DATA)}"
    assert answer.headers["content-length"] == str(end - begin + 1)


def test_ranges_that_are_passed_over_or_outside_the_file(sqlite_front: Front, artifact: str) -> None:
    for header in ("bytes=9-5", "items=0-1", "bytes=0-1,5-6", "bytes=-", "bytes=a-b", "bytes"):
        answer = sqlite_front.http.get(artifact, headers={"Range": header})
        assert (answer.status_code, answer.content) == (200, DATA)
    for header in (f"bytes={len(DATA)}-", "bytes=999999999999-", "bytes=-0"):
        answer = sqlite_front.http.get(artifact, headers={"Range": header})
        told = problem(answer, 416, "range-not-satisfiable")
        assert told["errors"][0]["where"] == {"header": "Range"}
        assert answer.headers["content-range"] == f"bytes */{len(DATA)}"
    tag = sqlite_front.http.head(artifact).headers["etag"]
    fresh = sqlite_front.http.get(artifact, headers={"Range": "bytes=0-3", "If-Range": tag})
    stale = sqlite_front.http.get(artifact, headers={"Range": "bytes=0-3", "If-Range": '"other"'})
    assert (fresh.status_code, fresh.content) == (206, DATA[:4])
    assert (stale.status_code, stale.content) == (200, DATA)


def test_not_changed(sqlite_front: Front, artifact: str) -> None:
    tag = sqlite_front.http.head(artifact).headers["etag"]
    for header in (tag, f'"x", {tag}', f"W/{tag}", "*"):
        answer = sqlite_front.http.get(artifact, headers={"If-None-Match": header})
        assert (answer.status_code, answer.content) == (304, b"")
    assert sqlite_front.http.get(artifact, headers={"If-None-Match": '"x"'}).status_code == 200


def test_a_missing_or_shortened_file_is_never_served(sqlite_front: Front, artifact: str) -> None:
    path = sqlite_front.desk.store.path(hashlib.sha256(DATA).hexdigest())
    path.chmod(0o600)
    path.write_bytes(DATA[:-1])
    problem(sqlite_front.http.get(artifact), 500, "stored-file-corrupt")
    path.unlink()
    problem(sqlite_front.http.get(artifact), 500, "stored-file-missing")


def flip_a_byte(front: Front, data: bytes, at: int) -> str:
    """Damage the stored file of these bytes; returns its digest."""
    sha256 = hashlib.sha256(data).hexdigest()
    path = front.desk.store.path(sha256)
    path.chmod(0o600)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    return sha256


@pytest.mark.parametrize("at", [0, len(DATA) - 1])
def test_a_damaged_file_is_never_served_whole(
    sqlite_front: Front, artifact: str, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    sha256 = flip_a_byte(sqlite_front, DATA, at)
    answer = sqlite_front.http.get(artifact)
    assert len(answer.content) < int(answer.headers["content-length"]), "the transfer breaks off"
    assert [r.levelname for r in caplog.records if "stored_file.corrupt" in r.message and sha256 in r.message] == [
        "ERROR"
    ]


def test_no_range_of_a_damaged_file_is_served_once_it_is_known(sqlite_front: Front, artifact: str) -> None:
    """A client whose download broke off goes on by a range: that would hide what the break told."""
    part = {"Range": "bytes=10-19"}
    flip_a_byte(sqlite_front, DATA, 5)
    assert sqlite_front.http.get(artifact, headers=part).status_code == 206, "nobody has read all of it yet"
    whole = sqlite_front.http.get(artifact)
    assert len(whole.content) < len(DATA)
    for headers in (part, {"Range": f"bytes={len(whole.content)}-"}, {}):
        problem(sqlite_front.http.get(artifact, headers=headers), 500, "stored-file-corrupt")
    repair(sqlite_front, DATA)
    assert sqlite_front.http.get(artifact, headers=part).content == DATA[10:20]


def test_what_was_replaced_while_it_was_read_is_not_flagged(sqlite_front: Front, artifact: str) -> None:
    flip_a_byte(sqlite_front, DATA, 5)
    row = artifacts.get(sqlite_front.desk, "default", artifact.split("/")[-2])
    with artifacts.open_content(sqlite_front.desk, row).stream as stream:
        read = ServedFile(stream, row.sha256, sqlite_front.desk.database, sqlite_front.desk.store)
        repair(sqlite_front, DATA)
        with pytest.raises(StoredFileCorruptError):
            read.check(hashlib.sha256(stream.read()).hexdigest())
    assert sqlite_front.http.get(artifact).content == DATA


def repair(front: Front, data: bytes) -> None:
    """As a user does it: by an upload of the same bytes."""
    front.upload(data)


def test_a_small_damaged_file_is_a_problem(sqlite_front: Front, caplog: pytest.LogCaptureFixture) -> None:
    data = b"quantized bytes"
    job_id = sqlite_front.succeeded_job(data)
    item = sqlite_front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"][0]
    sha256 = flip_a_byte(sqlite_front, data, 3)
    told = problem(sqlite_front.http.get(item["links"]["content"]), 500, "stored-file-corrupt")
    assert told["where"]["file"] == sha256
    assert {r.levelname for r in caplog.records if sha256 in r.message} == {"ERROR"}
    part = sqlite_front.http.get(item["links"]["content"], headers={"Range": "bytes=0-1"})
    problem(part, 500, "stored-file-corrupt")
