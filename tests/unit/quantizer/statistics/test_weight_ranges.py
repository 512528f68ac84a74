"""Ranges of weights, group by group, against numpy, exhaustive search and the search for a single tensor."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.contracts.specs import ActivationSpec, WeightSpec
from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import grid_error, grid_errors, normal, rng
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.ranges import Percentile, range_observer
from worker.quantizer.statistics.weights import block_range, extremes, weight_range


def spec_of(dtype: str = "int8", *, symmetric: bool = True, scale: str = "float32", **method: Any) -> WeightSpec:
    return WeightSpec.model_validate(
        {"dtype": dtype, "symmetric": symmetric, "scale": scale, "calibration": method or {"method": "minmax"}}
    )


def groups_of(count: int, size: int, seed: int = 0) -> np.ndarray:
    values = normal(count, size, seed=seed) * np.exp(rng(seed).uniform(-4, 4, (count, 1)))
    values[::3, 0] *= 20
    values[1::4] = np.abs(values[1::4])
    values[2::5] = -np.abs(values[2::5])
    return values.astype(np.float32)


@given(count=st.integers(0, 9), size=st.integers(1, 20), threads=st.integers(1, 3))
def test_minmax_equals_numpy(count: int, size: int, threads: int) -> None:
    groups = groups_of(count, size)
    low, high = weight_range(groups, spec_of(), threads=threads)
    np.testing.assert_array_equal(low, groups.min(axis=1))
    np.testing.assert_array_equal(high, groups.max(axis=1))
    assert low.dtype == high.dtype == np.float32


@each("symmetric", [False, True])
@each("percentile", [60.0, 99.0, 100.0])
def test_percentile_is_that_of_activations_row_by_row(symmetric: bool, percentile: float) -> None:
    groups = groups_of(40, 333)
    spec = spec_of("uint8", symmetric=symmetric, method="percentile", percentile=percentile)
    low, high = weight_range(groups, spec)
    for row, a, b in zip(groups, low, high, strict=True):
        observer = Percentile(percentile, samples=1, symmetric=symmetric)
        observer.update(row, 1)
        assert (observer.result().minimum, observer.result().maximum) == (a, b)


def exhaustive(row: np.ndarray, family: GridFamily, exponents: range | None) -> float:
    low, high = min(float(row.min()), 0.0), max(float(row.max()), 0.0)
    if family.symmetric:
        widest = max(-low, high)
        if exponents is not None:
            halves = np.exp2(np.array(exponents, np.float64)) * family.span / 2
        else:
            halves = widest * np.exp2(-np.linspace(-0.25, 8, 300))
        return float(grid_errors(row, family, -halves, halves).min())
    if exponents is not None:
        ends = np.array([(2.0**k * b, 2.0**k * (b + family.span)) for k in exponents for b in range(-family.span, 1)])
        return float(grid_errors(row, family, ends[:, 0], ends[:, 1]).min())
    factors = np.exp2(-np.linspace(-0.2, 5, 27))
    return float(grid_errors(row, family, np.repeat(low * factors, 27), np.tile(high * factors, 27)).min())


@each(("dtype", "symmetric"), [("int4", True), ("uint4", False), ("int8", True), ("int8", False)])
@pytest.mark.parametrize("scale", ["float32", "power_of_two"])
@pytest.mark.parametrize("size", [1, 32, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.long])])
def test_mse_is_the_best_of_a_dense_grid(dtype: str, symmetric: bool, scale: str, size: int) -> None:
    groups = groups_of(6, size, seed=size)
    spec = spec_of(dtype, symmetric=symmetric, scale=scale, method="mse")
    family = GridFamily.of(spec)
    low, high = weight_range(groups, spec)
    for row, a, b in zip(groups, low, high, strict=True):
        top = int(np.ceil(np.log2(np.abs(row).max()))) + 1
        exponents = range(top - 18, top) if scale == "power_of_two" else None
        slack = 1 + 1e-5 if exponents is not None else 1.03
        assert grid_error(row, family, a, b) <= exhaustive(row, family, exponents) * slack + 1e-9 * float(row @ row)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_are_searched_too(dtype: str) -> None:
    groups = groups_of(10, 200, seed=4)
    low, high = weight_range(groups, spec_of(dtype, method="mse"))
    family = GridFamily.of(spec_of(dtype, method="mse"))

    def errors(widest: np.ndarray) -> np.ndarray:
        scale, zero = family.parameters(-widest, widest)
        return ((family.fake(groups.astype(np.float64), scale[:, None], zero[:, None]) - groups) ** 2).sum(axis=1)

    np.testing.assert_array_equal(low, -high)
    assert np.all(errors(high.astype(np.float64)) <= errors(np.abs(groups).max(axis=1).astype(np.float64)) * 1.0001)


@each("dtype", ["int4", "int8", "uint8", "int16"])
@each("symmetric", [False, True])
def test_non_overflow_saturates_nothing(dtype: str, symmetric: bool) -> None:
    groups = groups_of(60, 50)
    spec = spec_of(dtype, symmetric=symmetric, scale="power_of_two", method="non_overflow")
    family = GridFamily.of(spec)
    low, high = weight_range(groups, spec)
    scale, zero = family.parameters(low, high)
    qmin, qmax = family.limits
    assert np.all((qmin - zero) * scale <= groups.min(axis=1))
    assert np.all((qmax - zero) * scale >= groups.max(axis=1))
    assert np.all(np.log2(scale) == np.round(np.log2(scale)))


METHODS: list[dict[str, Any]] = [
    {"method": "minmax"},
    {"method": "percentile", "percentile": 99.0},
    {"method": "mse"},
    {"method": "non_overflow"},  # for powers of two alone
]


@each(("method", "scale"), [*itertools.product(METHODS[:3], ["float32", "power_of_two"]), (METHODS[3], "power_of_two")])
def test_broken_and_empty_groups_do_not_touch_the_others(method: dict[str, Any], scale: str) -> None:
    groups = groups_of(7, 100)
    spec = spec_of(scale=scale, **method)
    alone = weight_range(groups[[0, 2, 4, 6]], spec)
    groups[1, 3], groups[3], groups[5, :60] = np.nan, 0, np.inf
    low, high = weight_range(groups, spec)
    np.testing.assert_array_equal(low[[0, 2, 4, 6]], alone[0])
    np.testing.assert_array_equal(high[[0, 2, 4, 6]], alone[1])
    assert np.isnan(low[1])
    assert np.isnan(high[1])
    assert low[3] == high[3] == 0
    assert not np.isfinite(high[5])


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
def test_threads_and_chunks_change_nothing(method: dict[str, Any]) -> None:
    groups = groups_of(400, 1000, seed=5)  # four chunks
    spec = spec_of(scale="power_of_two" if method["method"] == "non_overflow" else "float32", **method)
    one, three = weight_range(groups, spec), weight_range(groups, spec, threads=3)
    np.testing.assert_array_equal(one, three)
    if method["method"] != "mse":  # a smaller weight is searched more closely
        np.testing.assert_array_equal(weight_range(groups[200:], spec)[1], one[1][200:])


def test_a_type_without_a_range_is_refused() -> None:
    with pytest.raises(ValueError, match="not calibrated"):
        weight_range(normal(2, 3), spec_of("bfloat16"))
    for dtype in ("float16", "bfloat16", "mx9"):
        with pytest.raises(ValueError, match="not calibrated"):
            range_observer(ActivationSpec.model_validate({"dtype": dtype}), samples=1)


_KINDS = [("uint4", False), ("int4", True), ("int4", False), ("int8", True), ("uint8", False)]
_ORDINARY = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


def family_of(dtype: str, symmetric: bool, scale: str = "float32") -> GridFamily:
    return GridFamily(dtype, symmetric, scale, reduce_range=False)


def errors(groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily) -> np.ndarray:
    scale, zero = (part[:, None] for part in family.parameters(low, high))
    return np.asarray(np.square(family.fake(groups.astype(np.float64), scale, zero) - groups).sum(axis=1))


def searched(groups: np.ndarray, family: GridFamily, *, weights: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    return block_range(groups, *extremes(groups), family, weights=weights or groups.size)


@given(
    groups=st.tuples(st.integers(1, 5), st.integers(1, 40)).flatmap(
        lambda s: arrays(np.float32, s, elements=_ORDINARY)
    ),
    kind=st.sampled_from(_KINDS),
    scale=st.sampled_from(["float32", "float16", "int16"]),
    large=st.booleans(),
)
def test_never_worse_than_the_extremes(groups: np.ndarray, kind: tuple[str, bool], scale: str, large: bool) -> None:
    family = family_of(*kind, scale)
    found = errors(groups, *searched(groups, family, weights=1 << 24 if large else None), family)
    plain = errors(groups, *extremes(groups), family)
    # compared in float64; the search itself rounds as the runtime does, in float32
    squares = np.square(groups.astype(np.float64)).sum(axis=1)
    assert (found <= plain * (1 + 1e-6) + 1e-9 * squares).all()


@pytest.mark.slow
@each("kind", _KINDS[:3])
def test_close_to_a_dense_search(kind: tuple[str, bool]) -> None:
    family = family_of(*kind)
    groups = normal(60, 8, seed=3).astype(np.float32)
    groups[::4] = np.abs(groups[::4])
    groups[1::5, 0] *= 3
    low, high = np.minimum(groups.min(1), 0), np.maximum(groups.max(1), 0)
    factors = np.linspace(0.5, 1.15, 66)
    dense = np.full(len(groups), np.inf)
    for one, other in itertools.product(factors, factors):
        dense = np.minimum(dense, errors(groups, one * low, other * high, family))
    found, plain = errors(groups, *searched(groups, family), family), errors(groups, low, high, family)
    assert found.sum() <= 1.2 * dense.sum()
    # most of what a search can gain is gained
    assert plain.sum() - found.sum() >= 0.8 * (plain.sum() - dense.sum())


def test_blocks_that_cannot_be_searched_keep_their_ends() -> None:
    groups = np.asarray([[0, 0, 0], [1, np.nan, 2], [np.inf, 0, 1], [1, 2, 3]], np.float32)
    with np.errstate(invalid="ignore"):
        low, high = searched(groups, family_of("uint4", False))
    assert (low[0], high[0]) == (0, 0)
    assert not np.isfinite([low[1] + high[1], low[2] + high[2]]).any()
    assert low[3] == 0 and 2 < high[3] < 4


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_are_found_alike_however_they_are_cut(threads: int) -> None:
    spec = WeightSpec.model_validate(
        {"dtype": "uint4", "symmetric": False, "granularity": "per_block", "calibration": {"method": "mse"}}
    )
    groups = (normal(9000, 32, seed=7) * np.exp(rng(8).uniform(-3, 3, (9000, 1)))).astype(np.float32)
    low, high = weight_range(groups, spec, threads=threads)
    alone = block_range(groups[:50], *extremes(groups[:50]), GridFamily.of(spec), weights=groups.size)
    np.testing.assert_array_equal(low[:50], alone[0].astype(np.float32))
    np.testing.assert_array_equal(high[:50], alone[1].astype(np.float32))
