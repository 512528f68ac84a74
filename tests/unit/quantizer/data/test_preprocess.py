"""Preprocessing against a float64 oracle: exact after rounding to the model's dtype."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.compatibility import fed_shape
from service.contracts.dataset import InputSpec
from service.contracts.errors import DatasetMismatchError
from service.contracts.model import TensorInfo
from worker.quantizer.data.preprocess import Transform, model_dtype

AXES = {
    ("NHWC", "NCHW"): (0, 3, 1, 2), ("NCHW", "NHWC"): (0, 2, 3, 1), ("NHWC", "NHWC"): (0, 1, 2, 3),
    ("NCHW", "NCHW"): (0, 1, 2, 3),
}  # fmt: skip


def oracle(images: np.ndarray[Any, Any], spec: InputSpec) -> np.ndarray[Any, Any]:
    """Written the plain way, channel by channel, in float64 [n, channels, h, w], then moved to the wanted layout."""
    if spec.layout == "NHW":
        planes = images[:, None]
    else:
        planes = images.transpose(AXES["NHWC", "NCHW"]) if spec.layout == "NHWC" else images
    out = np.empty(planes.shape, np.float64)
    for channel in range(planes.shape[1]):
        mean, std = (values[channel if len(values) > 1 else 0] for values in (spec.mean, spec.std))
        out[:, channel] = (planes[:, channel].astype(np.float64) * spec.scale - mean) / std
    return out if spec.model_layout == "NCHW" else out.transpose(AXES["NCHW", "NHWC"])


numbers = st.floats(-300, 300, allow_nan=False).map(lambda x: round(x, 6))


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], InputSpec, str]:
    layout = draw(st.sampled_from(["NHWC", "NCHW", "NHW"]))
    channels = 1 if layout == "NHW" else draw(st.integers(1, 5))
    n, h, w = (draw(st.integers(1, limit)) for limit in (4, 9, 9))
    shape = {"NHWC": (n, h, w, channels), "NCHW": (n, channels, h, w), "NHW": (n, h, w)}[layout]
    dtype = draw(
        st.sampled_from(["uint8", "int8", "int16", "uint16", "int32", "float16", "float32", "float64", "bool"])
    )
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    images = (generator.random(shape) * 250).astype(dtype)
    count = st.sampled_from([1, channels])
    spec = InputSpec(
        layout=layout,
        model_layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        scale=draw(st.sampled_from([1 / 255, 1 / 127.5, 1.0, 0.017, -3.0])),
        mean=tuple(draw(numbers) for _ in range(draw(count))),
        std=tuple(draw(numbers.filter(lambda x: abs(x) > 1e-3)) for _ in range(draw(count))),
    )
    return images, spec, draw(st.sampled_from(["float32", "float64", "float16"]))


def input_for(images: np.ndarray[Any, Any], spec: InputSpec, dtype: str) -> TensorInfo:
    shape = fed_shape(spec, images.shape)
    assert shape is not None
    return TensorInfo(name="x", dtype=dtype, shape=("n", *shape[1:]))


@given(cases())
def test_equals_the_oracle_exactly(case: tuple[np.ndarray[Any, Any], InputSpec, str]) -> None:
    images, spec, dtype = case
    if spec.is_identity:
        spec = spec.model_copy(update={"scale": 0.5})
    transform = Transform(input_for(images, spec, dtype), spec, images.dtype, images.shape)
    with np.errstate(over="ignore"):
        got, expected = transform(images), oracle(images, spec).astype(dtype)
    assert got.flags.c_contiguous
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)


IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize("model_layout", ["NCHW", "NHWC"])
def test_images_larger_than_a_block(model_layout: Any) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 120, 131, 3), np.uint8)
    spec = InputSpec(layout="NHWC", model_layout=model_layout, **IMAGENET)
    got = Transform(input_for(images, spec, "float32"), spec, images.dtype, images.shape)(images)
    np.testing.assert_array_equal(got, oracle(images, spec).astype(np.float32))


@pytest.mark.parametrize(("layout", "model_layout"), list(AXES))
def test_layout_alone_moves_axes_and_keeps_values(layout: Any, model_layout: Any) -> None:
    images = np.random.default_rng(0).integers(-90, 90, (3, 4, 5, 6), np.int8)
    spec = InputSpec(layout=layout, model_layout=model_layout)
    got = Transform(input_for(images, spec, "int8"), spec, images.dtype, images.shape)(images)
    np.testing.assert_array_equal(got, images.transpose(AXES[layout, model_layout]))
    assert got.flags.c_contiguous


def test_data_without_layout_takes_one_mean() -> None:
    values = np.linspace(-4, 9, 60, dtype=np.float32).reshape(4, 5, 3)
    expected = ((values.astype(np.float64) * 2 - 1.5) / 0.3).astype(np.float32)
    np.testing.assert_array_equal(fed(values, "float32", InputSpec(scale=2.0, mean=(1.5,), std=(0.3,))), expected)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("float16", "float32"),
        ("uint8", "int64"),
        ("bool", "bool"),
        ("float32", "float64"),
        ("int16", "int32"),
        (ml_dtypes.bfloat16, "float32"),
        (ml_dtypes.bfloat16, "bfloat16"),
    ],
)
def test_safe_casts_keep_every_value(stored: Any, wanted: str) -> None:
    values = (np.random.default_rng(0).random((6, 4)) * 100).astype(stored)
    np.testing.assert_array_equal(fed(values, wanted, InputSpec()).astype(np.float64), values.astype(np.float64))


def fed(values: np.ndarray[Any, Any], wanted: str, spec: InputSpec) -> np.ndarray[Any, Any]:
    tensor = TensorInfo(name="x", dtype=wanted, shape=("n", *values.shape[1:]))
    got = Transform(tensor, spec, values.dtype, values.shape)(values)
    assert got.dtype == model_dtype(tensor)
    return got


HALF = InputSpec(scale=0.5)
NHWC, NCHW = {"layout": "NHWC"}, {"layout": "NCHW"}


@pytest.mark.parametrize(
    ("stored", "wanted", "spec", "shape", "says"),
    [
        ("float64", "float32", InputSpec(), (6, 4), "takes float32; stored float64"),
        ("int64", "int32", InputSpec(), (6, 4), "takes int32; stored int64"),
        ("uint8", "float32", InputSpec(), (6, 4), "takes float32; stored uint8"),
        ("float32", "int8", HALF, (6, 4), "takes int8; stored float32"),
        ("uint8", "uint8", HALF, (6, 4), "takes uint8; stored uint8"),
        *(("uint8", word, InputSpec(), (6, 4), "only numeric") for word in ("string", "other", "no-such-type")),
        ("uint8", "float32", InputSpec(**NHWC), (4, 8, 8), "layout NHWC"),
        ("uint8", "float32", InputSpec(**NHWC, mean=(1.0, 2.0)), (4, 8, 8, 3), "mean has 2 values for 3"),
        ("uint8", "float32", InputSpec(**NCHW, std=(1.0, 2.0)), (4, 3, 8, 8), "std has 2 values for 3"),
        ("uint8", "float32", InputSpec(mean=(1.0, 2.0)), (4, 2), "mean has 2 values for 0"),
    ],
)
def test_lossy_casts_and_specs_that_do_not_fit_are_refused(
    stored: str, wanted: str, spec: InputSpec, shape: tuple[int, ...], says: str
) -> None:
    with pytest.raises(DatasetMismatchError, match=says):
        Transform(TensorInfo(name="x", dtype=wanted, shape=None), spec, np.dtype(stored), shape)


def test_one_image_at_a_time_is_computed_in_float64() -> None:
    """What keeps the work in the processor's cache, whatever the size of the block."""
    images = np.random.default_rng(0).integers(0, 256, (32, 224, 224, 3), np.uint8)
    spec = InputSpec(layout="NHWC", **IMAGENET)
    transform = Transform(input_for(images, spec, "float32"), spec, images.dtype, images.shape)
    tracemalloc.start()
    try:
        fed = transform(images)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - fed.nbytes < 4 * images[0].size * np.dtype(np.float64).itemsize
