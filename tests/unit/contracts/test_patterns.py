"""Users' regular expressions: what they match, and that none of them can take long or much."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.config import parse_config
from service.contracts.patterns import MOST_CHARS, PatternError, compiled
from tests.unit.contracts.refusals import problems

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
