"""Ranges of blocks of weights: never worse than the extremes, near the best that a dense search finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from service.contracts.specs import WeightSpec
from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import normal, rng
from worker.quantizer.statistics.block_search import block_range
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.weights import extremes, weight_range

_KINDS = [("uint4", False), ("int4", True), ("int4", False), ("int8", True), ("uint8", False)]
_ORDINARY = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)


def family_of(dtype: str, symmetric: bool, scale: str = "float32") -> GridFamily:
    return GridFamily(dtype, symmetric, scale, reduce_range=False)


def errors(groups: np.ndarray, low: np.ndarray, high: np.ndarray, family: GridFamily) -> np.ndarray:
    """Sum of squared errors of every group [g] on the grid for its range."""
    scale, zero = (part[:, None] for part in family.parameters(low, high))
    return np.asarray(np.square(family.fake(groups.astype(np.float64), scale, zero) - groups).sum(axis=1))


def searched(groups: np.ndarray, family: GridFamily, *, weights: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    return block_range(groups, *extremes(groups), family, weights=weights or groups.size)


@settings(max_examples=60, deadline=None)
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


@pytest.mark.parametrize("kind", _KINDS[:2])
def test_large_weights_are_searched_more_coarsely(kind: tuple[str, bool]) -> None:
    family, groups = family_of(*kind), normal(400, 32, seed=4).astype(np.float32)
    fine = errors(groups, *searched(groups, family), family).sum()
    coarse = errors(groups, *searched(groups, family, weights=1 << 24), family).sum()
    plain = errors(groups, *extremes(groups), family).sum()
    assert fine <= coarse < 0.95 * plain and coarse < 1.05 * fine


def test_blocks_that_cannot_be_searched_keep_their_ends() -> None:
    groups = np.asarray([[0, 0, 0], [1, np.nan, 2], [np.inf, 0, 1], [1, 2, 3]], np.float32)
    with np.errstate(invalid="ignore"):
        low, high = searched(groups, family_of("uint4", False))
    assert (low[0], high[0]) == (0, 0)
    assert not np.isfinite([low[1] + high[1], low[2] + high[2]]).any()
    assert low[3] == 0 and 2 < high[3] < 4


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
