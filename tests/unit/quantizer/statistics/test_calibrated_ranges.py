"""What holds for the ranges of every calibration method, and the simple methods one by one."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization.quant_utils import compute_scale_zp_float8

from service.contracts.errors import InvalidConfigError
from service.contracts.specs import ActivationSpec, TensorRange
from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import collected, cuts, feed, normal, rng, spec_of
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.ranges import find_ranges, range_observer, supplied_ranges
from worker.quantizer.statistics.sampling import SampledValues

METHODS = [
    {"method": "minmax"}, {"method": "minmax", "moving_average": 0.1}, {"method": "percentile", "percentile": 99.0},
    {"method": "layerwise_percentile", "candidates": [90.0, 99.0, 99.9]},
    {"method": "layerwise_percentile", "candidates": [60.0, 99.0], "metric": "mse"},
    {"method": "entropy", "bins": 256, "quantized_bins": 32}, {"method": "distribution"},
    {"method": "mse", "bins": 128}, {"method": "non_overflow"},
]  # fmt: skip
GRIDS = [
    ("uint8", False, "float32"), ("int8", True, "float32"), ("int8", False, "power_of_two"),
    ("int16", True, "power_of_two"), ("uint16", False, "int16"), ("float8_e4m3fn", True, "float32"),
]  # fmt: skip
SPECS = [
    spec_of(dtype, symmetric=symmetric, scale=scale, **method)
    for method in METHODS
    for dtype, symmetric, scale in GRIDS
    if method["method"] != "non_overflow" or scale == "power_of_two"
]


@pytest.mark.slow
@each("spec", SPECS)
@given(points=st.lists(st.integers(0, 10_000), max_size=8), seed=st.integers(0, 5))
def test_the_range_does_not_depend_on_the_cut_of_the_stream(spec: ActivationSpec, points: list[int], seed: int) -> None:
    """5200 values in 40 samples: more than mse keeps with 128 bins, so that the sample counts too."""
    stream = np.maximum(normal(40, 130, seed=seed) * np.linspace(0.1, 3, 40, dtype=np.float32)[:, None], -1)
    whole = feed(range_observer(spec, samples=40), stream, [slice(0, 40)])
    assert feed(range_observer(spec, samples=40), stream, cuts(40, points)) == whole


@each(("spec", "where"), itertools.product(SPECS, [0, 50, 99]))
def test_nan_anywhere_makes_the_range_nan(spec: ActivationSpec, where: int) -> None:
    stream = normal(100, 3)
    stream[where] = np.nan
    low, high = feed(range_observer(spec, samples=100), stream, cuts(100, [10, 60]))
    assert math.isnan(low) and math.isnan(high)


@each("spec", SPECS)
def test_a_constant_keeps_its_value_and_nothing_seen_has_no_range(spec: ActivationSpec) -> None:
    assert feed(range_observer(spec, samples=6), np.zeros((6, 50), np.float32), cuts(6, [2])) == (0, 0)
    found = range_observer(spec, samples=6).result()
    assert not (math.isfinite(found.minimum) and math.isfinite(found.maximum))
    low, high = feed(range_observer(spec, samples=1), np.array([[1.5]], np.float32), [slice(0, 1)])
    assert low <= high and math.isfinite(low) and math.isfinite(high)
    if spec.calibration.method == "distribution" and "float8" in spec.dtype:
        return  # by the deviation of a constant, which is none, a float8 has no grid
    for value in (2.5, -0.3):
        low, high = feed(range_observer(spec, samples=6), np.full((6, 50), value, np.float32), cuts(6, [2]))
        tolerance = abs(value) * (0.3 if spec.scale == "power_of_two" else 0.2)
        assert low <= value + tolerance
        assert high >= value - tolerance


LONG = [pytest.param(method, marks=pytest.mark.long) for method in ("entropy", "layerwise_percentile")]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mse", "percentile", *LONG])
def test_memory_is_flat_from_125_to_5000_samples(method: str) -> None:
    block = normal(1600, seed=3)

    def peak(samples: int) -> int:
        observer = range_observer(spec_of("uint8", symmetric=False, method=method), samples=samples)
        tracemalloc.start()
        try:
            for k in range(samples):
                observer.update(block[None] * np.float32(1 + k % 17 / 16), 1)
            observer.result()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak(125), peak(5_000)
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
    found = feed(range_observer(spec, samples=len(samples)), samples, cuts(len(samples), points))
    assert found == pytest.approx((low, high), rel=1e-4, abs=1e-4)


def test_distribution_is_onnxruntimes() -> None:
    values = normal(20, 1000, seed=4) + 0.3
    zero, scale = compute_scale_zp_float8(onnx.TensorProto.FLOAT8E4M3FN, collected(values, "distribution").avg_std[1])
    low, high = feed(
        range_observer(spec_of("float8_e4m3fn", method="distribution"), samples=20), values, [slice(0, 20)]
    )
    assert float(zero) == 0
    assert (low, high) == pytest.approx((-448 * float(scale), 448 * float(scale)), rel=1e-3)
    values = np.maximum(normal(20, 1000, seed=5), -0.5)
    spec = spec_of("uint8", symmetric=False, method="distribution")
    found = feed(range_observer(spec, samples=20), values, cuts(20, [7]))
    assert found == tuple(float(end) for end in collected(values, "distribution").range_value)


@each(("metric", "dtype", "symmetric"), [("mae", "uint8", False), ("mse", "int8", True)])
@each("seed", range(4))
def test_layerwise_percentile_takes_the_candidate_with_the_least_error(
    metric: str, dtype: str, symmetric: bool, seed: int
) -> None:
    candidates = [80.0, 99.0, 99.9, 99.99, 100.0]
    values = rng(seed).standard_t(2 + seed, (30, 700)).astype(np.float32)
    spec = spec_of(dtype, symmetric=symmetric, method="layerwise_percentile", candidates=candidates, metric=metric)
    found = feed(range_observer(spec, samples=30), values, cuts(30, [11]))
    family = GridFamily.of(spec)
    errors = {}
    for percentile in candidates:
        single = spec_of(dtype, symmetric=symmetric, method="percentile", percentile=percentile)
        ends = feed(range_observer(single, samples=30), values, cuts(30, [11]))
        scale, zero = family.parameters(np.asarray(ends[0]), np.asarray(ends[1]))
        qmin, qmax = family.limits
        off = (np.clip(np.rint(values / scale), qmin - zero, qmax - zero) * scale - values).astype(np.float64)
        errors[ends] = float(np.abs(off).sum()) if metric == "mae" else float((off**2).sum())
    assert errors[found] == pytest.approx(min(errors.values()), rel=1e-9)


def test_results_are_found_in_order_whatever_the_threads() -> None:
    def run(threads: int) -> dict[str, Any]:
        observers = {str(k): range_observer(spec_of(method="mse"), samples=2) for k in range(7)}
        for k, observer in enumerate(observers.values()):
            observer.update(normal(2, 500, seed=k), 2)
        return find_ranges(observers, threads=threads)

    assert run(1) == run(3)
    assert list(run(3)) == [str(k) for k in range(7)]


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


ends = st.floats(allow_nan=False, allow_infinity=False)


@given(ranges=st.dictionaries(st.text(), st.tuples(ends, ends).map(sorted)))
def test_ranges_go_out_as_json_and_come_in_again_exactly(ranges: dict[str, list[float]]) -> None:
    told = {name: TensorRange(minimum=low, maximum=high).model_dump_json() for name, (low, high) in ranges.items()}
    read = {name: TensorRange.model_validate_json(found) for name, found in told.items()}
    again, unused = supplied_ranges(read, list(ranges), [])
    assert again == {name: Range(low, high) for name, (low, high) in ranges.items()}
    assert unused == []


def test_tensors_that_get_no_grid_are_named_and_every_wrong_entry_is_pointed_at() -> None:
    supplied = {name: TensorRange(minimum=0, maximum=1) for name in ("z", "x", "y")}
    ranges, unused = supplied_ranges(supplied, ["x"], ["x", "y", "z"])
    assert (list(ranges), unused) == (["x"], ["y", "z"])
    wrong = {"a/b~c": (0, 1), "x": (1, -1), "y": (1, 1)}
    supplied = {name: TensorRange(minimum=low, maximum=high) for name, (low, high) in wrong.items()}
    with pytest.raises(InvalidConfigError, match="above the maximum") as caught:
        supplied_ranges(supplied, ["x", "y"], ["x", "y"])
    pointers = [problem.pointer for problem in caught.value.errors]
    assert pointers == ["/config/tensor_ranges/a~1b~0c", "/config/tensor_ranges/x"]
    assert "'a/b~c'" in caught.value.detail
