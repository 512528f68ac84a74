"""Factors against what they promise: alike ranges between layers, no tensor outgrown, and the closed form of a pair."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.specs import ActivationSpec
from worker.quantizer.equalization.balance import BalancedTensor, BalancedWeight, BalanceProblem, balance
from worker.quantizer.equalization.channel_groups import Flow
from worker.quantizer.equalization.channel_scaling import ObservedChannels, quantized_values
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.labels import PINNED
from worker.quantizer.plan.types import QuantizationPlan

NOW = -1
PRECISE = 0.0


def dense(size: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, grid: str | None = "tensor") -> BalancedWeight:
    """A weight [out, in]."""
    return BalancedWeight(size.astype(np.float32), outputs[:, None], inputs[None, :], outputs, None, grid)


def diagonal(size: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, grid: str | None = "tensor") -> BalancedWeight:
    """A depthwise weight [channels, 1]."""
    return BalancedWeight(
        size.reshape(-1, 1).astype(np.float32), outputs[:, None], inputs[:, None], outputs, None, grid
    )


def groups(first: int, count: int) -> np.ndarray:
    return np.arange(first, first + count)


def pinned(count: int) -> np.ndarray:
    return np.full(count, PINNED)


def problem(count: int, matrices: list[BalancedWeight], values: list[BalancedTensor] | None = None) -> BalanceProblem:
    fixed = np.zeros(count + 1, bool)
    fixed[PINNED] = True
    return BalanceProblem(count + 1, matrices, values or [], fixed, np.full(count + 1, np.inf))


def sizes(seed: int, *shape: int, spread: float = 2.0) -> np.ndarray:
    return np.exp(np.random.default_rng(seed).uniform(-spread, spread, shape))


def pair(seed: int, channels: int = 5) -> tuple[np.ndarray, np.ndarray, BalanceProblem]:
    one, other = sizes(seed, channels, 3), sizes(seed + 1, 4, channels)
    between = groups(1, channels)
    matrices = [dense(one, pinned(3), between), dense(other, between, pinned(4))]
    return one, other, problem(channels, matrices)


def relative(ranges: np.ndarray) -> np.ndarray:
    return ranges / ranges.max()


@given(seed=st.integers(0, 1000))
def test_a_pair_is_balanced_by_one_step(seed: int) -> None:
    one, other, found = pair(seed)
    factors = balance(found, steps=1, least_change=PRECISE).factors[1:]
    rows, columns = one.max(axis=1), other.max(axis=0)
    # Nagel et al. 2019, equation 11, but for one factor common to all channels
    closed = np.sqrt(columns / rows)
    np.testing.assert_allclose(factors / factors[0], closed / closed[0], rtol=1e-5)
    np.testing.assert_allclose(relative(rows * factors), relative(columns / factors), rtol=1e-5)


def test_a_depthwise_layer_between_two_is_balanced_on_both_sides() -> None:
    before, after = groups(1, 6), groups(7, 6)
    one, middle, other = sizes(1, 6, 3), sizes(2, 6), sizes(3, 4, 6)
    matrices = [dense(one, pinned(3), before), diagonal(middle, before, after), dense(other, after, pinned(4))]
    chain = problem(12, matrices)
    found = balance(chain, steps=400, least_change=PRECISE)
    s, t = found.factors[before], found.factors[after]
    three = relative(one.max(axis=1) * s), relative(middle * t / s), relative(other.max(axis=0) / t)
    np.testing.assert_allclose(three[0], three[1], rtol=1e-3)
    np.testing.assert_allclose(three[1], three[2], rtol=1e-3)
    # an adaptive search ends by either criterion
    adaptive = balance(chain, steps=NOW, least_change=PRECISE)
    assert 1 < adaptive.sweeps < 100
    longer = balance(chain, steps=adaptive.sweeps + 1, least_change=PRECISE)
    np.testing.assert_allclose(longer.factors, adaptive.factors, rtol=0.011)
    assert balance(chain, steps=NOW, least_change=1e6).sweeps == 1
    assert balance(chain, steps=7, least_change=1e6).sweeps == 7
    assert (balance(chain, steps=0, least_change=PRECISE).factors == 1.0).all()


@given(seed=st.integers(0, 1000), steps=st.sampled_from([1, 3, NOW]))
def test_no_channel_outgrows_its_tensor(seed: int, steps: int) -> None:
    *_, found = pair(seed)
    below, above = sizes(seed + 2, 5) - 0.2, sizes(seed + 3, 5)
    values = [BalancedTensor(groups(1, 5), np.maximum(below, 0), above)]
    factors = balance(replace(found, values=values), steps=steps, least_change=PRECISE).factors[1:]
    assert (above * factors).max() <= above.max() * (1 + 1e-9)
    assert (np.maximum(below, 0) * factors).max() <= np.maximum(below, 0).max() * (1 + 1e-9)
    unbound = balance(replace(found, values=values, use_activations=False), steps=steps, least_change=PRECISE)
    np.testing.assert_allclose(unbound.factors, balance(found, steps=steps, least_change=PRECISE).factors)


def test_rows_with_a_scale_each_or_a_weight_that_stays_float_leave_the_others_to_be_balanced() -> None:
    between = groups(1, 3)
    values = BalancedTensor(between, np.zeros(3), np.array([1.0, 4.0, 16.0]))
    rows, columns = sizes(1, 3, 2), np.array([[1.0, 1.0, 1.0]])
    matrices = [dense(rows, pinned(2), between, "row"), dense(columns, between, pinned(1))]
    factors = balance(problem(3, matrices, [values]), steps=300, least_change=PRECISE).factors[1:]
    # sqrt(columns / values), whatever the rows
    np.testing.assert_allclose(factors / factors[0], [1.0, 0.5, 0.25], rtol=1e-3)
    # a weight that stays float takes all scale in
    between = groups(1, 4)
    rows = np.array([[1.0], [2.0], [4.0], [8.0]])
    matrices = [dense(rows, pinned(1), between), dense(sizes(1, 2, 4), between, pinned(2), None)]
    factors = balance(problem(4, matrices), steps=300, least_change=PRECISE).factors[1:]
    np.testing.assert_allclose(rows[:, 0] * factors, [8.0] * 4, rtol=1e-3)


def test_fixed_groups_and_channels_of_zeros() -> None:
    *_, found = pair(5)
    fixed, largest = found.fixed.copy(), found.largest.copy()
    fixed[2], largest[3] = True, 0.5
    factors = balance(replace(found, fixed=fixed, largest=largest), steps=NOW, least_change=PRECISE).factors
    assert factors[PINNED] == 1.0 and factors[2] == 1.0 and factors[3] <= 0.5
    assert (factors[[1, 4, 5]] != 1.0).all()
    # channels of zeros get a finite factor
    one, other = sizes(1, 5, 3), sizes(2, 4, 5)
    one[1], other[:, 2] = 0.0, 0.0
    between = groups(1, 5)
    matrices = [dense(one, pinned(3), between), dense(other, between, pinned(4))]
    values = BalancedTensor(between, np.zeros(5), np.array([1.0, 0.0, 2.0, 3.0, 0.0]))
    factors = balance(problem(5, matrices, [values]), steps=NOW, least_change=PRECISE).factors
    assert np.isfinite(factors).all() and (factors > 0).all()


def stepped(step: float, *, of_weights: float = 1 / 127) -> tuple[np.ndarray, np.ndarray, BalancedTensor, np.ndarray]:
    """Rows and columns of a pair with values between them on a grid of ``step``, and the factors."""
    one, other = sizes(3, 6, 3), sizes(4, 4, 6)
    between = groups(1, 6)
    matrices = [replace(dense(one, pinned(3), between), step=of_weights), dense(other, between, pinned(4))]
    values = BalancedTensor(between, np.zeros(6), sizes(5, 6), step)
    factors = balance(problem(6, matrices, [values]), steps=500, least_change=PRECISE).factors[between]
    return one.max(axis=1), other.max(axis=0), values, factors


@pytest.mark.parametrize("step", [1 / 255, 1 / 20])
def test_rounding_of_values_and_of_rows_adds_up_to_that_of_columns(step: float) -> None:
    rows, columns, values, factors = stepped(step)
    of_rows, of_columns = relative(rows * factors), relative(columns / factors)
    of_values = relative(values.above * factors)
    counts = CrossLayerEqualization().variants()[0].activation_weight
    assert isinstance(counts, float)
    wanted = 1 / of_rows**2 + counts * (step * 127 / of_values) ** 2
    free = of_values < 1 - 1e-3  # the others are held by the tensor's range
    off = np.sqrt(wanted) * of_columns
    assert free.sum() >= 3
    np.testing.assert_allclose(off[free], off[free][0], rtol=1e-2)


def test_the_coarser_the_grid_of_values_the_less_they_are_sacrificed() -> None:
    smallest = [relative(values.above * factors).min() for *_, values, factors in map(stepped, (0.0, 1 / 96, 1 / 8))]
    assert smallest[0] < smallest[1] < smallest[2]
    # beside weights without a grid of their own they count for nothing
    *_, alone = stepped(0.0)
    *_, beside = stepped(1 / 8, of_weights=0.0)
    np.testing.assert_array_equal(alone, beside)


def test_a_step_is_told_as_a_part_of_the_largest_value() -> None:
    grid = IntegerGrid("int8", np.asarray(0.5, np.float32), np.asarray(0, np.int8))
    spec = ActivationSpec(dtype="int8")
    plan = SimpleNamespace(
        activations={"t": SimpleNamespace(source="t", quantization=grid)}, sources=lambda: {"t": spec}
    )
    seen = {"t": ObservedChannels(np.array([1, 2]), np.array([-64.0, 0.0]), np.array([3.0, 32.0]))}
    (values,) = quantized_values(Flow(groups=3), cast(QuantizationPlan, plan), seen)
    assert (values.step, list(values.below), list(values.above)) == (0.5 / 64, [64.0, 0.0], [3.0, 32.0])
