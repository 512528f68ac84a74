"""Uploads: whole and in parts, checked, resumable, and nothing stored half."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.front import Front, pointers, problem

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
    return front.desk.store.incoming / upload_id


def stored(front: Front) -> list[str]:
    return [path.name for path in front.desk.store.blobs.glob("*/*")]


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
    assert front.desk.store.path(sha256(DATA)).read_bytes() == DATA
    assert list(front.desk.store.incoming.iterdir()) == []
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
def test_more_bytes_than_declared(front: Front, known_length: bool) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA))
    patch(front, upload_id, DATA[:100], 0)
    rest, whole = DATA[100:] + b"!", DATA + b"!"
    refused = patch(front, upload_id, rest if known_length else chunked(rest), 100)
    assert pointers(problem(refused, 413, "upload-too-large")) == ["/size_bytes"]
    assert offset(front, upload_id) == 100, "what was there before is kept, what is wrong is not"
    problem(put(front, upload_id, whole if known_length else chunked(whole)), 413, "upload-too-large")
    assert stored(front) == []
    assert put(front, upload_id, DATA).status_code == 200


@pytest.mark.parametrize(
    ("body", "declared", "digest", "status", "code", "pointer"),
    [
        (DATA + b"!", {}, None, 413, "upload-too-large", "/size_bytes"),
        (tuple(chunked(DATA + b"!")), {}, None, 413, "upload-too-large", "/size_bytes"),
        (b"", {}, None, 422, "empty-upload", ""),
        (DATA[:-1], {}, None, 422, "upload-incomplete", "/size_bytes"),
        (DATA, {}, content_digest(b"other"), 422, "digest-mismatch", ""),
        (DATA, {}, "sha-256=:YWJj:", 422, "invalid-request", ""),
        (DATA[::-1], {"sha256": sha256(DATA)}, None, 422, "digest-mismatch", "/sha256"),
    ],
    ids=["too-long", "too-long-chunked", "empty", "too-short", "content-digest", "malformed", "sha256"],
)
def test_a_refused_whole_leaves_the_parts_alone(
    front: Front,
    body: bytes | Iterable[bytes],
    declared: dict[str, str],
    digest: str | None,
    status: int,
    code: str,
    pointer: str,
) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), **declared)
    assert patch(front, upload_id, DATA[:5000], 0).status_code == 204
    refused = problem(put(front, upload_id, body, **({"Content-Digest": digest} if digest else {})), status, code)
    assert pointers(refused) == [pointer]
    if digest:
        assert places(refused) == [{"header": "Content-Digest"}]
    assert offset(front, upload_id) == 5000
    assert part_file(front, upload_id).read_bytes() == DATA[:5000]
    assert [path.name for path in front.desk.store.incoming.iterdir()] == [upload_id]
    assert patch(front, upload_id, DATA[5000:], 5000).status_code == 204
    assert stored(front) == [sha256(DATA)]


def test_more_bytes_than_the_service_takes_or_has_room_for(front: Front) -> None:
    settings = front.desk.settings
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


@pytest.mark.parametrize("in_parts", [False, True], ids=["put", "patch"])
def test_wrong_sha256(front: Front, in_parts: bool) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(b"something else"))
    if in_parts:
        patch(front, upload_id, DATA[:1000], 0)
        answer = patch(front, upload_id, DATA[1000:], 1000)
    else:
        answer = put(front, upload_id, DATA)
    assert sha256(DATA) in problem(answer, 422, "digest-mismatch")["detail"]
    assert stored(front) == []
    assert offset(front, upload_id) == 0
    assert front.http.get(f"/v1/uploads/{upload_id}").json()["state"] == "open"


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


def test_parts_need_a_declared_size(sqlite_front: Front) -> None:
    refused = problem(patch(sqlite_front, open_upload(sqlite_front), DATA, 0), 422, "upload-size-unknown")
    assert pointers(refused) == ["/size_bytes"]


def test_a_complete_upload_never_changes(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA))
    put(front, upload_id, DATA)
    problem(put(front, upload_id, b"x" * len(DATA)), 409, "upload-complete")
    problem(patch(front, upload_id, b"x", len(DATA)), 409, "upload-complete")
    assert offset(front, upload_id) == len(DATA)
    assert stored(front) == [sha256(DATA)]
    assert not part_file(front, upload_id).exists()


def test_what_a_crash_left_is_a_prefix_and_is_gone_on_from(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA))
    part_file(front, upload_id).write_bytes(DATA[:5000])
    assert offset(front, upload_id) == 5000
    assert patch(front, upload_id, DATA[5000:], 5000).status_code == 204
    assert stored(front) == [sha256(DATA)]


@pytest.mark.parametrize(
    ("body", "pointer", "code"),
    [
        ({}, "/filename", "invalid-request"),
        ({"filename": "a\x00b"}, "/filename", "invalid-request"),
        ({"filename": "a" * 256}, "/filename", "invalid-request"),
        ({"filename": "a", "size_bytes": -1}, "/size_bytes", "invalid-request"),
        ({"filename": "a", "size_bytes": 0}, "/size_bytes", "empty-upload"),
        ({"filename": "a", "sha256": "abc"}, "/sha256", "invalid-request"),
        ({"filename": "a", "kind": "poem"}, "/kind", "invalid-request"),
        ({"filename": "a", "size_byte": 5}, "/size_byte", "invalid-request"),
    ],
)
def test_bad_announcements(sqlite_front: Front, body: dict[str, object], pointer: str, code: str) -> None:
    answer = problem(sqlite_front.http.post("/v1/uploads", json=body), 422, code)
    assert pointers(answer) == [pointer]
    if pointer == "/size_byte":
        assert "did you mean 'size_bytes'?" in answer["detail"]


def test_file_names_never_become_paths(sqlite_front: Front) -> None:
    for name in ("../../evil.onnx", "/etc/passwd", "ünïcödé 模型.onnx", "a" * 255):
        upload_id = open_upload(sqlite_front, filename=name)
        assert put(sqlite_front, upload_id, DATA).json()["filename"] == name
    assert stored(sqlite_front) == [sha256(DATA)]
