"""Power-of-two grids: whatever grid a method chooses, its range gives that very grid back."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import families, grid, grid_error, level_errors, normal, rng, weighted
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.mse import mse_range
from worker.quantizer.statistics.power_of_two import covering_range, grid_range

FAMILIES = families("power_of_two")
all_families = pytest.mark.parametrize("family", FAMILIES, ids=str)
floats = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


def bottoms(family: GridFamily) -> list[int]:
    """Lowest levels over scale of all zero points; of the many of 16 bits only some."""
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


def test_covering_is_vectorised() -> None:
    family = GridFamily("int8", True, "power_of_two", False)
    low, high = covering_range(
        np.array([-1.0, 0.0, np.nan, 0.0, -127.0, -127.5]), np.array([1.0, 0.0, 1.0, np.inf, 3.0, 3.0]), family
    )
    np.testing.assert_array_equal(high, [127 / 64, 0, 1, np.inf, 127, 254])
    np.testing.assert_array_equal(low, [-127 / 64, 0, np.nan, 0, -127, -254])


@each("family", FAMILIES)
def test_covering_stays_finite_at_the_end_of_float32(family: GridFamily) -> None:
    top = float(np.finfo(np.float32).max)
    low, high = covering_range(np.asarray(-top), np.asarray(top), family)
    assert np.isfinite(np.float32(low))
    assert np.isfinite(np.float32(high))
    scale, _ = grid(float(low), float(high), family)
    assert math.isfinite(scale)
    assert scale * family.span >= top / 2


def smallest_error(values: np.ndarray, family: GridFamily, exponents: range) -> float:
    """Every exponent, every zero point, every value, with nothing but the definition."""
    grids = np.array(list(itertools.product(exponents, exhaustive_bottoms(family))))
    return float(level_errors(values, np.exp2(grids[:, 0].astype(np.float64)), grids[:, 1], family.span).min())


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.span < 300], ids=str)
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


@pytest.mark.parametrize("symmetric", [False, True])
def test_mse_of_sixteen_bits_tries_every_exponent(symmetric: bool) -> None:
    family = GridFamily("int16", symmetric, "power_of_two", False)
    values = np.append(normal(300, seed=9) * 1e-3, np.float32(0.9)).astype(np.float32)
    found = mse_range(weighted(values), family)
    best = np.inf
    for exponent in range(-40, 4):
        centres = [-32767] if symmetric else [-65535, -60000, -40000, -32768, -25000, -5000, -1000, -200, -50, -1, 0]
        for bottom in centres:
            scale = 2.0**exponent
            steps = np.clip(np.rint(values.astype(np.float64) / scale), bottom, bottom + family.span)
            best = min(best, float(np.sum((steps * scale - values) ** 2)))
    assert grid_error(values, family, found.minimum, found.maximum) <= best * (1 + 1e-9)


@given(values=st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=12))
def test_mse_of_any_few_values_is_the_best(values: list[float]) -> None:
    family = GridFamily("uint4", False, "power_of_two", False)
    stream = np.asarray(values, np.float32)
    found = mse_range(weighted(stream), family)
    if not stream.any():
        assert (found.minimum, found.maximum) == (0, 0)
        return
    ours = grid_error(stream, family, found.minimum, found.maximum)
    assert ours <= smallest_error(stream, family, range(-30, 4)) * (1 + 1e-9) + 1e-15
