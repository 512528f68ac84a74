"""Configs that are too large to be looked into are refused with what to shorten, and the largest ones taken."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.config import parse_config
from service.contracts.selectors import MOST_CHARS, PatternError, compiled
from service.contracts.validation import (
    MOST_KEYS,
    MOST_NAME_CHARS,
    MOST_RANGES,
    MOST_REGEXES,
    MOST_SELECTORS,
    MOST_TOLD,
    MOST_VALUES,
)
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
        ({"include": [{"regex": f"{n}.*"} for n in range(MOST_REGEXES + 1)]}, "/include", "join some with |"),
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


# --- users' regular expressions: what they match, and that none can take long or much ---

PIECES = st.sampled_from(
    ["a", "b", "é", ".", "[ab]", "[^a]", "(?:ab|b)", "a*", "b+", "é?", "(a|é){1,3}", r"\.", r"\d", "_"]
)


@given(st.lists(PIECES, min_size=1, max_size=8).map("".join), st.text("abé._1/", max_size=12))
def test_what_matches_is_what_pythons_engine_says(pattern: str, text: str) -> None:
    assert (compiled(pattern).fullmatch(text) is None) == (re.fullmatch(pattern, text) is None)


def test_one_that_backtracks_without_end_does_not() -> None:
    """Python's engine takes 2^40 steps for it, and the test would not end."""
    assert compiled("(a+)+b").fullmatch("a" * 40 + "!") is None
    assert compiled("(a|a)*b").fullmatch("a" * 100_000) is None


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("(", "missing )"),
        ("a{1001}", "invalid repetition size"),
        ("(a{1000}){1000}", "invalid repetition size"),
        (r"\pL{1000}", "too large"),
        ("(?=a)b", "look-around"),
        (r"(a)\1", "back-references"),
        ("a" * (MOST_CHARS + 1), "longer than 1000"),
    ],
)
def test_others_are_refused_in_words(pattern: str, told: str) -> None:
    with pytest.raises(PatternError, match=re.escape(told)):
        compiled(pattern)


def test_a_config_takes_490_parentheses_and_points_at_an_expression_that_it_refuses() -> None:
    config = parse_config({"exclude": [{"regex": "(" * 490 + "a" + ")" * 490}]})
    assert compiled(config.exclude[0].regex).fullmatch("a") is not None  # type: ignore[union-attr]
    ((pointer, message),) = problems({"exclude": [{"op_type": "Conv"}, {"regex": "(?!x).*"}]})
    assert pointer == "/config/exclude/1/regex"
    assert "look-around" in message
