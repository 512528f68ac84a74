"""The entropy method against its definition in plain loops, and against onnxruntime's calibrator."""

from __future__ import annotations

import contextlib
import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector

from service.contracts.calibration import EntropyCalibration
from service.contracts.specs import ActivationSpec
from tests.unit.quantizer.statistics.calibrating import cuts, feed, normal, rng
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range
from worker.quantizer.statistics.entropy import Costs, Entropy, divergences, free_bins, symmetric_bins
from worker.quantizer.statistics.histogram import StreamedHistogram
from worker.quantizer.statistics.ranges import range_reducer


def divergence_in_loops(counts: list[int], first: int, last: int, levels: int) -> float:
    """KL(P || Q) of one candidate, step by step as the method is described."""
    inner = counts[first:last]
    p = list(inner)
    p[0] += sum(counts[:first])
    p[-1] += sum(counts[last:])
    q = [0.0] * len(inner)
    for level in range(levels):
        bins = range(level * len(inner) // levels, (level + 1) * len(inner) // levels)
        filled = [b for b in bins if p[b]]
        for b in filled:
            q[b] = sum(inner[k] for k in bins) / len(filled)
    p_total, q_total = sum(p), sum(q)
    divergence = 0.0
    for p_bin, q_bin in zip(p, q, strict=True):
        if p_bin and not q_bin:
            return math.inf
        if p_bin:
            divergence += p_bin / p_total * math.log(p_bin / p_total / (q_bin / q_total))
    return divergence


@given(
    counts=st.lists(st.integers(0, 20), min_size=8, max_size=60),
    ends=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    levels=st.integers(2, 8),
)
def test_divergence_equals_its_definition(counts: list[int], ends: tuple[int, int], levels: int) -> None:
    counts[0] += 1
    first = ends[0] % (len(counts) - levels + 1)
    last = first + levels + ends[1] % (len(counts) - levels - first + 1)
    found = divergences(np.array(counts, np.float64), np.array([first]), np.array([last]), levels)[0]
    expected = divergence_in_loops(counts, first, last, levels)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_symmetric_search_takes_the_least_divergence(seed: int) -> None:
    counts = np.histogram(rng(seed).standard_t(3, 5000), bins=64, range=(-12, 12))[0]
    first, last = symmetric_bins(Costs(counts.astype(np.float64), 8, 32.0))
    assert last == 64 - first
    every = {half: divergence_in_loops(counts.tolist(), 32 - half, 32 + half, 8) for half in range(4, 33)}
    assert every[32 - first] == pytest.approx(min(every.values()), rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_free_search_ends_where_moving_either_end_is_no_gain(seed: int) -> None:
    counts = np.histogram(rng(seed).gamma(2, 1, 5000) - 1, bins=60, range=(-1, 11))[0]
    first, last = free_bins(Costs(counts.astype(np.float64), 8, 5.0))
    own = divergence_in_loops(counts.tolist(), first, last, 8)
    lasts = [divergence_in_loops(counts.tolist(), first, k, 8) for k in range(max(first + 8, 6), 61)]
    firsts = [divergence_in_loops(counts.tolist(), k, last, 8) for k in range(min(5, last - 8) + 1)]
    assert own <= min(lasts + firsts) * (1 + 1e-9)


@given(
    counts=st.lists(st.integers(0, 20), min_size=8, max_size=60),
    ends=st.tuples(st.integers(0, 100), st.integers(0, 100)),
    zero=st.floats(0, 60),
    steps=st.integers(1, 300),
)
def test_squared_errors_equal_their_definition(
    counts: list[int], ends: tuple[int, int], zero: float, steps: int
) -> None:
    first = ends[0] % len(counts)
    last = first + 1 + ends[1] % (len(counts) - first)
    found = Costs(np.array(counts, np.float64), 8, zero, steps).squared_errors(np.array([first]), np.array([last]))[0]
    expected, step = 0.0, (last - first) / steps
    for k, count in enumerate(counts):
        middle = k + 0.5
        level = math.floor((middle - zero) / step + 0.5)
        error = step**2 / 12
        if not first <= k < last:
            error = (middle - min(max(middle, first), last)) ** 2
        elif step >= 4 and abs(level) <= 4:
            error = (middle - zero - level * step) ** 2
        expected += count * error
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)


def quantized_error(values: np.ndarray, low: float, high: float, dtype: str, symmetric: bool) -> float:
    ends = np.asarray(low), np.asarray(high)
    scale, zero = grid_for_range(*ends, dtype, symmetric=symmetric, scale="float32", reduce_range=False)
    grid = IntegerGrid(dtype, scale, zero, symmetric=symmetric)
    return float(np.mean((grid.dequantize(grid.quantize(values)) - values).astype(np.float64) ** 2))


@pytest.mark.parametrize(("dtype", "symmetric"), [("uint8", False), ("int8", True), ("uint16", False)])
@pytest.mark.parametrize("kind", ["gelu", "peak", "student", "normal"])
def test_no_range_costs_more_than_the_whole_one(kind: str, dtype: str, symmetric: bool) -> None:
    normals = normal(200_000, seed=9) * 3
    values = {
        "gelu": normals * (np.tanh(0.8 * (normals + 0.045 * normals**3)) + 1) / 2,
        "peak": normals**5,
        "student": rng(9).standard_t(3, 200_000),
        "normal": normals,
    }[kind].astype(np.float32)
    spec = ActivationSpec(dtype=dtype, symmetric=symmetric, calibration=EntropyCalibration())
    low, high = feed(range_reducer(spec, samples=1), values[None], [slice(0, 1)])
    whole = quantized_error(values, float(values.min()), float(values.max()), dtype, symmetric)
    assert quantized_error(values, low, high, dtype, symmetric) <= 1.1 * whole
    if dtype != "uint16" and kind in ("student", "normal"):
        assert high < values.max()  # and yet it is a search


def onnxruntime_threshold(values: np.ndarray, bins: int, levels: int) -> tuple[float, float]:
    collector = HistogramCollector(
        method="entropy", symmetric=True, num_bins=bins, num_quantized_bins=levels, percentile=0, scenario="same"
    )
    with contextlib.redirect_stdout(io.StringIO()):
        collector.collect({"x": values})
        low, high, *_ = collector.compute_collection_result()["x"]
    return float(low), float(high)


@pytest.mark.parametrize("kind", ["laplace", "normal"])
@pytest.mark.parametrize("seed", [4, 5])
def test_thresholds_are_near_onnxruntimes(kind: str, seed: int) -> None:
    """Not equal: onnxruntime leaves the rest of the division of bins by levels to one level, and that level empty."""
    random = rng(seed)
    draws = {
        "laplace": random.laplace(size=400_000),
        "normal": random.standard_normal(400_000),
    }
    values = draws[kind].astype(np.float32)
    low, high = feed(Entropy(2048, 128, samples=1, symmetric=True), values[None], [slice(0, 1)])
    theirs_low, theirs_high = onnxruntime_threshold(values, 2048, 128)
    threshold = max(-low, high)  # either end may be kept within the observed range
    assert threshold == pytest.approx(max(-theirs_low, theirs_high), rel=0.25)


def test_a_lone_outlier_is_cut_as_onnxruntime_cuts_it() -> None:
    values = np.append(normal(400_000, seed=5), np.float32(30))
    _, high = feed(Entropy(2048, 128, samples=1, symmetric=True), values[None], [slice(0, 1)])
    _, theirs = onnxruntime_threshold(values, 2048, 128)
    assert high < 8
    assert theirs < 8


def test_an_asymmetric_range_follows_each_side() -> None:
    """A long tail above, a wall below: the wall stays."""
    values = (rng(6).gamma(1.0, 2.0, 300_000) - 1).astype(np.float32)
    low, high = feed(Entropy(2048, 128, samples=1, symmetric=False), values[None], [slice(0, 1)])
    assert -1.0 <= low < -0.8
    assert 8 < high < values.max()


@pytest.mark.parametrize("symmetric", [False, True])
def test_relu_zeros_do_not_matter(symmetric: bool) -> None:
    values = np.abs(normal(100_000, seed=7))
    padded = np.concatenate([values, np.zeros(900_000, np.float32)])
    bare = feed(Entropy(2048, 128, samples=1, symmetric=symmetric), values[None], [slice(0, 1)])
    assert feed(Entropy(2048, 128, samples=1, symmetric=symmetric), padded[None], [slice(0, 1)]) == (0, bare[1])


@given(points=st.lists(st.integers(0, 10_000), max_size=12), seed=st.integers(0, 20))
def test_the_histogram_does_not_depend_on_the_cut(points: list[int], seed: int) -> None:
    stream = (normal(60, 7, seed=seed) * np.exp(rng(seed).uniform(-30, 30, (60, 1)))).astype(np.float32)
    whole, pieces = StreamedHistogram(128, 60), StreamedHistogram(128, 60)
    whole.update(stream, 60)
    for piece in cuts(60, points):
        pieces.update(stream[piece], piece.stop - piece.start)
    assert (whole.minimum, whole.maximum) == (pieces.minimum, pieces.maximum) == (stream.min(), stream.max())
    low, high = whole.minimum, whole.maximum
    np.testing.assert_array_equal(whole.counts(low, high, 128), pieces.counts(low, high, 128))


@pytest.mark.parametrize("scale", [1e-35, 1.0, 1e35])
def test_the_histogram_is_numpys_but_for_values_at_the_edges(scale: float) -> None:
    stream = normal(50, 2000, seed=8) * np.float32(scale)
    histogram = StreamedHistogram(256, 50)
    for part in np.split(stream, 10):
        histogram.update(part, 5)
    low, high = histogram.minimum, histogram.maximum
    found = histogram.counts(low, high, 256)
    expected = np.histogram(stream.astype(np.float64), 256, (low, high))[0]
    assert found.sum() == stream.size
    # a cell is a 16th to a 32nd of a bin: so much of a bin can fall to its neighbour
    assert np.abs(np.cumsum(found) - np.cumsum(expected)).max() <= expected.max() / 8


def test_large_streams_are_counted_in_part_and_evenly() -> None:
    histogram = StreamedHistogram(512, 40)
    stream = rng(9).uniform(-1, 1, (40, 100_000)).astype(np.float32)
    for part in np.split(stream, 8):
        histogram.update(part, 5)
    counts = histogram.counts(-1.0, 1.0, 16)
    assert 0.5 * 2**20 < counts.sum() <= 1.1 * 2**20
    assert counts.min() > 0.95 * counts.mean()
