"""The whole way from files to a model and a report."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from service.contracts.costs import spread
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.errors import CanceledError, DatasetMismatchError, InvalidConfigError, UnsupportedModelError
from service.contracts.report import Report
from service.contracts.runner import QuantizeTask
from tests.support.each import each
from tests.support.provenance import without_provenance
from tests.unit.quantizer.toolbox import (
    config,
    data,
    make_model,
    network,
    normal,
    prepare_proto,
    quantize_file,
    rng,
    run_onnx,
    sqnr_db,
    write_npz,
)
from worker.quantizer.command import MODEL_FILE, quantize_files
from worker.quantizer.run.interface import SilentRun

STAGES = [
    "load",
    "sanity",
    "prepare",
    "plan",
    "statistics",
    "parameters",
    "emit",
    "runtime_check",
    "evaluation",
    "layers",
    "latency",
]


class Recorder(SilentRun):
    """Remembers what it is told; cancels at the n-th check if asked to."""

    def __init__(self, cancel_at: int | None = None) -> None:
        self.stages: list[str] = []
        self.progressed: list[tuple[str, int, int | None]] = []
        self.messages: list[str] = []
        self.checks, self._cancel_at = 0, cancel_at

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        assert self._cancel_at is None or self.checks < self._cancel_at, "went on after it was canceled"
        self.stages += [stage] * (stage not in self.stages)
        self.progressed.append((stage, done, total))

    def log(self, message: str, level: str = "info") -> None:
        self.messages.append(message)

    def check(self) -> None:
        self.checks += 1
        if self._cancel_at is not None and self.checks >= self._cancel_at:
            raise CanceledError("stop")


def test_the_main_way(tmp_path: Path) -> None:
    run = Recorder()
    result = quantize_file(tmp_path, network(), data(), evaluation=data(17, seed=3), run=run)
    report = result.report
    feeds = {"x": data(17, seed=3)["x"]}
    expected, got = run_onnx(network(), feeds)["scores"], run_onnx(result.model, feeds)["scores"]
    assert report.fidelity.sqnr_db == pytest.approx(sqnr_db(expected, got), abs=0.1)
    assert (report.fidelity.samples, report.fidelity.source) == (17, "evaluation")
    labels = data(17, seed=3)["labels"]
    assert report.quantized.metrics["top1"] == pytest.approx(100 * (got.argmax(axis=1) == labels).mean(), abs=1e-3)
    assert report.float_.size_bytes == (tmp_path / "float.onnx").stat().st_size
    assert report.quantized.size_bytes == len(result.model)
    assert run.stages == [stage.name for stage in report.stages] == STAGES
    assert all(stage.seconds >= 0 and stage.peak_rss_bytes > 2**20 for stage in report.stages)
    assert sum(stage.seconds for stage in report.stages) > 0
    for name, total in (("statistics", 24), ("evaluation", 17)):
        counts = [(done, total) for stage, done, total in run.progressed if stage == name]
        assert counts[0][0] == 0
        assert counts[-1] == (total, total)
        assert [done for done, _ in counts] == sorted(done for done, _ in counts)
    manifest = report.manifest
    for name, found in (
        ("float.onnx", manifest.model_sha256),
        ("calibration.npz", manifest.calibration_sha256),
        ("evaluation.npz", manifest.evaluation_sha256),
    ):
        assert found == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert manifest.output_sha256 == hashlib.sha256(result.model).hexdigest()
    assert manifest.config == config()
    assert manifest.versions["onnxruntime"]
    assert Report.model_validate(json.loads(json.dumps(report.to_json_dict()))) == report


def test_every_node_is_in_the_table_of_layers(tmp_path: Path) -> None:
    settings = config(exclude=[{"node": "body"}, {"node": "bn"}])
    report = quantize_file(tmp_path, network(), data(), settings).report
    assert "exclude node 'bn' has no effect: the node was folded into node 'stem' (Conv)" in report.notes
    names = [node.name for node in prepare_proto(network())[0].graph]
    assert sorted(node for layer in report.layers for node in layer.nodes) == sorted(names)
    quantized = [layer for layer in report.layers if layer.reason is None]
    left = {layer.name: layer.reason for layer in report.layers if layer.reason is not None}
    assert left["body"] == "excluded by node 'body'"
    assert left["soft"] == "Softmax stays in float: its output needs more than 8 bits near 0"
    assert report.layers[: len(quantized)] == tuple(quantized)
    ratios = [layer.sqnr_db for layer in quantized]
    assert ratios == sorted(ratios)
    stem = next(layer for layer in quantized if layer.name == "stem")
    assert (stem.op, stem.weight_dtype, stem.activation_dtype) == ("Conv+Relu", "int8", "uint8")
    count = sum(len(layer.nodes) for layer in quantized)
    assert f"{count} of {len(names)} nodes quantized" in report.summary


def test_the_sqnr_of_a_layer_is_that_of_its_output(tmp_path: Path) -> None:
    """Brute force: both networks with the tensors behind ``join`` as outputs."""
    result = quantize_file(tmp_path, network(), data(), config(evaluation={"layer_samples": 9}))
    feeds = {"x": data()["x"][spread(len(data()["x"]), 9)]}
    pair = []
    for model, tensor in ((network(), "s"), (onnx.load_from_string(result.model), "s_DequantizeLinear_Output")):
        model.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None))
        pair.append(run_onnx(model, feeds)[tensor])
    found = next(layer for layer in result.report.layers if layer.name == "join")
    assert found.sqnr_db == pytest.approx(sqnr_db(*pair), abs=0.1)


@pytest.mark.parametrize(
    ("batch", "samples", "method"),
    [("4", 10, "minmax"), ("4", 3, "percentile"), ("N", 33, "percentile"), ("N", 1, "minmax")],
)
def test_any_batch(tmp_path: Path, batch: str, samples: int, method: str) -> None:
    """The batch a model is fixed to changes neither ranges nor figures: all scales equal those of batch 1."""
    settings = config(activation={"calibration": {"method": method}})
    (tmp_path / "one").mkdir()
    result = quantize_file(tmp_path, network(batch), data(samples), settings)
    reference = quantize_file(tmp_path / "one", network("1"), data(samples), settings)
    assert result.report.fidelity.samples == samples
    assert_same_constants(result.model, reference.model)
    shape = onnx.load_from_string(result.model).graph.input[0].type.tensor_type.shape.dim[0]
    assert shape.dim_value == (int(batch) if batch.isdigit() else 0)


def constants(model: bytes) -> dict[str, np.ndarray]:
    return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_from_string(model).graph.initializer}


def assert_same_constants(model: bytes, other: bytes) -> None:
    found, expected = constants(model), constants(other)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        one = 1 if array.dtype.kind in "iu" else 0
        wide = found[name].astype(np.float64), array.astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=1e-5, atol=one, err_msg=name)


@pytest.mark.slow
def test_calibration_samples_limits_the_samples_and_there_is_a_check_for_every_batch(tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    arrays, run = data(40), Recorder()
    arrays["x"][20:] *= 10
    limited = quantize_file(tmp_path, network(), arrays, config(calibration_samples=20), run=run)
    few = quantize_file(tmp_path / "few", network(), {name: array[:20] for name, array in arrays.items()})
    assert without_provenance(limited.model) == without_provenance(few.model)
    assert ("statistics", 20, 20) in run.progressed
    assert limited.report.fidelity.samples == 40
    result = quantize_file(tmp_path, network("1"), data(30), config(calibration_samples=1000), run=run)
    assert run.checks >= 30 + 30
    assert result.report.fidelity.samples == 30


def test_images_come_as_bytes(tmp_path: Path) -> None:
    (tmp_path / "floats").mkdir()
    images, mean, std = rng(2).integers(0, 256, (12, 10, 10, 3)).astype(np.uint8), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    spec = InputSpec(array="images", layout="NHWC", scale=1 / 255, mean=mean, std=std)
    packed = quantize_file(tmp_path, network(), {"images": images}, preprocessing=PreprocessingSpec(inputs={"x": spec}))
    floats = (images.astype(np.float32) * np.float32(1 / 255) - np.float32(mean)) / np.float32(std)
    plain = quantize_file(tmp_path / "floats", network(), {"x": np.ascontiguousarray(floats.transpose(0, 3, 1, 2))})
    assert_same_constants(packed.model, plain.model)


@each("kind", ["standard", "machine learning"])
def test_nothing_to_quantize_gives_the_upload_back(tmp_path: Path, kind: str) -> None:
    model, run = make_model("(float[N,4] x) => (float[N,4] y) { t = Sin(x) y = Softmax(t) }"), Recorder()
    if kind == "machine learning":
        node = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
        del model.graph.node[:], model.opset_import[:]
        model.graph.node.append(node)
        model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    result = quantize_file(tmp_path, model, {"x": normal(6, 4)}, run=run)
    assert result.model == (tmp_path / "float.onnx").read_bytes()
    report = result.report
    assert report.summary.startswith("Nothing to quantize")
    assert any("nothing in this model can be quantized" in note for note in report.notes)
    assert run.messages
    assert report.manifest.output_sha256 == report.manifest.model_sha256
    assert (report.fidelity.sqnr_db, report.verdict) == (200.0, "none")
    assert all(layer.reason for layer in report.layers)


def quantized_in_two_files(model: onnx.ModelProto, folder: Path, **arrays: np.ndarray) -> tuple[bytes, Report]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save(copy, folder / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    (folder / "out").mkdir()
    task = QuantizeTask(
        model_path=str(folder / "model.onnx"),
        config=config(),
        calibration=write_npz(folder / "data.npz", **arrays),
        output_dir=str(folder / "out"),
        threads=1,
    )
    report = quantize_files(task, SilentRun()).report
    return (folder / "out" / MODEL_FILE).read_bytes(), report


def test_nothing_to_quantize_of_a_model_in_two_files_is_one_file(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,64] x) => (float[N,64] y) { t = Add(x, c) y = Softmax(t) }", {"c": normal(64, 1024)[:, 0]}
    )
    x = normal(6, 64)
    alone, _ = quantized_in_two_files(model, tmp_path, x=x)
    np.testing.assert_array_equal(run_onnx(alone, {"x": x})["y"], run_onnx(model, {"x": x})["y"])


def test_external_data_comes_out_inside(tmp_path: Path) -> None:
    made, report = quantized_in_two_files(network(), tmp_path, **data())
    inside = quantize_file(tmp_path, network(), data())
    assert without_provenance(made) == without_provenance(inside.model)
    files = [tmp_path / "model.onnx", tmp_path / "weights"]
    assert report.float_.size_bytes == sum(file.stat().st_size for file in files)


@each("method", ["minmax", "percentile"])
def test_activations_that_are_not_finite_are_an_error_that_names_the_tensor(tmp_path: Path, method: str) -> None:
    model = make_model("(float[N,4] x) => (float[N,3] y) { l = Log(x) y = MatMul(l, k) }", {"k": normal(4, 3)})
    settings = config(activation={"calibration": {"method": method}})
    with pytest.raises(UnsupportedModelError) as caught:
        quantize_file(tmp_path, model, {"x": -np.abs(normal(8, 4))}, settings)
    assert caught.value.where == {"node": "Log_0", "op_type": "Log", "tensor": "l"}
    assert caught.value.hint


@each("cancel_at", [1, 3, 8, 30])
def test_a_canceled_run_stops_at_the_next_check(tmp_path: Path, cancel_at: int) -> None:
    run = Recorder(cancel_at)
    with pytest.raises(CanceledError):
        quantize_file(tmp_path, network("1"), data(10), run=run)
    assert run.checks == cancel_at


GATE = {"evaluation": {"gate": {"max_drop": 1}}}


@each(
    ("settings", "arrays", "kind", "pointer"),
    [
        ({"exclude": [{"node": "steem"}]}, data(), InvalidConfigError, "/config/exclude/0"),
        (GATE, {"x": data()["x"]}, InvalidConfigError, "/config/evaluation/gate/metric"),
        ({}, {"x": normal(4, 3, 9, 10)}, DatasetMismatchError, None),
    ],
)
def test_what_does_not_fit_model_or_data_is_refused(
    settings: dict, arrays: dict[str, np.ndarray], kind: type, pointer: str | None, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        quantize_file(tmp_path, network(), arrays, config(**settings))
    if pointer is not None:
        (problem,) = caught.value.errors
        assert problem.pointer.startswith(pointer)
        assert "exclude" not in settings or "did you mean 'stem'?" in problem.message


@each(("limit", "verdict"), [(5.0, "pass"), (190.0, "fail")])
def test_the_gate_decides_the_verdict(tmp_path: Path, limit: float, verdict: str) -> None:
    samples = {name: array for name, array in data().items() if name != "labels"}
    report = quantize_file(tmp_path, network(), samples, config(evaluation={"gate": {"min_sqnr_db": limit}})).report
    (clause,) = report.gate
    expected = (verdict, "min_sqnr_db", limit, report.fidelity.sqnr_db)
    assert (report.verdict, clause.clause, clause.wanted, clause.got) == expected


def test_old_and_half_precision_models(tmp_path: Path) -> None:
    result = quantize_file(tmp_path, network("1", opset=9), data(6))
    assert result.report.fidelity.sqnr_db > 25
    half = make_model("(float16[N,3,10,10] x) => (float16[N,8,8,8] y) { t = Conv(x, w) y = Relu(t) }")
    half.graph.initializer.append(onnx.numpy_helper.from_array(normal(8, 3, 3, 3).astype(np.float16), "w"))
    result = quantize_file(tmp_path, half, {"x": data()["x"].astype(np.float16)})
    assert result.report.fidelity.sqnr_db > 25
    assert onnx.load_from_string(result.model).graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16


@pytest.mark.slow
def test_ranges_of_one_report_save_the_calibration_of_the_next(tmp_path: Path) -> None:
    first = quantize_file(tmp_path, network(), data(), config())
    ranges = {name: found.model_dump() for name, found in first.report.tensor_ranges.items()}
    assert set(ranges) == {"x", "r", "d", "s", "p"}
    other = data(4, seed=9)
    again = quantize_file(tmp_path, network(), other, config(tensor_ranges=ranges))
    assert without_provenance(again.model) == without_provenance(first.model)
    assert without_provenance(quantize_file(tmp_path, network(), other, config()).model) != without_provenance(
        first.model
    )


@each("mode", ["static", "dynamic", "float16"])
def test_a_model_that_draws_random_numbers_is_refused_as_such(tmp_path: Path, mode: str) -> None:
    """It gives other outputs each time that it runs, and cannot be compared with anything."""
    model = make_model(
        "(float[N,4] x) => (float[N,A] y) { h = Gemm(x, w) "
        "half = Constant<value = float {0.5}>() yes = Constant<value = bool {1}>() y = Dropout(h, half, yes) }",
        {"w": normal(4, 64)},
    )
    with pytest.raises(UnsupportedModelError, match="output 'y' of the model is another each time"):
        quantize_file(tmp_path, model, {"x": normal(6, 4)}, config(mode=mode))


def test_a_batch_axis_that_is_fixed_beyond_memory_stops_the_run_with_its_cause(tmp_path: Path) -> None:
    text = "(float[100000,16,224,224] x) => (float[100000,16,224,224] y) { [fc] y = Conv(x, w) }"
    model = make_model(text, {"w": np.ones((16, 16, 1, 1), np.float32)})
    with pytest.raises(UnsupportedModelError, match="The batch axis is fixed at 100000: one forward pass needs at"):
        quantize_file(tmp_path, model, {"x": np.zeros((4, 16, 224, 224), np.float32)})
