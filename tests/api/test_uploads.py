"""Uploads: whole and in parts, checked, resumable, and nothing stored half; what the tenant has travels once."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert

from service.db import db_now
from service.files import repository as files
from service.tables import DamagedFile, Model, ModelFile, Upload
from tests.support.front import Front, npz_bytes, pointers, problem
from worker.upkeep.garbage import discard_garbage

DATA = bytes(range(256)) * 40


def open_upload(front: Front, **body: object) -> str:
    made = front.http.post("/v1/uploads", json={"filename": "model.onnx", **body})
    assert made.status_code == 201, made.text
    upload_id: str = made.json()["id"]
    assert made.headers["location"] == f"/v1/uploads/{upload_id}"
    assert made.headers["upload-offset"] == "0"
    return upload_id


def patch(front: Front, upload_id: str, data: bytes | Iterator[bytes], offset: int, **headers: str):
    return front.http.patch(f"/v1/uploads/{upload_id}", content=data, headers={"Upload-Offset": str(offset), **headers})


def put(front: Front, upload_id: str, data: bytes | Iterable[bytes], **headers: str):
    return front.http.put(f"/v1/uploads/{upload_id}/content", content=data, headers=headers)


def offset(front: Front, upload_id: str) -> int:
    head = front.http.head(f"/v1/uploads/{upload_id}")
    assert head.status_code == 200
    assert head.headers["cache-control"] == "no-store"
    return int(head.headers["upload-offset"])


def part_file(front: Front, upload_id: str) -> Path:
    return front.app.store.incoming / upload_id


def stored(front: Front) -> list[str]:
    return [path.name for path in front.app.store.blobs.glob("*/*")]


def chunked(data: bytes, size: int = 1000) -> Iterator[bytes]:
    """A body without Content-Length."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def content_digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def places(body: Mapping[str, Any]) -> list[dict[str, str]]:
    """Headers that a problem names; their pointer is empty."""
    assert pointers(body) == [""] * len(body["errors"])
    return [error["where"] for error in body["errors"]]


@pytest.mark.both_databases
def test_at_once(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA).upper(), kind="model")
    patch(front, upload_id, b"wrong" * 100, 0)
    sent = put(front, upload_id, DATA)  # what was there is thrown away
    assert sent.status_code == 200
    assert sent.json()["state"] == "complete"
    assert sent.json()["sha256"] == sha256(DATA)
    assert sent.headers["upload-offset"] == sent.headers["upload-length"] == str(len(DATA))
    assert front.app.store.path(sha256(DATA)).read_bytes() == DATA
    for refused in (put(front, upload_id, b"x" * len(DATA)), patch(front, upload_id, b"x", len(DATA))):
        problem(refused, 409, "upload-complete")
    assert offset(front, upload_id) == len(DATA)
    assert list(front.app.store.incoming.iterdir()) == []
    undeclared = put(front, open_upload(front), chunked(DATA)).json()
    assert (undeclared["size_bytes"], undeclared["sha256"]) == (len(DATA), sha256(DATA))
    assert stored(front) == [sha256(DATA)], "equal files are stored once"


@pytest.mark.both_databases
def test_in_parts(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA))
    for start in range(0, len(DATA), 4096):
        assert offset(front, upload_id) == start
        assert patch(front, upload_id, b"", start).headers["upload-offset"] == str(start)
        sent = patch(front, upload_id, DATA[start : start + 4096], start)
        assert sent.status_code == 204
        assert sent.headers["upload-offset"] == str(min(len(DATA), start + 4096))
    shown = front.http.get(f"/v1/uploads/{upload_id}").json()
    assert (shown["state"], shown["offset"], shown["sha256"]) == ("complete", len(DATA), sha256(DATA))
    assert stored(front) == [sha256(DATA)]


