"""The grids of the gradient solver are those of the plan, bit for bit, and pass gradients where they reach."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.specs import BLOCK_DTYPES, FLOAT_DTYPES, WeightDtype, is_integer
from tests.unit.quantizer.numerics.forms import rounded_grid
from worker.quantizer.autodiff.grids import TorchGrid
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import PER_TENSOR, Granularity, IntegerGrid, PerAxis, PerBlock, grid_for_range

CPU = torch.device("cpu")
INTEGERS = [dtype for dtype in get_args(WeightDtype) if is_integer(dtype)]


def wide(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Values of all magnitudes, exact ties and zeros among them."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * np.exp2(random.integers(-12, 12, shape))
    values[random.random(shape) < 0.2] = 0.0
    ties = random.random(shape) < 0.2
    return np.where(ties, np.rint(values * 2) / 2, values).astype(np.float32)


def same(grid: Grid, values: np.ndarray) -> None:
    got, _ = TorchGrid(grid, values.shape, CPU).fake(torch.from_numpy(values.copy()))
    expected = grid.fake(values)
    np.testing.assert_array_equal(got.numpy(), expected)
    np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(expected), "-0 is 0 to integers")


GRANULARITIES = [
    PER_TENSOR, *(PerAxis(k) for k in (0, 1, -1)), *(PerBlock(k, size) for k in (0, 1, -1) for size in (2, 4)),
]  # fmt: skip


@given(st.sampled_from(INTEGERS), st.sampled_from(GRANULARITIES), st.booleans(), st.integers(0, 10**6))
def test_integers(dtype: str, granularity: Granularity, symmetric: bool, seed: int) -> None:
    values = wide((4, 5, 3), seed)
    shape = granularity.scale_shape(values.shape)
    peak = np.exp2(np.random.default_rng(seed).uniform(-3, 6, shape)).astype(np.float32)
    scale, zero = grid_for_range(-0.5 * peak, peak, dtype, symmetric=symmetric)
    same(IntegerGrid(dtype, scale, zero, granularity, symmetric), values)


@given(st.sampled_from([*FLOAT_DTYPES, *BLOCK_DTYPES]), st.sampled_from([0, 1, 2]), st.integers(0, 10**6))
def test_floats_and_blocks(dtype: str, axis: int, seed: int) -> None:
    values = wide((4, 37, 3), seed)
    scale = np.asarray([0.37, 2.0, 0.001, 5.0], np.float32) if dtype.startswith("float8") else None
    same(rounded_grid(dtype, axis, scale, 0 if scale is not None else None), values)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float16", "mxint8"])
def test_gradients_pass_where_the_grid_reaches(dtype: str) -> None:
    values = torch.tensor([0.3, -1.7, 1e6, -1e6], requires_grad=True)
    grid: Grid = IntegerGrid(dtype, np.asarray(0.1, np.float32), np.asarray(0, np.int8))
    if dtype != "int8":
        grid = rounded_grid(dtype, 0, np.asarray(1, np.float32) if "float8" in dtype else None)
    TorchGrid(grid, (4,), CPU).through(values).backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expected = [1.0, 2.0, 3.0, 4.0] if dtype == "mxint8" else [1.0, 2.0, 0.0, 0.0]
    assert values.grad.tolist() == expected
