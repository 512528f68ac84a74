"""Preparation flags through the whole pipeline: the report stays right, and the emitted model is what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.errors import DatasetMismatchError, InvalidConfigError
from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    data,
    make_model,
    network,
    normal,
    quantize_file,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.pipeline import Result
from worker.quantizer.preparation.layout import take_nhwc

IMAGES = data(16)


def quantized(folder: Path, model: onnx.ModelProto, samples: dict[str, np.ndarray] = IMAGES, **flags: Any) -> Result:
    return quantize_file(folder, model, samples, config(preparation=flags))


def input_shapes(model: onnx.ModelProto) -> dict[str, list[int | str]]:
    return {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }


def test_a_model_that_takes_nhwc_computes_the_same(tmp_path: Path) -> None:
    plain = quantized(tmp_path, network())
    turned = quantized(tmp_path, network(), nhwc_input=True)
    first, second = onnx.load_from_string(plain.model), onnx.load_from_string(turned.model)
    onnx.checker.check_model(second, full_check=True)
    assert input_shapes(first) == {"x": ["N", 3, 10, 10]}
    assert input_shapes(second) == {"x": ["N", 10, 10, 3]}
    nhwc = np.ascontiguousarray(IMAGES["x"].transpose(0, 2, 3, 1))
    expected = run_onnx(plain.model, {"x": IMAGES["x"]}, optimized=False)["scores"]
    np.testing.assert_array_equal(run_onnx(turned.model, {"x": nhwc}, optimized=False)["scores"], expected)
    assert turned.report.fidelity == plain.report.fidelity
    assert turned.report.float_.metrics == plain.report.float_.metrics
    assert turned.report.quantized.metrics == plain.report.quantized.metrics
    timeless = [
        [row.model_copy(update={"latency_percent": None}) for row in report.layers]
        for report in (turned.report, plain.report)
    ]
    assert timeless[0] == timeless[1]
    said = next(found for found in turned.report.preparation if found.name == "nhwc_input")
    assert said.detail == "1 inputs of the quantized model take NHWC"


def test_only_inputs_of_four_axes_take_nhwc(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,3,6,6] x, float[N,4] z) => (float[N,4] y) "
        "{ t = Conv(x, w) p = GlobalAveragePool(t) f = Flatten(p) y = Add(f, z) }",
        {"w": normal(4, 3, 3, 3)},
    )
    samples = {"x": normal(8, 3, 6, 6), "z": normal(8, 4)}
    result = quantized(tmp_path, model, samples, nhwc_input=True)
    assert input_shapes(onnx.load_from_string(result.model)) == {"x": ["N", 6, 6, 3], "z": ["N", 4]}
    assert result.report.fidelity.sqnr_db > 25
    said = next(found for found in result.report.preparation if found.name == "nhwc_input")
    assert said.detail.endswith("; z stays: it does not have 4 axes")


def test_nhwc_reaches_into_subgraphs() -> None:
    model = make_model(
        "(float[1,3,4,5] x, bool go) => (float[1,3,4,5] y) { t = Relu(x) y = If(go) <"
        "then_branch = a () => (float[1,3,4,5] p) { p = Add(x, t) }, "
        "else_branch = b () => (float[1,3,4,5] q) { q = Neg(x) }> }"
    )
    turned = take_nhwc(model.SerializeToString(), ["x"])
    x = normal(1, 3, 4, 5)
    for go in (True, False):
        feeds = {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "go": np.array(go)}
        expected = run_onnx(model, {"x": x, "go": np.array(go)})["y"]
        np.testing.assert_array_equal(run_onnx(turned, feeds)["y"], expected)


def test_fixed_shapes_reach_the_data_and_the_emitted_model(tmp_path: Path) -> None:
    result = quantized(tmp_path, network(), data(7), fixed_shapes={"x": [2, 3, 10, 10]})
    emitted = onnx.load_from_string(result.model)
    assert input_shapes(emitted) == {"x": [2, 3, 10, 10]}
    assert [axis.dim_value for axis in emitted.graph.output[0].type.tensor_type.shape.dim] == [2, 5]
    assert result.report.fidelity.samples == 7
    assert result.report.fidelity.sqnr_db > 20


def test_fixed_shapes_that_fit_no_input_or_no_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        quantized(tmp_path, network(), fixed_shapes={"image": [1, 3, 10, 10]})
    assert caught.value.errors[0].pointer == "/config/preparation/fixed_shapes/image"
    wide = make_model(
        "(float[N,3,H,W] x) => (float[N,4,1,1] y) { t = Conv(x, w) y = GlobalAveragePool(t) }",
        {"w": normal(4, 3, 3, 3)},
    )
    with pytest.raises(DatasetMismatchError):
        quantized(tmp_path, wide, {"x": IMAGES["x"]}, fixed_shapes={"x": [1, 3, 12, 12]})


def test_clip6_to_relu_is_measured_against_the_model_as_uploaded(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,3,8,8] x) => (float[N,4,6,6] y) { t = Conv(x, w) y = Clip(t, low, high) }",
        {"w": normal(4, 3, 3, 3, scale=3), "low": np.float32(0), "high": np.float32(6)},
    )
    samples = {"x": normal(16, 3, 8, 8)}
    plain = quantized(tmp_path, model, samples)
    changed = quantized(tmp_path, model, samples, clip6_to_relu=True)
    expected = run_onnx(model, samples)["y"]
    got = run_onnx(changed.model, samples)["y"]
    assert changed.report.fidelity.sqnr_db == pytest.approx(sqnr_db(expected, got), abs=0.5)
    assert changed.report.fidelity.sqnr_db < 10 < plain.report.fidelity.sqnr_db


ALL_FLAGS = {
    "batch_norm_to_conv": True,
    "reduce_mean_to_global_average_pool": True,
    "split_large_pooling": True,
    "split_to_slice": True,
    "unshare_initializers": True,
    "nhwc_input": True,
    "opset": 21,
}


def test_all_flags_together(tmp_path: Path) -> None:
    model = make_model(
        f"(float[N,3,32,32] x) => (float[N,8] y) {{ {batchnorm_text('x', 'i', prefix='in')} "
        f"a = Conv<pads=[1,1,1,1]>(i, w, b) {batchnorm_text('a', 'c')} r = Relu(c) p, q = Split<axis=1>(r) "
        "d = Conv<pads=[1,1,1,1]>(p, v) e = Conv<pads=[1,1,1,1]>(q, v) s = Add(d, e) "
        "g = GlobalAveragePool(s) h = ReduceMean<axes=[2,3]>(s) j = Add(g, h) f = Flatten(j) y = MatMul(f, k) }",
        {
            **batchnorm_weights(3, "in"),
            **batchnorm_weights(8),
            "w": normal(8, 3, 3, 3, scale=0.3),
            "b": normal(8),
            "v": normal(8, 4, 3, 3, scale=0.2),
            "k": normal(8, 8),
        },
    )
    result = quantized(tmp_path, model, {"x": normal(12, 3, 32, 32)}, **ALL_FLAGS)
    applied = {found.name for found in result.report.preparation if found.applied}
    assert {*ALL_FLAGS} - {"opset"} <= applied
    assert "lift_opset" in applied
    kinds = [node.op_type for node in onnx.load_from_string(result.model).graph.node]
    assert not {"Split", "BatchNormalization", "ReduceMean"} & set(kinds)
    assert result.report.fidelity.sqnr_db > 20
    again = quantized(tmp_path, model, {"x": normal(12, 3, 32, 32)}, **ALL_FLAGS)
    assert again.model == result.model


def test_step_names_are_distinct(tmp_path: Path) -> None:
    names = [found.name for found in quantized(tmp_path, network()).report.preparation]
    assert len(set(names)) == len(names)


def test_a_model_in_which_nothing_is_quantized_keeps_its_interface(tmp_path: Path) -> None:
    model = make_model("(float[N,3,4,4] x) => (float[N,3,4,4] y) { y = Softmax<axis=1>(x) }")
    result = quantized(tmp_path, model, {"x": normal(4, 3, 4, 4)}, nhwc_input=True)
    assert result.model == (tmp_path / "float.onnx").read_bytes()
    assert result.report.fidelity.top1_agreement == 100.0
