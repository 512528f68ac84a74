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


@pytest.mark.parametrize("mode", ["fast", "full"])
def test_the_means_of_the_outputs_come_back(tmp_path, mode: str) -> None:
    model = network()
    plain = quantized(tmp_path, model, [])
    corrected = quantized(tmp_path, model, [correction(mode)])
    assert mean_error(model, corrected.model) < 0.4 * mean_error(model, plain.model)
    (outcome,) = corrected.report.algorithms
    assert outcome.kept
    assert outcome.nodes >= 2


def test_full_is_nearer_than_fast_where_activations_clip(tmp_path) -> None:
    model = network()
    fast = quantized(tmp_path, model, [correction("fast")])
    full = quantized(tmp_path, model, [correction("full")])
    assert mean_error(model, full.model) <= mean_error(model, fast.model)
    expected = run_onnx(model, samples())["y"]
    plain = quantized(tmp_path, model, [])
    assert sqnr_db(expected, run_onnx(full.model, samples())["y"]) > sqnr_db(
        expected, run_onnx(plain.model, samples())["y"]
    )


def test_a_missing_bias_is_made_and_stored_as_integers(tmp_path) -> None:
    emitted = onnx.load_from_string(quantized(tmp_path, network(), [correction("full")]).model)
    convolutions = [node for node in emitted.graph.node if node.op_type == "Conv"]
    assert all(len(node.input) == 3 for node in convolutions)
    made = {name: node for node in emitted.graph.node for name in node.output}
    stored = {tensor.name: tensor for tensor in emitted.graph.initializer}
    for node in convolutions:
        dequantize = made[node.input[2]]
        assert dequantize.op_type == "DequantizeLinear"
        assert stored[dequantize.input[0]].data_type == onnx.TensorProto.INT32


def test_int8_biases_of_their_own_grid_are_corrected(tmp_path) -> None:
    model = network()
    settings = {
        "activation": {"scale": "power_of_two", "symmetric": True},
        "weight": {"dtype": "int4", "granularity": "per_tensor", "scale": "power_of_two"},
        "bias": {"dtype": "int8"},
    }
    plain = quantized(tmp_path, model, [], **settings)
    corrected = quantized(tmp_path, model, [correction("full")], **settings)
    assert mean_error(model, corrected.model) < mean_error(model, plain.model)
    stored = {tensor.name: tensor for tensor in onnx.load_from_string(corrected.model).graph.initializer}
    assert any(tensor.data_type == onnx.TensorProto.INT8 and "b0" in name for name, tensor in stored.items())


@pytest.mark.parametrize(
    ("layer", "weight", "shape"),
    [
        ("Conv<pads=[1,1]>(x, w)", (6, 4, 3), (32, 4, 12)),
        ("Conv(x, w)", (6, 4, 1, 1, 1), (32, 4, 3, 3, 3)),
        ("Conv<group=2>(x, w)", (6, 2, 1, 1), (32, 4, 5, 5)),
        ("ConvTranspose(x, w)", (4, 6, 1, 1), (32, 4, 5, 5)),
        ("Gemm<transB=1>(x, w)", (6, 4), (64, 4)),
        ("MatMul(x, w)", (4, 6), (64, 4)),
    ],
)
def test_all_linear_operators(tmp_path, layer: str, weight: tuple[int, ...], shape: tuple[int, ...]) -> None:
    dims = ",".join(["N", *map(str, shape[1:])])
    rank = ",".join(["N", *(f"o{k}" for k in range(len(shape) - 1))])
    text = f"(float[{dims}] x) => (float[{rank}] y) {{ [it] t = {layer} [act] y = Relu(t) }}"
    model = make_model(text, {"w": normal(*weight, seed=4)})
    feeds = {"x": normal(*shape, seed=5) + 1.0}

    def error(algorithms: list[dict[str, Any]]) -> float:
        settings = config(algorithms=algorithms, preset="plain", weight=W4)
        emitted = quantize_file(tmp_path, model, feeds, settings).model
        difference = run_onnx(model, feeds)["y"].astype(np.float64) - run_onnx(emitted, feeds)["y"]
        axes = tuple(k for k in range(difference.ndim) if k != 1)
        return float(np.abs(difference.mean(axis=axes)).max())

    assert error([correction("full")]) < 0.5 * error([]) + 1e-3


def test_options_have_their_effect(tmp_path) -> None:
    model = make_model(
        "(float[N,3,4] x) => (float[N,3,6] y) { [it] t = MatMul(x, w) [soft] y = Softmax(t) }",
        {"w": normal(4, 6, seed=4)},
    )
    feeds = {"x": normal(64, 3, 4, seed=5) + 1.0}

    def operators(**options: Any) -> list[str]:
        settings = config(algorithms=[correction("full", **options)], preset="plain", weight=W4)
        emitted = onnx.load_from_string(quantize_file(tmp_path, model, feeds, settings).model)
        return [node.op_type for node in emitted.graph.node]

    assert "Add" in operators()
    assert "Add" not in operators(insert_add=False)
    all_of_them = quantized(tmp_path, network(), [correction("full", data_size=None)]).model
    assert quantized(tmp_path, network(), [correction("full", data_size=2)]).model != all_of_them


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


def test_with_weights_alone_a_product_of_matrices_stays_one(tmp_path) -> None:
    corrected = quantized(tmp_path, network(), [correction("full")], mode="weights_only")
    types = [node.op_type for node in onnx.load_from_string(corrected.model).graph.node]
    assert "MatMul" in types and "Gemm" not in types
