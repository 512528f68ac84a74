"""Answers of text come compressed to who takes that; files, streams and what may hold secrets never do."""

from __future__ import annotations

import gzip
import hashlib

import pytest
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient as PlainClient

from service.compression import CompressionMiddleware
from tests.support.front import Front

GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


def raw(http: TestClient, path: str, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """The bytes as they were sent."""
    with http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        return b"".join(answer.iter_raw()), dict(answer.headers)


@pytest.mark.parametrize("path", ["/openapi.json", "/v1/presets", "/v1/problems", "/docs/config.md"])
def test_text_is_compressed(sqlite_front: Front, path: str) -> None:
    whole, plain = raw(sqlite_front.http, path, PLAIN)
    small, headers = raw(sqlite_front.http, path, GZIP)
    assert gzip.decompress(small) == whole
    assert (headers["content-encoding"], headers["content-length"]) == ("gzip", str(len(small)))
    assert "content-encoding" not in plain
    assert "Accept-Encoding" in headers["vary"] and "Accept-Encoding" in plain["vary"]
    assert len(small) < len(whole) / 2
    assert raw(sqlite_front.http, path, GZIP)[0] == small, "no moment stands in it"


def test_files_come_as_they_are(sqlite_front: Front) -> None:
    data = b"a model that could be compressed " * 1000
    job_id = sqlite_front.succeeded_job(data, filename="figures.json")
    (artifact,) = sqlite_front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"]
    sent, headers = raw(sqlite_front.http, f"/v1/artifacts/{artifact['id']}/content", GZIP)
    assert hashlib.sha256(sent).digest() == hashlib.sha256(data).digest()
    assert "content-encoding" not in headers


def test_events_are_not_held_back(sqlite_front: Front) -> None:
    job_id = sqlite_front.succeeded_job()
    sent, headers = raw(sqlite_front.http, f"/v1/jobs/{job_id}/events", {**GZIP, "Accept": "text/event-stream"})
    assert b"event: end" in sent
    assert "content-encoding" not in headers


def test_small_answers_and_answers_to_changes_are_left_alone(sqlite_front: Front) -> None:
    assert "content-encoding" not in sqlite_front.http.get("/healthz", headers=GZIP).headers
    body = {"filename": "x" * 200 + ".npz"}
    assert "content-encoding" not in sqlite_front.http.post("/v1/uploads", json=body, headers=GZIP).headers


@pytest.mark.parametrize(
    ("accepted", "is_small"),
    [
        ("gzip", True), ("deflate, GZIP;q=0.5", True), ("*", True), ("br;q=1, gzip; q=0.001", True), ("", False),
        ("identity", False), ("gzip;q=0", False), ("gzip; q=0.000", False), ("xgzip", False), ("br", False),
    ],
)  # fmt: skip
def test_clients_say_what_they_take(sqlite_front: Front, accepted: str, is_small: bool) -> None:
    answer = sqlite_front.http.get("/v1/presets", headers={"Accept-Encoding": accepted})
    assert ("content-encoding" in answer.headers) is is_small


def test_what_is_sent_in_pieces_is_passed_on_as_it_comes() -> None:
    async def pieces(_: object) -> Response:
        return StreamingResponse(iter([b"a" * 5000, b"b" * 5000]), media_type="text/plain")

    async def coded(_: object) -> Response:
        return Response(b"c" * 5000, media_type="text/plain", headers={"Content-Encoding": "br"})

    app = Starlette(routes=[Route("/pieces", pieces), Route("/coded", coded)])
    http = PlainClient(CompressionMiddleware(app))
    assert http.get("/pieces", headers=GZIP).content == b"a" * 5000 + b"b" * 5000
    with http.stream("GET", "/coded", headers=GZIP) as answer:
        assert b"".join(answer.iter_raw()) == b"c" * 5000
