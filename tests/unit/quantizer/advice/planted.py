"""Small networks with one damage planted in each, and the config under which it hurts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from tests.unit.quantizer.toolbox import Arrays, make_model, normal

PER_TENSOR: dict[str, Any] = {"weight": {"granularity": "per_tensor"}}
NPU: dict[str, Any] = {"preset": "xint8"}
_APART, _SPLIT = "=> (float[N,1] y, float[N,7] z)", "[apart] y, z = Split<axis=1>(h, n)"
_PARTS = np.array([1, 7])


@dataclass(frozen=True)
class Planted:
    """A damaged network; without evaluation data it is judged on those of the calibration."""

    model: onnx.ModelProto
    calibration: Arrays
    evaluation: Arrays | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def images(count: int = 32, *, seed: int = 0, scale: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": normal(count, 3, 8, 8, seed=seed, scale=scale)}


def rows(count: int = 64, *, seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": normal(count, 16, seed=seed)}


def chain(
    layers: int = 4, *, opset: int = 17, spread: float = 1.0, limit: float | None = None, gain: float = 1.0
) -> onnx.ModelProto:
    """Convolutions with Relu, or Clip(0, limit); channel 0 of layer 1 is ``spread`` times wider, read as much less."""
    weights: dict[str, np.ndarray] = {}
    text, source = "", "x"
    if limit is not None:
        weights |= {"low": np.float32(0), "high": np.float32(limit)}
    for k in range(layers):
        weight = normal(8, 3 if k == 0 else 8, 3, 3, seed=k, scale=0.25 * gain)
        if k == 1:
            weight[0] *= spread
        if k == 2:
            weight[:, 0] /= spread
        weights[f"w{k}"], weights[f"b{k}"] = weight, normal(8, seed=40 + k, scale=0.1)
        act = f"Relu(c{k})" if limit is None else f"Clip(c{k}, low, high)"
        text += f"[conv{k}] c{k} = Conv<pads=[1,1,1,1]>({source}, w{k}, b{k}) [act{k}] r{k} = {act} "
        source = f"r{k}"
    weights["k"] = normal(8, 5, seed=99, scale=0.4)
    text += f"[pool] p = GlobalAveragePool({source}) [flat] f = Flatten(p) [dense] y = MatMul(f, k)"
    return make_model(f"(float[N,3,8,8] x) => (float[N,5] y) {{ {text} }}", weights, opset=opset)


def wide_output() -> onnx.ModelProto:
    """A product whose first output is 1000 times larger than the others, and handed out apart from them."""
    weight = normal(16, 8)
    weight[:, 0] *= 1000.0
    return make_model(f"(float[N,16] x) {_APART} {{ [dense] h = MatMul(x, w) {_SPLIT} }}", {"w": weight, "n": _PARTS})


def wide_bias() -> onnx.ModelProto:
    """A product with one bias far larger than the others, and its output handed out apart from theirs."""
    bias = normal(8, seed=3)
    bias[0] = 1e3
    weights = {"w": normal(16, 8, scale=0.3), "b": bias, "n": _PARTS}
    return make_model(f"(float[N,16] x) {_APART} {{ [dense] h = Gemm(x, w, b) {_SPLIT} }}", weights)


def product() -> onnx.ModelProto:
    """Two products with a Relu between them."""
    text = "(float[N,16] x) => (float[N,8] y) { [one] h = MatMul(x, w) [act] r = Relu(h) [two] y = MatMul(r, v) }"
    return make_model(text, {"w": normal(16, 32, scale=0.25), "v": normal(32, 8, seed=1, scale=0.2)})


def wide_input() -> onnx.ModelProto:
    """A product that reads one channel 300 times larger than the others, and makes as much of it as of the others."""
    spread, weight = np.ones(16, np.float32), normal(16, 8)
    spread[0] = 300.0
    weight[0] /= 300.0
    text = "(float[N,16] x) => (float[N,8] y) { [wide] h = Mul(x, s) [dense] y = MatMul(h, w) }"
    return make_model(text, {"s": spread, "w": weight})


def large_bias(value: float) -> onnx.ModelProto:
    """Convolutions; a bias of the first is far larger than all others."""
    model = chain(3)
    for tensor in model.graph.initializer:
        if tensor.name == "b0":
            bias = np.array(onnx.numpy_helper.to_array(tensor))
            bias[0] = value
            tensor.CopyFrom(onnx.numpy_helper.from_array(bias, "b0"))
    return model


def with_outliers(found: dict[str, np.ndarray], size: float = 300.0) -> dict[str, np.ndarray]:
    """One value in the whole data is far out."""
    x = found["x"].copy()
    x.reshape(-1)[7] = size
    return {"x": x}


def far_out() -> Planted:
    settings = {"activation": {"calibration": {"method": "minmax"}}}
    return Planted(product(), with_outliers(rows(4096)), rows(seed=5), settings)


def narrow_ranges() -> Planted:
    return Planted(
        product(), rows(), None, {"activation": {"calibration": {"method": "percentile", "percentile": 51.0}}}
    )


def other_data() -> Planted:
    return Planted(product(), {"x": 0.02 * rows()["x"]}, rows(seed=5))


def few_weight_levels() -> Planted:
    return Planted(chain(), images(), None, {"weight": {"dtype": "int2", "granularity": "per_channel"}})


def one_bad_layer() -> Planted:
    bad = {"match": {"node": "conv2"}, "weight": {"dtype": "int2", "granularity": "per_tensor"}}
    return Planted(chain(5), images(), None, {"overrides": [bad]})


def large_products() -> Planted:
    """Sums of large products of one sign: two of them do not fit into 16 bits."""
    weight = 1.0 - 0.1 * np.abs(normal(64, 8, seed=2))
    data = {"x": 1.0 - 0.1 * np.abs(normal(64, 64, seed=4))}
    model = make_model("(float[N,64] x) => (float[N,8] y) { [dense] y = MatMul(x, w) }", {"w": weight})
    return Planted(model, data)


# Code of the advice -> where it helps.
PLANTED: dict[str, Callable[[], Planted]] = {
    "keep-function": lambda: Planted(
        chain(limit=6.0, gain=2.5), images(), None, {"preparation": {"clip6_to_relu": True}}
    ),
    "seven-bit-weights": large_products,
    "equalize": lambda: Planted(chain(spread=1000.0), images(), None, PER_TENSOR),
    "per-channel-weights": lambda: Planted(wide_output(), rows(), None, PER_TENSOR),
    "correct-biases": few_weight_levels,
    "round-by-reconstruction": few_weight_levels,
    "wider-biases": lambda: Planted(wide_bias(), rows(), None, {"bias": {"dtype": "int8"}}),
    "wider-weights": few_weight_levels,
    "searched-weight-ranges": few_weight_levels,
    "searched-ranges": lambda: Planted(
        product(), rows(4096), None, {"activation": {"dtype": "uint4", "calibration": {"method": "minmax"}}}
    ),
    "cut-ranges": far_out,
    "whole-ranges": narrow_ranges,
    "smooth-products": lambda: Planted(wide_input(), rows(), None),
    "treat-outlier-channels": lambda: Planted(chain(spread=1000.0), images(), None),
    "wider-activations": lambda: Planted(
        chain(), images(), None, {"activation": {"dtype": "uint4", "calibration": {"method": "minmax"}}}
    ),
    "worst-in-float": one_bad_layer,
    "mixed-precision": one_bad_layer,
    "more-calibration-data": other_data,
}


def healthy() -> Planted:
    return Planted(chain(), images(), images(seed=5), {"preset": "int8"})
