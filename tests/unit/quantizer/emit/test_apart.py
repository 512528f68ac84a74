"""What onnxruntime runs is what the file says: with its optimizations and without them the outputs agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.each import each
from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    make_model,
    normal,
    op_types,
    quantize_file,
    quantize_model,
    run_onnx,
    sqnr_db,
)

_DEAD = np.array([1, 1e-8, 1, 1], np.float32).reshape(4, 1, 1, 1)
_BIAS = np.array([1, 3, -2, 0.5], np.float32)
FEEDS = {"x": normal(8, 3, 8, 8), "m": normal(64, 3)}


def agree(model: onnx.ModelProto, least_db: float, **settings: Any) -> onnx.ModelProto:
    """Quantize; both ways of running the file have to agree, and to be near the float model."""
    feeds = {value.name: FEEDS[value.name] for value in model.graph.input}
    _, _, emitted = quantize_model(model, feeds, config(**settings))
    return checked(model, emitted, feeds, least_db)


def checked(model: onnx.ModelProto, emitted: onnx.ModelProto, feeds: Arrays, least_db: float) -> onnx.ModelProto:
    exact, run = run_onnx(emitted, feeds, optimized=False)["y"], run_onnx(emitted, feeds)["y"]
    assert sqnr_db(exact, run) > 40
    assert sqnr_db(run_onnx(model, feeds)["y"], exact) > least_db
    return emitted


def convolutions(first: str, bias: np.ndarray = _BIAS, weight: np.ndarray | None = None) -> onnx.ModelProto:
    """Two, the first one as told, between pairs."""
    weights = {"w": normal(4, 3, 1, 1) if weight is None else weight, "v": normal(4, 4, 1, 1), "b": bias}
    return make_model(f"(float[N,3,8,8] x) => (float[N,4,8,8] y) {{ [first] {first} y = Conv(r, v) }}", weights)


@each("activation", ["int16", "uint16"])
@each("bias", ["float32", "float16"])
def test_a_large_bias_in_float_beside_16_bits(activation: str, bias: str) -> None:
    settings = {"activation": {"dtype": activation}, "weight": {"dtype": "int16"}, "bias": {"dtype": bias}}
    agree(convolutions("r = Conv(x, w, b)", 10 * _BIAS), 60, **settings)


@each("bias", ["int32", "float32", "float16"])
@each("first", ["r = Conv(x, w, b)", "c = Conv(x, w, b) r = Relu(c)"])
def test_a_bias_in_float_of_a_dead_channel(bias: str, first: str) -> None:
    emitted = agree(convolutions(first, weight=normal(4, 3, 1, 1) * _DEAD), 35, bias={"dtype": bias})
    assert "Max" not in op_types(emitted)


@each("attributes", ["<alpha=0.01>", "<beta=100.0>", "<alpha=-3.0, beta=0.1>", "<alpha=3.0, beta=0.0>", "<transB=1>"])
@each("bias", ["int32", "float32"])
def test_a_gemm_with_factors(attributes: str, bias: str) -> None:
    weight = normal(3, 4) * np.array([1, 1e-8, 1, 1], np.float32)
    arrays = {"w": weight.T.copy() if "transB" in attributes else weight, "b": 10 * _BIAS, "v": normal(4, 5)}
    text = f"(float[N,3] m) => (float[N,5] y) {{ h = Gemm{attributes}(m, w, b) y = Gemm(h, v) }}"
    agree(make_model(text, arrays), 30, bias={"dtype": bias})


@each("target", ["onnxruntime_cpu", "onnxruntime_gpu", "tensorrt"])
@each("bias", ["float32", "float16"])
def test_a_bias_in_float16(target: str, bias: str, tmp_path: Path) -> None:
    model, feeds = convolutions("c = Conv(x, w, b) r = Relu(c)", 8 * _BIAS), {"x": FEEDS["x"]}
    settings = config(target=target, float_dtype="float16", bias={"dtype": bias})
    checked(model, onnx.load_from_string(quantize_file(tmp_path, model, feeds, settings).model), feeds, 35)


@each("first", ["r = Conv(x, w)", "r = Conv(x, w, b)", "c = Conv(x, w, b) r = Relu(c)"])
def test_a_layer_that_was_excluded_keeps_its_weights(first: str) -> None:
    spread = np.array([1, 1000, 1, 1], np.float32).reshape(4, 1, 1, 1)
    arrays = {"a": normal(3, 3, 1, 1), "w": normal(4, 3, 1, 1) * spread, "v": normal(4, 4, 1, 1)}
    arrays["v"] /= spread.reshape(1, 4, 1, 1)
    body = f"i = Conv(x, a) [first] {first.replace('x', 'i')} y = Conv(r, v)"
    arrays |= {"b": _BIAS} if "b" in first else {}
    model = make_model(f"(float[N,3,8,8] x) => (float[N,4,8,8] y) {{ {body} }}", arrays)
    settings = {"activation": {"dtype": "uint16"}, "weight": {"dtype": "int16"}, "exclude": [{"node": "first"}]}
    assert "Max" in op_types(agree(model, 25, **settings))


@pytest.mark.parametrize("excluded", [False, True])
@pytest.mark.parametrize(
    ("attributes", "in_float"),
    [
        ("strides=[2,2], pads=[1,1,1,1], ceil_mode=1, count_include_pad=1", True),
        ("strides=[2,2], ceil_mode=1, count_include_pad=1", True),
        ("dilations=[2,2]", True),
        ("dilations=[1,1]", False),
        ("pads=[1,1,1,1], count_include_pad=1", False),
    ],
)
def test_average_pools(attributes: str, in_float: bool, excluded: bool) -> None:
    text = f"c = Conv(x, w) [pool] u = AveragePool<kernel_shape=[3,3], {attributes}>(c) y = Conv(u, v)"
    arrays = {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1)}
    model = make_model(f"(float[N,3,8,8] x) => (float[N,4,A,B] y) {{ {text} }}", arrays, opset=19)
    emitted = agree(model, 22, exclude=[{"node": "pool"}] if excluded else [])
    assert ("Max" in op_types(emitted)) == in_float
