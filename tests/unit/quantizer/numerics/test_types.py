"""Every mix of integer types, scales and granularities: the file is valid, runs, and does what the plan says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from service.contracts.dtypes import NUMBER_TYPES, bits_of
from service.contracts.errors import UnsupportedModelError
from tests.support.simulator import simulate
from tests.unit.quantizer.toolbox import (
    config,
    data,
    make_model,
    network,
    normal,
    quantize_file,
    quantize_model,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.numerics.minifloat import FloatGrid

FEEDS = {"x": data(32)["x"]}
TYPES = [
    (activation, weight, symmetric, granularity)
    for activation in ("uint8", "int8", "uint16", "int16")
    for weight in ("int8", "uint8", "int16", "int4", "uint4", "int2", "uint2")
    for symmetric in (True, False)
    for granularity in ("per_tensor", "per_channel", "per_block")
]


def settings(activation: str, weight: str, symmetric: bool, granularity: str, **more: object) -> object:
    return config(
        activation={"dtype": activation, "symmetric": symmetric, **more},
        weight={"dtype": weight, "symmetric": symmetric, "granularity": granularity, "block_size": 3, **more},
    )


@pytest.mark.parametrize(("activation", "weight", "symmetric", "granularity"), TYPES)
def test_every_mix_of_integers_runs_as_planned(activation: str, weight: str, symmetric: bool, granularity: str) -> None:
    wanted = settings(activation, weight, symmetric, granularity)
    prepared, plan, model = quantize_model(network(opset=max(21, NUMBER_TYPES[weight].opset)), FEEDS, wanted)
    onnx.checker.check_model(model, full_check=True)
    got = run_onnx(model, FEEDS)["scores"]
    simulated = simulate(prepared.model, plan, FEEDS)["scores"]
    # softmax scores; one step of an activation grid, passed on through the network
    assert np.abs(got - simulated).max() < (2e-2 if activation in ("uint8", "int8") else 2e-4)
    if bits_of(weight) >= 8:
        assert sqnr_db(run_onnx(network(opset=21), FEEDS)["scores"], got) > 40
    dtypes = {
        onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        for tensor in model.graph.initializer
        if tensor.name.endswith("_quantized") and tensor.name != "one_quantized"
    }
    assert dtypes == {weight, "int32"}


@pytest.mark.parametrize("kind", ["power_of_two", "int16"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_snapped_scales_stand_in_the_file(kind: str, symmetric: bool) -> None:
    _, _, model = quantize_model(
        network(opset=21), FEEDS, settings("int8", "int8", symmetric, "per_channel", scale=kind)
    )
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "DequantizeLinear"]
    # the scale of an int32 bias is the product of two
    scales = [stored[node.input[1]].astype(np.float64) for node in nodes if stored[node.input[2]].dtype != np.int32]
    assert len(scales) > 5
    for scale in scales:
        if kind == "power_of_two":
            assert (np.log2(scale) == np.round(np.log2(scale))).all()
        else:
            assert (scale * 2**16 == np.round(scale * 2**16)).all()


@pytest.mark.parametrize("bias", ["int8", "int16", "float32"])
def test_biases_of_other_types(bias: str) -> None:
    wanted = config(bias={"dtype": bias}, activation={"dtype": "int16", "symmetric": True}, weight={"dtype": "int16"})
    prepared, plan, model = quantize_model(network(opset=21), FEEDS, wanted)
    got = run_onnx(model, FEEDS)["scores"]
    assert sqnr_db(simulate(prepared.model, plan, FEEDS)["scores"], got) > 60
    planned = [entry for entry in plan.biases.values() if entry.integers is not None]
    assert (len(planned) == 0) == (bias == "float32")
    assert all(entry.integers.dtype == bias for entry in planned)
    if bias == "float32":
        assert {str(entry.reason) for entry in plan.biases.values()} == {"bias dtype is float32"}


HALF = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@pytest.mark.parametrize("bias", HALF)
@pytest.mark.parametrize(("activation", "weight"), [("uint8", "int8"), ("int16", "int16"), ("bfloat16", "mxint8")])
@pytest.mark.parametrize("target", ["onnxruntime_cpu", "onnxruntime_gpu"])
def test_biases_of_half_the_bits(bias: str, activation: str, weight: str, target: str) -> None:
    wanted = config(bias={"dtype": bias}, activation={"dtype": activation}, weight={"dtype": weight}, target=target)
    prepared, plan, model = quantize_model(network(opset=21), FEEDS, wanted)
    onnx.checker.check_model(model, full_check=True)
    entries = list(plan.biases.values())
    assert all(entry.is_half and entry.integers is None for entry in entries)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for entry in entries:
        tensor = stored[f"{entry.initializer}_quantized"]
        assert tensor.data_type == HALF[bias]
        array = prepared.graph.initializers[entry.initializer].const_value.numpy()
        np.testing.assert_array_equal(
            onnx.numpy_helper.to_array(tensor).astype(np.float32), FloatGrid(bias).fake(array)
        )
        assert entry.initializer not in stored
    assert sqnr_db(simulate(prepared.model, plan, FEEDS)["scores"], run_onnx(model, FEEDS)["scores"]) > 50


def test_a_half_bias_saturates_and_is_stored_once() -> None:
    weights = {"w": normal(4, 3, 1, 1), "b": np.array([1e9, -1e9, 1, 0], np.float32)}
    text = "(float[N,3,4,4] x) => (float[N,4,4,4] y) { s = Conv(x, w, b) u = Sin(x) t = Conv(u, w, b) y = Add(s, t) }"
    _, _, model = quantize_model(
        make_model(text, weights), {"x": normal(4, 3, 4, 4)}, config(bias={"dtype": "float16"})
    )
    stored = [tensor for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT16]
    assert [onnx.numpy_helper.to_array(tensor).tolist() for tensor in stored] == [[65504, -65504, 1, 0]]


@pytest.mark.parametrize(
    "algorithms",
    [
        [{"method": "bias_correction", "accept": "always"}],
        [{"method": "cross_layer_equalization", "accept": "always"}],
        [{"method": "adaquant", "accept": "always", "num_iterations": 20}],
    ],
)
def test_algorithms_move_a_half_bias(tmp_path: Path, algorithms: list[dict[str, object]]) -> None:
    wanted = config(bias={"dtype": "float16"}, algorithms=algorithms)
    result = quantize_file(tmp_path, network(), data(), wanted)
    plain = quantize_file(tmp_path, network(), data(), config(bias={"dtype": "float16"}))
    assert result.report.algorithms[0].kept
    assert result.model != plain.model
    assert result.report.fidelity.sqnr_db > plain.report.fidelity.sqnr_db - 3
    stored = onnx.load_from_string(result.model).graph.initializer
    assert sum(tensor.data_type == TensorProto.FLOAT16 for tensor in stored) >= 2


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel", "per_block"])
@pytest.mark.parametrize(("symmetric", "levels"), [(True, 3), (False, 4)])
@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_2_bit_weights_have_few_levels_and_a_quarter_of_a_byte(
    dtype: str, symmetric: bool, levels: int, granularity: str
) -> None:
    """Worked out anew from what the file holds."""
    weight = normal(64, 48, scale=0.1)
    model = make_model("(float[N,64] x) => (float[N,48] y) { y = MatMul(x, w) }", {"w": weight}, opset=25)
    spec = {"dtype": dtype, "symmetric": symmetric, "granularity": granularity, "block_size": 16}
    feeds = {"x": normal(8, 64)}
    _, _, made = quantize_model(model, feeds, config(activation={"dtype": "int16"}, weight=spec))
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    assert len(stored["w_quantized"].raw_data) == weight.size // 4
    integers = onnx.numpy_helper.to_array(stored["w_quantized"]).astype(np.float64)
    assert np.unique(integers).size <= (levels if dtype == "int2" else 4)
    spread = {}
    for role in ("scale", "zero_point"):
        array = onnx.numpy_helper.to_array(stored[f"w_{role}"]) if f"w_{role}" in stored else np.zeros(())
        spread[role] = np.repeat(array, 16, axis=0) if granularity == "per_block" and array.ndim else array
    represented = (integers - spread["zero_point"]) * spread["scale"]
    within = (represented.min() <= weight) & (weight <= represented.max())
    assert (np.abs(represented - weight) <= 0.5001 * spread["scale"])[within].all()
    got = run_onnx(made, feeds)["y"]
    assert sqnr_db(feeds["x"] @ represented.astype(np.float32), got) > 60


def test_a_model_is_lifted_to_the_opset_of_2_bit_weights(tmp_path: Path) -> None:
    result = quantize_file(
        tmp_path, network(), data(), config(weight={"dtype": "int2", "calibration": {"method": "mse"}})
    )
    model = onnx.load_from_string(result.model)
    assert [entry.version for entry in model.opset_import if not entry.domain] == [25]
    assert np.isfinite(run_onnx(model, FEEDS)["scores"]).all()
    with pytest.raises(UnsupportedModelError, match="int2 need opset 25, the model has 21"):
        quantize_model(network(opset=21), FEEDS, config(weight={"dtype": "int2"}))


def test_reduced_ranges_leave_a_bit_unused() -> None:
    _, plan, _ = quantize_model(network(), FEEDS, settings("uint8", "int8", True, "per_channel", reduce_range=True))
    for weight in plan.weights.values():
        assert np.abs(weight.integers.astype(int)).max() == 64


def test_below_opset_21_wide_types_use_the_domain_of_the_runtime() -> None:
    _, _, model = quantize_model(network(), FEEDS, settings("uint16", "int8", False, "per_channel"))
    domains = {node.domain for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert domains == {"com.microsoft"}
    assert sqnr_db(run_onnx(network(), FEEDS)["scores"], run_onnx(model, FEEDS)["scores"]) > 40