def test_an_offset_must_be_given_and_the_right_one(front: Front) -> None:
    refused = problem(patch(front, open_upload(front), DATA, 0), 422, "upload-size-unknown")
    assert pointers(refused) == ["/size_bytes"]
    upload_id = open_upload(front, size_bytes=len(DATA))
    patch(front, upload_id, DATA[:100], 0)
    answer = patch(front, upload_id, DATA[50:], 50)
    refusals = [problem(answer, 409, "upload-offset-mismatch")]
    assert answer.headers["upload-offset"] == "100"
    for headers in ({}, {"Upload-Offset": "-1"}, {"Upload-Offset": "x"}):
        answer = front.http.patch(f"/v1/uploads/{upload_id}", content=DATA, headers=headers)
        refusals.append(problem(answer, 422, "invalid-request"))
    assert [places(refused) for refused in refusals] == [[{"header": "Upload-Offset"}]] * 4
    assert offset(front, upload_id) == 100


@pytest.mark.parametrize("known_length", [True, False], ids=["content-length", "chunked"])
def test_a_refused_part_is_not_kept(front: Front, known_length: bool) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA))
    patch(front, upload_id, DATA[:100], 0)
    rest = DATA[100:] + b"!"
    refused = patch(front, upload_id, rest if known_length else chunked(rest), 100)
    assert pointers(problem(refused, 413, "upload-too-large")) == ["/size_bytes"]
    assert offset(front, upload_id) == 100, "what was there before is kept, what is wrong is not"
    # all of them came, and they are others: it begins anew
    answer = patch(front, upload_id, DATA[:-100], 100)
    assert sha256(DATA[:100] + DATA[:-100]) in problem(answer, 422, "digest-mismatch")["detail"]
    assert stored(front) == []
    assert offset(front, upload_id) == 0
    assert front.http.get(f"/v1/uploads/{upload_id}").json()["state"] == "open"
    assert put(front, upload_id, DATA).status_code == 200


def test_a_refused_whole_leaves_the_parts_alone(front: Front) -> None:
    longer, other = DATA + b"!", {"Content-Digest": content_digest(b"other")}
    wholes: list[tuple[Any, dict[str, str], int, str, str]] = [
        (DATA[::-1], {}, 422, "digest-mismatch", "/sha256"),
        (longer, {}, 413, "upload-too-large", "/size_bytes"),
        (tuple(chunked(longer)), {}, 413, "upload-too-large", "/size_bytes"),
        (b"", {}, 422, "empty-upload", ""),
        (DATA[:-1], {}, 422, "upload-incomplete", "/size_bytes"),
        (DATA, other, 422, "digest-mismatch", ""),
        (DATA, {"Content-Digest": "sha-256=:YWJj:"}, 422, "invalid-request", ""),
    ]
    for body, headers, status, code, pointer in wholes:
        declared = {"sha256": sha256(DATA)} if pointer == "/sha256" else {}
        upload_id = open_upload(front, size_bytes=len(DATA), **declared)
        assert patch(front, upload_id, DATA[:5000], 0).status_code == 204
        refused = problem(put(front, upload_id, body, **headers), status, code)
        assert pointers(refused) == [pointer]
        if headers:
            assert places(refused) == [{"header": "Content-Digest"}]
        assert offset(front, upload_id) == 5000
        assert part_file(front, upload_id).read_bytes() == DATA[:5000]
        assert [path.name for path in front.app.store.incoming.iterdir()] == [upload_id]
        assert patch(front, upload_id, DATA[5000:], 5000).status_code == 204
        assert stored(front) == [sha256(DATA)]


