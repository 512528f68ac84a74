"""Uploads: whole and in parts, checked, resumable, and nothing stored half."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

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


def test_at_once(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA).upper(), kind="model")
    sent = put(front, upload_id, DATA)
    assert sent.status_code == 200
    assert sent.json()["state"] == "complete"
    assert sent.json()["sha256"] == sha256(DATA)
    assert sent.headers["upload-offset"] == sent.headers["upload-length"] == str(len(DATA))
    assert front.desk.store.path(sha256(DATA)).read_bytes() == DATA
    assert not part_file(front, upload_id).exists()


def test_at_once_with_nothing_declared(sqlite_front: Front) -> None:
    upload_id = open_upload(sqlite_front)
    sent = put(sqlite_front, upload_id, chunked(DATA))
    assert sent.status_code == 200
    assert sent.json()["size_bytes"] == len(DATA)
    assert sent.json()["sha256"] == sha256(DATA)


def test_in_parts(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), sha256=sha256(DATA))
    for start in range(0, len(DATA), 4096):
        assert offset(front, upload_id) == start
        sent = patch(front, upload_id, DATA[start : start + 4096], start)
        assert sent.status_code == 204
        assert sent.headers["upload-offset"] == str(min(len(DATA), start + 4096))
    shown = front.http.get(f"/v1/uploads/{upload_id}").json()
    assert (shown["state"], shown["offset"], shown["sha256"]) == ("complete", len(DATA), sha256(DATA))
    assert stored(front) == [sha256(DATA)]


def test_an_empty_part_changes_nothing(sqlite_front: Front) -> None:
    upload_id = open_upload(sqlite_front, size_bytes=len(DATA))
    assert patch(sqlite_front, upload_id, b"", 0).headers["upload-offset"] == "0"
    assert offset(sqlite_front, upload_id) == 0


def test_wrong_offset_names_the_right_one(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA))
    patch(front, upload_id, DATA[:100], 0)
    answer = patch(front, upload_id, DATA[50:], 50)
    problem(answer, 409, "upload-offset-mismatch")
    assert answer.headers["upload-offset"] == "100"
    assert offset(front, upload_id) == 100


@pytest.mark.parametrize("given", ["", "-1", "x"])
def test_an_offset_must_be_given(sqlite_front: Front, given: str) -> None:
    upload_id = open_upload(sqlite_front, size_bytes=len(DATA))
    headers = {"Upload-Offset": given} if given else {}
    answer = sqlite_front.http.patch(f"/v1/uploads/{upload_id}", content=DATA, headers=headers)
    assert "upload-offset" in problem(answer, 422, "invalid-request")["detail"]


@pytest.mark.parametrize("known_length", [True, False], ids=["content-length", "chunked"])
def test_more_bytes_than_declared(front: Front, known_length: bool) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA))
    patch(front, upload_id, DATA[:100], 0)
    rest = DATA[100:] + b"!"
    problem(patch(front, upload_id, rest if known_length else chunked(rest), 100), 413, "upload-too-large")
    assert offset(front, upload_id) == 100, "what was there before is kept, what is wrong is not"
    problem(put(front, upload_id, DATA + b"!" if known_length else chunked(DATA + b"!")), 413, "upload-too-large")
    assert stored(front) == []
    assert put(front, upload_id, DATA).status_code == 200


@pytest.mark.parametrize(
    ("body", "declared", "digest", "code"),
    [
        (DATA + b"!", {}, None, "upload-too-large"),
        (tuple(chunked(DATA + b"!")), {}, None, "upload-too-large"),
        (b"", {}, None, "empty-upload"),
        (DATA[:-1], {}, None, "upload-incomplete"),
        (DATA, {}, content_digest(b"other"), "digest-mismatch"),
        (DATA[::-1], {"sha256": sha256(DATA)}, None, "digest-mismatch"),
    ],
    ids=["too-long", "too-long-chunked", "empty", "too-short", "content-digest", "sha256"],
)
def test_a_refused_whole_leaves_the_parts_alone(
    front: Front, body: bytes | Iterable[bytes], declared: dict[str, str], digest: str | None, code: str
) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA), **declared)
    assert patch(front, upload_id, DATA[:5000], 0).status_code == 204
    headers = {} if digest is None else {"Content-Digest": digest}
    refused = put(front, upload_id, body, **headers)
    problem(refused, refused.status_code, code)
    assert offset(front, upload_id) == 5000
    assert part_file(front, upload_id).read_bytes() == DATA[:5000]
    assert [path.name for path in front.desk.store.incoming.iterdir()] == [upload_id]
    assert patch(front, upload_id, DATA[5000:], 5000).status_code == 204
    assert stored(front) == [sha256(DATA)]


def test_a_full_disk_during_a_whole_leaves_the_parts_alone(sqlite_front: Front) -> None:
    upload_id = open_upload(sqlite_front, size_bytes=len(DATA))
    patch(sqlite_front, upload_id, DATA[:5000], 0)
    object.__setattr__(sqlite_front.desk.settings, "min_free_bytes", 2**62)
    problem(put(sqlite_front, upload_id, DATA), 507, "storage-full")
    assert offset(sqlite_front, upload_id) == 5000
    assert part_file(sqlite_front, upload_id).read_bytes() == DATA[:5000]


def test_more_bytes_than_the_service_takes(sqlite_front: Front) -> None:
    limit = sqlite_front.desk.settings.max_upload_bytes
    body = {"filename": "big.onnx", "size_bytes": limit + 1}
    answer = sqlite_front.http.post("/v1/uploads", json=body)
    assert pointers(problem(answer, 413, "upload-too-large")) == ["/size_bytes"]


def test_more_bytes_than_there_is_room_for(sqlite_front: Front) -> None:
    settings = sqlite_front.desk.settings
    object.__setattr__(settings, "min_free_bytes", 2**62)
    problem(sqlite_front.http.post("/v1/uploads", json={"filename": "a", "size_bytes": 5}), 507, "storage-full")
    object.__setattr__(settings, "min_free_bytes", 0)
    upload_id = open_upload(sqlite_front, size_bytes=len(DATA))
    object.__setattr__(settings, "min_free_bytes", 2**62)
    problem(patch(sqlite_front, upload_id, DATA, 0), 507, "storage-full")
    object.__setattr__(settings, "min_free_bytes", 0)
    assert offset(sqlite_front, upload_id) == 0
    assert patch(sqlite_front, upload_id, DATA, 0).status_code == 204


def test_fewer_bytes_than_declared(front: Front) -> None:
    upload_id = open_upload(front, size_bytes=len(DATA))
    problem(put(front, upload_id, DATA[:-1]), 422, "upload-incomplete")
    assert offset(front, upload_id) == 0
    assert stored(front) == []


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
    problem(answer, 422, "digest-mismatch")
    assert offset(front, upload_id) == 9
    assert patch(front, upload_id, DATA[9:], 9, **{"Content-Digest": content_digest(DATA[9:])}).status_code == 204
    assert stored(front) == [sha256(DATA)]


@pytest.mark.parametrize("header", ["sha-256=abc", "sha-256=:####:", "sha-256=:YWJj:"])
def test_malformed_content_digest(sqlite_front: Front, header: str) -> None:
    upload_id = open_upload(sqlite_front, size_bytes=len(DATA))
    problem(put(sqlite_front, upload_id, DATA, **{"Content-Digest": header}), 422, "invalid-request")
    assert offset(sqlite_front, upload_id) == 0


def test_other_digest_algorithms_are_passed_over(sqlite_front: Front) -> None:
    upload_id = open_upload(sqlite_front)
    assert put(sqlite_front, upload_id, DATA, **{"Content-Digest": "sha-512=:YWJj:"}).status_code == 200


def test_empty(front: Front) -> None:
    answer = front.http.post("/v1/uploads", json={"filename": "empty.onnx", "size_bytes": 0})
    assert pointers(problem(answer, 422, "empty-upload")) == ["/size_bytes"]
    upload_id = open_upload(front)
    problem(put(front, upload_id, b""), 422, "empty-upload")
    assert stored(front) == []


def test_parts_need_a_declared_size(sqlite_front: Front) -> None:
    upload_id = open_upload(sqlite_front)
    problem(patch(sqlite_front, upload_id, DATA, 0), 422, "upload-size-unknown")


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


def test_at_once_throws_away_what_was_there(sqlite_front: Front) -> None:
    upload_id = open_upload(sqlite_front, size_bytes=len(DATA))
    patch(sqlite_front, upload_id, b"wrong" * 100, 0)
    assert put(sqlite_front, upload_id, DATA).json()["sha256"] == sha256(DATA)
    assert list(sqlite_front.desk.store.incoming.iterdir()) == []


def test_equal_files_are_stored_once(sqlite_front: Front) -> None:
    for _ in range(2):
        put(sqlite_front, open_upload(sqlite_front), DATA)
    assert stored(sqlite_front) == [sha256(DATA)]


@pytest.mark.parametrize("upload_id", ["upl_00000000000000000000000000", "x", "upl_%00", "..%2F..%2Fetc"])
def test_unknown_ids(front: Front, upload_id: str) -> None:
    path = f"/v1/uploads/{upload_id}"
    problem(front.http.get(path), 404, "route-not-found" if "%2F" in upload_id else "upload-not-found")
    assert front.http.head(path).status_code == 404
    if "%2F" not in upload_id:
        problem(patch(front, upload_id, DATA, 0), 404, "upload-not-found")
        problem(put(front, upload_id, DATA), 404, "upload-not-found")
    assert list(front.desk.store.incoming.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/filename"),
        ({"filename": ""}, "/filename"),
        ({"filename": "a\x00b"}, "/filename"),
        ({"filename": "a" * 256}, "/filename"),
        ({"filename": "a", "size_bytes": -1}, "/size_bytes"),
        ({"filename": "a", "size_bytes": "many"}, "/size_bytes"),
        ({"filename": "a", "sha256": "abc"}, "/sha256"),
        ({"filename": "a", "kind": "poem"}, "/kind"),
        ({"filename": "a", "size": 5}, "/size"),
    ],
)
def test_bad_announcements(sqlite_front: Front, body: dict[str, object], pointer: str) -> None:
    answer = problem(sqlite_front.http.post("/v1/uploads", json=body), 422, "invalid-request")
    assert pointers(answer) == [pointer]


def test_an_unknown_key_names_the_nearest(sqlite_front: Front) -> None:
    answer = sqlite_front.http.post("/v1/uploads", json={"filename": "a", "size_byte": 5})
    assert "did you mean 'size_bytes'?" in problem(answer, 422, "invalid-request")["detail"]


def test_file_names_never_become_paths(sqlite_front: Front) -> None:
    for name in ("../../evil.onnx", "/etc/passwd", "ünïcödé 模型.onnx", "a" * 255):
        upload_id = open_upload(sqlite_front, filename=name)
        assert put(sqlite_front, upload_id, DATA).json()["filename"] == name
    assert stored(sqlite_front) == [sha256(DATA)]
