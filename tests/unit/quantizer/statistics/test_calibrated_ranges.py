"""What holds for the ranges of every calibration method, and the simple methods one by one."""

from __future__ import annotations

import contextlib
import io
import math
import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector
from onnxruntime.quantization.quant_utils import compute_scale_zp_float8

from service.contracts.specs import ActivationSpec
from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import cuts, feed, grid_error, normal, rng
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.ranges import find_ranges, range_reducer
from worker.quantizer.statistics.sampling import SampledValues, Stride

METHODS = [
    {"method": "minmax"},
    {"method": "minmax", "moving_average": 0.1},
    {"method": "percentile", "percentile": 99.0},
    {"method": "layerwise_percentile", "candidates": [90.0, 99.0, 99.9]},
    {"method": "layerwise_percentile", "candidates": [60.0, 99.0], "metric": "mse"},
    {"method": "entropy", "bins": 256, "quantized_bins": 32},
    {"method": "distribution"},
    {"method": "mse", "bins": 128},
    {"method": "non_overflow"},
]
GRIDS = [
    ("uint8", False, "float32"),
    ("int8", True, "float32"),
    ("int8", False, "power_of_two"),
    ("uint8", True, "power_of_two"),
    ("int16", True, "power_of_two"),
    ("uint16", False, "int16"),
    ("float8_e4m3fn", True, "float32"),
    ("float8_e5m2", True, "float32"),
]
SPECS = [
    ActivationSpec.model_validate({"dtype": dtype, "symmetric": symmetric, "scale": scale, "calibration": method})
    for method in METHODS
    for dtype, symmetric, scale in GRIDS
    if method["method"] != "non_overflow" or scale == "power_of_two"
]


def label(spec: ActivationSpec) -> str:
    return "-".join([spec.calibration.method, spec.dtype, spec.scale, "sym" if spec.symmetric else "asym"])


def spec_of(dtype: str = "int8", *, symmetric: bool = True, scale: str = "float32", **method: Any) -> ActivationSpec:
    return ActivationSpec.model_validate(
        {"dtype": dtype, "symmetric": symmetric, "scale": scale, "calibration": method}
    )


@pytest.mark.parametrize("spec", SPECS, ids=label)
@settings(max_examples=8)
@given(points=st.lists(st.integers(0, 10_000), max_size=8), seed=st.integers(0, 5))
def test_the_range_does_not_depend_on_the_cut_of_the_stream(spec: ActivationSpec, points: list[int], seed: int) -> None:
    """5200 values in 40 samples: more than mse keeps with 128 bins, so that the sample counts too."""
    stream = np.maximum(normal(40, 130, seed=seed) * np.linspace(0.1, 3, 40, dtype=np.float32)[:, None], -1)
    whole = feed(range_reducer(spec, samples=40), stream, [slice(0, 40)])
    assert feed(range_reducer(spec, samples=40), stream, cuts(40, points)) == whole


@each("spec", SPECS)
@pytest.mark.parametrize("where", [0, 50, 99])
def test_nan_anywhere_makes_the_range_nan(spec: ActivationSpec, where: int) -> None:
    stream = normal(100, 3)
    stream[where] = np.nan
    low, high = feed(range_reducer(spec, samples=100), stream, cuts(100, [10, 60]))
    assert math.isnan(low)
    assert math.isnan(high)


@each("spec", SPECS)
def test_zeros_have_the_range_zero(spec: ActivationSpec) -> None:
    assert feed(range_reducer(spec, samples=6), np.zeros((6, 50), np.float32), cuts(6, [2])) == (0, 0)


@each("spec", SPECS)
def test_nothing_seen_is_no_finite_range(spec: ActivationSpec) -> None:
    found = range_reducer(spec, samples=6).result()
    assert not (math.isfinite(found.minimum) and math.isfinite(found.maximum))


