"""Does a dataset whose samples differ in shape fit a model?"""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.compatibility import check_dataset
from service.contracts.dataset import ArraySummary, DatasetSummary, InputSpec
from service.contracts.model import ModelSummary, TensorInfo
from tests.unit.contracts.test_compatibility import IMAGENET, codes, dataset, mismatch, model, tensor


def varying(
    shape: tuple[int | None, ...], shortest: tuple[int, ...], longest: tuple[int, ...], specs: Any = None
) -> DatasetSummary:
    array = ArraySummary(dtype="float32", shape=shape, shortest=shortest, longest=longest)
    return dataset(specs=specs).model_copy(update={"arrays": {"x": array}})


def test_axes_that_vary_feed_axes_that_are_free() -> None:
    d = varying((4, None, 80), (3, 80), (9, 80))
    for axes in (("n", "length", 80), (None, None, None), (4, None, 80)):
        check_dataset(model(tensor("x", "float32", *axes)), d)
    check_dataset(model(TensorInfo(name="x", dtype="float32", shape=None)), d)
    whole = varying((4, 1, None, 80), (1, 3, 80), (1, 9, 80))
    check_dataset(model(tensor("x", "float32", 1, None, 80)), whole)
    pictures = varying((4, None, None, 3), (5, 6, 3), (50, 60, 3), {"x": InputSpec(layout="NHWC", **IMAGENET)})
    check_dataset(model(tensor("x", "float32", "n", 3, "h", "w")), pictures)


@pytest.mark.parametrize(
    ("m", "d", "code", "says", "hint"),
    [
        (model(tensor("x", "float32", "n", 8, 80)), varying((4, None, 80), (3, 80), (9, 80)), "shape-varies",
         "axis 1 varies from 3 to 9, the model wants 8 (fed shape [4, ?, 80], wanted [n, 8, 80])", "dynamic"),
        (model(tensor("x", "float32", 1, 8, 80)), varying((4, 1, None, 80), (1, 3, 80), (1, 9, 80)), "shape-varies",
         "axis 2 varies from 3 to 9", "dynamic"),
        (model(tensor("x", "float32", "n", 3, 8, "w")),
         varying((4, None, None, 3), (5, 6, 3), (50, 60, 3), {"x": InputSpec(layout="NHWC")}), "shape-varies",
         "axis 2 varies from 5 to 50, the model wants 8", "dynamic"),
        (model(tensor("x", "float32", "n", 80, "length")), varying((4, None, 80), (3, 80), (9, 80)), "shape-varies",
         "axis 1 varies from 3 to 9, the model wants 80", ".transpose(0, 2, 1)"),
        (model(tensor("x", "float32", "n", "length", 80)), varying((4, None, 80), (0, 80), (9, 80)), "sample-empty",
         "a sample holds nothing: the shortest axes are [0, 80]", "Leave"),
        (model(tensor("x", "float32", "n", "c", "h", "w")),
         varying((4, 8, 8, None), (8, 8, 1), (8, 8, 3), {"x": InputSpec(layout="NHWC", **IMAGENET)}), "preprocessing",
         "mean holds 3 values for a varying number of channels", "one value"),
    ],
)  # fmt: skip
def test_samples_of_different_shapes_are_refused_in_words(
    m: ModelSummary, d: DatasetSummary, code: str, says: str, hint: str
) -> None:
    error = mismatch(m, d)
    assert codes(error)[0] == code
    assert says in error.detail
    assert hint in str(error.hint)
