"""No word of pydantic's reaches a user: what requests, configs and settings can raise is in our words."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

import service
from service.contracts.errors import QuantmillError
from service.contracts.validation_words import LIMITS, WORDS, message_of

# One of each kind of value, wrong for nearly every field.
WRONG: tuple[Any, ...] = (
    None, "", "x", "x" * 5000, -1, 2.5, 10**30, float("nan"), True, [], ["x"] * 3, [[]], {}, {"x": "y"}, {"": {}},
    object(),
)  # fmt: skip
# Words that only pydantic's messages have.
THEIRS = ("Input should", "Field required", "String should", "should be", "should have", "should match", "Extra inputs")


def models() -> Iterator[type[BaseModel]]:
    """Every record of the service that is validated."""
    seen: set[type[BaseModel]] = set()
    for found in walk_packages(service.__path__, "service."):
        if found.name.startswith(("service.client", "service.dashboard")):
            continue
        for _, model in inspect.getmembers(import_module(found.name), inspect.isclass):
            if issubclass(model, BaseModel) and model.__module__.startswith("service.") and model not in seen:
                seen.add(model)
                yield model


def refusals(model: type[BaseModel]) -> Iterator[Any]:
    """What pydantic says of the model with a wrong value in each field, and of none at all."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    documents: list[Any] = [None, [], "x", {"no such key": 1}, {}]
    documents += [{name: value} for name in names for value in WRONG]
    for document in documents:
        try:
            model.model_validate(document)
        except ValidationError as error:
            yield from error.errors(include_url=False)
        except (QuantmillError, KeyError):
            pass  # in our words from the start; or a base of records that is none itself


def test_all_that_the_service_validates_is_refused_in_our_words() -> None:
    told: dict[str, str] = {}
    met = set()
    for model in models():
        for item in refusals(model):
            met.add(item["type"])
            message = message_of(item)
            if any(word in message for word in THEIRS):
                told[item["type"]] = f"{model.__name__}: {message}"
    assert told == {}
    assert len(met & (set(WORDS) | set(LIMITS))) > 20


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "x", "must be an integer, not 'x'"),
        (int, 2.5, "must be an integer, not 2.5"),
        (float, None, "must be a number, not null"),
        (bool, "maybe", "must be true or false, not 'maybe'"),
        (str, {"a": 1}, "must be a string, not an object"),
        (list[int], "x", "must be a list, not 'x'"),
        (dict[str, int], [1], "must be an object, not a list"),
        (Literal["cpu", "gpu"], "npu", "must be 'cpu' or 'gpu', not 'npu'"),
        (Annotated[int, Field(ge=1)], 0, "must be at least 1, not 0"),
        (Annotated[float, Field(lt=1)], 1.5, "must be less than 1, not 1.5"),
        (Annotated[str, Field(pattern="^[a-z]+$")], "A SECRET", "must match the pattern ^[a-z]+$"),
        (Annotated[str, Field(max_length=3)], "secret", "must have at most 3 characters"),
        (Annotated[list[int], Field(min_length=2)], [1], "must have at least 2 items, not 1"),
        (int, "9" * 100, f"must be an integer, not '{'9' * 60}...'"),
    ],
)  # fmt: skip
def test_a_message_says_what_is_wanted_and_what_was_given(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value, strict=kind is int and isinstance(value, str) and len(value) > 50)
    assert message_of(caught.value.errors()[0]) == message


def test_a_missing_field_is_missing_and_our_own_words_stay() -> None:
    class Record(BaseModel):
        name: str

    with pytest.raises(ValidationError) as caught:
        Record.model_validate({})
    assert message_of(caught.value.errors()[0]) == "is missing"
    assert message_of({"type": "value_error", "msg": "Value error, std must not hold 0"}) == "std must not hold 0"
    assert message_of({"type": "int_type", "msg": "Input should be"}) == "must be an integer"
