"""Tiny networks with values at the ends of float32 in their weights, constants and data."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import onnx

from service.contracts.config import QuantizationConfig
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import PRESETS
from tests.unit.quantizer.toolbox import config, make_model

_SCORES = "[q] q = MatMul(x, W) [k] k = Transpose<perm=[0,2,1]>(v) [v] v = MatMul(x, W) [s] s = MatMul(q, k) "
# Names of constants are written large.
_NETWORKS = {
    "conv": "(float[N,3,6,6] x) => (float[N,2] y) { [c] a = Conv(x, W4, B) [r] r = Relu(a) [d] d = Conv(r, V4) "
    "[p] p = GlobalAveragePool(d) [f] f = Flatten(p) [g] y = Gemm(f, M, D) }",
    "residual": "(float[N,3,6,6] x) => (float[N,4,4,4] y) { [c] a = Conv(x, W4, B) [n] h = BatchNormalization(a, B, B, "
    "B, P) [h] u = HardSwish(h) [e] e = Add(u, a) [l] y = LeakyRelu(e) }",
    "dense": "(float[N,6] x) => (float[N,4] y, float[N,4] z) { [g] a = Gemm(x, W, B) [t] t = Tanh(a) [u] u = Mul(a, B) "
    "[o] y = Add(u, t) [i] z = Identity(a) }",
    "mask": "(float[N,3,6] x) => (float[N,3,4] y) { " + _SCORES + "[e] e = Add(s, C) [m] m = Softmax<axis=-1>(e) "
    "[o] y = MatMul(m, v) }",
    "fed": "(float[N,3,6] x, float[N,3,3] e) => (float[N,3,3] y) { "
    + _SCORES
    + "[e] t = Add(s, e) [m] y = Softmax(t) }",
    "norm": "(float[N,3,6] x) => (float[N,3,4] y) { [l] l = LayerNormalization(x, G, H) [m] s = Mul(x, x) "
    "[a] a = ReduceMean<axes=[-1]>(s) [e] d = Add(a, O) [r] r = Sqrt(d) [d] u = Div(l, r) [w] y = MatMul(u, W) }",
    "logs": "(float[N,6] x) => (float[N,4] y) { [a] a = Abs(x) [e] e = Add(a, O) [l] l = Log(e) [x] t = Exp(x) "
    "[s] s = Add(l, t) [w] y = MatMul(s, W) }",
    "chosen": "(float[N,6] x) => (float[K,4] y) { [p] p = Greater(x, O) [z] i = NonZero(p) [n] n = Slice(i, I0, I1) "
    "[k] k = Squeeze(n, I0) [g] r = Gather<axis=0>(x, k) [w] y = Gemm(r, W, B) }",
    "pool": "(float[N,3,6,6] x) => (float[N,4,3,3] y) { [c] a = Conv(x, W4, B) [p] p = Pad(a, PADS, O) "
    "[m] m = MaxPool<kernel_shape=[2,2],strides=[2,2]>(p) [k] y = Clip(m, O, T) }",
    "recurrent": "(float[3,N,6] x) => (float[3,1,N,4] y) { [l] y, h = GRU<hidden_size=4>(x, RW, RR) }",
    "turned": "(float[2,3,6] x) => (float[3,2,4] y) { [t] t = Transpose<perm=[1,0,2]>(x) [w] y = MatMul(t, W) }",
}
_SHAPES = {
    "W4": (4, 3, 3, 3), "V4": (3, 4, 3, 3), "B": (4,), "P": (4,), "M": (3, 2), "D": (2,), "W": (6, 4), "C": (1, 3, 3),
    "G": (6,), "H": (6,), "O": (), "T": (), "RW": (1, 12, 6), "RR": (1, 12, 4),
}  # fmt: skip
_INTEGERS = {"I0": np.array([0]), "I1": np.array([1]), "PADS": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
_SCALES = (1e-45, 1e-38, 1e-30, 1e-19, 1e-9, 1e-6, 1e5, 1e10, 1e15, 1e19, 1e25, 1e30, 1e37)
_TINY, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_VALUES = (0.0, -0.0, _TINY, 1e-45, -_MOST, _MOST, -1e4, -1e9)
_INFINITE, _MASKS = (np.inf, -np.inf, -np.inf), ("C", "O", "T", "e")  # others are refused when they are read
_CALIBRATIONS = ("minmax", "percentile", "mse", "entropy", "non_overflow", "distribution", "layerwise_percentile")
_ALGORITHMS = (
    "cross_layer_equalization", "smooth_quant", "bias_correction", "adaround", "adaquant", "outlier_channels",
    "sensitivity", "mixed_precision",
)  # fmt: skip
_EVALUATION = {"advice_seconds": 0, "latency_runs": 1}


def extreme_case(seed: int) -> tuple[str, onnx.ModelProto, dict[str, np.ndarray], QuantizationConfig]:
    """What stands in it, in words, a model, data of four samples, and how to quantize it."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    name = chance.choice(sorted(_NETWORKS))
    told: list[str] = [name]

    def values(what: str, shape: tuple[int, ...]) -> np.ndarray:
        array = np.asarray(numbers.standard_normal(shape) * 0.5)
        kind = chance.choice(("usual",) * 4 + ("scaled", "channel", "constant", "value"))
        value = chance.choice(_SCALES if kind in ("scaled", "channel") else _VALUES + _INFINITE * (what in _MASKS))
        if kind == "scaled":
            array *= value
        elif kind == "channel" and shape:
            array[..., 0] *= chance.choice((0.0, value))
        elif kind == "constant":
            array[...] = value
        elif kind == "value":
            array.reshape(-1)[-1] = value
        if kind != "usual":
            told.append(f"{what} {kind} {value}")
        with np.errstate(over="ignore", under="ignore"):
            return np.where(np.isfinite(array), np.clip(array, -_MOST, _MOST), array).astype(np.float32)

    text = _NETWORKS[name]
    read = set(re.findall(r"\b[A-Z]+[0-9]?\b", text.split("=>")[1].split("{")[1]))
    weights = {key: values(key, shape) for key, shape in _SHAPES.items() if key in read}
    if "P" in weights:
        weights["P"] = np.abs(weights["P"])
    model = make_model(text, weights | {key: array for key, array in _INTEGERS.items() if key in read})
    feeds = {}
    for value in model.graph.input:
        shape = tuple(dim.dim_value or 4 for dim in value.type.tensor_type.shape.dim)
        feeds[value.name] = values(value.name, shape)
    settings = _settings(chance)
    told.append(settings.preset)
    return ", ".join(told), model, feeds, settings


def _settings(chance: random.Random) -> QuantizationConfig:
    """A preset, with another calibration, algorithm, target or type of floats every other time."""
    for _ in range(1000):
        settings: dict[str, Any] = {"preset": chance.choice(sorted(PRESETS)), "evaluation": _EVALUATION}
        if chance.random() < 0.3:
            settings["activation"] = {"calibration": {"method": chance.choice(_CALIBRATIONS)}}
        if chance.random() < 0.4:
            settings["algorithms"] = [{"method": chance.choice(_ALGORITHMS)}]
        if chance.random() < 0.2:
            settings["target"] = chance.choice(("qnn", "amd_npu_cnn", "tensorrt", "openvino", "amd_npu_transformer"))
        if chance.random() < 0.2:
            settings["float_dtype"] = "float16"
        try:
            return config(**settings)
        except InvalidConfigError:
            continue
    raise AssertionError("no settings fit")
