"""Streaming reducers against numpy over the whole stream at once."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.statistics.reducers import ChannelMean, MinMax, Percentile, RangeReducer
from worker.quantizer.statistics.tails import Tail

SHARES = [0.0, 0.001, 0.01, 0.1, 0.3]
values_of_all_kinds = hnp.arrays(
    np.float32,
    st.integers(1, 400),
    elements=st.one_of(
        st.floats(-(2.0**100), 2.0**100, width=32),
        st.floats(-2, 2, width=16),
        st.sampled_from([0.0, -0.0, 1.0, -1.0, 6.0]),  # long runs of equal values, as behind a Relu6
    ),
)


def cuts(length: int, points: list[int]) -> list[slice]:
    """Consecutive slices of a stream, cut at ``points`` modulo its length."""
    inner = sorted({point % length for point in points} - {0})
    return [slice(a, b) for a, b in itertools.pairwise([0, *inner, length])]


def feed(reducer: RangeReducer, stream: np.ndarray, pieces: list[slice]) -> tuple[float, float]:
    """One value is one sample."""
    for piece in pieces:
        reducer.update(stream[piece], piece.stop - piece.start)
    found = reducer.result()
    return found.minimum, found.maximum


def kth_largest(values: np.ndarray, share: float) -> float:
    return float(np.sort(values)[::-1][int(share * values.size)])


@given(stream=values_of_all_kinds, points=st.lists(st.integers(0, 10_000), max_size=30))
def test_minmax_equals_numpy_for_any_cut(stream: np.ndarray, points: list[int]) -> None:
    assert feed(MinMax(), stream, cuts(stream.size, points)) == (stream.min(), stream.max())


def test_minmax_takes_any_shape() -> None:
    values = normal(2, 3, 4, 5)
    reducer = MinMax()
    reducer.update(values[:1], 1)
    reducer.update(values[1:], 1)
    assert (reducer.result().minimum, reducer.result().maximum) == (values.min(), values.max())


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("lower", [False, True])
@given(stream=values_of_all_kinds, points=st.lists(st.integers(0, 10_000), max_size=30))
def test_tail_is_the_order_statistic_for_any_cut(
    share: float, lower: bool, stream: np.ndarray, points: list[int]
) -> None:
    tail = Tail(share, lower=lower)
    for piece in cuts(stream.size, points):
        part = stream[piece]
        tail.update(part, part.min() if lower else part.max(), stream.size)
    expected = -kth_largest(-stream, share) if lower else kth_largest(stream, share)
    assert tail.result(stream.size) == expected


@pytest.mark.parametrize("percentile", [100.0, 99.9, 99.0, 87.5, 75.0, 51.0])
@pytest.mark.parametrize("symmetric", [False, True])
@given(stream=values_of_all_kinds, points=st.lists(st.integers(0, 10_000), max_size=30))
def test_percentile_equals_numpy_for_any_cut(
    percentile: float, symmetric: bool, stream: np.ndarray, points: list[int]
) -> None:
    found = feed(Percentile(percentile, samples=stream.size, symmetric=symmetric), stream, cuts(stream.size, points))
    cut = (100.0 - percentile) / 100.0
    if symmetric:
        upper = kth_largest(np.abs(stream), cut)
        assert found == (-upper, upper)
    else:
        assert found == (-kth_largest(-stream, cut / 2), kth_largest(stream, cut / 2))


@pytest.mark.parametrize("batch", [1, 7, 32, 100])
def test_percentile_of_a_long_stream(batch: int) -> None:
    """Many compactions: half a million values in batches whose values drift, as the layers of a network give them."""
    samples = 100
    stream = rng(3).standard_normal((samples, 5000)).astype(np.float32) * np.linspace(0.2, 3, samples)[:, None]
    stream = np.maximum(stream, -1).astype(np.float32)
    reducer = Percentile(99.0, samples=samples)
    for start in range(0, samples, batch):
        part = stream[start : start + batch]
        reducer.update(part, len(part))
    flat = stream.reshape(-1)
    assert reducer.result().maximum == kth_largest(flat, 0.005)
    assert reducer.result().minimum == -kth_largest(-flat, 0.005)


@given(share=st.floats(0.0, 0.4), length=st.integers(1, 300))
def test_tail_cuts_no_more_than_its_share(share: float, length: int) -> None:
    stream = rng(length).permutation(length).astype(np.float32)
    tail = Tail(share)
    tail.update(stream, stream.max(), length)
    cut = int((stream > tail.result(length)).sum())
    assert cut <= share * length < cut + 1


def test_a_stream_that_ends_early_is_answered_by_its_own_length() -> None:
    stream = normal(1000)
    reducer = Percentile(90.0, samples=10)
    for start in range(0, 500, 100):
        reducer.update(stream[start : start + 100], 1)
    assert reducer.result().maximum == kth_largest(stream[:500], 0.05)


def test_a_stream_that_grows_is_never_cut_too_deep() -> None:
    """Samples of unlike size: the rank cannot be known in advance, so the range may only come out wider."""
    parts = [normal(10, seed=1), normal(20_000, seed=2), normal(100_000, seed=3)]
    reducer = Percentile(99.0, samples=3)
    for part in parts:
        reducer.update(part, 1)
    flat = np.concatenate(parts)
    assert kth_largest(flat, 0.005) <= reducer.result().maximum <= flat.max()
    assert flat.min() <= reducer.result().minimum <= -kth_largest(-flat, 0.005)


@pytest.mark.parametrize(
    "make", [MinMax, lambda: Percentile(99.0, samples=100), lambda: Percentile(99.0, samples=100, symmetric=True)]
)
@pytest.mark.parametrize("where", [0, 50, 99])
def test_nan_anywhere_makes_the_range_nan(make: type[MinMax], where: int) -> None:
    stream = normal(100)
    stream[where] = np.nan
    low, high = feed(make(), stream, cuts(100, [10, 60]))
    assert math.isnan(low)
    assert math.isnan(high)


def test_minmax_shows_infinities() -> None:
    assert feed(MinMax(), np.array([1, np.inf, -np.inf, 2], np.float32), cuts(4, [2])) == (-math.inf, math.inf)


@given(points=st.lists(st.integers(0, 99), max_size=5), count=st.integers(1, 60))
def test_percentile_counts_infinities_as_the_outermost_values(points: list[int], count: int) -> None:
    stream = np.sort(normal(100))
    stream[:count] = -np.inf
    rng(count).shuffle(stream)
    found = feed(Percentile(80.0, samples=100), stream, cuts(100, points))
    assert found == (-kth_largest(-stream, 0.1), kth_largest(stream, 0.1))


@pytest.mark.parametrize("value", [-np.inf, np.inf])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_tensor_of_infinities_has_no_finite_range(value: float, symmetric: bool) -> None:
    reducer = Percentile(99.0, samples=4, symmetric=symmetric)
    low, high = feed(reducer, np.full(40, value, np.float32), cuts(40, [10]))
    assert not (math.isfinite(low) and math.isfinite(high))


@pytest.mark.parametrize("symmetric", [False, True])
def test_nothing_seen_is_no_finite_range(symmetric: bool) -> None:
    found = Percentile(99.0, samples=4, symmetric=symmetric).result()
    assert not (math.isfinite(found.minimum) and math.isfinite(found.maximum))
    assert not math.isfinite(MinMax().result().minimum)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("spread", [1.0, 20.0])
def test_rounding_beyond_capacity_is_bounded(lower: bool, spread: float) -> None:
    """With room for few values the answer is rounded, by the bits that had to go and no more."""
    stream = np.exp(rng(5).standard_normal(200_000) * spread).astype(np.float32) * (-1 if lower else 1)
    tail = Tail(0.3, lower=lower, capacity=1 << 13)
    for part in np.split(stream, 20):
        tail.update(part, part.min() if lower else part.max(), stream.size)
    expected = abs(kth_largest(np.abs(stream), 0.3))
    bits = 11 if spread == 1.0 else 5
    assert abs(abs(tail.result(stream.size)) - expected) <= expected * 2.0**-bits
    assert tail._values.size <= 1 << 13


def test_default_capacity_keeps_eleven_bits() -> None:
    stream = normal(2_000_000, seed=8)
    tail = Tail(0.2)
    for part in np.split(stream, 10):
        tail.update(part, part.max(), stream.size)
    expected = kth_largest(stream, 0.2)
    assert abs(tail.result(stream.size) - expected) <= expected * 2.0**-11


def test_memory_does_not_grow_with_the_stream() -> None:
    """10^7 values; a reducer holds a small part of them at any time."""
    block = normal(100_000)
    reducer = Percentile(99.9, samples=100)
    tracemalloc.start()
    try:
        for k in range(100):
            reducer.update(np.roll(block, k) + np.float32(k * 1e-3), 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reducer.result().maximum > reducer.result().minimum
    assert peak < 8 * 2**20


@given(
    stream=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 9), st.just(3), st.integers(1, 20)), elements=st.floats(-8, 8, width=16)
    ),
    points=st.lists(st.integers(0, 100), max_size=5),
)
def test_channel_mean_equals_numpy_for_any_cut(stream: np.ndarray, points: list[int]) -> None:
    reducer = ChannelMean()
    for piece in cuts(len(stream), points):
        reducer.update(stream[piece], piece.stop - piece.start)
    np.testing.assert_allclose(reducer.result(), stream.astype(np.float64).mean(axis=(0, 2)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 6), (4, 5, 6, 7), (2, 5, 3, 4, 2)])
def test_channel_mean_takes_any_rank(shape: tuple[int, ...]) -> None:
    values = normal(*shape) + np.arange(5, dtype=np.float32).reshape(1, 5, *[1] * (len(shape) - 2))
    reducer = ChannelMean()
    reducer.update(values, 4)
    expected = np.moveaxis(values, 1, 0).reshape(5, -1).mean(axis=1)
    np.testing.assert_allclose(reducer.result(), expected, rtol=1e-5)


def test_channel_mean_keeps_digits_over_many_batches() -> None:
    reducer = ChannelMean()
    for _ in range(2000):
        reducer.update(np.full((8, 1, 100), 1000.1, np.float32), 8)
    assert reducer.result() == pytest.approx([float(np.float32(1000.1))], rel=1e-6)


def test_nothing_seen_has_no_mean() -> None:
    assert ChannelMean().result() is None
