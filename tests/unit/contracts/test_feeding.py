"""The preprocessing that is hinted at for an input without an array."""

from __future__ import annotations

import pytest

from service.contracts.compatibility import check_dataset
from service.contracts.errors import DatasetMismatchError
from tests.unit.contracts.test_compatibility import IMAGE, dataset

FLOATS, BYTES = ("float32", (4, 3, 8, 8)), ("uint8", (4, 8, 8, 3))


@pytest.mark.parametrize(
    ("arrays", "hint"),
    [
        ({"a": FLOATS}, """To feed array 'a', set the preprocessing to `{"inputs": {"x": {"array": "a"}}}`."""),
        ({"a": FLOATS, "b": FLOATS}, "map arrays in a preprocessing spec."),
        ({"images": BYTES}, "set the preprocessing to `imagenet_tf`, as the model was trained; else set the "
         'preprocessing to `{"inputs": {"x": {"array": "images", "layout": "NHWC"}}}`'),
        ({"data": ("uint8", (4, 3, 8, 8))}, '`{"inputs": {"x": {"array": "data", "layout": "NCHW"}}}`'),
    ],
)  # fmt: skip
def test_the_one_array_that_is_left_is_mapped_by_a_setting_to_paste(
    arrays: dict[str, tuple[str, tuple[int, ...]]], hint: str
) -> None:
    with pytest.raises(DatasetMismatchError) as refused:
        check_dataset(IMAGE, dataset(**arrays))
    assert hint in (refused.value.hint or "")
