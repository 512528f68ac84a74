"""The sample of rows against what it promises: bounded, the same however the stream is cut, and without a period."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.quantizer.statistics.rows import RowSample


def stream(samples: int, tokens: int) -> np.ndarray:
    """[samples, tokens, 2]: every row says which sample and which token it is."""
    grid = np.stack(np.meshgrid(np.arange(samples), np.arange(tokens), indexing="ij"), axis=-1)
    return grid.astype(np.float32)


def taken(values: np.ndarray, cuts: list[int], **limits: int) -> RowSample:
    sample = RowSample(**limits)
    for part in np.split(values, sorted(cuts)):
        if len(part):
            sample.update(part, len(part))
    return sample


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.lists(st.integers(0, 40), max_size=5), st.integers(1, 60))
def test_the_sample_does_not_depend_on_the_cut(samples: int, tokens: int, cuts: list[int], rows: int) -> None:
    values = stream(samples, tokens)
    whole = taken(values, [], rows=rows, fewest=1).result()
    parts = taken(values, cuts, rows=rows, fewest=1).result()
    np.testing.assert_array_equal(parts, whole)
    assert len(whole) == min(rows, samples * tokens)
    assert len(np.unique(whole, axis=0)) == len(whole)


@pytest.mark.parametrize("tokens", [2, 64, 99, 144])
def test_no_token_is_left_out_or_preferred(tokens: int) -> None:
    found = taken(stream(400, tokens), [100, 200], rows=2000, fewest=1).result()
    counts = np.bincount(found[:, 1].astype(int), minlength=tokens)
    expected = len(found) / tokens
    assert abs(counts - expected).max() < 6 * np.sqrt(expected)


def test_wide_rows_are_fewer() -> None:
    sample = RowSample(rows=100, elements=640, fewest=4)
    sample.update(np.zeros((500, 32), np.float32), 500)
    assert sample.result().shape == (20, 32)
    sample = RowSample(rows=100, elements=640, fewest=4)
    sample.update(np.zeros((500, 3200), np.float32), 500)
    assert sample.result().shape == (4, 3200)


def test_samples_can_be_kept_out() -> None:
    sample = taken(stream(10, 3), [4, 7], rows=100)
    found = sample.result(first_sample=6)
    assert sorted(set(found[:, 0])) == [6, 7, 8, 9]
    assert len(found) == 12
    assert sample.result(first_sample=10) is None


def test_nothing_seen_gives_nothing() -> None:
    assert RowSample().result() is None
