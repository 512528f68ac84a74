"""Merge patches: RFC 7396's own examples, and patches of configs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.patch import advised_config, patch_between, patched
from tests.support.each import each

# Appendix A of RFC 7396: original, patch, result.
EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]
leaves = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
documents = st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
objects = st.dictionaries(st.sampled_from("abc"), documents, max_size=3)


@each(("original", "patch", "result"), EXAMPLES)
def test_the_examples_of_the_rfc(original: Any, patch: Any, result: Any) -> None:
    assert patched(original, patch) == result


@given(objects, objects)
def test_a_patch_between_two_documents_makes_one_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = patch_between(before, after)
    assert patched(before, patch) == after
    assert (patch == {}) == (before == after)


def test_a_config_takes_a_patch_and_is_whole_again() -> None:
    config = parse_config({"preset": "xint8"})
    advised = advised_config(config, {"algorithms": [{"method": "cross_layer_equalization"}]})
    assert [algorithm.method for algorithm in advised.algorithms] == ["cross_layer_equalization"]
    assert advised.model_copy(update={"algorithms": ()}) == config.model_copy(update={"algorithms": ()})
    before, after = {"calibration": {"method": "minmax", "moving_average": None}}, {"calibration": {"method": "mse"}}
    assert patched(before, patch_between(before, after)) == after, "null is no value that stays behind"
    with pytest.raises(InvalidConfigError, match="granularity"):
        advised_config(parse_config({}), {"weight": {"granularity": "per_galaxy"}})
