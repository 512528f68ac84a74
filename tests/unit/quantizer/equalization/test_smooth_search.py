"""The search against brute force: the error of a candidate is that of the layers computed with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from service.contracts.specs import ActivationSpec, WeightSpec
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.equalization.smooth_quant.search import (
    Maker,
    Matrix,
    Problem,
    SiteError,
    activation_and_weight_aware,
    activation_aware,
    search,
    smoothing,
)
from worker.quantizer.numerics.granularity import PER_TENSOR, PerAxis
from worker.quantizer.operators.linear import weight_layout
from worker.quantizer.plan.types import WeightPlan

CHANNELS = 8
FLOAT_SCALES = ActivationSpec(dtype="uint8", symmetric=False, calibration={"method": "minmax"})
POWERS = ActivationSpec(dtype="int8", symmetric=True, scale="power_of_two", calibration={"method": "mse"})


def weight_plan(axis: int | None, scale: str = "float32") -> WeightPlan:
    granularity = "per_tensor" if axis is None else "per_channel"
    spec = WeightSpec(dtype="int8", symmetric=True, granularity=granularity, scale=scale)
    return WeightPlan("w", "it", spec, PER_TENSOR if axis is None else PerAxis(axis))


def stored(array: np.ndarray, plan: WeightPlan, *, transposed: bool = False) -> Matrix:
    layout = weight_layout("Gemm", array.shape, {"transB": int(transposed)})
    assert layout is not None
    return Matrix(array, plan, layout)


def matrix(outputs: int, seed: int, axis: int | None = None, scale: str = "float32") -> Matrix:
    return stored(normal(CHANNELS, outputs, seed=seed), weight_plan(axis, scale))


def problem(rows: np.ndarray, readers: list[Matrix], spec: ActivationSpec = FLOAT_SCALES, **more: object) -> Problem:
    return Problem(rows, rows.min(axis=0), rows.max(axis=0), spec, readers, **more)  # type: ignore[arg-type]


def with_outliers(rows: int = 256, factor: float = 50.0) -> np.ndarray:
    values = normal(rows, CHANNELS, seed=3)
    values[:, 2] *= factor
    return values


def rounded(values: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    return np.rint(values / scale) * scale


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("axis", [None, 1])
def test_the_error_is_that_of_the_layers(axis: int | None, transposed: bool) -> None:
    rows, s = with_outliers(), np.linspace(0.5, 3, CHANNELS)
    weights = [normal(CHANNELS, 5, seed=1), normal(CHANNELS, 3, seed=2)]
    expected = 0.0
    x = rows / s
    step = (max(x.max(), 0) - min(x.min(), 0)) / 255
    x = rounded(x, step)
    for weight in weights:
        scaled = weight * s[:, None]
        largest = np.abs(scaled).max() if axis is None else np.abs(scaled).max(axis=0)
        found = x @ rounded(scaled, largest / 127)
        expected += np.mean((found - rows @ weight) ** 2) / np.mean((rows @ weight) ** 2)
    along = 1 - axis if axis is not None and transposed else axis
    arrays = [np.ascontiguousarray(w.T) if transposed else w for w in weights]
    readers = [stored(array, weight_plan(along), transposed=transposed) for array in arrays]
    # the zero point is rounded to an integer, which moves the ends of the range a little
    assert SiteError(problem(rows, readers))(s) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("rows", [1, 31, 33])
def test_any_number_of_rows_will_do(rows: int) -> None:
    values, reader = with_outliers(rows), matrix(6, 1)
    found = SiteError(problem(values, [reader]))(np.full(CHANNELS, 2.0))
    step = (max(values.max(), 0) - min(values.min(), 0)) / 255
    weight = rounded(reader.array, np.abs(reader.array).max() / 127)
    expected = rounded(values, step) @ weight - values @ reader.array
    assert found == pytest.approx(np.mean(expected**2) / np.mean((values @ reader.array) ** 2), rel=0.5)


def test_no_candidate_of_a_fine_grid_is_much_better() -> None:
    case = problem(with_outliers(), [matrix(6, 1), matrix(4, 2)])
    choice, error, scale_of = search(case, None), SiteError(case), smoothing(case)
    assert choice is not None and scale_of is not None
    # outliers move into the weights
    assert choice.after < choice.before / 15 and np.argmax(choice.scale) == 2
    finest = min(error(scale_of(alpha)) for alpha in np.linspace(0, 1, 81))
    assert choice.after <= 1.15 * finest
    assert choice.after == error(choice.scale)


def test_a_given_alpha_is_taken_and_powers_of_two_choose_how_they_are_filled() -> None:
    rows, reader = with_outliers(), matrix(6, 1)
    choice = search(problem(rows, [reader]), 0.3)
    assert choice is not None and choice.alpha == 0.3
    wanted = np.abs(rows).max(axis=0) ** 0.3 / np.abs(reader.array).max(axis=1) ** 0.7
    ratio = choice.scale / wanted
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    for alpha in (0.0, 0.3, 1.0):  # the largest activation stays
        choice = search(problem(rows, [reader]), alpha)
        assert np.abs(rows / choice.scale).max() == pytest.approx(np.abs(rows).max(), rel=1e-5)
    # powers of two also choose how they are filled
    case = problem(with_outliers(), [matrix(6, 1, scale="power_of_two")], POWERS)
    choice, scale_of = search(case, None), smoothing(case)
    assert choice is not None and scale_of is not None
    ratio = choice.scale / scale_of(choice.alpha)
    np.testing.assert_allclose(ratio, ratio[0])
    assert choice.after <= SiteError(case)(scale_of(choice.alpha))


def test_silent_channels_and_zeros_stay_in_bounds() -> None:
    rows, reader = with_outliers(), matrix(6, 1)
    rows[:, 0] = 0
    rows[:, 1] *= 1e-30
    reader.array[4] = 0
    for alpha in (0.0, 0.5, 1.0):
        choice = search(problem(rows, [reader]), alpha)
        assert np.isfinite(choice.scale).all() and choice.scale.max() / choice.scale.min() < 1e4
    # zeros throughout give nothing
    zeros = np.zeros((9, CHANNELS), np.float32)
    empty = matrix(6, 1)
    empty.array[:] = 0
    for case in (problem(zeros, [matrix(6, 1)]), problem(with_outliers(), [empty])):
        assert search(case, None) is None


def test_a_layer_that_pays_for_the_scale_counts() -> None:
    """One scale for all columns of the layer before: dividing one of them by 50 makes the others' grid no finer."""
    rows, readers = with_outliers(), [matrix(6, 1, axis=1)]
    before = stored(normal(4, CHANNELS, seed=7), weight_plan(None))
    maker = Maker(normal(200, 4, seed=8), before, np.arange(CHANNELS))
    scale = np.where(np.arange(CHANNELS) == 2, 1.0, 1 / 50)  # columns times 50, but for one
    free, paid = SiteError(problem(rows, readers)), SiteError(problem(rows, readers, makers=[maker]))
    lost = before.array / scale - rounded(before.array / scale, np.abs(before.array / scale).max() / 127)
    noise = (maker.rows @ lost * scale) @ readers[0].array
    expected = np.mean(noise**2) / np.mean((rows @ readers[0].array) ** 2)
    assert paid(scale) - free(scale) == pytest.approx(expected, rel=0.1)


