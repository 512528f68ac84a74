"""Ranges of tensors that an activation function alone reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.contracts.algorithms import BiasCorrection
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.toolbox import config, make_model, normal
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range
from worker.quantizer.plan.grids import activation_grid
from worker.quantizer.refine.draft import Draft

PICTURES = normal(24, 3, 8, 8, seed=1, scale=4.0)
WEIGHTS = {"w": normal(4, 3, 3, 3, seed=2), "v": normal(2, 4, 1, 1, seed=3)}
HEAD = "(float[N, 3, 8, 8] x) => (float[N, 2, 6, 6] y) { c = Conv (x, w) "
SILU = HEAD + "s = Sigmoid (c)  m = Mul (c, s)  y = Conv (m, v) }"


def calibrated(text: str, **activation: Any) -> Draft:
    made = config(preset="plain", activation={"calibration": {"method": "minmax"}, **activation}, algorithms=[])
    return Bench(make_model(text, WEIGHTS), {"x": PICTURES}, BiasCorrection(), made).draft


def operand() -> np.ndarray:
    """What the first convolution makes."""
    windows = np.lib.stride_tricks.sliding_window_view(PICTURES, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, WEIGHTS["w"]).astype(np.float32)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x.astype(np.float64)))


def behind(grid: IntegerGrid, values: np.ndarray) -> float:
    return float(np.square(silu(grid.fake(values)) - silu(values)).sum())


@pytest.mark.parametrize(
    "spec",
    [{}, {"dtype": "int8", "symmetric": True}, {"dtype": "int8", "symmetric": True, "scale": "power_of_two"}],
    ids=["uint8", "int8", "power of two"],
)
def test_no_range_leaves_a_smaller_error_behind_the_function(spec: dict[str, Any]) -> None:
    draft, values = calibrated(SILU, **spec), operand()
    entry = draft.plan.activations["c"]
    assert isinstance(entry.quantization, IntegerGrid)
    made = behind(entry.quantization, values)
    low, high = float(values.min()), float(values.max())
    tried = [(low * a, high * b) for a in np.linspace(0.02, 1, 30) for b in np.linspace(0.4, 1, 13)]
    scale = entry.spec.scale
    grids = [
        IntegerGrid(
            entry.spec.dtype,
            *grid_for_range(
                np.asarray(a), np.asarray(b), entry.spec.dtype, symmetric=entry.spec.symmetric, scale=scale
            ),
            symmetric=entry.spec.symmetric,
        )
        for a, b in tried
    ]
    assert made <= 1.05 * min(behind(grid, values) for grid in grids)
    if not spec:
        whole = activation_grid(entry.spec, type(draft.plan.ranges["c"])(low, high))
        assert made < 0.5 * behind(whole, values)
        assert draft.plan.ranges["c"].minimum > 0.5 * low
        assert any("activation function" in note for note in draft.plan_log.notes)


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "s = Sigmoid (c)  m = Mul (c, s)  d = Conv (m, v)  e = Conv (c, v)  y = Add (d, e) }",
        HEAD + "s = Sigmoid (c)  m = Mul (s, s)  d = Conv (c, v)  e = Conv (m, v)  y = Add (d, e) }",
        HEAD + "s = Relu (c)  y = Conv (s, v) }",
    ],
    ids=["another reader", "another product", "fused"],
)
def test_what_keeps_its_range(text: str) -> None:
    draft, values = calibrated(text), operand()
    assert not any("activation function" in note for note in draft.plan_log.notes)
    found = draft.plan.ranges.get("c")
    assert found is None or found.minimum == pytest.approx(values.min(), rel=1e-5)
