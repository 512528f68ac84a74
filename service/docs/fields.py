"""What the pages tell of a contract: each field's type, default, bounds and help, read off the contract itself."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from pydantic.fields import FieldInfo

from service.contracts.base import SEARCH_SPACE, Contract

FIELD_HEAD = ("field", "type", "default", "bounds", "what")
# The field that tells the members of a union apart.
TAGS = ("method", "kind")
_REF = "#/$defs/"
_WORDS = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_RANGES = (("minLength", "maxLength", "characters"), ("minItems", "maxItems", "entries"), ("", "maxProperties", "keys"))


def contracts_of(annotation: Any) -> Iterator[type[Contract]]:
    """Every contract that an annotation, or a contract's fields, lead to; the outer ones first, some more than once."""
    if isinstance(annotation, type) and issubclass(annotation, Contract):
        yield annotation
        for field in annotation.model_fields.values():
            yield from contracts_of(field.annotation)
    for inner in get_args(annotation):
        yield from contracts_of(inner)


def title_of(record: type[Contract]) -> str:
    """What a contract is called on a page: its ``method`` or ``kind``, or its name."""
    return next((str(record.model_fields[tag].default) for tag in TAGS if _is_tag(record, tag)), record.__name__)


def _is_tag(record: type[Contract], name: str) -> bool:
    """True if the field tells the members of a union apart: it has one value only."""
    field = record.model_fields.get(name)
    return field is not None and name in TAGS and len(get_args(field.annotation)) == 1


def text_of(record: type[Contract]) -> str:
    """Its docstring as Markdown."""
    return prose(inspect.cleandoc(record.__doc__ or ""))


class FieldTables:
    """Writes fields as rows of a table.

    Args:
        places: the link's target by the contract's name, for every contract that a field's type may name.
        words: what a union of contracts is called, by the names of its members; others are spelled out.
    """

    def __init__(self, places: dict[str, tuple[str, str]], words: dict[frozenset[str], str]) -> None:
        self._places = places
        self._words = words

    def table(self, record: type[Contract]) -> str:
        """All fields of a contract."""
        return table(FIELD_HEAD, self.rows(record))

    def rows(self, record: type[Contract]) -> list[tuple[str, ...]]:
        """One row per field, in the order of the contract."""
        properties = record.model_json_schema()["properties"]
        return [
            (code(name), json_code(field.default), "required", "", "")
            if _is_tag(record, name)
            else self._row(name, field, properties[name])
            for name, field in record.model_fields.items()
        ]

    def _row(self, name: str, field: FieldInfo, schema: dict[str, Any]) -> tuple[str, ...]:
        return code(name), self._type(schema), _default(field), "; ".join(_bounds(schema)), _help(field)

    def _type(self, schema: dict[str, Any]) -> str:
        union = schema.get("oneOf") or schema.get("anyOf")
        if union:
            names = frozenset(part.get("$ref", "").removeprefix(_REF) for part in union)
            return self._words.get(names) or " or ".join(dict.fromkeys(map(self._type, union)))
        if "$ref" in schema:
            title, place = self._places[schema["$ref"].removeprefix(_REF)]
            return f"[{title}]({place})"
        if "const" in schema:
            return json_code(schema["const"])
        if "enum" in schema:
            return " ".join(code(str(value)) for value in schema["enum"])
        if schema["type"] == "array":
            parts = schema.get("prefixItems")
            return f"[{', '.join(map(self._type, parts))}]" if parts else f"list of {self._type(schema['items'])}"
        if schema["type"] == "object":
            return f"name: {self._type(schema['additionalProperties'])}"
        return _WORDS[schema["type"]]


def _help(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    tried = extra.get(SEARCH_SPACE) if isinstance(extra, dict) else None
    told = [field.description or ""]
    if isinstance(tried, list):
        told.append(f"The autopilot tries {', '.join(map(json_code, tried))}.")
    return " ".join(filter(None, told))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, tuple):
        return json_code([_given(entry) for entry in value])
    return json_code(_given(value))


def _given(value: Any) -> Any:
    """A default as one would write it: of a contract, what is not its own default."""
    if not isinstance(value, Contract):
        return value
    tags = {tag: getattr(value, tag) for tag in TAGS if _is_tag(type(value), tag)}
    return {**tags, **value.model_dump(mode="json", exclude_unset=True)}


def _bounds(schema: dict[str, Any]) -> Iterator[str]:
    for part in schema.get("oneOf") or schema.get("anyOf") or ():
        yield from _bounds(part)
    least = _limit(schema, "minimum", "at least") or _limit(schema, "exclusiveMinimum", "above")
    most = _limit(schema, "maximum", "at most") or _limit(schema, "exclusiveMaximum", "below")
    yield from filter(None, (", ".join(filter(None, (least, most))),))
    for low, high, unit in _RANGES:
        if "prefixItems" in schema or (low not in schema and high not in schema):
            continue
        few, many = schema.get(low, 0), schema.get(high)
        yield "not empty" if many is None else f"{few} to {many} {unit}" if few else f"at most {many} {unit}"
    if "pattern" in schema:
        yield code(schema["pattern"])
    for word in ("items", "additionalProperties"):
        if isinstance(schema.get(word), dict):
            yield from (f"each {bound.removeprefix('each ')}" for bound in _bounds(schema[word]))


def _limit(schema: dict[str, Any], key: str, word: str) -> str:
    return f"{word} {json.dumps(schema[key])}" if key in schema else ""


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; bars within cells are escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    """As code."""
    return f"`{text}`"


def json_code(value: Any) -> str:
    """A value as JSON, as code."""
    return code(json.dumps(value))


def prose(docstring: str) -> str:
    """A docstring's text: its double backticks are one in Markdown."""
    return docstring.replace("``", "`")
