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
    assert (told["in"], told["style"], told["explode"]) == ("query", "deepObject", True)
    assert re.fullmatch(told["schema"]["propertyNames"]["pattern"], "team")
    for query in (f"{name}[team]=a", f"{name}.team=a"):
        assert sqlite_front.http.get(f"{path}?{query}").json()["items"] == []
    for query in (f"{name}[team=a", f"{name}[]=a", f"{name}[te am]=a", f"{name}[team]=a&{name}.team=a", f"{name}=a"):
        assert sqlite_front.http.get(f"{path}?{query}").status_code == 422, query


def test_both_spellings_find_the_same(sqlite_front: Front) -> None:
    job_id = sqlite_front.new_job(labels={"team": "a", "on/off": "x"})
    sqlite_front.new_job(labels={"team": "b"})
    for query in ("label[team]=a", "label.team=a", "label[on/off]=x&label.team=a", "label%5Bteam%5D=a"):
        items = sqlite_front.http.get(f"/v1/jobs?{query}").json()["items"]
        assert [item["id"] for item in items] == [job_id], query
