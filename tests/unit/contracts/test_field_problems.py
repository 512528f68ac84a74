"""Validation errors become pointers into the document as it was sent, whatever unions pydantic walked through."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from service.contracts import base
from service.contracts.base import Contract, nearest_key, nearest_name
from service.contracts.errors import FieldProblem
from service.contracts.validation import field_problems


class Cat(Contract):
    method: Literal["cat"] = "cat"
    lives: int = 9


class Dog(Contract):
    method: Literal["dog"] = "dog"
    tricks: tuple[str, ...] = ()


class ByName(Contract):
    name: str


class ByNumber(Contract):
    number: int


class Zoo(Contract):
    star: Annotated[Cat | Dog, Field(discriminator="method")] = Cat()
    animals: tuple[Annotated[Cat | Dog, Field(discriminator="method")], ...] = ()
    keepers: tuple[ByName | ByNumber, ...] = ()
    cages: dict[str, Cat] = Field(default_factory=dict)
    cat: int = 0


def problems(document: Any) -> tuple[FieldProblem, ...]:
    with pytest.raises(ValidationError) as caught:
        Zoo.model_validate(document)
    return field_problems(caught.value, Zoo, pointer="/zoo")


@pytest.mark.parametrize(
    ("document", "pointer", "message"),
    [
        ({"star": {"method": "cat", "live": 7}}, "/zoo/star/live", "unknown key 'live'; did you mean 'lives'?"),
        ({"star": {"method": "dog", "lives": 7}}, "/zoo/star/lives", "unknown key 'lives'; valid keys: method, tricks"),
        ({"animals": [{}, {"method": "dog", "trick": 1}]}, "/zoo/animals/1/trick", "unknown key 'trick'; did you mean"),
        ({"animals": [{"method": "dog", "tricks": [1]}]}, "/zoo/animals/0/tricks/0", "must be a string, not 1"),
        ({"keepers": [{"number": "x"}]}, "/zoo/keepers/0/number", "must be an integer, not 'x'"),
        ({"cages": {"a/b": {"live": 3}}}, "/zoo/cages/a~1b/live", "unknown key 'live'; did you mean 'lives'?"),
        ({"animals": [{"method": "dgo"}]}, "/zoo/animals/0/method", "unknown method 'dgo'; did you mean 'dog'?"),
        ({"animals": [{"method": "fish"}]}, "/zoo/animals/0/method", "unknown method 'fish'; known: cat, dog"),
        ({"animals": [{"lives": 3}]}, "/zoo/animals/0/method", "method is missing; known: cat, dog"),
        ({"animals": [{"methd": "cat"}]}, "/zoo/animals/0/methd", "unknown key 'methd'; did you mean 'method'?"),
        ({"qqqq": 1}, "/zoo/qqqq", "unknown key 'qqqq'; valid keys: animals, cages, cat, keepers, star"),
        (7, "/zoo", "must be an object"),
    ],
)
def test_pointer_and_message(document: Any, pointer: str, message: str) -> None:
    found = problems(document)
    assert any(problem.pointer == pointer and problem.message.startswith(message) for problem in found), found


NO_FORM, FORMS = "no_form_fits", "{name}, {number}"


@pytest.mark.parametrize(
    ("keeper", "place", "code", "message"),
    [
        ({"nam": "Ann"}, "/nam", NO_FORM, f"unknown key 'nam'; did you mean 'name'? (accepted forms: {FORMS})"),
        ({"wage": 1}, "/wage", NO_FORM, f"unknown key 'wage' (accepted forms: {FORMS})"),
        (7, "", NO_FORM, f"must have one of these forms: {FORMS}"),
        ({"name": "Ann", "number": 1}, "", NO_FORM, f"must have one of these forms: {FORMS}; found {{number, name}}"),
        ({"name": 1}, "/name", "string_type", "must be a string, not 1"),
        ({"name": "Ann", "wage": 1}, "/wage", "extra_forbidden", "unknown key 'wage'; valid keys: name"),
    ],
)
def test_a_value_that_fits_no_form_is_one_problem(keeper: Any, place: str, code: str, message: str) -> None:
    (problem,) = problems({"keepers": [keeper]})
    assert problem == FieldProblem(pointer=f"/zoo/keepers/0{place}", code=code, message=message)


def test_each_value_that_fits_no_form_is_told() -> None:
    found = problems({"keepers": [{"nam": "Ann"}, {"name": "Bob"}, {"numbr": 1}], "cat": "x"})
    assert [problem.pointer for problem in found] == ["/zoo/keepers/0/nam", "/zoo/keepers/2/numbr", "/zoo/cat"]


class Clause(Contract):
    kind: Literal["clause"]
    limit: float


class Other(Contract):
    kind: Literal["limit"]
    limit: float


class Gate(Contract):
    clauses: tuple[Annotated[Clause | Other, Field(discriminator="kind")], ...]


def test_tags_that_have_to_be_given_are_named_and_are_no_part_of_a_pointer() -> None:
    for kind in ("clause", "limit"):
        with pytest.raises(ValidationError) as refused:
            Gate.model_validate({"clauses": [{"kind": kind, "limit": "x", "more": 1}]})
        told = field_problems(refused.value, Gate)
        assert {problem.pointer for problem in told} == {"/clauses/0/limit", "/clauses/0/more"}
    with pytest.raises(ValidationError) as refused:
        Gate.model_validate({"clauses": [{"kind": "clauses"}, {}]})
    near, missing = field_problems(refused.value, Gate)
    assert (near.pointer, missing.pointer) == ("/clauses/0/kind", "/clauses/1/kind")
    assert "did you mean 'clause'?" in near.message
    assert missing.message == "kind is missing; known: clause, limit"


# --- the name that was meant; whatever was written, the search is bounded ---


def test_a_name_with_a_slip_is_found_among_many() -> None:
    known = [f"/model/layers/{number}/conv" for number in range(5000)]
    assert nearest_name("/model/layers/4711/cnov", known) == "/model/layers/4711/conv"
    assert nearest_name("/MODEL/layers/17/conv", known) == "/model/layers/17/conv"


def test_only_names_that_are_near_are_offered() -> None:
    known = ["algorithms", "calibration_samples", "seed", "weight"]
    near = {"algorithm": "algorithms", "calibration-samples": "calibration_samples", "sede": "seed", "see": "seed"}
    near |= dict.fromkeys(("calibrationSamples", "calib"), "calibration_samples")
    for key, expected in [*near.items(), ("overrides", None), ("x", None), ("", None)]:
        assert nearest_key(key, known) == expected, key
    assert nearest_name("zzz", ["conv", "relu"]) is None


def test_so_many_names_are_looked_at_and_no_more_and_none_that_nobody_typed(monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(base.process, "extractOne", lambda *_, **__: pytest.fail("compared"))
        for search in (nearest_key, nearest_name):
            assert search("n" * 10_000, ["n" * 9_999]) is None
    looked: list[int] = []
    monkeypatch.setattr(base.process, "extractOne", lambda _, names, **__: looked.append(len(names)))
    nearest_name("n", [f"name{number}" for number in range(200_000)])
    nearest_name("n", ["x" * 10_000] * 10)
    assert looked == [20_000, 0]
