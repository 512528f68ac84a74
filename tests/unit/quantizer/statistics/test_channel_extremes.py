"""Extremes per channel, streamed, against all values at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.quantizer.statistics.rows import ChannelExtremes


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_streamed_extremes_are_those_of_everything_seen(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    numbers = np.random.default_rng(data.draw(st.integers(0, 9)))
    batches = [numbers.standard_normal(shape).astype(np.float32) for _ in range(data.draw(st.integers(1, 3)))]
    reducer = ChannelExtremes(axis)
    for batch in batches:
        reducer.update(batch, shape[0])
    every = np.stack([np.moveaxis(batch, axis, 0).reshape(shape[axis], -1) for batch in batches])
    low, high = reducer.result() or (None, None)
    np.testing.assert_array_equal(low, every.min(axis=(0, 2)))
    np.testing.assert_array_equal(high, every.max(axis=(0, 2)))


@pytest.mark.parametrize("size", [3, 40])
def test_long_and_short_rows_give_the_same(size: int) -> None:
    values = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    values[1, 2, 0, 0] = np.nan
    reducer = ChannelExtremes(1)
    reducer.update(values, 2)
    low, high = reducer.result() or (None, None)
    np.testing.assert_array_equal(low, values.min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(high, values.max(axis=(0, 2, 3)))
    assert np.isnan(high).tolist() == [False, False, True]


def test_nothing_seen_is_no_extremes() -> None:
    assert ChannelExtremes(1).result() is None
