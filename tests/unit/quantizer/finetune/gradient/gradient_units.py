"""Small units for the tests of the gradient solver: one layer, its samples, and errors by onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import AdaQuant, AdaRound
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.finetune.adaquant import AdaQuantMethod
from worker.quantizer.finetune.adaround import AdaRoundMethod
from worker.quantizer.finetune.reconstruction.layers import operation_of
from worker.quantizer.finetune.reconstruction.method import Method
from worker.quantizer.finetune.reconstruction.unit import Parameter, Samples, Unit
from worker.quantizer.numerics.granularity import PER_TENSOR, PerAxis
from worker.quantizer.numerics.grids import Grid
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range

Arrays = Mapping[str, np.ndarray]


def method(algorithm: str = "adaround", **options: Any) -> Method:
    options = {"num_iterations": 200, "optim_device": "cpu", **options}
    if algorithm == "adaround":
        return AdaRoundMethod(AdaRound(solver="gradient", **options))
    return AdaQuantMethod(AdaQuant(**options))


def integer_grid(weight: np.ndarray, dtype: str = "int4", axis: int | None = None) -> IntegerGrid:
    others = tuple(k for k in range(weight.ndim) if k != axis)
    peak = np.abs(weight).max(axis=None if axis is None else others)
    scale, zero = grid_for_range(-peak, peak, dtype, symmetric=True)
    return IntegerGrid(dtype, scale, zero, PER_TENSOR if axis is None else PerAxis(axis), symmetric=True)


class Layer:
    """A unit made of ONNX text, whose target is what onnxruntime computes.

    Args:
        text: nodes that make ``y`` of ``x``, with weight ``w`` and perhaps bias ``b``; other names are constants.
        x: the quantized network's input.
        constants: by name.
        grid: of the weight; None: int4, one scale.
        float_x: the float network's input; default the same.
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
        operations = tuple(operation_of(node) for node in ir.from_proto(model).graph)
        floats = x if float_x is None else float_x
        parameters = {}
        if "w" in constants:
            weight = constants["w"]
            found = grid or (None if "w" in norms else integer_grid(weight))
            kind = "norm" if "w" in norms else "weight"
            present = weight if found is None else found.fake(weight)
            parameters["w"] = Parameter(weight, found, present, kind, free_scale=isinstance(found, IntegerGrid))
        if "b" in constants:
            parameters["b"] = Parameter(constants["b"], None, constants["b"], "bias")
        others = {name: array for name, array in constants.items() if name not in parameters}
        self.unit = Unit("layer", operations, "y", parameters, others)
        self.samples = Samples({"x": x}, self.run({}, floats), {"x": floats})

    def run(self, replaced: Arrays, x: np.ndarray | None = None) -> np.ndarray:
        """The output by onnxruntime, with other constants."""
        model = make_model(self._text, {**self._constants, **replaced}, opset=20, ir_version=9)
        return run_onnx(model, {"x": self._x if x is None else x}, optimized=False)["y"]

    def error(self, replaced: Arrays) -> float:
        """Mean squared error of the output on the quantized network's input."""
        difference = self.run(replaced).astype(np.float64) - self.samples.target
        return float(np.mean(difference**2))

    def restored(self, integers: np.ndarray) -> np.ndarray:
        grid = self.unit.parameters["w"].grid
        assert isinstance(grid, IntegerGrid)
        return grid.dequantize(integers)

    @property
    def nearest(self) -> dict[str, np.ndarray]:
        return {name: parameter.present for name, parameter in self.unit.parameters.items()}


def correlated(*shape: int, seed: int = 0) -> np.ndarray:
    """Inputs whose channels (axis 1) hang together, all positive: rounding errors of a weight add up."""
    common = normal(shape[0], 1, *shape[2:], seed=seed)
    values = np.abs(common + 0.4 * normal(*shape, seed=seed + 1))
    return np.ascontiguousarray(values, np.float32)


def conv_layer(text: str = "y = Conv<pads=[1,1,1,1]>(x, w, b)", channels: int = 4, **changes: Any) -> Layer:
    x = correlated(24, channels, 6, 6)
    return Layer(text, x, {"w": normal(6, channels, 3, 3, seed=5, scale=0.3), "b": normal(6, seed=6)}, **changes)
