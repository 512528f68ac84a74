"""The kept OpenAPI document as generators of clients need it: what they cannot read they leave out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KEPT = Path(__file__).parents[2] / "docs" / "openapi.json"
# What an operation may answer besides JSON: a file, a text, or a stream that a client reads by its own means.
_OTHER_TYPES = ("text/", "image/", "application/octet-stream", "application/xml", "application/zip")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(KEPT.read_text())
    return found


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


def test_parameters_are_of_plain_styles(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        for told in operation.get("parameters", []):
            assert told.get("style", "form") in ("form", "simple"), (name, told["name"])
            assert "content" not in told, (name, told["name"])


def test_every_operation_has_one_answer_of_a_kind(document: dict[str, Any]) -> None:
    """More statuses may tell the same; JSON of two schemas could not be told apart."""
    for name, operation in operations(document):
        answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
        assert answers, name
        made = [answer.get("content", {}) for answer in answers]
        json_schemas = {json.dumps(of["application/json"]["schema"]) for of in made if "application/json" in of}
        assert len(json_schemas) <= 1, name
        for kind in {kind for of in made for kind in of} - {"application/json"}:
            assert kind.startswith(_OTHER_TYPES), (name, kind)


def test_schemas_have_names_of_their_own(document: dict[str, Any]) -> None:
    """Two that differ by case or by signs alone would be written to one file."""
    names = list(document["components"]["schemas"])
    plain = ["".join(sign for sign in name.lower() if sign.isalnum()) for name in names]
    assert [name for name, short in zip(names, plain, strict=True) if plain.count(short) > 1] == []
    assert [name for name in names if "__" in name] == [], "FastAPI names so what two modules call alike"


def test_no_default_is_an_object(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    odd = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, told in schema.get("properties", {}).items()
        if isinstance(told.get("default"), dict)
    ]
    assert odd == []


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
