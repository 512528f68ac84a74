"""The front desk as a whole: problems, health, keys, documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text

from service.app import create_app
from service.contracts.presets import PRESETS
from service.contracts.version import VERSION
from service.db import Database, head_revision, migrate
from service.jobs import transitions
from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.front import Front, pointers, problem

KEY = "a-long-and-secret-key"


def test_health_looks_at_nothing_else(front: Front) -> None:
    assert front.http.get("/healthz").json() == {"status": "ok"}


def test_ready(front: Front) -> None:
    answer = front.http.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["status"] == "ready"
    assert {name: check["outcome"] for name, check in answer.json()["checks"].items()} == {
        "database": "ok",
        "storage": "ok",
        "disk": "ok",
        "files": "ok",
        "broker": "ok",
    }


def test_a_broker_that_is_away_degrades_and_jobs_are_still_taken(tmp_path: Path, database_url: str) -> None:
    settings = Settings(
        data_dir=tmp_path / "data", database_url=database_url, broker_url="redis://127.0.0.1:1/0", min_free_bytes=0
    )
    app = create_app(settings)
    with TestClient(app) as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["broker"]["outcome"]) == (200, "degraded")
        front = Front(client, app.state.desk)
        job_id = front.new_job()
        assert client.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
        with app.state.desk.database.read() as session:
            sent = session.scalar(text("SELECT count(*) FROM jobs WHERE dispatched_at IS NOT NULL"))
    assert sent == 0


@pytest.mark.parametrize("broken", ["schema", "disk", "storage"])
def test_not_ready(sqlite_front: Front, broken: str) -> None:
    desk = sqlite_front.desk
    if broken == "schema":
        migrate(desk.settings.database_url, "base")
    elif broken == "disk":
        object.__setattr__(desk.settings, "min_free_bytes", 2**62)
    else:
        desk.store.incoming.rmdir()
    answer = sqlite_front.http.get("/readyz")
    assert answer.status_code == 503
    failed = [name for name, check in answer.json()["checks"].items() if check["outcome"] == "failed"]
    assert failed == ["database" if broken == "schema" else broken]
    assert sqlite_front.http.get("/healthz").status_code == 200


def test_a_database_that_is_away(tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    app = create_app(Settings(data_dir=tmp_path / "data", database_url=url, min_free_bytes=0))
    with TestClient(app, raise_server_exceptions=False) as client:
        upload = {"filename": "a", "size_bytes": 1}
        for answer in (client.get("/v1/jobs"), client.post("/v1/uploads", json=upload), client.get("/v1/jobs/job_x")):
            if answer.status_code == 404:
                continue  # an id of no known form is looked up nowhere
            problem(answer, 503, "database-unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert client.get("/readyz").status_code == 503
        assert "nobody" not in client.get("/readyz").text
        assert client.get("/healthz").status_code == 200


def test_a_database_that_is_locked(front: Front) -> None:
    patient = front.desk.database
    hasty = Database(front.desk.settings.database_url, lock_seconds=0.2)
    front.http.app.state.desk = replace(front.desk, database=hasty)
    job_id = front.new_job()
    with patient.write() as session:
        transitions.request_cancel(session, "default", job_id)
        answer = front.http.post(f"/v1/jobs/{job_id}/cancel")
        assert front.http.get(f"/v1/jobs/{job_id}").json()["state"] == "queued", "readers are not kept waiting"
    problem(answer, 503, "database-unavailable")
    assert front.http.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "canceled"
    hasty.close()


def test_version(sqlite_front: Front) -> None:
    shown = sqlite_front.http.get("/v1/version").json()
    assert (shown["name"], shown["version"], shown["api"]) == ("quantmill", VERSION, "v1")
    assert shown["schema_revision"] == head_revision()


def test_presets(sqlite_front: Front) -> None:
    items = sqlite_front.http.get("/v1/presets").json()["items"]
    assert [item["name"] for item in items] == sorted(PRESETS)
    assert [item["name"] for item in items if item["default"]] == ["int8"]
    for item in items:
        assert sqlite_front.http.get(f"/v1/presets/{item['name']}").json() == item
        validated = sqlite_front.http.post("/v1/jobs:validate", json={"config": {"preset": item["name"]}})
        assert validated.json()["config"] == item["config"]
    problem(sqlite_front.http.get("/v1/presets/int9"), 404, "preset-not-found")


def test_unknown_routes_and_methods(sqlite_front: Front) -> None:
    problem(sqlite_front.http.get("/v2/jobs"), 404, "route-not-found")
    answer = sqlite_front.http.delete("/v1/jobs")
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, POST"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/v1/models", "GET, POST"),
        ("DELETE", "/v1/uploads/x", "GET, HEAD, PATCH"),
        ("OPTIONS", "/v1/artifacts/x/content", "GET, HEAD"),
        ("GET", "/v1/jobs:validate", "POST"),
    ],
)
def test_the_allow_header_lists_every_method(sqlite_front: Front, method: str, path: str, allowed: str) -> None:
    answer = sqlite_front.http.request(method, path)
    problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    ("content", "content_type", "said"),
    [
        (b"{", "application/json", "not JSON"),
        (b"", "application/json", "required"),
        (b"{}", "text/plain", "Content-Type"),
        (b"\xff\xfe", "application/json", ""),
        (b"[" * 100_000, "application/json", ""),
        (b'"text"', "application/json", ""),
        (b"null", "application/json", ""),
    ],
)
def test_bodies_that_cannot_be_read(sqlite_front: Front, content: bytes, content_type: str, said: str) -> None:
    answer = sqlite_front.http.post("/v1/jobs", content=content, headers={"Content-Type": content_type})
    assert answer.status_code in (400, 422)
    assert answer.headers["content-type"] == "application/problem+json"
    assert said in answer.json()["detail"]


@pytest.mark.parametrize("known_length", [True, False], ids=["content-length", "chunked"])
def test_bodies_have_a_limit(sqlite_front: Front, known_length: bool) -> None:
    def blocks() -> Iterator[bytes]:
        for _ in range(50):
            yield b" " * 100_000

    content: Any = b" " * 5_000_000 if known_length else blocks()
    answer = sqlite_front.http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    problem(answer, 413, "body-too-large")


def test_text_that_databases_cannot_hold(front: Front) -> None:
    for name in ("a\x00b", "a\ud800b"):
        body = json.dumps({"filename": name, "size_bytes": 1})
        answer = front.http.post("/v1/uploads", content=body, headers={"Content-Type": "application/json"})
        assert pointers(problem(answer, 422, "invalid-request")) == ["/filename"]


def test_request_ids(sqlite_front: Front) -> None:
    own = sqlite_front.http.get("/healthz", headers={"X-Request-ID": "ci-run/7"})
    assert own.headers["x-request-id"] == "ci-run/7"
    made = {sqlite_front.http.get("/healthz").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("a b", "x" * 129, "<script>"):
        assert sqlite_front.http.get("/healthz", headers={"X-Request-ID": bad}).headers["x-request-id"] != bad
    answer = sqlite_front.http.get("/v1/jobs/job_x", headers={"X-Request-ID": "mine"})
    assert problem(answer, 404, "job-not-found")["request_id"] == "mine"


def test_an_unforeseen_failure_tells_nothing_but_its_id(sqlite_front: Front) -> None:
    upload_id = sqlite_front.http.post("/v1/uploads", json={"filename": "a", "size_bytes": 1}).json()["id"]
    (sqlite_front.desk.store.incoming / upload_id).mkdir()
    body = problem(sqlite_front.http.put(f"/v1/uploads/{upload_id}/content", content=b"x"), 500, "internal-error")
    assert str(sqlite_front.desk.settings.data_dir) not in json.dumps(body)
    assert body["hint"] == "Report it with the request id."


@pytest.fixture
def locked_front(app: FastAPI, tmp_path: Path, sqlite_url: str) -> Iterator[TestClient]:
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, api_key=KEY, min_free_bytes=0)
    with front_of(app, settings) as front:
        yield front.http


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", "Basic abc", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer é"]
)
def test_a_key_is_needed(locked_front: TestClient, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode()}
    open_to_all = {"/healthz", "/readyz", "/v1/version", "/v1/problems", "/docs", "/openapi.json"}
    for path, operations in locked_front.get("/openapi.json").json()["paths"].items():
        for method in operations:
            answer = locked_front.request(method, path.replace("{", "").replace("}", ""), headers=headers)
            if path in open_to_all:
                assert answer.status_code == 200, path
            else:
                assert answer.status_code == 401, f"{method} {path}"
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "head":
                    problem(answer, 401, "unauthorized")


def test_the_right_key_opens(locked_front: TestClient) -> None:
    assert locked_front.get("/v1/jobs", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


def test_openapi_is_complete(sqlite_front: Front) -> None:
    document = sqlite_front.http.get("/openapi.json").json()
    text_ = json.dumps(document)
    schemas = document["components"]["schemas"]
    assert {"Problem", "QuantizationConfig", "JobOut", "Report", "ModelSummary", "PreprocessingSpec"} <= set(schemas)
    assert "HTTPValidationError" not in text_
    for name in ("activation", "weight", "calibration_samples", "seed"):
        assert name in schemas["QuantizationConfig"]["properties"]
    percentile = schemas["PercentileCalibration"]["properties"]["percentile"]
    assert percentile["description"]
    assert (percentile["default"], percentile["maximum"]) == (99.999, 100.0)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["description"], f"{method} {path} has no description"
            assert list(operation["responses"]["4XX"]["content"]) == ["application/problem+json"]
            for status, response in operation["responses"].items():
                if status.startswith(("4", "5")) and path != "/readyz":
                    assert list(response["content"]) == ["application/problem+json"], f"{method} {path} {status}"
                    assert status.endswith("XX") or response["x-problem-codes"], f"{method} {path} {status}"
    for reference in set(_references(document)):
        assert reference.removeprefix("#/components/schemas/") in schemas
    codes = {entry["code"] for entry in document["x-problem-types"]}
    assert {"digest-mismatch", "idempotency-key-reuse", "dataset-mismatch"} <= codes


@pytest.mark.parametrize(
    ("method", "path", "codes"),
    [
        ("post", "/v1/uploads", "401 413 422 503 507 body-too-large empty-upload storage-full upload-too-large"),
        ("patch", "/v1/uploads/{upload_id}", "404 408 409 413 422 upload-offset-mismatch upload-busy digest-mismatch"),
        ("put", "/v1/uploads/{upload_id}/content", "408 409 422 upload-incomplete empty-upload upload-stalled"),
        ("post", "/v1/models", "401 404 409 413 422 idempotency-key-reuse idempotency-in-flight upload-not-complete"),
        ("get", "/v1/models/{model_id}", "401 404 422 503 model-not-found invalid-request unauthorized"),
        ("post", "/v1/jobs", "404 409 422 dataset-mismatch invalid-config model-not-ready model-rejected"),
        ("get", "/v1/jobs", "401 422 invalid-cursor invalid-request"),
        ("get", "/v1/jobs/{job_id}/report", "404 409 report-not-ready report-not-found job-not-found"),
        ("get", "/v1/artifacts/{artifact_id}/content", "404 416 500 range-not-satisfiable stored-file-corrupt"),
        ("get", "/v1/presets/{name}", "404 preset-not-found"),
    ],
)
def test_openapi_tells_the_problems_of_each_endpoint(sqlite_front: Front, method: str, path: str, codes: str) -> None:
    document = sqlite_front.http.get("/openapi.json").json()
    responses = document["paths"][path][method]["responses"]
    told = set(responses) | {code for response in responses.values() for code in response.get("x-problem-codes", [])}
    assert set(codes.split()) <= told
    known = {entry["code"]: str(entry["status"]) for entry in document["x-problem-types"]}
    for status, response in responses.items():
        assert {known[code] for code in response.get("x-problem-codes", [])} <= {status}


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_docs_need_no_other_host(sqlite_front: Front) -> None:
    page = sqlite_front.http.get("/docs")
    assert page.status_code == 200
    assert "/openapi.json" in page.text
    assert "://" not in page.text
    assert "validatorUrl: null" in sqlite_front.http.get("/docs/start.js").text
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) == 4
    for asset in assets:
        answer = sqlite_front.http.get(asset)
        assert answer.status_code == 200
        kind = "image/png" if asset.endswith(".png") else "text/css" if asset.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert len(answer.content) > 200
    script = sqlite_front.http.get("/docs/assets/swagger-ui-bundle.js").text
    assert "SwaggerUIBundle" in script[:1000]


@pytest.mark.parametrize("name", ["main.py", "__init__.py", "..%2Fmain.py"])
def test_docs_serve_their_own_files_only(sqlite_front: Front, name: str) -> None:
    assert sqlite_front.http.get(f"/docs/assets/{name}").status_code in (404, 422)


def test_the_catalog_of_problems(sqlite_front: Front) -> None:
    items = sqlite_front.http.get("/v1/problems").json()["items"]
    codes = [item["code"] for item in items]
    assert codes == sorted(set(codes))
    for item in items:
        assert item["title"]
        assert item["description"]
        assert 400 <= item["status"] < 600
