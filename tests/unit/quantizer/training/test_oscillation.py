"""Oscillations against the algorithm of Nagel et al. 2022, weight by weight in a plain loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from worker.quantizer.training.quantizers import Oscillations, freezing_threshold, shares

_MOMENTUM, _STEPS, _WEIGHTS = 0.05, 120, 60
_CPU = torch.device("cpu")


def walk(seed: int = 0) -> np.ndarray:
    """Integers [step, weight]: some stay, some drift, some jump to and fro, more or less often."""
    random = np.random.default_rng(seed)
    jumps = random.integers(-1, 2, (_STEPS, _WEIGHTS)) * (random.random((_STEPS, _WEIGHTS)) < np.linspace(0, 1, 60))
    to_and_fro = np.cumsum(jumps, axis=0)
    to_and_fro[:, ::3] = (np.arange(_STEPS)[:, None] + np.arange(20)) % 2 * (random.random((_STEPS, 20)) < 0.9)
    return np.clip(to_and_fro, -4, 3).astype(np.float64)


def naive(steps: np.ndarray, thresholds: list[float | None]) -> tuple[list, list, list[bool], list]:
    """Frequency, average, frozen, integer of each weight after all steps."""
    frequency, average, frozen, integer = [], [], [], []
    for column in steps.T:
        last, direction, f, ema, held = column[0], 0.0, 0.0, column[0], False
        for now, threshold in zip(column[1:], thresholds[1:], strict=True):
            value = ema if held else now
            change = math.copysign(1.0, value - last) if value != last else 0.0
            oscillated = change != 0.0 and direction != 0.0 and change != direction
            f = _MOMENTUM * oscillated + (1 - _MOMENTUM) * f
            if not held:
                ema = _MOMENTUM * value + (1 - _MOMENTUM) * ema
            if change != 0.0:
                direction = change
            last = value
            if threshold is not None and f > threshold and not held:
                held, ema = True, float(np.round(ema))
        frequency.append(f)
        average.append(ema)
        frozen.append(held)
        integer.append(ema if held else last)
    return frequency, average, frozen, integer


def thresholds() -> list[float | None]:
    return [freezing_threshold(0.15, step, _STEPS) for step in range(_STEPS)]


def test_it_is_the_algorithm_of_the_paper() -> None:
    steps = walk()
    frequency, average, frozen, integer = naive(steps, thresholds())
    assert 5 < sum(frozen) < 55
    found = Oscillations(_MOMENTUM)
    scale, zero = torch.linspace(0.1, 0.7, _WEIGHTS).reshape(6, 10), torch.full((6, 10), 2.0)
    weights = torch.zeros(6, 10)
    for k, (now, threshold) in enumerate(zip(steps, thresholds(), strict=True)):
        if k == 90:  # a checkpoint goes on as if nothing had happened
            saved, found = found.state(), Oscillations(_MOMENTUM)
            found.load_state(saved, _CPU)
            assert saved["frozen"].any()
        weights = (torch.from_numpy(now).float().reshape(6, 10) - zero) * scale
        found.update(torch.from_numpy(now).reshape(6, 10).to(torch.int8), threshold)
        found.apply(weights, scale, zero)
    state = found.state()
    np.testing.assert_allclose(state["frequency"].reshape(-1), frequency, atol=1e-5)
    np.testing.assert_allclose(state["average"].reshape(-1), average, atol=1e-5)
    np.testing.assert_array_equal(state["frozen"].reshape(-1), frozen)
    wanted = (np.array(integer).reshape(6, 10) - 2.0) * scale.numpy()
    np.testing.assert_allclose(weights.numpy(), wanted, atol=1e-5)
    oscillating = (np.array(frequency) > 0.005) & ~np.array(frozen)
    assert shares([found, Oscillations()]) == pytest.approx((oscillating.mean(), np.mean(frozen)))


def test_frozen_weights_have_no_gradient_and_follow_the_scale() -> None:
    found = Oscillations(0.5)
    for k in range(40):
        found.update(torch.tensor([float(k % 2), 3.0]), None if k < 20 else 0.1)
        assert found.frozen == (k >= 20)
    assert (found.frozen, found.count) == (1, 2)
    weight = torch.tensor([0.3, 0.4], requires_grad=True)
    weight.grad = torch.ones(2)
    zero = torch.zeros(2)
    integer = found.state()["average"][0]
    assert integer in (0.0, 1.0)
    for scale in (0.5, 0.7):
        found.apply(weight, torch.full((2,), scale), zero)
        np.testing.assert_allclose(weight.detach().numpy(), [integer * scale, 0.4], rtol=1e-6)
    np.testing.assert_array_equal(weight.grad.numpy(), [0.0, 1.0])


def test_the_threshold_falls_over_the_second_half() -> None:
    found = [freezing_threshold(0.01, step, 101) for step in range(101)]
    assert found[:51] == [None] * 51
    falling = [value for value in found if value is not None]
    assert falling[0] == pytest.approx(0.04)
    assert falling[-1] == pytest.approx(0.01)
    assert falling[len(falling) // 2] == pytest.approx(0.025, abs=1e-3)
    assert falling == sorted(falling, reverse=True)
    assert freezing_threshold(0.2, 100, 101) == freezing_threshold(0.2, 60, 101) == 0.2
    assert freezing_threshold(0.01, 0, 1) is None
