"""Small floats and block formats in whole networks: the file is valid and the runtime computes what the plan says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from service.contracts.dtypes import BLOCK_DTYPES, FLOAT_DTYPES
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
from worker.quantizer.numerics.granularity import PerBlock
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.types import QuantizationPlan

FEEDS = {"x": data(16)["x"]}
PRODUCTS = {"w": normal(64, 48, scale=0.1), "w2": normal(48, 16, scale=0.1)}


def products() -> onnx.ModelProto:
    text = "(float[N,7,64] x) => (float[N,7,16] y) { [m] t = MatMul(x, w) [r] u = Relu(t) [n] y = MatMul(u, w2) }"
    return make_model(text, PRODUCTS, opset=21)


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, *BLOCK_DTYPES])
@pytest.mark.parametrize("activation", ["same", "uint8", "int16"])
def test_the_runtime_computes_what_the_plan_says(dtype: str, activation: str) -> None:
    wanted = config(activation={"dtype": dtype if activation == "same" else activation}, weight={"dtype": dtype})
    prepared, plan, model = quantize_model(network(opset=21), FEEDS, wanted)
    onnx.checker.check_model(model, full_check=True)
    simulated = simulate(prepared.model, plan, FEEDS)["scores"]
    assert sqnr_db(simulated, run_onnx(model, FEEDS)["scores"]) > 60


@pytest.mark.parametrize("weight", ["int8", "uint8", "int4", "int16"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("block_size", [16, 20])
@pytest.mark.parametrize("activation", ["uint8", "int8", "int16"])
def test_blocks_of_integers_between_integers(weight: str, symmetric: bool, block_size: int, activation: str) -> None:
    feeds = {"x": normal(8, 7, 64)}
    spec = {"dtype": weight, "symmetric": symmetric, "granularity": "per_block", "block_size": block_size}
    prepared, plan, model = quantize_model(products(), feeds, config(activation={"dtype": activation}, weight=spec))
    assert sqnr_db(simulate(prepared.model, plan, feeds)["y"], run_onnx(model, feeds)["y"]) > 60


def axes(plan: QuantizationPlan) -> dict[str, int]:
    return {tensor: entry.quantization.axis for tensor, entry in plan.activations.items()}


def test_blocks_run_along_the_axis_that_is_summed_over() -> None:
    prepared, plan = plan_for(network(opset=21), config(activation={"dtype": "mxint8"}, weight={"dtype": "mxint8"}))
    fill_activations(prepared.graph, plan, {})
    assert axes(plan)["x"] == axes(plan)["r"] == 1  # read by Conv
    assert axes(plan)["f"] == -1  # read by Gemm
    assert {weight.node: weight.granularity for weight in plan.weights.values()} == {
        "stem": PerBlock(1, 32),
        "body": PerBlock(1, 32),
        "dense": PerBlock(0, 32),
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "bfp16", "mxfp8_e4m3"])
def test_the_report_names_the_type_of_every_layer(tmp_path: Path, dtype: str) -> None:
    wanted = config(activation={"dtype": dtype}, weight={"dtype": dtype})
    report = quantize_file(tmp_path, network(opset=21), data(), wanted).report
    convs = [layer for layer in report.layers if layer.op == "Conv"]
    assert {(layer.weight_dtype, layer.activation_dtype) for layer in convs} == {(dtype, dtype)}
    assert all(layer.sqnr_db is not None and np.isfinite(layer.sqnr_db) for layer in convs)


@pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, *BLOCK_DTYPES])
@pytest.mark.parametrize("shape", [(1, 4, 5, 5), (4, 1, 1), ()])
def test_constant_operands_are_rounded_like_activations(dtype: str, shape: tuple[int, ...]) -> None:
    text = "(float[N,3,5,5] x) => (float[N,4,5,5] y) { s = Conv(x, w) r = Relu(s) t = Mul(r, c) y = Conv(t, v) }"
    weights = {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1), "c": np.asarray(normal(*shape, seed=4), np.float32)}
    feeds = {"x": normal(6, 3, 5, 5)}
    wanted = config(activation={"dtype": dtype}, weight={"dtype": dtype}, target="amd_npu_cnn")
    prepared, plan, model = quantize_model(make_model(text, weights, opset=21), feeds, wanted)
    assert ("c" in plan.weights) == (shape != () or dtype in FLOAT_DTYPES)
    assert sqnr_db(simulate(prepared.model, plan, feeds)["y"], run_onnx(model, feeds)["y"]) > 60