def test_what_is_rounded_already_and_what_stays_float() -> None:
    rows = with_outliers()
    coarse = rounded(rows, np.abs(rows).max() / 127).astype(np.float32)
    fresh = search(problem(rows, [matrix(6, 1)]), None)
    late = search(problem(rows, [matrix(6, 1)], rounded=coarse), None)
    assert late.after > 0.5 * late.before > 5 * fresh.after
    # a tensor in float costs the rounding of the weights alone
    rows, reader, s = with_outliers(), matrix(6, 1, axis=1), np.linspace(0.5, 3, CHANNELS)
    scaled = reader.array * s[:, None]
    lost = rounded(scaled, np.abs(scaled).max(axis=0) / 127) / s[:, None] - reader.array
    expected = np.mean((rows @ lost) ** 2) / np.mean((rows @ reader.array) ** 2)
    assert SiteError(replace(problem(rows, [reader]), spec=None))(s) == pytest.approx(expected, rel=1e-2)


def test_of_several_families_the_best_candidate_is_taken() -> None:
    case = replace(problem(with_outliers(), [matrix(6, 1)]), spec=None)
    alone = [search(case, None, (family,)) for family in (activation_aware, activation_and_weight_aware)]
    both = search(case, None, (activation_aware, activation_and_weight_aware))
    assert both is not None and both.after == min(choice.after for choice in alone if choice is not None)
    assert both.after < both.before
