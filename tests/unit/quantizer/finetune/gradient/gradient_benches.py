"""Small networks finetuned by gradients: a residual block, a classifier, and the drafts before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from service.contracts.algorithms import AdaQuant, AdaRound
from tests.unit.quantizer.precision.benches import samples, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, normal, run_onnx, sqnr_db
from worker.quantizer.finetune.step import FinetuneStep
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import Run

INT4 = {"weight": {"dtype": "int4", "granularity": "per_tensor"}}


def residual_network() -> onnx.ModelProto:
    """A convolution, a residual block of two, a pool and a classifier."""
    weights = {
        "w0": normal(6, 3, 3, 3, seed=1, scale=0.3),
        "w1": normal(6, 6, 3, 3, seed=2, scale=0.2),
        "w2": normal(6, 6, 3, 3, seed=3, scale=0.2),
        "k": normal(6, 5, seed=4, scale=0.4),
        **{f"b{k}": normal(6, seed=5 + k, scale=0.2) for k in range(3)},
    }
    return make_model(
        "(float[N,3,8,8] x) => (float[N,5] y) { [conv0] c0 = Conv<pads=[1,1,1,1]>(x, w0, b0) [relu0] r0 = Relu(c0) "
        "[conv1] c1 = Conv<pads=[1,1,1,1]>(r0, w1, b1) [relu1] r1 = Relu(c1) "
        "[conv2] c2 = Conv<pads=[1,1,1,1]>(r1, w2, b2) [join] s = Add(c2, r0) [relu2] r2 = Relu(s) "
        "[pool] p = GlobalAveragePool(r2) [flat] f = Flatten(p) [dense] y = MatMul(f, k) }",
        weights,
    )


def finetuned(
    method: str = "adaquant",
    settings: dict[str, Any] | None = None,
    *,
    model: onnx.ModelProto | None = None,
    store: CheckpointStore | None = None,
    run: Run | None = None,
    **options: Any,
) -> tuple[Draft, Change]:
    """The draft as calibrated, and what the step made of it; 100 steps unless ``options`` say otherwise."""
    draft, toolkit = toolkit_for(
        model or residual_network(), config(**(INT4 if settings is None else settings)), checkpoint=store, run=run
    )
    options = {"num_iterations": 100, **options}
    spec = AdaRound(solver="gradient", **options) if method == "adaround" else AdaQuant(**options)
    return draft, FinetuneStep(spec).apply(draft, toolkit)


def changed(change: Change) -> Draft:
    """The new draft; there has to be one."""
    assert change.draft is not None, change.summary
    return change.draft


def output_sqnr(draft: Draft, model: onnx.ModelProto | None = None) -> float:
    feeds = {"x": samples()["x"]}
    floats = run_onnx(model or residual_network(), feeds)["y"]
    return sqnr_db(floats, run_onnx(draft.emitted_bytes(), feeds)["y"])


def integers(plan: QuantizationPlan) -> dict[str, np.ndarray]:
    return {name: weight.integers for name, weight in plan.weights.items() if weight.integers is not None}


def grids_stay(before: QuantizationPlan, after: QuantizationPlan) -> None:
    for name, weight in after.weights.items():
        old, grid = before.weights[name].quantization, weight.quantization
        assert isinstance(grid, IntegerGrid) and isinstance(old, IntegerGrid)
        np.testing.assert_array_equal(grid.scale, old.scale)
        np.testing.assert_array_equal(grid.zero_point, old.zero_point)
        assert grid.limits[0] <= weight.integers.min() and weight.integers.max() <= grid.limits[1]
