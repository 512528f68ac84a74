"""Streaming observers against numpy over the whole stream at once."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import cuts, feed, normal, rng, spec_of
from worker.quantizer.run.checkpoint import pack, unpack
from worker.quantizer.statistics.collect import Snapshot, restore
from worker.quantizer.statistics.observers import ChannelExtremes, ChannelMean, MinMax, Observer, Percentile, RowSample
from worker.quantizer.statistics.ranges import range_observer
from worker.quantizer.statistics.sampling import Tail

values_of_all_kinds = hnp.arrays(
    np.float32,
    st.integers(1, 400),
    elements=st.one_of(
        st.floats(-(2.0**100), 2.0**100, width=32),
        st.floats(-2, 2, width=16),
        st.sampled_from([0.0, -0.0, 1.0, -1.0, 6.0]),  # long runs of equal values, as behind a Relu6
    ),
)


def kth_largest(values: np.ndarray, share: float) -> float:
    return float(np.sort(values)[::-1][int(share * values.size)])


@given(stream=values_of_all_kinds, points=st.lists(st.integers(0, 10_000), max_size=30))
def test_minmax_equals_numpy_for_any_cut(stream: np.ndarray, points: list[int]) -> None:
    assert feed(MinMax(), stream, cuts(stream.size, points)) == (stream.min(), stream.max())


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
    samples = 100
    stream = rng(3).standard_normal((samples, 5000)).astype(np.float32) * np.linspace(0.2, 3, samples)[:, None]
    stream = np.maximum(stream, -1).astype(np.float32)
    observer = Percentile(99.0, samples=samples)
    for start in range(0, samples, batch):
        part = stream[start : start + batch]
        observer.update(part, len(part))
    flat = stream.reshape(-1)
    assert observer.result().maximum == kth_largest(flat, 0.005)
    assert observer.result().minimum == -kth_largest(-flat, 0.005)


def test_a_stream_that_ends_early_is_answered_by_its_own_length() -> None:
    stream = normal(1000)
    observer = Percentile(90.0, samples=10)
    for start in range(0, 500, 100):
        observer.update(stream[start : start + 100], 1)
    assert observer.result().maximum == kth_largest(stream[:500], 0.05)


def test_a_stream_that_grows_is_never_cut_too_deep() -> None:
    """Samples of unlike size: the rank cannot be known in advance, so the range may only come out wider."""
    parts = [normal(10, seed=1), normal(20_000, seed=2), normal(100_000, seed=3)]
    observer = Percentile(99.0, samples=3)
    for part in parts:
        observer.update(part, 1)
    flat = np.concatenate(parts)
    assert kth_largest(flat, 0.005) <= observer.result().maximum <= flat.max()
    assert flat.min() <= observer.result().minimum <= -kth_largest(-flat, 0.005)


def test_minmax_takes_any_shape_and_shows_infinities() -> None:
    values = normal(2, 3, 4, 5)
    assert feed(MinMax(), values, cuts(2, [1])) == (values.min(), values.max())
    assert feed(MinMax(), np.array([1, np.inf, -np.inf, 2], np.float32), cuts(4, [2])) == (-math.inf, math.inf)


@given(points=st.lists(st.integers(0, 99), max_size=5), count=st.integers(1, 60))
def test_percentile_counts_infinities_as_the_outermost_values(points: list[int], count: int) -> None:
    stream = np.sort(normal(100))
    stream[:count] = -np.inf
    rng(count).shuffle(stream)
    found = feed(Percentile(80.0, samples=100), stream, cuts(100, points))
    assert found == (-kth_largest(-stream, 0.1), kth_largest(stream, 0.1))
    for symmetric, value in itertools.product((False, True), (-np.inf, np.inf)):
        observer = Percentile(99.0, samples=4, symmetric=symmetric)
        assert not all(map(math.isfinite, feed(observer, np.full(40, value, np.float32), cuts(40, [10]))))


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


@given(
    stream=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 9), st.just(3), st.integers(1, 20)), elements=st.floats(-8, 8, width=16)
    ),
    points=st.lists(st.integers(0, 100), max_size=5),
)
def test_channel_mean_equals_numpy_for_any_cut(stream: np.ndarray, points: list[int]) -> None:
    observer = ChannelMean()
    for piece in cuts(len(stream), points):
        observer.update(stream[piece], piece.stop - piece.start)
    np.testing.assert_allclose(observer.result(), stream.astype(np.float64).mean(axis=(0, 2)), rtol=1e-6, atol=1e-6)


def test_channel_mean_takes_any_rank_and_keeps_digits_over_many_batches() -> None:
    for shape in ((4, 5), (4, 5, 6), (2, 5, 3, 4, 2)):
        values = normal(*shape) + np.arange(5, dtype=np.float32).reshape(1, 5, *[1] * (len(shape) - 2))
        observer = ChannelMean()
        observer.update(values, 4)
        expected = np.moveaxis(values, 1, 0).reshape(5, -1).mean(axis=1)
        np.testing.assert_allclose(observer.result(), expected, rtol=1e-5)
    observer = ChannelMean()
    assert observer.result() is None
    for _ in range(2000):
        observer.update(np.full((8, 1, 100), 1000.1, np.float32), 8)
    assert observer.result() == pytest.approx([float(np.float32(1000.1))], rel=1e-6)


@given(data=st.data())
def test_streamed_extremes_are_those_of_everything_seen(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    numbers = np.random.default_rng(data.draw(st.integers(0, 9)))
    batches = [numbers.standard_normal(shape).astype(np.float32) for _ in range(data.draw(st.integers(1, 3)))]
    observer = ChannelExtremes(axis)
    for batch in batches:
        observer.update(batch, shape[0])
    every = np.stack([np.moveaxis(batch, axis, 0).reshape(shape[axis], -1) for batch in batches])
    low, high = observer.result() or (None, None)
    np.testing.assert_array_equal(low, every.min(axis=(0, 2)))
    np.testing.assert_array_equal(high, every.max(axis=(0, 2)))


@each("size", [3, 40])
def test_long_and_short_rows_give_the_same(size: int) -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    values[1, 2, 0, 0] = np.nan
    observer = ChannelExtremes(1)
    assert observer.result() is None
    observer.update(values, 2)
    low, high = observer.result() or (None, None)
    np.testing.assert_array_equal(low, values.min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(high, values.max(axis=(0, 2, 3)))
    assert np.isnan(high).tolist() == [False, False, True]


def tokens_of(samples: int, tokens: int) -> np.ndarray:
    """[samples, tokens, 2]: every row says which sample and which token it is."""
    grid = np.stack(np.meshgrid(np.arange(samples), np.arange(tokens), indexing="ij"), axis=-1)
    return grid.astype(np.float32)


def taken(values: np.ndarray, cuts: list[int], **limits: int) -> RowSample:
    sample = RowSample(**limits)
    for part in np.split(values, sorted(cuts)):
        if len(part):
            sample.update(part, len(part))
    return sample


@given(st.integers(1, 40), st.integers(1, 9), st.lists(st.integers(0, 40), max_size=5), st.integers(1, 60))
def test_the_sample_does_not_depend_on_the_cut(samples: int, tokens: int, cuts: list[int], rows: int) -> None:
    values = tokens_of(samples, tokens)
    whole = taken(values, [], rows=rows, fewest=1).result()
    parts = taken(values, cuts, rows=rows, fewest=1).result()
    np.testing.assert_array_equal(parts, whole)
    assert len(whole) == min(rows, samples * tokens)
    assert len(np.unique(whole, axis=0)) == len(whole)


@pytest.mark.parametrize("tokens", [2, 64, 99, 144])
def test_no_token_is_left_out_or_preferred(tokens: int) -> None:
    found = taken(tokens_of(400, tokens), [100, 200], rows=2000, fewest=1).result()
    counts = np.bincount(found[:, 1].astype(int), minlength=tokens)
    expected = len(found) / tokens
    assert abs(counts - expected).max() < 6 * np.sqrt(expected)


def test_wide_rows_are_fewer() -> None:
    for width, rows in ((32, 20), (3200, 4)):
        sample = RowSample(rows=100, elements=640, fewest=4)
        sample.update(np.zeros((500, width), np.float32), 500)
        assert sample.result().shape == (rows, width)


def test_samples_can_be_kept_out() -> None:
    assert RowSample().result() is None
    sample = taken(tokens_of(10, 3), [4, 7], rows=100)
    found = sample.result(range(6, 10))
    assert sorted(set(found[:, 0])) == [6, 7, 8, 9]
    assert len(found) == 12
    assert sample.result(range(10, 12)) is None


SAMPLES, SIZE = 24, 40
METHODS: dict[str, dict[str, Any]] = {
    "minmax": {"method": "minmax"}, "moving average": {"method": "minmax", "moving_average": 0.1},
    "percentile": {"method": "percentile", "percentile": 95.0},
    "layerwise percentile": {"method": "layerwise_percentile"}, "entropy": {"method": "entropy"},
    "distribution": {"method": "distribution"}, "mse": {"method": "mse"},
}  # fmt: skip


def observers() -> dict[str, Observer]:
    specs = {name: spec_of("uint8", symmetric=False, **method) for name, method in METHODS.items()}
    specs["mse on a power of two"] = spec_of(scale="power_of_two", method="mse")
    specs["non overflow"] = spec_of(scale="power_of_two", method="non_overflow")
    specs["symmetric percentile"] = spec_of(**METHODS["percentile"])
    return {
        **{name: range_observer(spec, samples=SAMPLES) for name, spec in specs.items()},
        "channel mean": ChannelMean(),
        "channel extremes": ChannelExtremes(1),
        "rows": RowSample(rows=16, fewest=4),
    }


def fed(found: dict[str, Observer], stream: np.ndarray, first: int, last: int, step: int) -> None:
    for start in range(first, last, step):
        batch = stream[start : min(start + step, last)]
        for observer in found.values():
            observer.update(batch, len(batch))


def results(found: dict[str, Observer]) -> dict[str, Any]:
    """What each gives, as words: arrays are not compared by one truth."""
    return {name: repr(observer.result()) for name, observer in found.items()}  # type: ignore[attr-defined]


@pytest.mark.slow
@given(batches=st.integers(0, 6), seed=st.integers(0, 99))
def test_a_pass_that_goes_on_gives_what_a_whole_one_gives(batches: int, seed: int) -> None:
    stream = normal(SAMPLES, 3, SIZE, seed=seed)
    whole, broken_off = observers(), observers()
    fed(whole, stream, 0, SAMPLES, 4)
    done = 4 * batches
    fed(broken_off, stream, 0, done, 4)
    data = Snapshot(list(broken_off.values())).to_bytes(done)
    going_on = observers()
    assert restore(list(going_on.values()), data) == done
    fed(going_on, stream, done, SAMPLES, 4)
    assert results(going_on) == results(whole)


def test_long_streams_go_on_alike_where_values_are_sampled_and_tails_rounded() -> None:
    stream = normal(40, 70_000, seed=5)
    method = spec_of("uint8", symmetric=False, method="mse", bins=128)
    made = [range_observer(method, samples=40) for _ in range(3)]
    for batch in stream[:, None]:
        made[0].update(batch, 1)
    for batch in stream[:17, None]:
        made[1].update(batch, 1)
    restore([made[2]], Snapshot([made[1]]).to_bytes(17))
    for batch in stream[17:, None]:
        made[2].update(batch, 1)
    assert made[2].result() == made[0].result()


def test_what_belongs_to_others_changes_nothing() -> None:
    seen = {"a": MinMax(), "b": ChannelMean()}
    fed(seen, normal(8, 3, SIZE), 0, 8, 4)
    data = Snapshot(list(seen.values())).to_bytes(8)
    for fresh, held in (
        ([MinMax(), ChannelMean(), MinMax()], data),
        ([MinMax(), ChannelExtremes()], data),
        ([ChannelMean(), MinMax()], data),
        ([MinMax(), ChannelMean()], pack({"head": np.zeros(3, np.uint8)})),
        ([MinMax(), ChannelMean()], data[:-8]),
    ):
        before = [repr(vars(observer)) for observer in fresh]
        with pytest.raises((ValueError, LookupError)):
            restore(fresh, held)
        assert [repr(vars(observer)) for observer in fresh] == before


def test_what_is_asked_for_shows_in_fresh_reducers() -> None:
    asked = ((99.0, 8), (99.9, 8), (99.0, 9))
    made = [range_observer(spec_of(method="percentile", percentile=p), samples=n) for p, n in asked]
    assert len({Snapshot([observer]).to_bytes(0) for observer in made}) == 3


def test_arrays_come_back_as_they_were_and_nothing_else_is_taken_for_them() -> None:
    arrays = {
        "a/b": normal(2, 3), "none": np.zeros((0, 4), np.int64), "one": np.asarray(np.uint64(2**63)),
        "view": np.arange(12, dtype="<i2").reshape(3, 4).T, "truth": np.array([True, False]), "": np.float16([np.nan]),
    }  # fmt: skip
    found = unpack(pack(arrays))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable
    with pytest.raises(ValueError, match="object"):
        pack({"a": np.array([{}])})
    for data in (b"", b"\0" * 8, b"\xff" * 40, pack({"a": np.zeros(3)})[:-1], pack({}) + b"x"):
        with pytest.raises(ValueError):
            unpack(data)
