"""Turns pydantic's validation errors into field problems with JSON pointers and, for unknown keys, the nearest valid
key.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from service.contracts.errors import FieldProblem

# Key in the context of a PydanticCustomError: pointer, from the validated field on, to the part of it that is wrong.
BELOW = "below"


def field_problems(error: ValidationError, model: type[BaseModel], *, pointer: str = "") -> tuple[FieldProblem, ...]:
    """One FieldProblem per error of ``error``; ``pointer`` is put before each location."""
    problems = []
    for item in error.errors(include_url=False, include_input=False):
        models, path = _resolve(model, item["loc"])
        message = _plain(item)
        if item["type"] == "extra_forbidden" and path:
            names = sorted({name for found in models for name in found.model_fields})
            near = difflib.get_close_matches(str(path[-1]), names, n=1, cutoff=0.4)
            message = f"unknown key {str(path[-1])!r}"
            message += f"; did you mean {near[0]!r}?" if near else f"; valid keys: {', '.join(names)}"
        full = pointer + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
        full += item.get("ctx", {}).get(BELOW, "")
        problem = FieldProblem(pointer=full, code=item["type"], message=message)
        if problem not in problems:
            problems.append(problem)
    return tuple(problems)


def _resolve(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[list[type[BaseModel]], list[int | str]]:
    """Follow ``loc`` through the annotations; drops the union tags that pydantic puts into locations.

    Returns the models that hold the last part, and the location as it stands in the document.
    """
    current: list[type[BaseModel]] = [model]
    path: list[int | str] = []
    holders = current
    for part in loc:
        tagged = [m for m in current if m.__name__ == part or _tag(m) == part]
        # pydantic puts the tag (or the class name) of a union's member into the location, right after the union's field
        if isinstance(part, str) and len(current) > 1 and tagged:
            current = holders = tagged
            continue
        path.append(part)
        holders = current
        if isinstance(part, str):
            found = [f for m in current for f in _models_in(_annotation(m, part))]
            current = found or current
    return holders, path


def _plain(item: ErrorDetails) -> str:
    """The message in words of the document, not of the validator."""
    context = item.get("ctx", {})
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "must be an object"
    if item["type"] == "union_tag_invalid":
        return (
            f"unknown {context['discriminator'].strip(chr(39))} {context['tag']!r}; known: {context['expected_tags']}"
        )
    return item["msg"].removeprefix("Value error, ")


def _annotation(model: type[BaseModel], name: str) -> Any:
    field = model.model_fields.get(name)
    return field.annotation if field else None


def _tag(model: type[BaseModel]) -> Any:
    field = model.model_fields.get("method") or model.model_fields.get("kind")
    return field.default if field else None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif typing.get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for argument in typing.get_args(annotation):
            yield from _models_in(argument)
