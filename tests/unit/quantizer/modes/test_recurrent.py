"""Recurrent layers: W and R stored as integers, restored in front of the layer or read by a kernel on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from service.contracts.config import Mode
from service.contracts.report import LayerFigures, Report
from tests.unit.quantizer.toolbox import (
    config,
    make_model,
    normal,
    op_types,
    plan_for,
    prepare_proto,
    quantize_file,
    quantize_model,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.modes.registry import MODES as RULES
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.pipeline import Result
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import PlanLog, Role

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
INPUTS, HIDDEN, STEPS, BATCH = 24, 16, 5, 2
MODES: tuple[Mode, ...] = ("weights_only", "dynamic", "static")
SAMPLES = {"x": normal(4 * STEPS, BATCH, INPUTS, seed=3)}


def parameters(op_type: str, directions: int, *, prefix: str = "") -> dict[str, np.ndarray]:
    """W, R and B; rows of the second direction are ten times as large as those of the first."""
    gates = GATES[op_type] * HIDDEN
    sizes = np.asarray([0.05, 0.5], np.float32)[:directions].reshape(-1, 1, 1)
    return {
        f"{prefix}w": normal(directions, gates, INPUTS, seed=1) * sizes * 3,
        f"{prefix}r": normal(directions, gates, HIDDEN, seed=2) * sizes,
        f"{prefix}b": normal(directions, 2 * gates, seed=4, scale=0.1),
    }


def layer(
    op_type: str,
    direction: str = "forward",
    outputs: str = "y, h",
    more: str = "",
    attributes: str = "",
    opset: int = 17,
) -> onnx.ModelProto:
    directions = 2 if direction == "bidirectional" else 1
    shapes = {"y": f"{STEPS},{directions},{BATCH},{HIDDEN}", **dict.fromkeys("hc", f"{directions},{BATCH},{HIDDEN}")}
    given = ", ".join(f"float[{shapes[name]}] {name}" for name in outputs.split(", ") if name in shapes)
    set_to = f'hidden_size={HIDDEN}, direction="{direction}"{attributes}'
    weights = parameters(op_type, directions)
    weights["p"] = normal(directions, 3 * HIDDEN, seed=5, scale=0.3)
    weights["lengths"] = np.asarray([STEPS, 3], np.int32)
    weights["h0"], weights["c0"] = (normal(directions, BATCH, HIDDEN, seed=k) for k in (6, 7))
    used = {name: weights[name] for name in ("w", "r", "b", *(word for word in more.split(", ") if word in weights))}
    node = f"[cell] {outputs} = {op_type}<{set_to}>(x, w, r, b{more})"
    text = f"(float[{STEPS},{BATCH},{INPUTS}] x) => ({given}) {{ {node} }}"
    return make_model(text, used, opset=opset)


def quantized(folder: Path, model: onnx.ModelProto, **settings: Any) -> tuple[onnx.ModelProto, Report]:
    result: Result = quantize_file(folder, model, SAMPLES, config(**settings))
    found = onnx.load_from_string(result.model)
    onnx.checker.check_model(found)
    return found, result.report


def row(report: Report, name: str = "cell") -> LayerFigures:
    return next(found for found in report.layers if found.name == name)


def worst(model: onnx.ModelProto, twin: onnx.ModelProto) -> float:
    feeds = {"x": normal(STEPS, BATCH, INPUTS, seed=9)}
    floats, found = run_onnx(model, feeds), run_onnx(twin, feeds)
    return min(sqnr_db(floats[name], found[name]) for name in floats)


def stored_bytes(model: onnx.ModelProto) -> int:
    return sum(len(numpy_helper.to_array(tensor).tobytes()) for tensor in model.graph.initializer)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("op_type", "direction"),
    [("LSTM", "forward"), ("LSTM", "bidirectional"), ("GRU", "reverse"), ("RNN", "bidirectional")],
)
def test_weights_are_stored_small_and_outputs_stay(tmp_path: Path, op_type: str, direction: str, mode: str) -> None:
    model = layer(op_type, direction)
    found, report = quantized(tmp_path, model, mode=mode)
    assert worst(model, found) > 25
    assert row(report).weight_dtype == "int8" and row(report).reason is None
    assert stored_bytes(found) < 0.45 * stored_bytes(model)
    by_kernel = op_type == "LSTM" and mode == "dynamic"
    counts = Counter(op_types(found))
    assert counts[op_type] == (not by_kernel) and counts["DynamicQuantizeLSTM"] == by_kernel
    assert counts["DequantizeLinear"] == (0 if by_kernel else 2) and not counts["QuantizeLinear"]


GRIDS = [
    ("int4", "per_channel", "bidirectional"), ("uint4", "per_block", "bidirectional"),
    ("uint2", "per_block", "forward"), ("int8", "per_tensor", "forward"), ("int8", "per_channel", "bidirectional"),
    ("uint8", "per_channel", "bidirectional"), ("int16", "per_tensor", "forward"),
    ("float8_e4m3fn", "per_channel", "bidirectional"), ("bfloat16", "per_channel", "forward"),
    ("mxint8", "per_channel", "bidirectional"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "granularity", "direction"), GRIDS)
def test_the_layer_computes_with_what_the_grids_hold(dtype: str, granularity: str, direction: str) -> None:
    model = layer("GRU", direction, opset=25)
    weight = {"dtype": dtype, "granularity": granularity, "block_size": 8, "symmetric": not dtype.startswith("u")}
    prepared, plan, found = quantize_model(model, SAMPLES, config(weight=weight))
    rounded = layer("GRU", direction, opset=25)
    values = Parameters(prepared.graph, plan)
    for tensor in rounded.graph.initializer:
        if tensor.name in ("w", "r"):
            tensor.CopyFrom(numpy_helper.from_array(values.weight(tensor.name).present, tensor.name))
    feeds = {"x": normal(STEPS, BATCH, INPUTS, seed=9)}
    for name, wanted in run_onnx(rounded, feeds).items():
        np.testing.assert_allclose(run_onnx(found, feeds)[name], wanted, atol=1e-5)
    assert stored_bytes(found) < 0.75 * stored_bytes(model)
    if (dtype, granularity) == ("int8", "per_channel"):  # a scale for each row of a direction
        grid = plan.weights["w"].quantization
        assert isinstance(grid, IntegerGrid)
        wanted = np.abs(parameters("GRU", 2)["w"]).max(axis=2) / 127
        np.testing.assert_allclose(grid.scale[:, :, 0], wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("mode", "granularity", "dtype", "direction"),
    [
        ("weights_only", "per_channel", "int8", "bidirectional"),
        ("weights_only", "per_tensor", "uint8", "forward"),
        ("dynamic", "per_channel", "int8", "bidirectional"),
        ("dynamic", "per_channel", "uint8", "forward"),
        ("dynamic", "per_tensor", "uint8", "bidirectional"),
    ],
)
def test_asymmetric_weights(tmp_path: Path, mode: str, granularity: str, dtype: str, direction: str) -> None:
    model = layer("LSTM", direction)
    weight = {"dtype": dtype, "granularity": granularity, "symmetric": False}
    # by an override: the node's own spec counts
    found, report = quantized(tmp_path, model, mode=mode, overrides=[{"match": {"node": "cell"}, "weight": weight}])
    assert row(report).weight_dtype == dtype
    assert worst(model, found) > 20
    noted = any("DynamicQuantizeLSTM supports one zero point" in note for note in report.notes)
    assert noted == (mode == "dynamic" and granularity == "per_channel")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("outputs", "more"), [("y", ""), (", , c", ", , h0, c0"), ("y, h, c", ", lengths, h0, c0, p")])
def test_every_form_of_lstm(tmp_path: Path, mode: str, outputs: str, more: str) -> None:
    model = layer("LSTM", "bidirectional", outputs, more)
    found, report = quantized(tmp_path, model, mode=mode)
    assert worst(model, found) > 25
    assert [value.name for value in found.graph.output] == [value.name for value in model.graph.output]
    assert ("DynamicQuantizeLSTM" in op_types(found)) == (mode == "dynamic")
    assert (row(report).sqnr_db or 0.0) > 25


@pytest.mark.parametrize("mode", MODES)
def test_attributes_are_kept(tmp_path: Path, mode: str) -> None:
    names = ["HardSigmoid", "Tanh", "Softsign"]
    activations = ", ".join(f'"{name}"' for name in names)
    more = f", clip=0.4, activations=[{activations}], activation_alpha=[0.3], activation_beta=[0.4]"
    model = layer("LSTM", attributes=more)
    found, _ = quantized(tmp_path, model, mode=mode)
    assert worst(model, found) > 25 > worst(layer("LSTM"), found)


@pytest.mark.parametrize("mode", MODES)
def test_a_stack_between_other_layers(tmp_path: Path, mode: str) -> None:
    weights = {
        **parameters("LSTM", 1, prefix="l"),
        **{"gw": normal(2, 3 * HIDDEN, HIDDEN, seed=8, scale=0.2), "gr": normal(2, 3 * HIDDEN, HIDDEN, scale=0.2)},
        **{"k": normal(INPUTS, INPUTS, scale=0.2), "v": normal(2 * HIDDEN, 6, seed=2, scale=0.2)},
    }
    text = f"""(float[S,{BATCH},{INPUTS}] x) => (float[S,{BATCH},6] y) {{
        [in] a = MatMul(x, k) [first] b = LSTM<hidden_size={HIDDEN}>(a, lw, lr, lb) [out] c = Squeeze(b, one)
        [second] d = GRU<hidden_size={HIDDEN}, direction="bidirectional">(c, gw, gr)
        [swap] e = Transpose<perm=[0,2,1,3]>(d) [flat] f = Reshape(e, wide) [head] y = MatMul(f, v) }}"""
    model = make_model(text, {**weights, "one": np.asarray([1]), "wide": np.asarray([0, 0, -1])})
    found, report = quantized(tmp_path, model, mode=mode)
    assert worst(model, found) > 25
    assert {row(report, name).weight_dtype for name in ("in", "first", "second", "head")} == {"int8"}
    recurrent = [row(report, name) for name in ("first", "second")]
    assert [entry.activation_dtype for entry in recurrent] == [None, None]
    wanted = {"static": ["recurrence-in-float"] * 2, "dynamic": [None, "recurrence-not-dynamic"]}
    assert [entry.activation_reason_code for entry in recurrent] == wanted.get(mode, [None, None])


def test_other_targets() -> None:
    for target in ("onnxruntime_gpu", "openvino", "tensorrt"):
        _, plan = plan_for(layer("LSTM"), config(target=target, weight={"dtype": "uint8", "symmetric": False}))
        assert plan.nodes["cell"].role is Role.STORED and set(plan.weights) == {"w", "r"}
        wanted = ("uint8", False) if target == "openvino" else ("int8", True)
        assert {(entry.spec.dtype, entry.spec.symmetric) for entry in plan.weights.values()} == {wanted}
    _, plan = plan_for(layer("LSTM"), config(target="qnn"))
    assert plan.nodes["cell"].reason is not None and plan.nodes["cell"].reason.code == "recurrent"
    assert not plan.weights


@pytest.mark.parametrize(("mode", "code"), [("weights_only", None), ("dynamic", "recurrence-batch-first")])
def test_batches_first(mode: Mode, code: str | None) -> None:
    text = f"""(float[{BATCH},{STEPS},{INPUTS}] x) => (float[{BATCH},{STEPS},1,{HIDDEN}] y) {{
        [cell] y = LSTM<hidden_size={HIDDEN}, layout=1>(x, w, r, b) }}"""
    prepared, _ = prepare_proto(make_model(text, parameters("LSTM", 1), opset=21))
    form = RULES[mode].form
    plan = form.plan(prepared.graph, config(mode=mode), prepared.facts, PlanLog())
    entry = plan.nodes["cell"]
    assert entry.role is Role.STORED
    assert (entry.activation_reason.code if entry.activation_reason else None) == code
    Parameters(prepared.graph, plan).fill()
    found = onnx.load_from_string(to_bytes(form.emit(prepared.model, plan).model))
    assert op_types(found) == ["DequantizeLinear", "DequantizeLinear", "LSTM"]
    (made,) = ReferenceEvaluator(found).run(None, {"x": normal(BATCH, STEPS, INPUTS)})
    assert np.shape(made) == (BATCH, STEPS, 1, HIDDEN)


@pytest.mark.parametrize("mode", MODES)
def test_nodes_that_stay_in_float(tmp_path: Path, mode: Mode) -> None:
    _, report = quantized(tmp_path, layer("LSTM"), mode=mode, exclude=[{"op_type": "LSTM"}])
    assert row(report).reason == "excluded by op_type 'LSTM'" and row(report).weight_dtype is None
    fed, broken = layer("LSTM"), layer("LSTM")
    tensor = next(tensor for tensor in fed.graph.initializer if tensor.name == "r")
    fed.graph.initializer.remove(tensor)
    fed.graph.input.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, tensor.dims))
    array = parameters("LSTM", 1)["w"]
    array[0, 0, 0] = np.nan
    held = next(tensor for tensor in broken.graph.initializer if tensor.name == "w")
    held.CopyFrom(numpy_helper.from_array(array, "w"))
    for model, code in ((fed, "weight-not-constant"), (broken, "weight-not-finite")):
        prepared, _ = prepare_proto(model)
        plan = RULES[mode].form.plan(prepared.graph, config(mode=mode), prepared.facts, PlanLog())
        reason = plan.nodes["cell"].reason
        assert reason is not None and reason.code == code
        assert not plan.weights


@pytest.mark.parametrize("mode", MODES)
def test_shared_weights_are_stored_once_where_they_are_restored(tmp_path: Path, mode: str) -> None:
    text = f"""(float[{STEPS},{BATCH},{HIDDEN}] x) => (float[1,{BATCH},{HIDDEN}] h, float[1,{BATCH},{HIDDEN}] i) {{
        [one] , h = GRU<hidden_size={HIDDEN}>(x, r, r)
        [two] , i = GRU<hidden_size={HIDDEN}, direction="reverse">(x, r, r) }}"""
    model = make_model(text, {"r": normal(1, 3 * HIDDEN, HIDDEN, scale=0.2)})
    result = quantize_file(tmp_path, model, {"x": normal(4 * STEPS, BATCH, HIDDEN)}, config(mode=mode))
    found = onnx.load_from_string(result.model)
    feeds = {"x": normal(STEPS, BATCH, HIDDEN, seed=9)}
    wanted, got = run_onnx(model, feeds), run_onnx(found, feeds)
    assert min(sqnr_db(wanted[name], got[name]) for name in wanted) > 25
    assert op_types(found).count("DequantizeLinear") == 1


@pytest.mark.parametrize("mode", ["weights_only", "static"])
def test_layers_inside_branches(tmp_path: Path, mode: Mode) -> None:
    def branch(name: str, seed: int) -> str:
        arrays = {
            "w": normal(2, 3 * HIDDEN, INPUTS, seed=seed, scale=0.2),
            "r": normal(2, 3 * HIDDEN, HIDDEN, scale=0.2),
        }
        held.update({f"{name}_{key}": array for key, array in arrays.items()})
        node = f'[{name}] , {name}_h = GRU<hidden_size={HIDDEN}, direction="bidirectional">(x, {name}_w, {name}_r)'
        return f"{name} () => (float[2,{BATCH},{HIDDEN}] {name}_h) {{ {node} }}"

    held: dict[str, np.ndarray] = {}
    model = make_model(
        f"""(float[{STEPS},{BATCH},{INPUTS}] x) => (float[2,{BATCH},{HIDDEN}] y) {{
            [total] s = ReduceSum<keepdims=0>(x) [sign] c = Greater(s, zero)
            [if] y = If(c) <then_branch = {branch("yes", 1)}, else_branch = {branch("no", 2)}> }}""",
        {"zero": np.asarray(0, np.float32)},
    )
    for attribute in model.graph.node[-1].attribute:  # each branch holds its own
        for name, array in held.items():
            if name.startswith(attribute.g.name):
                attribute.g.initializer.append(numpy_helper.from_array(array, name))
    found, report = quantized(tmp_path, model, mode=mode, subgraphs="weights")
    for sign in (-1, 1):
        feeds = {"x": sign * np.abs(normal(STEPS, BATCH, INPUTS, seed=9))}
        assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(found, feeds)["y"]) > 25
    for name in ("yes", "no"):
        assert row(report, name).weight_dtype == "int8"
        assert row(report, name).activation_reason_code == "activations-in-subgraph"
    assert [op for op in op_types(found) if op in ("DequantizeLinear", "Reshape")] == []
    assert found.ByteSize() < 0.5 * model.ByteSize()


@pytest.mark.parametrize("method", ["adaround", "bias_correction", "cross_layer_equalization", "smooth_quant"])
def test_algorithms_leave_recurrent_layers_alone(tmp_path: Path, method: str) -> None:
    weights = {**parameters("LSTM", 1), "k": normal(INPUTS, INPUTS, scale=0.2), "v": normal(HIDDEN, 6, scale=0.4)}
    text = f"""(float[S,{BATCH},{INPUTS}] x) => (float[1,{BATCH},6] y) {{
        [in] a = MatMul(x, k) [cell] , h = LSTM<hidden_size={HIDDEN}>(a, w, r, b) [head] y = MatMul(h, v) }}"""
    model = make_model(text, weights)
    found, report = quantized(tmp_path, model, algorithms=[{"method": method}])
    plain, _ = quantized(tmp_path, model)
    assert row(report).weight_dtype == "int8" and not row(report).gain
    for name in ("w_quantized", "r_quantized"):
        one, other = (next(t for t in part.graph.initializer if t.name == name) for part in (found, plain))
        np.testing.assert_array_equal(numpy_helper.to_array(one), numpy_helper.to_array(other))
