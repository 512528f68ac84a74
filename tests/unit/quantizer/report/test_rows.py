"""What each row of the table holds: its nodes, bytes, share of the time and histograms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from service.contracts.report import LayerFigures, Report
from tests.unit.quantizer.toolbox import config, data, make_model, normal, prepare_proto, quantize_file
from worker.quantizer.numerics.blocks import FloatGrid
from worker.quantizer.numerics.integer import IntegerGrid, PerAxis
from worker.quantizer.report.histograms import BINS, WatchedActivations, weight_histogram
from worker.quantizer.report.layers import NOT_APPLICABLE, EmittedRows
from worker.quantizer.runtime.timing import Kernel

TEXT = (
    "(float[N,3,12,12] x) => (float[N,5] y) { [conv] a = Conv(x, w, b) [act] r = Relu(a) [pool] p = MaxPool<"
    "kernel_shape=[2,2],strides=[2,2]>(r) [two] c = Conv(p, w2) [clip] d = Clip(c, low, high) "
    "[gap] g = GlobalAveragePool(d) [flat] f = Flatten(g) [fc] h = Gemm(f, v) [soft] y = Softmax(h) }"
)
WEIGHTS = {
    **{"w": normal(8, 3, 3, 3), "b": normal(8), "w2": normal(8, 8, 3, 3), "v": normal(8, 5)},
    **{"low": np.float32(0.0), "high": np.float32(6.0)},
}
X = normal(16, 3, 12, 12)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, Report]:
    found = quantize_file(tmp_path_factory.mktemp("rows"), make_model(TEXT, WEIGHTS), {"x": X})
    return onnx.load_from_string(found.model), found.report


def rows_of(report: Report) -> dict[str, LayerFigures]:
    return {row.name: row for row in report.layers}


def test_nodes_that_run_as_one_are_one_row(result: tuple[onnx.ModelProto, Report]) -> None:
    rows = rows_of(result[1])
    assert (rows["conv"].op, rows["conv"].nodes) == ("Conv+Relu", ("conv", "act"))
    assert (rows["two"].op, rows["two"].nodes) == ("Conv+Clip", ("two", "clip"))
    assert rows["soft"].nodes == ("soft",)
    nodes = [node for row in result[1].layers for node in row.nodes]
    assert sorted(nodes) == ["act", "clip", "conv", "fc", "flat", "gap", "pool", "soft", "two"]
    assert all(row.name == row.nodes[0] for row in result[1].layers)
    assert result[1].summary.endswith("8 of 9 nodes quantized.")


def test_bytes_are_those_of_the_file_and_shares_of_the_time_no_more_than_all(
    result: tuple[onnx.ModelProto, Report],
) -> None:
    model, report = result
    rows = rows_of(report)
    assert rows["conv"].float_weight_bytes == 4 * (8 * 27 + 8)
    # int8 weight, float32 scale and int8 zero point per channel; int32 bias, its scale and zero point per channel
    assert rows["conv"].weight_bytes == 8 * 27 + 8 * 4 + 8 + 8 * (4 + 4 + 4)
    assert (rows["pool"].weight_bytes, rows["pool"].float_weight_bytes) == (None, None)
    inside = {entry.name: onnx.numpy_helper.to_array(entry).nbytes for entry in model.graph.initializer}
    shared = sum(size for name, size in inside.items() if not name.startswith(("w", "b", "v", "low", "high")))
    told = sum(row.weight_bytes or 0 for row in report.layers)
    assert sum(inside.values()) - shared <= told <= sum(inside.values())
    shares = {row.name: row.latency_percent for row in report.layers if row.latency_percent is not None}
    assert {"conv", "two", "fc"} <= set(shares)
    assert 0 < sum(shares.values()) <= 100.5
    assert report.latency is not None
    assert report.latency.quantized_ms == report.quantized.latency_ms


def test_histograms_of_weight_and_result(result: tuple[onnx.ModelProto, Report]) -> None:
    row = rows_of(result[1])["conv"]
    weight, made = row.weight_histogram, row.activation_histogram
    assert weight is not None and made is not None
    assert weight.counts == tuple(np.histogram(WEIGHTS["w"], BINS)[0])
    # per channel and symmetric: the widest grid reaches to the largest magnitude, and clips nothing
    largest = pytest.approx(float(np.abs(WEIGHTS["w"]).max()), rel=1e-5)
    assert (-(weight.clip_low or 0), weight.clip_high, weight.clipped_percent) == (largest, largest, 0.0)
    assert made.minimum == 0.0
    assert made.clip_high == pytest.approx(made.maximum, rel=0.3)
    assert (len(made.counts), sum(made.counts)) == (BINS, 16 * 8 * 10 * 10)


def test_a_quantized_node_has_the_bytes_of_its_dynamic_kernels(tmp_path: Path) -> None:
    text = "(float[N,64] x) => (float[N,8] y) { [fc] h = MatMul(x, w) [soft] y = Softmax(h) }"
    found = quantize_file(
        tmp_path, make_model(text, {"w": normal(64, 8)}), {"x": normal(8, 64)}, config(preset="int8_dynamic")
    )
    row = rows_of(found.report)["fc"]
    assert row.weight_bytes is not None
    assert 64 * 8 <= row.weight_bytes < 64 * 8 + 100
    assert row.float_weight_bytes == 4 * 64 * 8
    assert row.latency_percent is not None


def test_kernels_find_their_row_by_name() -> None:
    model = ir.from_proto(
        make_model("(float[N,4] x) => (float[N,4] y) { [fc] t = MatMul(x, w) [end] y = Sin(t) }", {"w": normal(4, 4)})
    )
    rows = [LayerFigures(name="fc", op="MatMul", nodes=("fc",)), LayerFigures(name="end", op="Sin", nodes=("end",))]
    kernels = [Kernel("fc_token_7", 30.0), Kernel("fc_nchwc", 10.0), Kernel("Reorder", 10.0), Kernel("end", 50.0)]
    assert EmittedRows.of(rows, model).latency_percents(kernels) == {"fc": 40.0, "end": 50.0}
    assert EmittedRows.of(rows, model).latency_percents([]) == {}


def test_what_a_grid_clips_is_counted_by_channel() -> None:
    values = np.array([[-4.0, -1.0, 0.0, 1.0], [0.1, 0.2, 0.3, 0.9]], np.float32)
    scale = np.array([1 / 127, 0.5 / 127], np.float32)
    grid = IntegerGrid("int8", scale, np.zeros(2, np.int8), PerAxis(0), symmetric=True)
    found = weight_histogram(values, grid)
    assert found is not None
    assert (found.clip_low, found.clip_high) == (pytest.approx(-1.0), pytest.approx(1.0))
    assert found.clipped_percent == 25.0  # -4 of the first row, 0.9 of the second
    held = np.abs(grid.fake(values) - values) > scale[:, None]
    assert found.clipped_percent == 100.0 * held.mean()


def test_floats_have_limits_too_and_no_grid_has_none() -> None:
    values = np.array([1.0, -70000.0, 65504.0, 65505.0], np.float32)
    found, plain = weight_histogram(values, FloatGrid("float16")), weight_histogram(values, None)
    assert found is not None and plain is not None
    assert (found.clip_high, found.clipped_percent) == (65504.0, 25.0)
    assert (plain.clip_low, plain.clip_high, plain.clipped_percent) == (None, None, None)
    assert weight_histogram(np.array([np.nan], np.float32), None) is None


def test_a_watched_tensor_keeps_a_bounded_share_of_all_samples() -> None:
    watched = WatchedActivations(8)
    for k in range(8):
        watched.see("a", np.full((1, 70, 1000), k, np.float32))
        watched.see("b", np.arange(5))
    found = watched.histogram("a", None)
    assert found is not None
    assert (found.minimum, found.maximum) == (0.0, 7.0)
    kept = [count for count in found.counts if count]
    assert len(kept) == 8
    assert max(kept) - min(kept) <= 1
    assert sum(kept) <= 1 << 14
    assert watched.histogram("b", None) is None


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
    told = {layer.name: (layer.reason_code, layer.reason) for layer in report.layers}
    assert told["shape"] == (NOT_APPLICABLE.code, "not applicable: its result is int64")
    assert told["less"] == (NOT_APPLICABLE.code, "not applicable: its result is bool")
    assert told["fc"] == (None, None)
    assert report.summary.endswith("3 of 3 nodes quantized.")
    assert [layer.nodes for layer in report.layers if layer.op.startswith("Gemm")] == [("fc", "act"), ("fc2",)]
    assert [layer.reason is None for layer in report.layers[:3]] == [True, True, False]


def test_the_gain_of_bias_correction_is_the_difference_that_it_makes(tmp_path: Path) -> None:
    weights = {"w": normal(8, 3, 3, 3, scale=0.3) + 0.1, "w2": normal(8, 8, 3, 3), "b": normal(8), "b2": normal(8)}
    weights["w"][0] *= 30  # one channel spoils the grid of all others
    model = make_model(
        "(float[N,3,10,10] x) => (float[N,8,A,B] y) { [one] a = Conv(x, w, b) [act] r = Relu(a) "
        "[two] c = Conv(r, w2, b2) [act2] y = Relu(c) }",
        weights,
    )
    settings = {"weight": {"granularity": "per_tensor"}}
    plain, corrected = (
        rows_of(quantize_file(tmp_path, model, data(), config(**settings, algorithms=steps)).report)
        for steps in ([], [{"method": "bias_correction", "mode": "fast"}])
    )
    assert not any(row.gain for row in plain.values())
    gains = {name: row.gain for name, row in corrected.items() if row.gain}
    assert set(gains) == {"one", "two"}
    for name, gain in gains.items():
        difference = (corrected[name].sqnr_db or 0.0) - (plain[name].sqnr_db or 0.0)
        assert gain == {"bias_correction": pytest.approx(difference, abs=2e-3)}
    assert any(gain["bias_correction"] != 0.0 for gain in gains.values())


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
