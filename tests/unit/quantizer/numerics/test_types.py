"""Every mix of types, scales and granularities: the file is valid, and the runtime computes what the plan says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from service.contracts.specs import BLOCK_DTYPES, FLOAT_DTYPES, NUMBER_TYPES, bits_of
from tests.support.each import each
from tests.support.simulator import simulate
from tests.unit.quantizer.toolbox import (
    config,
    data,
    make_model,
    network,
    normal,
    plan_for,
    quantize_file,
    quantize_model,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.numerics.blocks import FloatGrid
from worker.quantizer.numerics.integer import PerBlock
from worker.quantizer.plan.grids import fill_activations

FEEDS = {"x": data(32)["x"]}
# Every pair of two, and each weight with all granularities.
ACTIVATIONS = ("uint8", "int8", "uint16", "int16")
WEIGHTS = ("int8", "uint8", "int16", "int4", "uint4", "int2", "uint2")
GRANULARITIES = ("per_tensor", "per_channel", "per_block")
TYPES = [
    (ACTIVATIONS[(k + j) % 4], weight, (k // 2 + j) % 2 == 0, granularity)
    for k, weight in enumerate(WEIGHTS)
    for j, granularity in enumerate(GRANULARITIES)
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


@each(("kind", "symmetric"), [("power_of_two", True), ("power_of_two", False), ("int16", True), ("int16", False)])
def test_snapped_scales_stand_in_the_file(kind: str, symmetric: bool) -> None:
    wanted = settings("int8", "int8", symmetric, "per_channel", scale=kind)
    _, _, model = quantize_model(network(opset=21), FEEDS, wanted)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    pairs = [node.input for node in model.graph.node if node.op_type == "DequantizeLinear"]
    # the scale of an int32 bias is the product of two
    scales = [stored[scale].astype(np.float64) for _, scale, zero in pairs if stored[zero].dtype != np.int32]
    assert len(scales) > 5
    for scale in scales:
        steps = np.log2(scale) if kind == "power_of_two" else scale * 2**16
        assert (steps == np.round(steps)).all()


@each("bias", ["int8", "int16", "float32"])
def test_biases_of_other_types(bias: str) -> None:
    wanted = config(bias={"dtype": bias}, activation={"dtype": "int16", "symmetric": True}, weight={"dtype": "int16"})
    prepared, plan, model = quantize_model(network(opset=21), FEEDS, wanted)
    assert sqnr_db(simulate(prepared.model, plan, FEEDS)["scores"], run_onnx(model, FEEDS)["scores"]) > 60
    entries = list(plan.biases.values())
    stored = {entry.integers.dtype.name for entry in entries if entry.integers is not None}
    assert stored == (set() if bias == "float32" else {bias})
    if bias == "float32":
        assert {str(entry.reason) for entry in entries} == {"bias dtype is float32"}


HALF = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@pytest.mark.parametrize(
    ("bias", "activation", "weight", "target"),
    [
        ("float16", "uint8", "int8", "onnxruntime_cpu"),
        ("bfloat16", "int16", "int16", "onnxruntime_gpu"),
        ("float16", "bfloat16", "mxint8", "onnxruntime_cpu"),
    ],
)
def test_biases_of_half_the_bits(bias: str, activation: str, weight: str, target: str) -> None:
    wanted = config(bias={"dtype": bias}, activation={"dtype": activation}, weight={"dtype": weight}, target=target)
    prepared, plan, model = quantize_model(network(opset=21), FEEDS, wanted)
    onnx.checker.check_model(model, full_check=True)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for entry in plan.biases.values():
        assert entry.is_half and entry.integers is None
        tensor = stored[f"{entry.initializer}_quantized"]
        assert tensor.data_type == HALF[bias]
        held = onnx.numpy_helper.to_array(tensor).astype(np.float32)
        array = prepared.graph.initializers[entry.initializer].const_value.numpy()
        np.testing.assert_array_equal(held, FloatGrid(bias).fake(array))
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


@pytest.mark.parametrize("method", ["bias_correction", "cross_layer_equalization", "adaquant"])
def test_algorithms_move_a_half_bias(tmp_path: Path, method: str) -> None:
    steps = {"num_iterations": 20} if method == "adaquant" else {}
    wanted = config(bias={"dtype": "float16"}, algorithms=[{"method": method, "accept": "always", **steps}])
    result = quantize_file(tmp_path, network(), data(), wanted)
    plain = quantize_file(tmp_path, network(), data(), config(bias={"dtype": "float16"}))
    assert result.report.algorithms[0].kept
    assert result.model != plain.model
    assert result.report.fidelity.sqnr_db > plain.report.fidelity.sqnr_db - 3
    stored = onnx.load_from_string(result.model).graph.initializer
    assert sum(tensor.data_type == TensorProto.FLOAT16 for tensor in stored) >= 2


def test_reduced_ranges_leave_a_bit_unused_and_wide_types_below_opset_21_use_the_domain_of_the_runtime() -> None:
    _, plan, _ = quantize_model(network(), FEEDS, settings("uint8", "int8", True, "per_channel", reduce_range=True))
    assert {int(np.abs(weight.integers.astype(int)).max()) for weight in plan.weights.values()} == {64}
    _, _, model = quantize_model(network(), FEEDS, settings("uint16", "int8", False, "per_channel"))
    domains = {node.domain for node in model.graph.node if node.op_type == "QuantizeLinear"}
    assert domains == {"com.microsoft"}
    assert sqnr_db(run_onnx(network(), FEEDS)["scores"], run_onnx(model, FEEDS)["scores"]) > 40


DTYPES = (*FLOAT_DTYPES, *BLOCK_DTYPES)


@pytest.mark.parametrize(
    ("dtype", "activation"), [*((dtype, "same") for dtype in DTYPES), ("float16", "uint8"), ("mxint8", "int16")]
)
def test_the_runtime_computes_with_rounded_types_what_the_plan_says(dtype: str, activation: str) -> None:
    wanted = config(activation={"dtype": dtype if activation == "same" else activation}, weight={"dtype": dtype})
    prepared, plan, model = quantize_model(network(opset=21), FEEDS, wanted)
    onnx.checker.check_model(model, full_check=True)
    simulated = simulate(prepared.model, plan, FEEDS)["scores"]
    assert sqnr_db(simulated, run_onnx(model, FEEDS)["scores"]) > 60


def test_blocks_run_along_the_axis_that_is_summed_over() -> None:
    prepared, plan = plan_for(network(opset=21), config(activation={"dtype": "mxint8"}, weight={"dtype": "mxint8"}))
    fill_activations(prepared.graph, plan, {})
    axes = {tensor: entry.quantization.axis for tensor, entry in plan.activations.items()}
    assert (axes["x"], axes["r"], axes["f"]) == (1, 1, -1)  # read by Conv, Conv and Gemm
    blocks = {weight.node: weight.granularity for weight in plan.weights.values()}
    assert blocks == {"stem": PerBlock(1, 32), "body": PerBlock(1, 32), "dense": PerBlock(0, 32)}


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((dtype, (1, 4, 5, 5)) for dtype in DTYPES),
        *((dtype, shape) for dtype in ("float8_e4m3fn", "mx6") for shape in ((4, 1, 1), ())),
    ],
)
def test_constant_operands_are_rounded_like_activations(dtype: str, shape: tuple[int, ...]) -> None:
    text = "(float[N,3,5,5] x) => (float[N,4,5,5] y) { s = Conv(x, w) r = Relu(s) t = Mul(r, c) y = Conv(t, v) }"
    weights = {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1), "c": np.asarray(normal(*shape, seed=4), np.float32)}
    feeds = {"x": normal(6, 3, 5, 5)}
    wanted = config(activation={"dtype": dtype}, weight={"dtype": dtype}, target="amd_npu_cnn")
    prepared, plan, model = quantize_model(make_model(text, weights, opset=21), feeds, wanted)
    assert ("c" in plan.weights) == (shape != () or dtype in FLOAT_DTYPES)
    assert sqnr_db(simulate(prepared.model, plan, feeds)["y"], run_onnx(model, feeds)["y"]) > 60
