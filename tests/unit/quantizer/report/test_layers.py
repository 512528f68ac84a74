"""The table of layers: every node in one row, with its reason, and what algorithms gained."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from service.contracts.report import Report
from tests.unit.quantizer.toolbox import config, data, make_model, network, normal, prepare_proto, quantize_file
from worker.quantizer.report.layers import NOT_APPLICABLE

CORRECTION = [{"method": "bias_correction", "mode": "fast"}]


def test_every_node_has_one_row(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,4] x) => (float[A,B] y) { [fc] h = Gemm(x, w) [act] r = Relu(h) [fc2] o = Gemm(r, v) "
        "[shape] s = Shape(x) [size] n = ReduceProd<keepdims=1>(s) [some] k = Cast<to=7>(n) "
        "[less] c = Less(k, k) [y] y = Identity(o) }",
        {"w": normal(4, 8), "v": normal(8, 3)},
    )
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.BOOL, None))
    report = quantize_file(tmp_path, model, {"x": normal(6, 4)}).report
    names = [node.name for node in prepare_proto(model)[0].graph.all_nodes()]
    assert sorted(node for layer in report.layers for node in layer.nodes) == sorted(names)
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert reasons["shape"] == "not applicable: its result is int64"
    assert reasons["less"] == "not applicable: its result is bool"
    assert reasons["fc"] is None
    codes = {layer.name: layer.reason_code for layer in report.layers}
    assert (codes["shape"], codes["less"], codes["fc"]) == (NOT_APPLICABLE.code, NOT_APPLICABLE.code, None)
    assert report.summary.endswith("3 of 3 nodes quantized.")
    assert [layer.nodes for layer in report.layers if layer.op.startswith("Gemm")] == [("fc", "act"), ("fc2",)]
    assert [layer.reason is None for layer in report.layers[:3]] == [True, True, False]


def quantized(folder: Path, model: onnx.ModelProto, **settings: object) -> Report:
    return quantize_file(folder, model, data(), config(weight={"granularity": "per_tensor"}, **settings)).report


def test_the_gain_of_bias_correction_is_the_difference_that_it_makes(tmp_path: Path) -> None:
    weights = {"w": normal(8, 3, 3, 3, scale=0.3) + 0.1, "w2": normal(8, 8, 3, 3), "b": normal(8), "b2": normal(8)}
    weights["w"][0] *= 30  # one channel spoils the grid of all others
    model = make_model(
        "(float[N,3,10,10] x) => (float[N,8,A,B] y) { [one] a = Conv(x, w, b) [act] r = Relu(a) "
        "[two] c = Conv(r, w2, b2) [act2] y = Relu(c) }",
        weights,
    )
    before = {layer.name: layer for layer in quantized(tmp_path, model).layers}
    after = {layer.name: layer for layer in quantized(tmp_path, model, algorithms=CORRECTION).layers}
    assert {name for name, layer in after.items() if layer.gain} == {"one", "two"}
    for name, layer in after.items():
        for algorithm, gain in layer.gain.items():
            assert algorithm == "bias_correction"
            assert layer.sqnr_db is not None
            assert before[name].sqnr_db is not None
            assert gain == pytest.approx(layer.sqnr_db - before[name].sqnr_db, abs=2e-3)
    assert any(layer.gain.get("bias_correction", 0.0) != 0.0 for layer in after.values())


def test_without_an_algorithm_there_is_no_gain(tmp_path: Path) -> None:
    assert not any(layer.gain for layer in quantize_file(tmp_path, network(), data()).report.layers)


def test_a_node_that_leaves_its_first_output_out_is_judged_by_its_next(tmp_path: Path) -> None:
    weights = {"w": normal(1, 12, 4), "r": normal(1, 12, 3)}
    model = make_model(
        "(float[N,5,4] x) => (float[1,N,3] h) { [turn] t = Transpose<perm=[1,0,2]>(x) "
        "[rnn] all, h = LSTM<hidden_size=3>(t, w, r) }",
        weights,
    )
    model.graph.node[1].output[0] = ""
    report = quantize_file(tmp_path, model, {"x": normal(6, 5, 4)}, config(mode="float16")).report
    sqnr_db = {layer.name: layer.sqnr_db for layer in report.layers}["rnn"]
    assert sqnr_db is not None
    assert sqnr_db > 50