def test_more_bytes_than_the_service_takes_or_has_room_for(front: Front) -> None:
    settings = front.app.settings
    body = {"filename": "big.onnx", "size_bytes": settings.max_upload_bytes + 1}
    answer = front.http.post("/v1/uploads", json=body)
    assert pointers(problem(answer, 413, "upload-too-large")) == ["/size_bytes"]
    upload_id, unsized = open_upload(front, size_bytes=len(DATA)), open_upload(front)
    patch(front, upload_id, DATA[:5000], 0)
    object.__setattr__(settings, "min_free_bytes", 2**62)
    problem(front.http.post("/v1/uploads", json={"filename": "a", "size_bytes": 5}), 507, "storage-full")
    problem(patch(front, upload_id, DATA[5000:], 5000), 507, "storage-full")
    problem(put(front, upload_id, DATA), 507, "storage-full")
    object.__setattr__(settings, "min_free_bytes", 0)
    assert offset(front, upload_id) == 5000
    assert part_file(front, upload_id).read_bytes() == DATA[:5000]
    assert patch(front, upload_id, DATA[5000:], 5000).status_code == 204
    object.__setattr__(settings, "max_upload_bytes", 10)
    assert pointers(problem(put(front, unsized, DATA), 413, "upload-too-large")) == [""]


def test_content_digest(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA))
    assert patch(front, upload_id, DATA[:9], 0, **{"Content-Digest": content_digest(DATA[:9])}).status_code == 204
    answer = patch(front, upload_id, DATA[9:], 9, **{"Content-Digest": content_digest(b"other")})
    assert places(problem(answer, 422, "digest-mismatch")) == [{"header": "Content-Digest"}]
    for malformed in ("sha-256=abc", "sha-256=:####:"):
        problem(patch(front, upload_id, DATA[9:], 9, **{"Content-Digest": malformed}), 422, "invalid-request")
    assert offset(front, upload_id) == 9
    assert patch(front, upload_id, DATA[9:], 9, **{"Content-Digest": content_digest(DATA[9:])}).status_code == 204
    assert stored(front) == [sha256(DATA)]
    other = open_upload(front)
    assert put(front, other, DATA, **{"Content-Digest": "sha-512=:YWJj:"}).status_code == 200, "passed over"


def test_what_a_crash_left_is_a_prefix_and_is_gone_on_from(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA))
    part_file(front, upload_id).write_bytes(DATA[:5000])
    assert offset(front, upload_id) == 5000
    assert patch(front, upload_id, DATA[5000:], 5000).status_code == 204
    assert stored(front) == [sha256(DATA)]


def test_bad_announcements(front: Front) -> None:
    bodies: list[tuple[dict[str, Any], str, str]] = [
        ({}, "filename", "invalid-request"),
        ({"filename": "a\x00b"}, "filename", "invalid-request"),
        ({"filename": "a" * 256}, "filename", "invalid-request"),
        ({"size_bytes": -1}, "size_bytes", "invalid-request"),
        ({"size_bytes": 0}, "size_bytes", "empty-upload"),
        ({"sha256": "abc"}, "sha256", "invalid-request"),
        ({"kind": "poem"}, "kind", "invalid-request"),
        ({"size_byte": 5}, "size_byte", "invalid-request"),
    ]
    for body, field, code in bodies:
        given = {"filename": "a", **body} if body else body
        answer = problem(front.http.post("/v1/uploads", json=given), 422, code)
        assert pointers(answer) == [f"/{field}"]
    assert "did you mean 'size_bytes'?" in answer["detail"]


def test_file_names_never_become_paths(front: Front) -> None:
    for name in ("../../evil.onnx", "/etc/passwd", "ünïcödé 模型.onnx", "a" * 255):
        upload_id = open_upload(front, filename=name)
        assert put(front, upload_id, DATA).json()["filename"] == name
    assert stored(front) == [sha256(DATA)]


