"""The mse method against exhaustive search, and what it makes of streams."""

from __future__ import annotations

import itertools
import math

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
    grid,
    grid_error,
    grid_errors,
    level_errors,
    normal,
    rng,
    weighted,
)
from worker.quantizer.statistics.grids import GridFamily, SquaredError, covering_range, grid_range, mse_range
from worker.quantizer.statistics.ranges import range_observer

DENSE = [
    family if family.reduce_range == (family.scale == "int16") else pytest.param(family, marks=pytest.mark.long)
    for family in families("float32", "int16", dtypes=["uint4", "int8"])
]
KINDS = {
    "normal": normal(400, seed=1),
    "outliers": np.concatenate([normal(300, seed=2), np.array([25, -40, 31], np.float32)]),
    "far outlier": np.append(normal(3000, seed=3) * 0.01, np.float32(2)), "relu": np.maximum(normal(500, seed=4), 0),
    "relu6": np.clip(normal(500, seed=5) * 4, 0, 6), "negative": -np.abs(normal(300, seed=6)),
    "lopsided": np.concatenate([np.abs(normal(300, seed=7)) * 5, -np.abs(normal(300, seed=8)) * 0.1]),
    "shifted": normal(300, seed=9) * 0.1 + 4, "heavy": rng(10).standard_t(2, 600).astype(np.float32),
}  # fmt: skip


def exhaustive(values: np.ndarray, family: GridFamily) -> float:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    factors = np.exp2(-np.linspace(-0.25, 9, 300)) if family.symmetric else np.exp2(-np.linspace(-0.25, 9, 60))
    if family.symmetric:
        widest = max(-low, high)
        return float(grid_errors(values, family, -widest * factors, widest * factors).min())
    lows = low * factors if low < 0 else np.zeros(1)
    highs = high * factors if high > 0 else np.zeros(1)
    ends = np.repeat(lows, highs.size), np.tile(highs, lows.size)
    return float(grid_errors(values, family, *ends).min())


@pytest.mark.parametrize("family", DENSE, ids=str)
@each("kind", KINDS)
def test_no_range_of_a_dense_grid_is_better(family: GridFamily, kind: str) -> None:
    values = KINDS[kind]
    found = mse_range(weighted(values), family)
    ours = grid_error(values, family, found.minimum, found.maximum)
    assert ours <= exhaustive(values, family) * 1.02 + 1e-12


@each("kind", KINDS)
@each("dtype", ["int16", "uint16"])
def test_sixteen_bits_cut_nothing_that_eight_bits_would(kind: str, dtype: str) -> None:
    family = GridFamily(dtype, dtype == "int16", "float32", False)
    values = KINDS[kind]
    found = mse_range(weighted(values), family)
    whole = grid_error(values, family, float(values.min()), float(values.max()))
    assert grid_error(values, family, found.minimum, found.maximum) <= whole
    assert found.maximum >= values.max() * 0.98


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


@pytest.mark.parametrize(("dtype", "symmetric", "scale"), [("int8", True, "power_of_two"), ("uint8", False, "float32")])
def test_a_sample_of_a_long_stream_does_nearly_as_well_as_all_of_it(dtype: str, symmetric: bool, scale: str) -> None:
    """Half a million values whose spread drifts, a few outliers among them; the sample keeps 8 %."""
    stream = normal(500, 1000, seed=11) * np.linspace(0.5, 2, 500, dtype=np.float32)[:, None]
    stream[137, :3] = [29, -31, 40]
    spec = mse(dtype, symmetric=symmetric, scale=scale)
    family = GridFamily.of(spec)
    low, high = feed(range_observer(spec, samples=500), stream, cuts(500, [32, 64, 300]))
    best = mse_range(weighted(stream), family)
    ours = grid_error(stream, family, low, high)
    assert ours <= grid_error(stream, family, best.minimum, best.maximum) * 1.02


LAYERWISE = {"method": "layerwise_percentile", "candidates": [99.9, 99.99, 100.0], "metric": "mse"}


@each("method", [{"method": "mse"}, LAYERWISE])
def test_a_single_outlier_in_ten_million_is_never_lost(method: dict[str, object]) -> None:
    """It decides the range of 16 bits; a plain sample of every 300th value would miss it."""
    spec = ActivationSpec.model_validate({"dtype": "int16", "symmetric": True, "calibration": method})
    block = np.clip(normal(100_000, seed=12), -4, 4)
    observer = range_observer(spec, samples=100)
    for k in range(100):
        values = np.roll(block, k * 977)
        values[5] = 50 if k == 41 else values[5]
        observer.update(values, 1)
    assert observer.result().maximum >= 49


