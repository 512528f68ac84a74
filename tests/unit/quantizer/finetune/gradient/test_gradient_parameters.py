"""The derivatives written by hand against those of automatic differentiation, and what comes out at the end."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.quantizer.finetune.gradient.gradient_units import integer_grid
from tests.unit.quantizer.numerics.forms import rounded_grid
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.finetune.gradient.parameters import Moving, SoftRounding
from worker.quantizer.finetune.reconstruction.method import NO_REGULARIZER, Regularizer
from worker.quantizer.finetune.reconstruction.unit import Parameter
from worker.quantizer.numerics.grids import Grid

CPU = torch.device("cpu")
WEIGHT = normal(5, 7, seed=3)


def weight(grid: Grid | None = None) -> Parameter:
    found = grid or integer_grid(WEIGHT)
    return Parameter(WEIGHT, found, found.fake(WEIGHT))


@pytest.mark.parametrize("regularizer", [NO_REGULARIZER, Regularizer(0.03, 2.0), Regularizer(0.5, 7.3)])
@pytest.mark.parametrize("axis", [None, 0])
def test_soft_rounding_by_automatic_differentiation(regularizer: Regularizer, axis: int | None) -> None:
    grid = integer_grid(WEIGHT, axis=axis)
    movable = SoftRounding(weight(grid), CPU)
    (alpha,) = movable.variables
    with torch.no_grad():
        alpha.add_(torch.from_numpy(normal(5, 7, seed=4, scale=2.0)))
    upstream = torch.from_numpy(normal(5, 7, seed=5))
    value = movable.value()
    movable.absorb(upstream, regularizer)
    got = alpha.grad.clone()
    # equations 21 to 24 of the paper, as they stand there
    twin = alpha.detach().clone().requires_grad_()
    h = torch.clamp(torch.sigmoid(twin) * 1.2 - 0.1, 0.0, 1.0)
    scale = torch.from_numpy(grid.scale.reshape(-1, 1) if axis == 0 else grid.scale)
    low, high = grid.limits
    soft = scale * torch.clamp(torch.floor(torch.from_numpy(WEIGHT) / scale) + h, low, high)
    loss = (soft * upstream).sum() + regularizer.weight * (1 - (2 * h - 1).abs() ** regularizer.beta).sum()
    loss.backward()
    torch.testing.assert_close(value, soft.detach())
    torch.testing.assert_close(got, twin.grad, rtol=1e-4, atol=1e-5)


def test_rounding_starts_at_the_float_weight_and_ends_next_to_it() -> None:
    grid = integer_grid(WEIGHT, axis=1)
    movable = SoftRounding(weight(grid), CPU)
    np.testing.assert_allclose(movable.value().numpy(), WEIGHT, atol=1e-5)
    np.testing.assert_array_equal(movable.result().integers, grid.quantize(WEIGHT))
    with torch.no_grad():
        movable.variables[0].copy_(torch.from_numpy(normal(5, 7, seed=9)))
    up = normal(5, 7, seed=9) >= 0
    expected = np.clip(np.floor(WEIGHT / grid.scale) + up, *grid.limits)
    np.testing.assert_array_equal(movable.result().integers, expected)


@pytest.mark.parametrize("axis", [None, 0])
def test_a_moving_scale_by_automatic_differentiation(axis: int | None) -> None:
    grid = integer_grid(WEIGHT * 0.6, axis=axis)  # some values saturate
    movable = Moving(weight(grid), CPU, move_scale=True)
    offset, stretch = movable.variables
    with torch.no_grad():
        offset.copy_(torch.from_numpy(normal(5, 7, seed=4)))
        stretch.copy_(torch.from_numpy(np.resize(normal(5, seed=6, scale=0.1), stretch.shape)))
    upstream = torch.from_numpy(normal(5, 7, seed=5))
    value = movable.value()
    movable.absorb(upstream, NO_REGULARIZER)

    def shaped(array: torch.Tensor) -> torch.Tensor:
        return array.reshape(-1, 1) if axis == 0 else array.reshape(())

    first, second = offset.detach().clone().requires_grad_(), stretch.detach().clone().requires_grad_()
    start = torch.from_numpy(grid.scale.reshape(-1))
    scale = shaped(start * torch.exp(second))
    quotient = (torch.from_numpy(WEIGHT) + first * shaped(start)) / scale
    held = torch.clamp(quotient, *grid.limits)
    held = held + (torch.round(held) - held).detach()  # rounding passes gradients straight through
    (scale * held * upstream).sum().backward()
    torch.testing.assert_close(value, (scale * held).detach())
    torch.testing.assert_close(offset.grad, first.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(stretch.grad, second.grad, rtol=1e-4, atol=1e-5)
    result = movable.result()
    np.testing.assert_allclose(result.scale.reshape(-1), (start * torch.exp(stretch.detach())).numpy(), rtol=1e-6)
    np.testing.assert_allclose(result.present, value.numpy(), atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "mx6"])
def test_floats_and_blocks_move_before_they_are_rounded(dtype: str) -> None:
    grid = rounded_grid(dtype, 1, np.asarray(0.01, np.float32) if "float8" in dtype else None)
    movable = Moving(weight(grid), CPU, unit=np.float32(1.0))
    with torch.no_grad():
        movable.variables[0].fill_(0.25)
    result = movable.result()
    np.testing.assert_allclose(result.values, WEIGHT + 0.25, rtol=1e-6)
    np.testing.assert_array_equal(result.present, grid.fake(result.values))
    np.testing.assert_array_equal(result.present, movable.value().numpy())
    assert result.integers is None


def test_a_parameter_without_a_grid_just_moves() -> None:
    movable = Moving(Parameter(WEIGHT, None, WEIGHT, "bias"), CPU, unit=np.float32(0.5))
    upstream = torch.from_numpy(normal(5, 7, seed=5))
    movable.value()
    movable.absorb(upstream, NO_REGULARIZER)
    torch.testing.assert_close(movable.variables[0].grad, upstream * 0.5)
    np.testing.assert_array_equal(movable.result().values, WEIGHT)
