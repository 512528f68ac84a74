"""Configs that are too large to be looked into are refused with what to shorten, and the largest ones taken."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.bounds import (
    MOST_KEYS,
    MOST_NAME_CHARS,
    MOST_RANGES,
    MOST_REGEXES,
    MOST_SELECTORS,
    MOST_VALUES,
)
from service.contracts.config import parse_config
from service.contracts.validation import MOST_TOLD
from tests.unit.contracts.refusals import problems, refused


def nodes(count: int, word: str = "n") -> list[dict[str, str]]:
    return [{"node": f"{word}{number}"} for number in range(count)]


def ranges(count: int) -> dict[str, Any]:
    return {f"t{number}": {"minimum": -1.0, "maximum": 1.0} for number in range(count)}


def test_the_largest_configs_are_taken() -> None:
    config = parse_config(
        {
            "include": nodes(MOST_SELECTORS, "in"),
            "exclude": [{"regex": f"out{number}.*"} for number in range(MOST_REGEXES)],
            "overrides": [{"match": one, "weight": {"dtype": "int4"}} for one in nodes(MOST_SELECTORS)],
            "tensor_ranges": ranges(MOST_RANGES),
        }
    )
    assert len(config.include) == len(config.overrides) == MOST_SELECTORS
    assert parse_config(config.model_dump(mode="json")) == config, "a resolved config is within the bounds, too"


@pytest.mark.parametrize(
    ("document", "pointer", "told"),
    [
        ({"include": nodes(MOST_SELECTORS + 1)}, "/include", "at most 500 items"),
        ({"include": nodes(MOST_VALUES + 1)}, "/include", "more than 20000 values"),
        ({"include": [{"regex": f"{n}.*"} for n in range(MOST_REGEXES + 1)]}, "/include", "join some by |"),
        ({f"key{number}": 1 for number in range(200_000)}, "", "200000 keys; at most 500"),
        ({"evaluation": {f"k{n}": 1 for n in range(MOST_KEYS + 1)}}, "/evaluation", "501 keys"),
        ({"tensor_ranges": ranges(MOST_RANGES + 1)}, "/tensor_ranges", "10001 keys; at most 10000"),
        ({"exclude": [{"node": "x" * (MOST_NAME_CHARS + 1)}]}, "/exclude/0/node", "at most 4096 characters"),
    ],
)
def test_larger_ones_are_told_what_to_shorten(document: Any, pointer: str, told: str) -> None:
    found = problems(document)
    assert any(where.startswith(f"/config{pointer}") and told in message for where, message in found), found


def test_some_of_very_many_problems_are_told_and_all_of_a_few() -> None:
    error = refused({"overrides": [{"nothing": 1} for _ in range(MOST_SELECTORS)]})
    assert error.errors[-1].code == "more-problems"
    assert len(error.errors) == len({problem.pointer for problem in error.errors}) == MOST_TOLD + 1
    few = problems({"exclude": [{"node": ""} for _ in range(MOST_TOLD)]})
    assert [where for where, _ in few] == [f"/config/exclude/{k}/node" for k in range(MOST_TOLD)]


def test_a_selector_in_both_lists_is_found() -> None:
    found = problems({"include": nodes(MOST_SELECTORS), "exclude": [*nodes(3, "x"), {"node": "n7"}]})
    assert found[0][0] == "/config/exclude/3"
