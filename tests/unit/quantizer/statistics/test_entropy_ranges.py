"""The entropy method against its definition in plain loops, and against onnxruntime's calibrator."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.each import each
from tests.unit.quantizer.statistics.calibrating import collected, cuts, feed, normal, rng
from worker.quantizer.statistics.observers import Costs, Entropy, divergences, free_bins, symmetric_bins
from worker.quantizer.statistics.sampling import StreamedHistogram


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


@each("seed", range(5))
def test_symmetric_search_takes_the_least_divergence_and_free_search_ends_where_no_move_gains(seed: int) -> None:
    counts = np.histogram(rng(seed).standard_t(3, 5000), bins=64, range=(-12, 12))[0]
    first, last = symmetric_bins(Costs(counts.astype(np.float64), 8, 32.0))
    assert last == 64 - first
    every = {half: divergence_in_loops(counts.tolist(), 32 - half, 32 + half, 8) for half in range(4, 33)}
    assert every[32 - first] == pytest.approx(min(every.values()), rel=1e-9)
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["laplace", "normal", "outlier"])
def test_thresholds_are_near_onnxruntimes(kind: str) -> None:
    """Not equal: onnxruntime leaves the rest of the division of bins by levels to one level, and that level empty."""
    values = {
        "laplace": rng(4).laplace(size=400_000).astype(np.float32),
        "normal": normal(400_000, seed=5),
        "outlier": np.append(normal(400_000, seed=5), np.float32(30)),
    }[kind]
    low, high = feed(Entropy(2048, 128, samples=1, symmetric=True), values[None], [slice(0, 1)])
    theirs_low, theirs_high = (float(end) for end in (*collected(values, "entropy"),)[:2])
    threshold, theirs = max(-low, high), max(-theirs_low, theirs_high)  # either end may be kept within what was seen
    if kind == "outlier":
        assert max(threshold, theirs) < 8
    else:
        assert threshold == pytest.approx(theirs, rel=0.25)


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
