"""The grids of the gradient solver are those of the plan, bit for bit, and pass gradients where they reach."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contracts.dtypes import BLOCK_DTYPES, FLOAT_DTYPES, INTEGER_DTYPES
from worker.quantizer.finetune.gradient_grids import TorchGrid
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range
from worker.quantizer.numerics.rounded import RoundedGrid
from worker.quantizer.plan.types import Grid

CPU = torch.device("cpu")


def wide(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Values of all magnitudes, exact ties and zeros among them."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape) * np.exp2(random.integers(-12, 12, shape))
    values[random.random(shape) < 0.2] = 0.0
    ties = random.random(shape) < 0.2
    return np.where(ties, np.rint(values * 2) / 2, values).astype(np.float32)


def same(grid: Grid, values: np.ndarray) -> None:
    got, _ = TorchGrid(grid, values.shape, CPU).fake(torch.from_numpy(values.copy()))
    np.testing.assert_array_equal(got.numpy(), grid.fake(values))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(INTEGER_DTYPES),
    st.sampled_from([None, 0, 1, -1]),
    st.sampled_from([None, 2, 4]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_integers(dtype: str, axis: int | None, block_size: int | None, symmetric: bool, seed: int) -> None:
    values = wide((4, 5, 3), seed)
    if axis is None:
        block_size = None
    counts = list(values.shape)
    if block_size is not None:
        counts[axis] = -(-counts[axis] // block_size)
    shape = () if axis is None else tuple(counts) if block_size else (values.shape[axis],)
    peak = np.exp2(np.random.default_rng(seed).uniform(-3, 6, shape)).astype(np.float32)
    scale, zero = grid_for_range(-0.5 * peak, peak, dtype, symmetric=symmetric)
    same(IntegerGrid(dtype, scale, zero, axis, symmetric, block_size=block_size), values)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*FLOAT_DTYPES, *BLOCK_DTYPES]), st.sampled_from([0, 1, 2]), st.integers(0, 10**6))
def test_floats_and_blocks(dtype: str, axis: int, seed: int) -> None:
    values = wide((4, 37, 3), seed)
    scale = np.asarray([0.37, 2.0, 0.001, 5.0], np.float32) if dtype.startswith("float8") else None
    same(RoundedGrid(dtype, 0 if scale is not None else axis, scale), values)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float16", "mxint8"])
def test_gradients_pass_where_the_grid_reaches(dtype: str) -> None:
    values = torch.tensor([0.3, -1.7, 1e6, -1e6], requires_grad=True)
    grid: Grid = RoundedGrid(dtype, 0 if dtype == "mxint8" else None, np.float32(1) if "float8" in dtype else None)
    if dtype == "int8":
        grid = IntegerGrid(dtype, np.asarray(0.1, np.float32), np.asarray(0, np.int8))
    TorchGrid(grid, (4,), CPU).through(values).backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expected = [1.0, 2.0, 3.0, 4.0] if dtype == "mxint8" else [1.0, 2.0, 0.0, 0.0]
    assert values.grad is not None
    assert values.grad.tolist() == expected
