"""Quantized regions on a model's nodes: what lies outside stays in float as it was, and Q/DQ pairs stand at borders."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    make_model,
    normal,
    plan_for,
    prepare_proto,
    quantize_model,
    run_onnx,
    sqnr_db,
    step,
)
from worker.quantizer.equalization.channel_groups import follow
from worker.quantizer.graph.metadata import REGION
from worker.quantizer.modes.planning import inspect_nodes
from worker.quantizer.preparation.prepare import prepare

NPU = {"preset": "npu_int8", "activation": {"calibration": {"method": "mse"}}, "algorithms": []}


def bounded(model: onnx.ModelProto, **regions: list[str]) -> onnx.ModelProto:
    """``model`` with the named nodes in regions."""
    for node in model.graph.node:
        for region, names in regions.items():
            if node.name in names:
                node.metadata_props.add(key=REGION, value=region)
    return model


def chain(opset: int = 17) -> onnx.ModelProto:
    """Three parts of a convolution and a Relu each; the first and the last are regions."""
    weights = {"w0": normal(4, 3, 3, 3), "w1": normal(4, 4, 3, 3, seed=1), "w2": normal(5, 4, 3, 3, seed=2)}
    model = make_model(
        "(float[N,3,9,9] x) => (float[N,5,9,9] y) { [c0] a = Conv<pads=[1,1,1,1]>(x, w0) [r0] b = Relu(a) "
        "[c1] c = Conv<pads=[1,1,1,1]>(b, w1) [r1] d = Relu(c) [c2] e = Conv<pads=[1,1,1,1]>(d, w2) [r2] y = Relu(e) }",
        weights,
        opset=opset,
    )
    return bounded(model, first=["c0", "r0"], last=["c2", "r2"])


def pairs(model: onnx.ModelProto | bytes) -> set[str]:
    """Names of the float tensors that are quantized, weights and biases aside."""
    proto = onnx.load_from_string(model) if isinstance(model, bytes) else model
    nodes = [node for node in proto.graph.node if node.op_type == "QuantizeLinear"]
    return {node.input[0].removesuffix("_QuantizeLinear_Input") for node in nodes}


def reads(model: onnx.ModelProto, name: str) -> list[str]:
    return next(list(node.input) for node in model.graph.node if node.name == name)


def reasons(model: onnx.ModelProto, **settings: Any) -> dict[str, str | None]:
    entries = plan_for(model, config(**settings))[1].nodes
    return {name: entry.reason and entry.reason.code for name, entry in entries.items()}


@pytest.mark.parametrize("settings", [{}, {"preset": "a8w8"}, NPU], ids=["int8", "a8w8", "npu"])
def test_pairs_stand_within_the_regions_and_at_their_borders_alone(settings: dict[str, Any]) -> None:
    feeds = {"x": normal(8, 3, 9, 9)}
    emitted = quantize_model(chain(), feeds, config(**settings))[2]
    assert pairs(emitted) == {"x", "b", "d", "y"}
    assert reads(emitted, "c0")[0].startswith("x_Dequantize")
    assert reads(emitted, "c1") == ["b_DequantizeLinear_Output", "w1"]  # its weight as it was
    assert reads(emitted, "r1") == ["c"]
    assert reads(emitted, "c2")[0].startswith("d_Dequantize")
    assert sqnr_db(run_onnx(chain(), feeds)["y"], run_onnx(emitted, feeds, optimized=False)["y"]) > 25


def test_nodes_outside_say_why_and_how_to_help() -> None:
    """Whatever the opset that the model was lifted from; exclude and include hold within regions."""
    outside = {
        name: "outside-regions" if name in ("c1", "r1") else None for name in ("c0", "r0", "c1", "r1", "c2", "r2")
    }
    assert reasons(chain()) == reasons(chain(opset=13)) == outside
    assert reasons(chain(), exclude=[{"node": "c2"}])["c2"] == "excluded"
    assert reasons(chain(), include=[{"op_type": "Conv"}])["c1"] == "outside-regions"
    told = {node.name: node for node in inspect_nodes(ir.from_proto(chain()), config())[0]}
    assert (told["c1"].quantized, told["c1"].reason_code) == (False, "outside-regions")
    assert "QuantStub" in (told["c1"].hint or "")


def test_a_border_counts_as_a_quantized_neighbour() -> None:
    """An Add alone stays in float by rule 3, and a classifier returns floats; where a region was drawn they do not."""
    model = make_model(
        "(float[N,4] x, float[N,4] z) => (float[N,3] y) { [add] a = Add(x, z) [soft] s = Softmax(a) "
        "[dense] m = MatMul(s, k) [tanh] y = Tanh(m) }",
        {"k": normal(4, 3)},
    )
    feeds = {"x": normal(16, 4), "z": normal(16, 4, seed=1)}
    assert pairs(quantize_model(model, feeds)[2]) == {"s"}
    assert pairs(quantize_model(bounded(model, one=["add"], two=["dense"]), feeds)[2]) == {"x", "z", "a", "s", "m"}


def test_a_batch_norm_across_the_border_stays_where_it_is() -> None:
    text = (
        f"(float[N,3,9,9] x) => (float[N,4,7,7] y) {{ [c] a = Conv(x, w) {batchnorm_text('a', 'b')} [r] y = Relu(b) }}"
    )
    weights = {"w": normal(4, 3, 3, 3), **batchnorm_weights(4)}
    model = bounded(make_model(text, weights), inside=["c"])
    prepared, _ = prepare_proto(model)
    assert step(prepared, "fold_affine").left == {"bn": "across-border"}
    emitted = quantize_model(model, {"x": normal(8, 3, 9, 9)})[2]
    assert pairs(emitted) == {"x", "a"}
    whole = bounded(make_model(text, weights), inside=["c", "bn", "r"])
    assert "BatchNormalization" not in {node.op_type for node in prepare_proto(whole)[1].graph.node}
    assert pairs(quantize_model(whole, {"x": normal(8, 3, 9, 9)})[2]) == {"x", "y"}


def test_nothing_is_fused_or_changed_across_a_border() -> None:
    text = "(float[N,3,9,9] x) => (float[N,4,7,7] y) { [c] a = Conv(x, w) [r] y = Relu(a) }"
    model = bounded(make_model(text, {"w": normal(4, 3, 3, 3)}), one=["c"], two=["r"])
    assert reasons(model) == {"c": None, "r": "across-border"}
    assert pairs(quantize_model(model, {"x": normal(8, 3, 9, 9)})[2]) == {"x", "a"}
    text = "(float[N,4] x) => (float[N,3] y) { [mul] m = MatMul(x, k) [add] y = Add(m, b) }"
    prepared, _ = prepare_proto(bounded(make_model(text, {"k": normal(4, 3), "b": normal(3)}), inside=["mul"]))
    assert [node.op_type for node in prepared.graph] == ["MatMul", "Add"]
    assert step(prepared, "matmul_add_to_gemm").left == {"mul": "across-border"}
    text = "(float[N,4] x) => (float[N,4] y) { [r0] a = Clip(x, low, high) [r1] y = Clip(a, low, high) }"
    limits = {"low": np.float32(0), "high": np.float32(6)}
    wanted = config(preparation={"clip6_to_relu": True}).preparation
    prepared = prepare(ir.from_proto(bounded(make_model(text, limits), inside=["r0"])), wanted)
    assert {node.name: node.op_type for node in prepared.graph} == {"r0": "Relu", "r1": "Clip"}
    assert step(prepared, "clip6_to_relu").left == {"r1": "outside-regions"}


def test_equalization_moves_no_scale_over_a_border() -> None:
    prepared, _ = prepare_proto(chain())
    channels = follow(prepared.graph).channels
    assert not any(channels[tensor].any() for tensor in ("a", "b", "c", "d"))  # all pinned at 1
    inside = make_model(
        "(float[N,3,9,9] x) => (float[N,4,5,5] y) { [c0] a = Conv(x, w0) [r0] b = Relu(a) [c1] y = Conv(b, w1) }",
        {"w0": normal(4, 3, 3, 3), "w1": normal(4, 4, 3, 3)},
    )
    assert follow(prepare_proto(bounded(inside, one=["c0", "r0", "c1"]))[0].graph).channels["b"].all()
