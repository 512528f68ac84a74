"""Small networks finetuned by gradients, and small blocks of one layer whose errors onnxruntime tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.algorithms import AdaQuant, AdaRound
from tests.unit.quantizer.search.benches import samples, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, normal, run_onnx, sqnr_db
from worker.quantizer.finetune.blocks import Block, BlockParameter, BlockSamples, BlockState
from worker.quantizer.finetune.methods import METHODS, Method
from worker.quantizer.finetune.step import FinetuneStep
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid, PerAxis, grid_for_range
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import StepResult
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
) -> tuple[Draft, StepResult]:
    """The draft as calibrated, and what the step made of it; 100 steps unless ``options`` say otherwise."""
    draft, toolkit = toolkit_for(
        model or residual_network(), config(**(INT4 if settings is None else settings)), checkpoint=store, run=run
    )
    options = {"num_iterations": 100, **options}
    spec = AdaRound(solver="gradient", **options) if method == "adaround" else AdaQuant(**options)
    return draft, FinetuneStep(spec).apply(draft, toolkit)


def changed(change: StepResult) -> Draft:
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


Arrays = Mapping[str, np.ndarray]


def method(algorithm: str = "adaround", **options: Any) -> Method:
    options = {"num_iterations": 200, "optim_device": "cpu", **options}
    spec = AdaRound(solver="gradient", **options) if algorithm == "adaround" else AdaQuant(**options)
    return METHODS[algorithm](spec)


def integer_grid(weight: np.ndarray, dtype: str = "int4", axis: int | None = None) -> IntegerGrid:
    others = tuple(k for k in range(weight.ndim) if k != axis)
    peak = np.abs(weight).max(axis=None if axis is None else others)
    scale, zero = grid_for_range(-peak, peak, dtype, symmetric=True)
    return IntegerGrid(dtype, scale, zero, PER_TENSOR if axis is None else PerAxis(axis), symmetric=True)


class Layer:
    """A block made of nodes that make ``y`` of ``x``, with weight ``w`` and perhaps bias ``b``, and the float target.

    The weight's grid is int4 with one scale unless another is given.
    """

    def __init__(
        self,
        text: str,
        x: np.ndarray,
        constants: Arrays,
        *,
        grid: Grid | None = None,
        float_x: np.ndarray | None = None,
        norms: tuple[str, ...] = (),
    ) -> None:
        rank = ",".join("ABCDE"[: x.ndim])
        self._text, self._x = f"(float[{rank}] x) => (float y) {{ {text} }}", x
        self._constants = dict(constants)
        model = make_model(self._text, constants, opset=20, ir_version=9)
        nodes = tuple(ir.from_proto(model).graph)
        floats = x if float_x is None else float_x
        parameters = {}
        if "w" in constants:
            weight = constants["w"]
            found = grid or (None if "w" in norms else integer_grid(weight))
            kind = "norm" if "w" in norms else "weight"
            present = weight if found is None else found.fake(weight)
            parameters["w"] = BlockParameter(weight, found, present, kind, free_scale=isinstance(found, IntegerGrid))
        if "b" in constants:
            parameters["b"] = BlockParameter(constants["b"], None, constants["b"], "bias")
        others = {name: array for name, array in constants.items() if name not in parameters}
        self.state = BlockState(Block(nodes, nodes[:1], nodes[-1].outputs[0]), parameters, others)
        self.samples = BlockSamples({"x": x}, self.run({}, floats), {"x": floats})

    def run(self, replaced: Arrays, x: np.ndarray | None = None) -> np.ndarray:
        """The output by onnxruntime, with other constants."""
        model = make_model(self._text, {**self._constants, **replaced}, opset=20, ir_version=9)
        return run_onnx(model, {"x": self._x if x is None else x}, optimized=False)["y"]

    def error(self, replaced: Arrays) -> float:
        """Mean squared error of the output on the quantized network's input."""
        difference = self.run(replaced).astype(np.float64) - self.samples.target
        return float(np.mean(difference**2))

    def restored(self, integers: np.ndarray) -> np.ndarray:
        grid = self.state.parameters["w"].grid
        assert isinstance(grid, IntegerGrid)
        return grid.dequantize(integers)

    @property
    def nearest(self) -> dict[str, np.ndarray]:
        return {name: parameter.present for name, parameter in self.state.parameters.items()}


def correlated(*shape: int, seed: int = 0) -> np.ndarray:
    """Inputs whose channels (axis 1) hang together, all positive: rounding errors of a weight add up."""
    common = normal(shape[0], 1, *shape[2:], seed=seed)
    values = np.abs(common + 0.4 * normal(*shape, seed=seed + 1))
    return np.ascontiguousarray(values, np.float32)


def conv_layer(text: str = "y = Conv<pads=[1,1,1,1]>(x, w, b)", channels: int = 4, **changes: Any) -> Layer:
    x = correlated(24, channels, 6, 6)
    return Layer(text, x, {"w": normal(6, channels, 3, 3, seed=5, scale=0.3), "b": normal(6, seed=6)}, **changes)