# By the deviation of a constant, which is none, a float8 has no grid.
@each("spec", [spec for spec in SPECS if spec.calibration.method != "distribution" or "float8" not in spec.dtype])
@pytest.mark.parametrize("value", [2.5, -0.3])
def test_a_constant_keeps_its_value(spec: ActivationSpec, value: float) -> None:
    low, high = feed(range_reducer(spec, samples=6), np.full((6, 50), value, np.float32), cuts(6, [2]))
    tolerance = abs(value) * (0.3 if spec.scale == "power_of_two" else 0.2)
    assert low <= value + tolerance
    assert high >= value - tolerance


@each("spec", SPECS)
def test_a_single_value_is_enough(spec: ActivationSpec) -> None:
    low, high = feed(range_reducer(spec, samples=1), np.array([[1.5]], np.float32), [slice(0, 1)])
    assert low <= high
    assert math.isfinite(low)
    assert math.isfinite(high)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "mx9"])
def test_a_type_without_a_range_has_no_reducer(dtype: str) -> None:
    with pytest.raises(ValueError, match="not calibrated"):
        range_reducer(ActivationSpec.model_validate({"dtype": dtype}), samples=1)


@pytest.mark.parametrize("method", ["mse", "entropy", "layerwise_percentile", "percentile"])
def test_memory_is_flat_from_125_to_10000_samples(method: str) -> None:
    """Sixteen million values."""
    block = normal(1600, seed=3)

    def peak(samples: int) -> int:
        reducer = range_reducer(spec_of("uint8", symmetric=False, method=method), samples=samples)
        tracemalloc.start()
        try:
            for k in range(samples):
                reducer.update(block[None] * np.float32(1 + k % 17 / 16), 1)
            reducer.result()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak(125), peak(10_000)
    assert long < short + 8 * 2**20
    assert long < 24 * 2**20


@given(
    constant=st.floats(0.001, 1.0),
    points=st.lists(st.integers(0, 100), max_size=5),
    stream=st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20),
)
def test_moving_average_is_the_recursion_over_samples(constant: float, points: list[int], stream: list[float]) -> None:
    samples = np.array(stream, np.float32)[:, None] + np.array([-1, 0, 2], np.float32)
    low, high = samples[0].min(), samples[0].max()
    for sample in samples[1:]:
        low = (1 - constant) * low + constant * sample.min()
        high = (1 - constant) * high + constant * sample.max()
    spec = spec_of(method="minmax", moving_average=constant)
    found = feed(range_reducer(spec, samples=len(samples)), samples, cuts(len(samples), points))
    assert found == pytest.approx((low, high), rel=1e-4, abs=1e-4)


def collected(values: np.ndarray) -> Any:
    collector = HistogramCollector(
        method="distribution", symmetric=False, num_bins=2048, num_quantized_bins=128, percentile=0, scenario="same"
    )
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"x": values})
        return collector.compute_collection_result()["x"]


def test_distribution_of_eight_bit_floats_is_onnxruntimes() -> None:
    values = normal(20, 1000, seed=4) + 0.3
    zero, scale = compute_scale_zp_float8(onnx.TensorProto.FLOAT8E4M3FN, collected(values).avg_std[1])
    low, high = feed(range_reducer(spec_of("float8_e4m3fn", method="distribution"), samples=20), values, [slice(0, 20)])
    assert float(zero) == 0
    assert (low, high) == pytest.approx((-448 * float(scale), 448 * float(scale)), rel=1e-3)


def test_distribution_of_integers_is_onnxruntimes() -> None:
    values = np.maximum(normal(20, 1000, seed=5), -0.5)
    spec = spec_of("uint8", symmetric=False, method="distribution")
    found = feed(range_reducer(spec, samples=20), values, cuts(20, [7]))
    theirs = collected(values)
    assert found == (float(theirs.range_value[0]), float(theirs.range_value[1]))


