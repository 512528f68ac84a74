"""The OpenAPI document as generators of clients need it; the one that is kept changes on purpose alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from service.docs.__main__ import openapi_document
from tests.support.front import Front

KEPT = Path(__file__).parents[2] / "docs" / "openapi.json"


@pytest.fixture
def document(sqlite_front: Front) -> dict[str, Any]:
    found: dict[str, Any] = sqlite_front.http.get("/openapi.json").json()
    return found


def test_the_kept_document_is_what_is_served(document: dict[str, Any]) -> None:
    hint = "if the API was meant to change: python -m service.docs openapi > docs/openapi.json"
    assert json.loads(KEPT.read_text()) == document, hint
    assert openapi_document() == KEPT.read_text(), hint


def test_operations_have_plain_names(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
    assert {"create_job", "list_jobs", "put_model_alias", "put_dataset_alias"} <= set(names)


@pytest.mark.parametrize(("path", "name"), [("/v1/jobs", "label"), ("/v1/models", "tag"), ("/v1/datasets", "tag")])
def test_filters_by_label_are_told_as_they_are_taken(sqlite_front: Front, path: str, name: str) -> None:
    operation = sqlite_front.http.get("/openapi.json").json()["paths"][path]["get"]
    (told,) = (parameter for parameter in operation["parameters"] if parameter["name"] == name)
    assert (told["in"], told["style"], told["explode"]) == ("query", "form", True)
    assert re.search(told["schema"]["items"]["pattern"], "team=a=b")
    assert not re.search(told["schema"]["items"]["pattern"], "team")
    for query in (f"{name}=team=a", f"{name}=team=a&{name}=on=b=c", f"{name}[team]=a", f"{name}.team=a"):
        assert sqlite_front.http.get(f"{path}?{query}").json()["items"] == []
    for query in (
        f"{name}[team=a",
        f"{name}[]=a",
        f"{name}[te am]=a",
        f"{name}[team]=a&{name}.team=a",
        f"{name}=a",
        f"{name}=te am=a",
        f"{name}=team=a&{name}=team=b",
    ):
        assert sqlite_front.http.get(f"{path}?{query}").status_code == 422, query


def test_all_spellings_find_the_same(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job(labels={"team": "a", "on/off": "x", "sum": "1=1"})
    sqlite_front.new_job(labels={"team": "b"})
    for query in (
        "label[team]=a",
        "label.team=a",
        "label[on/off]=x&label.team=a",
        "label%5Bteam%5D=a",
        "label=team=a&label=sum=1%3D1",
    ):
        items = sqlite_front.http.get(f"/v1/jobs?{query}").json()["items"]
        assert [item["id"] for item in items] == [job_id], query


def test_no_field_has_an_object_as_its_default(document: dict[str, Any]) -> None:
    """Generators of clients leave such a schema out, and every operation with it."""
    odd = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, told in schema.get("properties", {}).items()
        if isinstance(told.get("default"), dict)
    ]
    assert odd == []


def test_what_generators_of_clients_need_is_there(document: dict[str, Any]) -> None:
    """They know plain styles of parameters alone, and read an answer by the one type that its success has."""
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            for told in operation.get("parameters", []):
                assert told.get("style", "form") in ("form", "simple"), (path, verb, told["name"])
                assert told["schema"].get("type") != "object", (path, verb, told["name"])
            answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
            assert answers, (path, verb)


def test_events_are_json_where_the_request_says_so(sqlite_front: Front) -> None:
    path = f"/v1/jobs/{sqlite_front.new_job()}/events"
    page = sqlite_front.http.get(path, params={"format": "json"}, headers={"Accept": "text/event-stream"})
    assert page.json()["items"][0]["seq"] == 1
    assert sqlite_front.http.get(path, params={"format": "xml"}).status_code == 422


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_tags_and_a_description_come_with_the_request(sqlite_front: Front, noun: str) -> None:
    upload = sqlite_front.upload(filename="net.onnx" if noun == "model" else "data.npz")
    files = {"files": [{"upload_id": upload, "path": "net.onnx"}]} if noun == "model" else {"upload_id": upload}
    told = {"tags": {"team": "vision"}, "description": "Of last night."}
    made = sqlite_front.http.post(f"/v1/{noun}s", json={"name": "net", **files, **told})
    assert made.status_code == 201 or made.status_code == 202, made.text
    assert {name: made.json()[name] for name in told} == told
    found = sqlite_front.http.get(f"/v1/{noun}s", params={"tag": "team=vision"}).json()["items"]
    assert [item["id"] for item in found] == [made.json()["id"]]


def test_the_body_of_a_job_can_be_validated_as_it_is(sqlite_front: Front) -> None:
    body = sqlite_front.job_body(reuse=True, name="n", labels={"a": "b"}, priority=3)
    assert sqlite_front.http.post("/v1/jobs:validate", json=body).status_code == 200
    inside = {**body, "reuse": False, "hand_over": [{"kind": "post", "url": "http://127.0.0.1/x"}]}
    refused = sqlite_front.http.post("/v1/jobs:validate", json=inside)
    assert refused.status_code == 422, refused.text
    assert "127.0.0.1/x" not in refused.text
