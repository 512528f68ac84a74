"""The API server as a whole: problems, health, keys, compression, and the document that changes on purpose alone."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import text
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient as PlainClient

from service.contracts.base import VERSION
from service.contracts.presets import PRESETS
from service.db import Database, head_revision
from service.docs.__main__ import openapi_document
from service.health import service as health
from service.jobs import transitions
from service.middleware import CompressionMiddleware
from service.schema import SchemaBehindError, require_migrated
from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.each import each
from tests.support.front import Front, problem, taken

KEY = "a-long-and-secret-key"
pytestmark = pytest.mark.usefixtures("unhurried_probes")


def test_ready(front: Front) -> None:
    assert front.http.get("/healthz").json() == {"status": "ok"}
    answer = taken(front.http.get("/readyz"))
    assert answer["status"] == "ready"
    outcomes = {name: check["outcome"] for name, check in answer["checks"].items()}
    assert outcomes == dict.fromkeys(("database", "storage", "disk", "files", "broker"), "ok")


@pytest.mark.both_databases
@each(
    ("revisions", "missing", "status", "outcome", "told"),
    [(["20991231_next"], "", 200, "degraded", "20991231_next, which is newer than"),
     (["20991231_next"], "webhook_endpoints", 503, "failed", "quantmill migrate"),
     (["20261120_spine"], "", 503, "failed", "quantmill migrate"),
     (["5f2ab1c9d3e4"], "", 503, "failed", "5f2ab1c9d3e4"),
     (["20991231_next", "a1"], "", 503, "failed", "a1"), ([], "", 503, "failed", "empty")],
)  # fmt: skip
def test_a_newer_schema_degrades_and_no_other_is_served(
    front: Front, monkeypatch: pytest.MonkeyPatch,
    revisions: list[str], missing: str, status: int, outcome: str, told: str,
) -> None:  # fmt: skip
    """Of an update that is under way, as at the start. An older schema, or another program's, is none."""
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    with front.app.database.write() as session:
        session.execute(text("DELETE FROM alembic_version"))
        for revision in revisions:
            session.execute(text("INSERT INTO alembic_version VALUES (:it)"), {"it": revision})
        if missing:
            session.execute(text(f"ALTER TABLE {missing} RENAME TO away"))
    try:
        answer = front.http.get("/readyz")
        with pytest.raises(SchemaBehindError) if status == 503 else nullcontext():
            require_migrated(front.app.database, 0.0)
    finally:
        with front.app.database.write() as session:
            session.execute(text("DELETE FROM alembic_version"))
            session.execute(text("INSERT INTO alembic_version VALUES (:it)"), {"it": head_revision()})
            if missing:
                session.execute(text(f"ALTER TABLE away RENAME TO {missing}"))
    found = answer.json()["checks"]["database"]
    assert (answer.status_code, found["outcome"]) == (status, outcome)
    assert told in found["detail"]


