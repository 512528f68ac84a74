"""The mse method against exhaustive search, and what it makes of streams."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.specs import ActivationSpec
from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import (
    cuts,
    families,
    feed,
    grid_error,
    grid_errors,
    normal,
    rng,
    weighted,
)
from worker.quantizer.statistics.grids import GridFamily, SquaredError
from worker.quantizer.statistics.mse import mse_range
from worker.quantizer.statistics.ranges import range_reducer

KINDS = {
    "normal": normal(400, seed=1),
    "outliers": np.concatenate([normal(300, seed=2), np.array([25, -40, 31], np.float32)]),
    "far outlier": np.append(normal(3000, seed=3) * 0.01, np.float32(2)),
    "relu": np.maximum(normal(500, seed=4), 0),
    "relu6": np.clip(normal(500, seed=5) * 4, 0, 6),
    "negative": -np.abs(normal(300, seed=6)),
    "lopsided": np.concatenate([np.abs(normal(300, seed=7)) * 5, -np.abs(normal(300, seed=8)) * 0.1]),
    "shifted": normal(300, seed=9) * 0.1 + 4,
    "heavy": rng(10).standard_t(2, 600).astype(np.float32),
}


def exhaustive(values: np.ndarray, family: GridFamily) -> float:
    """The smallest error over a dense grid of ranges."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    factors = np.exp2(-np.linspace(-0.25, 9, 300)) if family.symmetric else np.exp2(-np.linspace(-0.25, 9, 60))
    if family.symmetric:
        widest = max(-low, high)
        return float(grid_errors(values, family, -widest * factors, widest * factors).min())
    lows = low * factors if low < 0 else np.zeros(1)
    highs = high * factors if high > 0 else np.zeros(1)
    ends = np.repeat(lows, highs.size), np.tile(highs, lows.size)
    return float(grid_errors(values, family, *ends).min())


@pytest.mark.parametrize(
    "family", families("float32", "int16", dtypes=["uint4", "int8", "uint8"]), ids=lambda family: str(family)
)
@each("kind", KINDS)
def test_no_range_of_a_dense_grid_is_better(family: GridFamily, kind: str) -> None:
    values = KINDS[kind]
    found = mse_range(weighted(values), family)
    ours = grid_error(values, family, found.minimum, found.maximum)
    assert ours <= exhaustive(values, family) * 1.02 + 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_sixteen_bits_cut_nothing_that_eight_bits_would(kind: str, dtype: str) -> None:
    family = GridFamily(dtype, dtype == "int16", "float32", False)
    values = KINDS[kind]
    found = mse_range(weighted(values), family)
    whole = grid_error(values, family, float(values.min()), float(values.max()))
    assert grid_error(values, family, found.minimum, found.maximum) <= whole
    assert found.maximum >= values.max() * 0.98


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_do_no_worse_than_their_full_range(dtype: str) -> None:
    values = KINDS["heavy"]
    family = GridFamily(dtype, True, "float32", False)
    found = mse_range(weighted(values), family)
    assert found.minimum == -found.maximum

    def error(widest: float) -> float:
        kind = getattr(ml_dtypes, dtype)
        largest = float(ml_dtypes.finfo(kind).max)
        scale = np.float32(widest / largest)
        small = np.clip(values / scale, -largest, largest).astype(kind).astype(np.float32)
        return float(np.sum((small * scale - values).astype(np.float64) ** 2))

    widest = float(np.abs(values).max())
    best = min(error(widest * 2.0**-k) for k in np.linspace(-0.25, 4, 100))
    assert error(found.maximum) <= best * 1.02


@pytest.mark.parametrize("family", families("float32", dtypes=["int4", "uint8"]), ids=str)
@given(seed=st.integers(0, 1000), shrink=st.floats(0.05, 1.2))
def test_level_sums_equal_rounding_one_by_one(family: GridFamily, seed: int, shrink: float) -> None:
    values = np.round(normal(3000, seed=seed) * 8) / 8  # many values on the very thresholds
    errors = SquaredError(family, weighted(values))
    assert errors._by_levels
    low, high = float(values.min()) * shrink, float(values.max()) * shrink
    found = float(errors(np.array([low]), np.array([high]))[0])
    assert found == pytest.approx(grid_error(values, family, low, high), rel=1e-9, abs=1e-6)


def mse(dtype: str = "int8", *, symmetric: bool = True, scale: str = "float32", bins: int = 2048) -> ActivationSpec:
    return ActivationSpec.model_validate(
        {"dtype": dtype, "symmetric": symmetric, "scale": scale, "calibration": {"method": "mse", "bins": bins}}
    )


@pytest.mark.parametrize(("dtype", "symmetric"), [("int8", True), ("uint8", False), ("uint16", False)])
@pytest.mark.parametrize("scale", ["float32", "power_of_two"])
def test_a_sample_of_a_long_stream_does_nearly_as_well_as_all_of_it(dtype: str, symmetric: bool, scale: str) -> None:
    """Half a million values whose spread drifts, a few outliers among them; the sample keeps 8 %."""
    stream = normal(500, 1000, seed=11) * np.linspace(0.5, 2, 500, dtype=np.float32)[:, None]
    stream[137, :3] = [29, -31, 40]
    spec = mse(dtype, symmetric=symmetric, scale=scale)
    family = GridFamily.of(spec)
    low, high = feed(range_reducer(spec, samples=500), stream, cuts(500, [32, 64, 300]))
    best = mse_range(weighted(stream), family)
    ours = grid_error(stream, family, low, high)
    assert ours <= grid_error(stream, family, best.minimum, best.maximum) * 1.02


@pytest.mark.parametrize(
    "method",
    [{"method": "mse"}, {"method": "layerwise_percentile", "candidates": [99.9, 99.99, 100.0], "metric": "mse"}],
)
def test_a_single_outlier_in_ten_million_is_never_lost(method: dict[str, object]) -> None:
    """It decides the range of 16 bits; a plain sample of every 300th value would miss it."""
    spec = ActivationSpec.model_validate({"dtype": "int16", "symmetric": True, "calibration": method})
    block = np.clip(normal(100_000, seed=12), -4, 4)
    reducer = range_reducer(spec, samples=100)
    for k in range(100):
        values = np.roll(block, k * 977)
        if k == 41:
            values[5] = 50
        reducer.update(values, 1)
    assert reducer.result().maximum >= 49


def test_nothing_is_cut_for_a_constant() -> None:
    for value in (3.0, -2.5, 1e-30):
        low, high = feed(
            range_reducer(mse("uint8", symmetric=False), samples=4), np.full((4, 9), value, np.float32), [slice(0, 4)]
        )
        assert (low, high) == pytest.approx((min(value, 0), max(value, 0)))


@given(exponents=st.lists(st.integers(-120, 120), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_a_huge_dynamic_range_gives_a_finite_range_within_it(exponents: list[int], seed: int) -> None:
    stream = (np.exp2(np.array(exponents, np.float64)) * rng(seed).uniform(-1, 1, len(exponents))).astype(np.float32)
    for spec in (mse(), mse("uint8", symmetric=False), mse(scale="power_of_two")):
        low, high = feed(range_reducer(spec, samples=len(stream)), stream, [slice(0, len(stream))])
        assert math.isfinite(low)
        assert math.isfinite(high)
        assert low <= 0 <= high
