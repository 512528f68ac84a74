"""Bias correction against what it promises: the means of the float network, layer by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    make_model,
    normal,
    quantize_file,
    run_onnx,
    sqnr_db,
)

W4 = {"dtype": "int4", "granularity": "per_tensor"}
NETWORK = (
    "(float[N,3,8,8] x) => (float[N,5] y) { [conv0] c0 = Conv<pads=[1,1,1,1]>(x, w0, b0) [relu0] r0 = Relu(c0) "
    "[conv1] c1 = Conv<pads=[1,1,1,1]>(r0, w1) [relu1] r1 = Relu(c1) [pool] p = GlobalAveragePool(r1) "
    "[flat] f = Flatten(p) [dense] y = MatMul(f, k) }"
)


def network() -> onnx.ModelProto:
    return make_model(
        NETWORK,
        {
            "w0": normal(6, 3, 3, 3, scale=0.3),
            "b0": normal(6, seed=1, scale=0.2),
            "w1": normal(6, 6, 3, 3, seed=2, scale=0.3),
            "k": normal(6, 5, seed=3, scale=0.4),
        },
    )


def samples(count: int = 48) -> Arrays:
    return {"x": normal(count, 3, 8, 8, seed=7) + 0.5}


def quantized(folder, model: onnx.ModelProto, algorithms: list[dict[str, Any]], **settings: Any):  # type: ignore[no-untyped-def]
    given = {"weight": W4, "preset": "plain", **settings}
    return quantize_file(folder, model, samples(), config(algorithms=algorithms, **given))


def correction(mode: str, **options: Any) -> dict[str, Any]:
    return {"method": "bias_correction", "mode": mode, "accept": "always", **options}


def mean_error(model: onnx.ModelProto, emitted: bytes) -> float:
    """Largest difference of the outputs' means, float against quantized."""
    expected, got = run_onnx(model, samples())["y"], run_onnx(emitted, samples())["y"]
    return float(np.abs(expected.astype(np.float64).mean(axis=0) - got.mean(axis=0)).max())


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Any:  # type: ignore[no-untyped-def]
    return quantized(tmp_path_factory.mktemp("plain"), network(), []).model


def test_the_means_of_the_outputs_come_back_and_full_is_nearer_than_fast(tmp_path, plain: bytes) -> None:
    """Where activations clip, the closed form is a little off."""
    model = network()
    fast, full = (quantized(tmp_path, model, [correction(mode)]) for mode in ("fast", "full"))
    assert mean_error(model, full.model) <= mean_error(model, fast.model) < 0.4 * mean_error(model, plain)
    for corrected in (fast, full):
        (outcome,) = corrected.report.algorithms
        assert outcome.kept and outcome.nodes >= 2
    expected, before, after = (run_onnx(found, samples())["y"] for found in (model, plain, full.model))
    assert sqnr_db(expected, after) > sqnr_db(expected, before)
    # a missing bias is made, and stored as integers
    emitted = onnx.load_from_string(full.model)
    made = {name: node for node in emitted.graph.node for name in node.output}
    stored = {tensor.name: tensor.data_type for tensor in emitted.graph.initializer}
    sources = [made[node.input[2]] for node in emitted.graph.node if node.op_type == "Conv"]
    assert [node.op_type for node in sources] == ["DequantizeLinear"] * 2
    assert {stored[node.input[0]] for node in sources} == {onnx.TensorProto.INT32}


def test_the_number_of_samples_counts(tmp_path) -> None:
    few, all_of_them = (quantized(tmp_path, network(), [correction("full", data_size=size)]) for size in (2, None))
    assert few.model != all_of_them.model


@pytest.mark.parametrize("mode", ["fast", "full"])
@pytest.mark.parametrize(("of", "dtype"), [("weights_only", "int4"), ("dynamic", "int8")])
def test_means_come_back_where_activations_have_no_grid(tmp_path, of: str, dtype: str, mode: str) -> None:
    """Ranges at run time say nothing of means: 8 bits with one weight scale for all channels lose them too."""
    model = network()
    wide = model.graph.initializer[2]
    assert wide.name == "w1"
    weight = onnx.numpy_helper.to_array(wide) * np.array([20, 1, 1, 1, 1, 1], np.float32)[:, None, None, None]
    wide.CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    settings = {"mode": of, "weight": {"dtype": dtype, "granularity": "per_tensor"}}
    plain = quantized(tmp_path, model, [], **settings)
    corrected = quantized(tmp_path, model, [correction(mode)], **settings)
    assert mean_error(model, corrected.model) < 0.6 * mean_error(model, plain.model)
    types = [node.op_type for node in onnx.load_from_string(corrected.model).graph.node]
    assert of == "dynamic" or ("MatMul" in types and "Gemm" not in types)  # a product of matrices stays one
