"""Ranges out as JSON and in again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.calibration import TensorRange
from service.contracts.errors import EngineError, InvalidConfigError
from worker.quantizer.statistics.reducers import Range
from worker.quantizer.statistics.supplied import ranges_json, supplied_ranges

ends = st.floats(allow_nan=False, allow_infinity=False)


def parsed(text: str) -> dict[str, TensorRange]:
    return {name: TensorRange.model_validate(found) for name, found in json.loads(text).items()}


@given(ranges=st.dictionaries(st.text(), st.tuples(ends, ends).map(sorted)))
def test_what_goes_out_comes_in_again_exactly(ranges: dict[str, list[float]]) -> None:
    calibrated = {name: Range(low, high) for name, (low, high) in ranges.items()}
    again, unused = supplied_ranges(parsed(ranges_json(calibrated)), list(calibrated), [])
    assert again == calibrated
    assert unused == []


def test_the_json_is_sorted_and_the_same_for_the_same_ranges() -> None:
    one = ranges_json({"b": Range(0, 1), "a": Range(-1.5, 2)})
    assert one == ranges_json({"a": Range(-1.5, 2), "b": Range(0, 1)})
    assert list(json.loads(one)) == ["a", "b"]
    assert json.loads(one)["a"] == {"minimum": -1.5, "maximum": 2}


def test_tensors_that_get_no_grid_are_named() -> None:
    supplied = {name: TensorRange(minimum=0, maximum=1) for name in ("z", "x", "y")}
    ranges, unused = supplied_ranges(supplied, ["x"], ["x", "y", "z"])
    assert list(ranges) == ["x"]
    assert unused == ["y", "z"]


def test_every_wrong_entry_is_pointed_at() -> None:
    supplied = {
        "a/b~c": TensorRange(minimum=0, maximum=1),
        "x": TensorRange(minimum=1, maximum=-1),
        "y": TensorRange(minimum=1, maximum=1),
    }
    with pytest.raises(InvalidConfigError) as caught:
        supplied_ranges(supplied, ["x", "y"], ["x", "y"])
    assert [problem.pointer for problem in caught.value.errors] == [
        "/config/tensor_ranges/a~1b~0c",
        "/config/tensor_ranges/x",
    ]
    assert "'a/b~c'" in caught.value.detail
    assert "above the maximum" in caught.value.detail


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_range_that_is_not_finite_does_not_go_out(bad: float) -> None:
    with pytest.raises(EngineError, match="'x'"):
        ranges_json({"x": Range(0, bad)})
