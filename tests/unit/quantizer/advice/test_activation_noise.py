"""Noise of a tensor on its grid, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.quantizer.toolbox import rng
from worker.quantizer.advice.activations import ActivationNoise, ChannelPower, TensorNoise
from worker.quantizer.numerics.integer import IntegerGrid


def grid(largest: float) -> IntegerGrid:
    return IntegerGrid("int8", np.float32(largest / 127), np.int8(0), symmetric=True)


def noise(values: np.ndarray, largest: float, axis: int = 1) -> TensorNoise:
    observer = ActivationNoise(grid(largest), axis)
    for batch in np.split(values.astype(np.float32), 4):
        observer.update(batch, len(batch))
    return observer.result()


def total(found: TensorNoise) -> float:
    return found.clipping + found.outliers + found.channels + found.rounding


def uniform(*shape: int) -> np.ndarray:
    return rng(3).uniform(-1, 1, shape)


def test_a_fine_grid_leaves_a_twelfth_of_a_step_squared_and_a_narrow_one_clips() -> None:
    found = noise(uniform(64, 4, 8, 8), 1.0)
    assert found.rounding == pytest.approx((1 / 127) ** 2 / 12 / (1 / 3), rel=0.05)
    assert (found.clipping, found.outliers, found.channels) == (0.0, 0.0, 0.0)
    # a narrow grid clips
    found = noise(uniform(64, 4, 8, 8), 0.5)
    assert found.clipping == pytest.approx(1 / 8, rel=0.05)
    assert found.clipped_share == pytest.approx(0.5, rel=0.05)
    assert found.clipping > 0.99 * total(found)
    # a tensor of zeros has no noise
    assert noise(np.zeros((8, 2, 3)), 1.0) == TensorNoise()


def test_a_range_that_nothing_fills_is_one_of_outliers_and_that_one_channel_fills_its_own() -> None:
    found = noise(uniform(64, 4, 8, 8), 200.0)
    assert found.outliers > 0.9 * total(found) > 0.3
    # a range that one channel fills is its own
    values = uniform(64, 4, 8, 8)
    values[:, 2] *= 200.0
    found = noise(values, 200.0)
    assert found.channels > 0.9 * total(found) > 0.3
    assert found.ratio == pytest.approx(200.0, rel=0.05)
    rows = np.moveaxis(values, 1, -1).reshape(-1, 4)
    assert noise(rows, 200.0, axis=-1).channels == pytest.approx(found.channels, rel=0.05)


def test_power_is_the_mean_square_by_channel_or_of_all_where_their_number_changes() -> None:
    values = uniform(32, 3, 4, 4).astype(np.float32)
    power = ChannelPower(1)
    for batch in np.split(values, 4):
        power.update(batch, len(batch))
    assert power.result() == pytest.approx(np.square(values.astype(np.float64)).mean(axis=(0, 2, 3)))
    assert ChannelPower(1).result() is None
    # channels whose number changes count as one
    parts = [uniform(2, length, 5).astype(np.float32) for length in (3, 7, 4)]
    whole = ActivationNoise(grid(0.5), 1)
    power = ChannelPower(1)
    for part in parts:
        whole.update(part, 2)
        power.update(part, 2)
    flat = np.concatenate([part.reshape(-1) for part in parts]).astype(np.float64)
    assert power.result() == pytest.approx([np.square(flat).mean()])
    beyond = np.maximum(np.abs(flat) - 0.5, 0.0)
    beyond[beyond <= 0.5 / 127 / 2] = 0.0
    assert whole.result().clipping == pytest.approx(np.square(beyond).sum() / np.square(flat).sum())