def test_a_broker_that_is_away_degrades_and_jobs_are_still_taken(app: FastAPI, settings: Settings) -> None:
    with front_of(app, settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"})) as front:
        answer = front.http.get("/readyz")
        assert (answer.status_code, answer.json()["checks"]["broker"]["outcome"]) == (200, "degraded")
        job_id = front.new_job()
        assert front.http.get(f"/v1/jobs/{job_id}").json()["state"] == "queued"
        with front.app.database.read() as session:
            assert session.scalar(text("SELECT count(*) FROM jobs WHERE dispatched_at IS NOT NULL")) == 0


@pytest.mark.parametrize("broken", ["disk", "storage"])
def test_not_ready(front: Front, broken: str) -> None:
    if broken == "disk":
        object.__setattr__(front.app.settings, "min_free_bytes", 2**62)
    else:
        front.app.store.incoming.rmdir()
    answer = front.http.get("/readyz")
    assert answer.status_code == 503
    assert [name for name, check in answer.json()["checks"].items() if check["outcome"] == "failed"] == [broken]
    assert front.http.get("/healthz").status_code == 200


def test_a_database_that_is_away(app: FastAPI, tmp_path: Path) -> None:
    url = "postgresql://nobody@127.0.0.1:1/nothing"
    with front_of(app, Settings(data_dir=tmp_path / "data", database_url=url, min_free_bytes=0)) as front:
        upload = {"filename": "a", "size_bytes": 1}
        for answer in (front.http.get("/v1/jobs"), front.http.post("/v1/uploads", json=upload)):
            problem(answer, 503, "database-unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        ready = front.http.get("/readyz")
        assert ready.status_code == 503
        assert "nobody" not in ready.text
        assert front.http.get("/healthz").status_code == 200


@pytest.mark.both_databases
def test_a_database_that_is_locked(front: Front) -> None:
    patient = front.app.database
    hasty = Database(front.app.settings.database_url, lock_seconds=0.2)
    front.http.app.state.app = replace(front.app, database=hasty)
    job_id = front.new_job()
    with patient.write() as session:
        transitions.request_cancel(session, "default", job_id)
        answer = front.http.post(f"/v1/jobs/{job_id}/cancel")
        assert front.http.get(f"/v1/jobs/{job_id}").json()["state"] == "queued", "readers are not kept waiting"
    problem(answer, 503, "database-unavailable")
    assert front.http.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "canceled"
    hasty.close()


def test_presets(front: Front) -> None:
    items = front.http.get("/v1/presets").json()["items"]
    assert [item["name"] for item in items] == sorted(PRESETS)
    assert [item["name"] for item in items if item["default"]] == ["int8"]
    for item in items:
        assert front.http.get(f"/v1/presets/{item['name']}").json() == item
        validated = front.http.post("/v1/jobs:validate", json={"config": {"preset": item["name"]}})
        assert validated.json()["config"] == item["config"]
    problem(front.http.get("/v1/presets/int9"), 404, "preset-not-found")


def test_unknown_routes_and_methods(front: Front) -> None:
    problem(front.http.get("/v2/jobs"), 404, "route-not-found")
    for method, path, allowed in (
        ("DELETE", "/v1/jobs", "GET, POST"),
        ("OPTIONS", "/v1/models", "GET, POST"),
        ("DELETE", "/v1/uploads/x", "GET, HEAD, PATCH"),
        ("OPTIONS", "/v1/artifacts/x/content", "GET, HEAD"),
        ("GET", "/v1/jobs:validate", "POST"),
    ):
        answer = front.http.request(method, path)
        problem(answer, 405, "method-not-allowed")
        assert answer.headers["allow"] == allowed


def test_request_ids(front: Front) -> None:
    own = front.http.get("/healthz", headers={"X-Request-ID": "ci-run/7"})
    assert own.headers["x-request-id"] == "ci-run/7"
    made = {front.http.get("/healthz").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
    for bad in ("a b", "x" * 129, "<script>"):
        assert front.http.get("/healthz", headers={"X-Request-ID": bad}).headers["x-request-id"] != bad
    answer = front.http.get("/v1/jobs/job_x", headers={"X-Request-ID": "mine"})
    assert problem(answer, 404, "job-not-found")["request_id"] == "mine"


def test_an_unforeseen_failure_tells_nothing_but_its_id(front: Front) -> None:
    upload_id = front.http.post("/v1/uploads", json={"filename": "a", "size_bytes": 1}).json()["id"]
    (front.app.store.incoming / upload_id).mkdir()
    answer = front.http.put(f"/v1/uploads/{upload_id}/content", content=b"x")
    body = problem(answer, 500, "internal-error")
    assert str(front.app.settings.data_dir) not in json.dumps(body)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


@pytest.fixture
def locked_front(app: FastAPI, tmp_path: Path, sqlite_url: str) -> Iterator[TestClient]:
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, api_key=KEY, min_free_bytes=0)
    with front_of(app, settings) as front:
        yield front.http


def test_a_key_is_needed(locked_front: TestClient) -> None:
    open_to_all = {"/healthz", "/readyz", "/v1/version", "/v1/problems", "/docs", "/openapi.json"}
    for path, operations in locked_front.get("/openapi.json").json()["paths"].items():
        for method in operations:
            answer = locked_front.request(method, path.replace("{", "").replace("}", ""))
            if path in open_to_all:
                assert answer.status_code == 200, path
            else:
                assert answer.status_code == 401, f"{method} {path}"
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "head":
                    problem(answer, 401, "unauthorized")
    for wrong in ("Bearer wrong", "Bearer", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer é"):
        problem(locked_front.get("/v1/jobs", headers={"Authorization": wrong.encode()}), 401, "unauthorized")
    assert locked_front.get("/v1/jobs", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


def test_docs_need_no_other_host(front: Front) -> None:
    page = front.http.get("/docs")
    assert page.status_code == 200
    assert "/openapi.json" in page.text
    assert "://" not in page.text
    assert "validatorUrl: null" in front.http.get("/docs/start.js").text
    kinds = {"png": "image/png", "css": "text/css", "js": "text/javascript"}
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) >= 4
    for asset in assets:
        answer = front.http.get(asset)
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == kinds[asset.rpartition(".")[2]]
        assert len(answer.content) > 200


@pytest.mark.parametrize("path", ["assets/main.py", "assets/__init__.py", "assets/..%2Fmain.py", "secrets.md"])
def test_docs_serve_their_own_files_only(front: Front, path: str) -> None:
    assert front.http.get(f"/docs/{path}").status_code in (404, 422)


@pytest.mark.parametrize(("name", "word"), [("quark", "calibrate_method"), ("config", "per_channel")])
def test_pages_are_served_as_markdown(front: Front, name: str, word: str) -> None:
    page = front.http.get(f"/docs/{name}.md")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/markdown")
    assert word in page.text
    assert f"/docs/{name}.md" in front.http.get("/openapi.json").json()["info"]["description"]


def test_the_version_and_the_catalog_of_problems(front: Front) -> None:
    shown = front.http.get("/v1/version").json()
    assert (shown["name"], shown["version"], shown["api"]) == ("quantmill", VERSION, "v1")
    assert shown["schema_revision"] == head_revision()
    items = front.http.get("/v1/problems").json()["items"]
    codes = [item["code"] for item in items]
    assert codes == sorted(set(codes))
    assert all(item["title"] and item["description"] and 400 <= item["status"] < 600 for item in items)


# What an operation may answer besides JSON: a file, a text, or a stream that a client reads by its own means.
_OTHER_TYPES = ("text/", "image/", "application/octet-stream", "application/xml", "application/zip")
KEPT = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture
def document(front: Front) -> dict[str, Any]:
    found: dict[str, Any] = front.http.get("/openapi.json").json()
    return found


def test_the_kept_document_is_what_is_served(document: dict[str, Any]) -> None:
    kept = json.loads(KEPT.read_text())
    before, after = ({**held["paths"], **held["components"]["schemas"]} for held in (kept, document))
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    same = kept == document and openapi_document() == KEPT.read_text()  # a comparison of the whole would print it
    assert same, f"run: python -m service.docs openapi > docs/openapi.json, if these were meant to change: {changed}"


@pytest.mark.parametrize(("path", "name"), [("/v1/jobs", "label"), ("/v1/models", "tag"), ("/v1/datasets", "tag")])
def test_filters_by_label_are_taken_as_they_are_told(front: Front, path: str, name: str) -> None:
    operation = front.http.get("/openapi.json").json()["paths"][path]["get"]
    (told,) = (parameter for parameter in operation["parameters"] if parameter["name"] == name)
    assert (told["in"], told["style"], told["explode"]) == ("query", "form", True)
    assert re.search(told["schema"]["items"]["pattern"], "team=a=b")
    assert not re.search(told["schema"]["items"]["pattern"], "team")
    labels = {"team": "a", "on/off": "x", "sum": "1=1"}
    if name == "label":
        noun_id = front.new_job(labels=labels)
    else:
        noun_id = getattr(front, f"new_{path.rpartition('/')[2][:-1]}")()
        change = front.http.patch(f"{path}/{noun_id}", json={"tags": labels}, headers={"If-Match": "*"})
        assert change.status_code == 200, change.text
    for query in ("[team]=a", ".team=a", "[on/off]=x&label.team=a", "%5Bteam%5D=a", "=team=a&label=sum=1%3D1"):
        items = front.http.get(f"{path}?{name}{query.replace('label', name)}").json()["items"]
        assert [item["id"] for item in items] == [noun_id], query
    assert front.http.get(f"{path}?{name}[team]=b").json()["items"] == []
    for query in ("[team=a", "[]=a", "[te am]=a", "[team]=a&label.team=a", "=a", "=te am=a", "=team=a&label=team=b"):
        answer = front.http.get(f"{path}?{name}{query.replace('label', name)}")
        assert answer.status_code == 422, query


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield f"{verb.upper()} {path}", operation


def schemas_in(found: Any) -> Iterator[dict[str, Any]]:
    """Every object of a part of the document, at any depth."""
    if isinstance(found, dict):
        yield found
        for value in found.values():
            yield from schemas_in(value)
    elif isinstance(found, list):
        for value in found:
            yield from schemas_in(value)


def test_every_operation_has_plain_parameters_and_one_answer_of_a_kind(document: dict[str, Any]) -> None:
    """More statuses may tell the same; JSON of two schemas could not be told apart."""
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
    for name, operation in operations(document):
        assert operation["description"], name
        for told in operation.get("parameters", []):
            assert told.get("style", "form") in ("form", "simple"), (name, told["name"])
            assert "content" not in told, (name, told["name"])
            assert told["schema"].get("type") != "object", (name, told["name"])
        answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        assert answers, name
        made = [answer.get("content", {}) for answer in answers]
        json_schemas = {json.dumps(of["application/json"]["schema"]) for of in made if "application/json" in of}
        assert len(json_schemas) <= 1, name
        for kind in {kind for of in made for kind in of} - {"application/json"}:
            assert kind.startswith(_OTHER_TYPES), (name, kind)


def test_every_problem_of_an_operation_is_one_of_the_catalog(document: dict[str, Any]) -> None:
    known = {entry["code"]: str(entry["status"]) for entry in document["x-problem-types"]}
    for name, operation in operations(document):
        assert list(operation["responses"]["4XX"]["content"]) == ["application/problem+json"]
        for status, response in operation["responses"].items():
            codes = response.get("x-problem-codes", [])
            assert {known[code] for code in codes} <= {status}, name
            if status.startswith(("4", "5")) and name != "GET /readyz":
                assert list(response["content"]) == ["application/problem+json"], (name, status)
                assert status.endswith("XX") or codes, (name, status)


def test_references_are_known_and_defaults_plain(document: dict[str, Any]) -> None:
    """Generators of clients leave a schema with an object as its default out, and every operation with it.

    Two schemas whose names differ by case or by signs alone would be written to one file.
    """
    schemas = document["components"]["schemas"]
    plain = ["".join(sign for sign in name.lower() if sign.isalnum()) for name in schemas]
    assert len(set(plain)) == len(plain)
    assert [name for name in schemas if "__" in name] == [], "FastAPI names so what two modules call alike"
    for part in schemas_in(document):
        assert part.get("$ref", "").removeprefix("#/components/schemas/") in {"", *schemas}
    for name, schema in schemas.items():
        for field, told in schema.get("properties", {}).items():
            assert not isinstance(told.get("default"), dict), (name, field)


def test_unions_of_objects_can_be_told_apart(document: dict[str, Any]) -> None:
    """By a discriminator, or by a field that one alone has to have."""
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        for part in schemas_in(schema):
            choices = part.get("oneOf") or part.get("anyOf") or []
            if not isinstance(choices, list) or "discriminator" in part:
                continue
            objects = [choice["$ref"].rpartition("/")[2] for choice in choices if "$ref" in choice]
            shapes = [frozenset(schemas[of].get("required", [])) for of in objects if schemas[of].get("properties")]
            assert len(set(shapes)) == len(shapes), (name, objects)


def test_the_body_of_a_job_can_be_validated_as_it_is(front: Front) -> None:
    body = front.job_body(reuse=True, name="n", labels={"a": "b"}, priority=3)
    assert front.http.post("/v1/jobs:validate", json=body).status_code == 200
    inside = {**body, "reuse": False, "hand_over": [{"kind": "post", "url": "http://127.0.0.1/x"}]}
    refused = front.http.post("/v1/jobs:validate", json=inside)
    assert refused.status_code == 422, refused.text
    assert "127.0.0.1/x" not in refused.text


GZIP = {"Accept-Encoding": "gzip"}
PLAIN = {"Accept-Encoding": "identity"}


def raw(http: TestClient, path: str, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """The bytes as they were sent."""
    with http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        return b"".join(answer.iter_raw()), dict(answer.headers)


@pytest.mark.parametrize("path", ["/openapi.json", "/v1/problems", "/docs/config.md"])
def test_text_is_compressed(front: Front, path: str) -> None:
    whole, plain = raw(front.http, path, PLAIN)
    small, headers = raw(front.http, path, GZIP)
    assert gzip.decompress(small) == whole
    assert (headers["content-encoding"], headers["content-length"]) == ("gzip", str(len(small)))
    assert "content-encoding" not in plain
    assert "Accept-Encoding" in headers["vary"] and "Accept-Encoding" in plain["vary"]
    assert len(small) < len(whole) / 2
    assert raw(front.http, path, GZIP)[0] == small, "no moment stands in it"


def test_files_events_small_answers_and_answers_to_changes_come_as_they_are(front: Front) -> None:
    data = b"a model that could be compressed " * 1000
    job_id = front.succeeded_job(data, filename="figures.json")
    (artifact,) = front.http.get(f"/v1/jobs/{job_id}/artifacts").json()["items"]
    sent, headers = raw(front.http, f"/v1/artifacts/{artifact['id']}/content", GZIP)
    assert hashlib.sha256(sent).digest() == hashlib.sha256(data).digest()
    assert "content-encoding" not in headers
    sent, headers = raw(front.http, f"/v1/jobs/{job_id}/events", {**GZIP, "Accept": "text/event-stream"})
    assert b"event: end" in sent
    assert "content-encoding" not in headers
    body = {"filename": "x" * 200 + ".npz"}
    for answer in (front.http.get("/healthz", headers=GZIP), front.http.post("/v1/uploads", json=body, headers=GZIP)):
        assert "content-encoding" not in answer.headers


def test_clients_say_what_they_take(front: Front) -> None:
    taken = ("gzip", "deflate, GZIP;q=0.5", "*", "br;q=1, gzip; q=0.001")
    for accepted in (*taken, "", "identity", "gzip;q=0", "gzip; q=0.000", "xgzip", "br"):
        answer = front.http.get("/v1/presets", headers={"Accept-Encoding": accepted})
        assert ("content-encoding" in answer.headers) is (accepted in taken), accepted


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