@pytest.mark.parametrize("metric", ["mae", "mse"])
@pytest.mark.parametrize(("dtype", "symmetric"), [("uint8", False), ("int8", True)])
@pytest.mark.parametrize("seed", range(4))
def test_layerwise_percentile_takes_the_candidate_with_the_least_error(
    metric: str, dtype: str, symmetric: bool, seed: int
) -> None:
    candidates = [80.0, 99.0, 99.9, 99.99, 100.0]
    values = rng(seed).standard_t(2 + seed, (30, 700)).astype(np.float32)
    spec = spec_of(dtype, symmetric=symmetric, method="layerwise_percentile", candidates=candidates, metric=metric)
    found = feed(range_reducer(spec, samples=30), values, cuts(30, [11]))
    family = GridFamily.of(spec)
    errors = {}
    for percentile in candidates:
        single = spec_of(dtype, symmetric=symmetric, method="percentile", percentile=percentile)
        ends = feed(range_reducer(single, samples=30), values, cuts(30, [11]))
        scale, zero = family.parameters(np.asarray(ends[0]), np.asarray(ends[1]))
        qmin, qmax = family.limits
        off = (np.clip(np.rint(values / scale), qmin - zero, qmax - zero) * scale - values).astype(np.float64)
        errors[ends] = float(np.abs(off).sum()) if metric == "mae" else float((off**2).sum())
    assert errors[found] == pytest.approx(min(errors.values()), rel=1e-9)


def test_percentile_one_hundred_is_minmax() -> None:
    values = normal(20, 100)
    pieces = cuts(20, [3, 9])
    spec = spec_of("uint8", symmetric=False, method="percentile", percentile=100.0)
    assert feed(range_reducer(spec, samples=20), values, pieces) == (values.min(), values.max())


def test_mse_beats_minmax_where_there_are_outliers() -> None:
    values = rng(6).standard_t(3, (50, 2000)).astype(np.float32)
    spec = spec_of("int8", method="mse")
    low, high = feed(range_reducer(spec, samples=50), values, cuts(50, [20]))
    family = GridFamily.of(spec)
    assert grid_error(values, family, low, high) < 0.8 * grid_error(values, family, values.min(), values.max())


def test_results_are_found_in_order_whatever_the_threads() -> None:
    def run(threads: int) -> dict[str, Any]:
        reducers = {str(k): range_reducer(spec_of(method="mse"), samples=2) for k in range(7)}
        for k, reducer in enumerate(reducers.values()):
            reducer.update(normal(2, 500, seed=k), 2)
        return find_ranges(reducers, threads=threads)

    assert run(1) == run(3)
    assert list(run(3)) == [str(k) for k in range(7)]


@given(shape=st.tuples(st.integers(1, 40), st.integers(1, 60)), points=st.lists(st.integers(0, 99), max_size=6))
def test_a_stride_takes_the_same_positions_for_any_cut(shape: tuple[int, int], points: list[int]) -> None:
    stream = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    whole = Stride(50, shape[0]).take(stream.reshape(-1), shape[0])
    stride = Stride(50, shape[0])
    parts = [stride.take(stream[p].reshape(-1), p.stop - p.start) for p in cuts(shape[0], points)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert whole.size <= 51


def test_a_stride_visits_every_position_of_a_sample() -> None:
    stride = Stride(1000, 6400)
    stream = np.tile(np.arange(64, dtype=np.float32), 6400)
    assert set(stride.take(stream, 6400).tolist()) == set(range(64))


def test_a_sample_keeps_all_outer_values_and_stands_for_all() -> None:
    stream = normal(100, 3000, seed=7)
    sampled = SampledValues(1600, 100)
    for part in np.split(stream, 10):
        sampled.update(part, 10)
    data = sampled.result()
    ordered = np.sort(stream.reshape(-1))
    np.testing.assert_array_equal(data.values[-100:], ordered[-100:])
    np.testing.assert_array_equal(data.values[:100], ordered[:100])
    np.testing.assert_array_equal(data.weights[:100], 1)
    assert data.weights.sum() == pytest.approx(stream.size)
    assert np.all(np.diff(data.values) >= 0)
    assert float(data.weights @ data.values.astype(np.float64) ** 2) == pytest.approx(
        float((stream.astype(np.float64) ** 2).sum()), rel=0.1
    )


def test_more_samples_than_announced_are_thinned_out() -> None:
    sampled = SampledValues(256, 1)
    for k in range(200):
        sampled.update(normal(1, 256, seed=k), 1)
    data = sampled.result()
    assert data.values.size <= 3 * 256
    assert data.weights.sum() == pytest.approx(200 * 256)