@given(exponents=st.lists(st.integers(-120, 120), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_a_huge_dynamic_range_gives_a_finite_range_within_it(exponents: list[int], seed: int) -> None:
    stream = (np.exp2(np.array(exponents, np.float64)) * rng(seed).uniform(-1, 1, len(exponents))).astype(np.float32)
    for spec in (mse(), mse("uint8", symmetric=False), mse(scale="power_of_two")):
        low, high = feed(range_observer(spec, samples=len(stream)), stream, [slice(0, len(stream))])
        assert math.isfinite(low)
        assert math.isfinite(high)
        assert low <= 0 <= high


FAMILIES = families("power_of_two")
all_families = pytest.mark.parametrize("family", FAMILIES, ids=str)
floats = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


def bottoms(family: GridFamily) -> list[int]:
    qmin, qmax = family.limits
    if family.symmetric:
        return [qmin - round((qmin + qmax) / 2)]
    every = range(qmin - qmax, 1)
    return list(every) if len(every) < 300 else sorted({*every[::4999], every[-1], every[-2], every[1]})


@all_families
@each("exponent", [-126, -100, -30, -7, -1, 0, 3, 40, 100])
def test_the_range_of_a_grid_gives_the_grid_back(family: GridFamily, exponent: int) -> None:
    qmin = family.limits[0]
    for bottom in bottoms(family):
        low, high = grid_range(np.asarray(exponent), np.asarray(bottom), family)
        for convert in (float, np.float32):  # ranges travel as Python floats, weights' as float32
            assert grid(convert(low), convert(high), family) == (2.0**exponent, qmin - bottom)


@all_families
@given(a=floats, b=floats)
def test_covering_is_the_smallest_scale_on_which_nothing_saturates(family: GridFamily, a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    found_low, found_high = (float(end) for end in covering_range(np.asarray(low), np.asarray(high), family))
    if low == high == 0:
        assert (found_low, found_high) == (0, 0)
        return
    qmin, qmax = family.limits
    scale, zero = grid(found_low, found_high, family)
    assert (qmin - zero) * scale <= min(low, 0)
    assert (qmax - zero) * scale >= max(high, 0)
    if scale > 2.0**-126:
        half, every = scale / 2, np.asarray(exhaustive_bottoms(family))
        assert not np.any((every * half <= min(low, 0)) & ((every + family.span) * half >= max(high, 0)))


def exhaustive_bottoms(family: GridFamily) -> range:
    qmin, qmax = family.limits
    if family.symmetric:
        bottom = qmin - round((qmin + qmax) / 2)
        return range(bottom, bottom + 1)
    return range(qmin - qmax, 1)


@each("family", FAMILIES)
def test_covering_stays_finite_at_the_end_of_float32(family: GridFamily) -> None:
    top = float(np.finfo(np.float32).max)
    low, high = covering_range(np.asarray(-top), np.asarray(top), family)
    assert np.isfinite(np.float32(low))
    assert np.isfinite(np.float32(high))
    scale, _ = grid(float(low), float(high), family)
    assert math.isfinite(scale)
    assert scale * family.span >= top / 4  # the next power of two may take its lowest integer beyond float32


def smallest_error(values: np.ndarray, family: GridFamily, exponents: range) -> float:
    """Every exponent, every zero point, every value, with nothing but the definition."""
    grids = np.array(list(itertools.product(exponents, exhaustive_bottoms(family))))
    return float(level_errors(values, np.exp2(grids[:, 0].astype(np.float64)), grids[:, 1], family.span).min())


@pytest.mark.slow
@each("family", [f for f in FAMILIES if f.span < 300])
@each("kind", ["normal", "outlier", "positive", "negative", "shifted", "heavy", "lattice", "single"])
def test_mse_is_the_best_of_all_exponents_and_zero_points(family: GridFamily, kind: str) -> None:
    values = {
        "normal": normal(80, seed=1),
        "outlier": np.append(normal(60, seed=2), np.float32(37)),
        "positive": np.abs(normal(70, seed=3)) * 0.01,
        "negative": -np.abs(normal(70, seed=4)) * 100,
        "shifted": normal(50, seed=5) * 0.1 + 3,
        "heavy": rng(6).standard_cauchy(90).astype(np.float32),
        "lattice": rng(7).integers(-3, 4, 50).astype(np.float32) / 4,
        "single": np.array([0.7], np.float32),
    }[kind]
    found = mse_range(weighted(values), family)
    ours = grid_error(values, family, found.minimum, found.maximum)
    assert ours <= smallest_error(values, family, range(-22, 9)) * (1 + 1e-9) + 1e-12