def announce(front: Front, data: bytes, **changes: Any) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    body = {"filename": "again.bin", "size_bytes": len(data), "sha256": digest, **changes}
    answer = front.http.post("/v1/uploads", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    assert answer.headers["upload-offset"] == str(made["offset"])
    return made


def forget_uploads(front: Front) -> None:
    with front.app.database.write() as session:
        session.execute(delete(Upload))


@pytest.mark.both_databases
@pytest.mark.parametrize("held_by", ["upload", "model", "dataset", "result"])
def test_a_file_of_the_tenant_is_complete_at_once(front: Front, held_by: str) -> None:
    data = {"model": b"model bytes", "dataset": npz_bytes()}.get(held_by, DATA)
    if held_by == "upload":
        front.upload(data)
    else:
        {"model": front.new_model, "dataset": front.new_dataset, "result": lambda: front.succeeded_job(data)}[held_by]()
        forget_uploads(front)
    made = announce(front, data)
    assert (made["state"], made["offset"], made["size_bytes"]) == ("complete", len(data), len(data))
    assert made["sha256"] == hashlib.sha256(data).hexdigest()
    assert front.http.get(made["links"]["self"]).json() == made
    problem(front.http.put(made["links"]["content"], content=data), 409, "upload-complete")
    body = {"name": "new", "files": [{"upload_id": made["id"], "path": "m.onnx"}]}
    assert front.http.post("/v1/models", json=body).status_code == 201


def test_without_digest_and_size_every_file_is_sent(front: Front) -> None:
    announce(front, DATA)
    assert announce(front, DATA)["state"] == "open", "bytes that have not all come are no file"
    front.upload(DATA)
    for changes in ({"size_bytes": None}, {"sha256": None}, {"size_bytes": len(DATA) + 1}):
        assert announce(front, DATA, **changes)["state"] == "open"
    assert announce(front, DATA + b"!")["state"] == "open"


def test_a_file_that_is_damaged_or_gone_is_sent_again_and_healed(front: Front) -> None:
    front.upload(DATA)
    digest = hashlib.sha256(DATA).hexdigest()
    with front.app.database.write() as session:
        session.execute(insert(DamagedFile).values(sha256=digest, damage="digest", found_at=db_now()))
    made = announce(front, DATA)
    assert made["state"] == "open"
    assert front.http.put(made["links"]["content"], content=DATA).json()["state"] == "complete"
    assert announce(front, DATA)["state"] == "complete"
    front.app.store.path(digest).unlink()
    assert announce(front, DATA)["state"] == "open"


def test_its_quota_is_that_of_a_file_that_is_sent(front: Front) -> None:
    front.upload(DATA)
    front.http.put("/v1/tenants/default/quota", json={"upload_bytes": len(DATA) - 1})
    digest = hashlib.sha256(DATA).hexdigest()
    body = {"filename": "a", "size_bytes": len(DATA), "sha256": digest}
    problem(front.http.post("/v1/uploads", json=body), 413, "larger-than-quota")
    front.http.put("/v1/tenants/default/quota", json={"stored_bytes": 2 * len(DATA)})
    assert front.http.post("/v1/uploads", json=body).json()["state"] == "complete"
    assert front.http.get("/v1/quota").json()["usage"]["stored_bytes"] == len(DATA)


@pytest.mark.both_databases
@pytest.mark.parametrize("emptied", [False, True], ids=["in the trash", "gone"])
def test_collection_between_the_look_and_the_row(front: Front, monkeypatch: pytest.MonkeyPatch, emptied: bool) -> None:
    """What went to the trash meanwhile comes back; what is gone for good has to be sent."""
    front.upload(DATA)
    look = files.has_file

    def look_and_collect(*args: Any) -> bool:
        found = look(*args)
        with front.app.database.write() as session:
            for table in (Upload, ModelFile, Model):
                session.execute(delete(table))
        assert discard_garbage(front.app.database, front.app.store, 100, age_seconds=-1.0).items == 1
        if emptied:
            for path in front.app.store.trash.rglob("*"):
                if path.is_file():
                    path.unlink()
        return found

    monkeypatch.setattr(files, "has_file", look_and_collect)
    made = announce(front, DATA)
    assert made["state"] == ("open" if emptied else "complete")
    assert front.app.store.path(hashlib.sha256(DATA).hexdigest()).exists() is not emptied
