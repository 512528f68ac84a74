"""Ranges out as JSON and in again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.calibration import TensorRange
from service.contracts.errors import InvalidConfigError
from worker.quantizer.statistics.reducers import Range
from worker.quantizer.statistics.supplied import supplied_ranges

ends = st.floats(allow_nan=False, allow_infinity=False)


@given(ranges=st.dictionaries(st.text(), st.tuples(ends, ends).map(sorted)))
def test_what_goes_out_comes_in_again_exactly(ranges: dict[str, list[float]]) -> None:
    calibrated = {name: Range(low, high) for name, (low, high) in ranges.items()}
    told = {name: TensorRange(minimum=found.minimum, maximum=found.maximum) for name, found in calibrated.items()}
    written = {name: found.model_dump_json() for name, found in told.items()}
    read = {name: TensorRange.model_validate_json(found) for name, found in written.items()}
    again, unused = supplied_ranges(read, list(calibrated), [])
    assert again == calibrated
    assert unused == []


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
