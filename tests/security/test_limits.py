"""What a request may bring, route by route, and how long it may take; what is beyond that is refused."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute, APIRouter
from fastapi.testclient import TestClient

from service.app import create_app
from service.dashboard.router import router as dashboard
from service.jobs import service as jobs
from service.limits import HEAD_BYTES, KIB, MIB, ORDINARY, TABLE, Limits, limits_of
from service.settings import Settings
from tests.support.front import Front, problem
from tests.support.patience import PATIENCE_SECONDS

UPLOADS = {"patch /v1/uploads/{upload_id}", "put /v1/uploads/{upload_id}/content"}
FILES = {"post /new/model", "post /new/dataset"}
LASTING = UPLOADS | FILES | {
    "get /v1/jobs/{job_id}/events", "get /v1/batches/{batch_id}/events", "get /v1/artifacts/{artifact_id}/content",
    "head /v1/artifacts/{artifact_id}/content", "get /v1/datasets/{dataset_id}/thumbnails",
}  # fmt: skip
CONFIGS = {
    "post /v1/jobs", "post /v1/jobs:validate", "post /v1/jobs/{job_id}/clone", "post /v1/batches",
    "post /v1/evaluations", "post /v1/models/{model_id}/inspect", "post /v1/schedules",
    "patch /v1/schedules/{schedule_id}", "post /new",
}  # fmt: skip


def routes_of(router: APIRouter) -> Iterator[APIRoute]:
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from routes_of(route.original_router)


def concrete(path: str) -> str:
    return re.sub(r"{\w+}", "x_1", path)


def limits_by_operation(front: Front) -> dict[str, Limits]:
    paths = front.http.get("/openapi.json").json()["paths"]
    pages = list(routes_of(dashboard))
    assert len(pages) > 50
    found = [(method, path) for path, methods in paths.items() for method in methods]
    found += [(method.lower(), route.path) for route in pages for method in route.methods]
    return {f"{method} {path}": limits_of(method.upper(), concrete(path)) for method, path in found}


def test_only_what_streams_is_untimed_and_only_uploads_are_unlimited(sqlite_front: Front) -> None:
    limits = limits_by_operation(sqlite_front)
    assert {where for where, some in limits.items() if not some.timed} == LASTING
    assert {where for where, some in limits.items() if some.body_bytes is None} == UPLOADS
    assert {where for where, some in limits.items() if some.files} == FILES
    large = {where for where, some in limits.items() if some.body_bytes is not None and some.body_bytes > MIB}
    assert large == CONFIGS
    known = [where.split(" ") for where in limits]
    for row in TABLE:
        of_row = {verb.upper() for verb, path in known if row.path.fullmatch(concrete(path))}
        assert row.methods - {"HEAD"} <= of_row, "a row of a route that does not exist"


def test_an_endpoint_that_nobody_has_thought_of_is_bounded() -> None:
    assert limits_of("POST", "/v1/whatever") is ORDINARY
    assert limits_of("PUT", "/v1/uploads/a/content/b") is ORDINARY
    assert limits_of("PATCH", "/v1/uploads/a/b") is ORDINARY
    for limits in (ORDINARY, *(row.limits for row in TABLE)):
        assert limits.header_bytes + limits.query_bytes + limits.path_bytes < HEAD_BYTES, "what the parser takes"


def test_no_body_is_larger_than_its_route_takes(sqlite_front: Front) -> None:
    """Declared or not; also where the endpoint reads none."""
    for where, limits in limits_by_operation(sqlite_front).items():
        method, path = where.split(" ")
        if limits.body_bytes is None or limits.files or method == "head":
            continue
        most = min(limits.body_bytes, sqlite_front.app.settings.max_body_bytes)
        sent = sqlite_front.http.request(method, concrete(path), content=b" " * (most + 1))
        told = problem(sent, 413, "body-too-large")
        assert str(most) in told["detail"]

    def endless() -> Iterator[bytes]:
        for _ in range(10_000):
            yield b" " * 65536

    problem(sqlite_front.http.post("/v1/uploads", content=endless()), 413, "body-too-large")


def test_urls_and_headers_are_bounded(sqlite_front: Front) -> None:
    for path in ("/v1/presets", "/v1/jobs", "/docs", "/nothing/at/all"):
        limits = limits_of("GET", path)
        many = "&".join(f"p{number}=1" for number in range(limits.query_parameters + 1))
        for query in ("a=" + "b" * limits.query_bytes, many, "&" * limits.query_parameters):
            told = problem(sqlite_front.http.get(f"{path}?{query}"), 414, "url-too-long")
            assert told["where"] == {"part": "query"}
    told = problem(sqlite_front.http.get("/v1/jobs/" + "a" * KIB), 414, "url-too-long")
    assert told["where"] == {"part": "path"}
    one, many, together = [("X", "a" * 33 * KIB)], [(f"X-{n}", "1") for n in range(101)], [("X", "a" * 400)] * 90
    for headers in (one, many, together):
        answer = sqlite_front.http.get("/v1/jobs", headers=headers)
        problem(answer, 431, "headers-too-large")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.fixture
def hurried(place: Settings) -> Iterator[TestClient]:
    with TestClient(
        create_app(place.model_copy(update={"request_seconds": 1.0})), raise_server_exceptions=False
    ) as client:
        yield client


def test_a_request_that_takes_too_long_is_answered(hurried: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stuck in a thread that nobody can end, and waiting in the event loop; others are served meanwhile."""
    release, ended = threading.Event(), threading.Event()
    real = jobs.list_page

    def stuck(*given: object, **named: object) -> object:
        release.wait(PATIENCE_SECONDS)
        ended.set()
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(jobs, "list_page", stuck)
    answer = hurried.get("/v1/jobs")
    problem(answer, 503, "request-overdue")
    assert int(answer.headers["Retry-After"]) > 0
    assert not ended.is_set()
    assert hurried.get("/healthz").status_code == 200
    release.set()
    assert ended.wait(PATIENCE_SECONDS)
    monkeypatch.undo()
    assert hurried.get("/v1/jobs").status_code == 200
    upload = hurried.post("/v1/uploads", json={"filename": "a.npz"}).json()["id"]
    hurried.put(f"/v1/uploads/{upload}/content", content=b"data")
    made = hurried.post("/v1/datasets", json={"name": "a", "upload_id": upload}).json()["id"]
    problem(hurried.get(f"/v1/datasets/{made}?wait=30"), 503, "request-overdue")
    assert hurried.get(f"/v1/datasets/{made}").status_code == 200
