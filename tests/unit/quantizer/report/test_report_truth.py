"""Notes say what is so, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.config import parse_config
from service.contracts.report import Finding, Interval, LatencyFigures, MachineLoad
from service.contracts.report.layers import Severity
from tests.support.each import each
from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    data,
    make_model,
    network,
    normal,
    prepare_proto,
    quantize_file,
)
from worker.quantizer.graph.metadata import fates, outline
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.report import assemble
from worker.quantizer.report.kernels import not_representative
from worker.quantizer.report.words import alarm_words, cost_notes

SELECTED = "include and exclude leave nothing to quantize: the model is returned as it was uploaded"
NOTHING = "nothing in this model can be quantized: the model is returned as it was uploaded"


@each("settings", [{"exclude": [{"op_type": op} for op in ("Conv", "MatMul", "Add")]}, {"include": [{"node": "soft"}]}])
def test_the_users_own_selection_is_named_as_the_cause(tmp_path: Path, settings: dict[str, object]) -> None:
    report = quantize_file(tmp_path, network(), data(), config(**settings)).report
    assert SELECTED in report.notes
    assert NOTHING not in report.notes


def test_a_model_without_anything_to_quantize_is_the_cause_whatever_is_selected(tmp_path: Path) -> None:
    model = make_model("(float[N,4] x) => (float[N,4] y) { [s] y = Softmax<axis=1>(x) }")
    for settings in ({}, {"exclude": [{"node": "s"}]}):
        notes = quantize_file(tmp_path, model, {"x": normal(4, 4)}, config(**settings)).report.notes
        assert NOTHING in notes
        assert not [note for note in notes if "not smaller" in note or "slower" in note]


@pytest.mark.slow
def test_more_calibration_samples_than_there_are(tmp_path: Path) -> None:
    for wanted in (100, 24, None):
        report = quantize_file(tmp_path, network(), data(24), config(calibration_samples=wanted)).report
        note = "calibration_samples is 100, the dataset contains 24: all of them are used"
        assert (note in report.notes) == (wanted == 100)


@each("metrics", [[], [{"kind": "top1"}]])
def test_samples_without_a_label_count_in_agreement_alone(tmp_path: Path, metrics: list[dict[str, str]]) -> None:
    settings, arrays = config(evaluation={"metrics": metrics}), data(24)
    kept = np.arange(24) % 3 > 0
    some = {**arrays, "labels": np.where(kept, arrays["labels"], -1)}
    reports = [
        quantize_file(tmp_path, network(), arrays, settings, evaluation=given).report
        for given in (some, {name: array[kept] for name, array in arrays.items()}, arrays)
    ]
    assert reports[0].quantized.metrics["top1"] == reports[1].quantized.metrics["top1"]
    assert reports[0].fidelity.top1_agreement == reports[2].fidelity.top1_agreement
    assert reports[0].fidelity.samples == 24
    note = "8 of 24 samples have no label (-1): they count in agreement and distances, not in metrics on labels."
    assert [note in report.notes for report in reports] == [True, False, False]


def test_an_output_without_figures_is_explained(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,4] x) => (float[N,3] y, float[N,4] z) { [fc] y = Gemm(x, w) [log] z = Log(x) }", {"w": normal(4, 3)}
    )
    report = quantize_file(tmp_path, model, {"x": -np.abs(normal(4, 4))}, config()).report
    assert "output 'z' of the float model contains NaN or Inf: no distance is measured" in report.notes
    assert [output.sqnr_db is None for output in report.fidelity.outputs] == [False, True]


def test_folded_nodes_are_told_with_the_node_that_took_them_in(tmp_path: Path) -> None:
    settings = config(exclude=[{"op_type": "BatchNormalization"}, {"node": "bias"}])
    notes = quantize_file(tmp_path, network(), data(), settings).report.notes
    kind, node = "exclude op_type 'BatchNormalization' has no effect", "exclude node 'bias' has no effect"
    assert f"{kind}: node 'bn' was folded into node 'stem' (Conv)" in notes
    assert f"{node}: the node was folded into node 'dense' (Gemm)" in notes


def test_the_fate_of_every_node_that_is_gone() -> None:
    model = make_model(
        f"(float[N,3,4,4] x) => (float[N,8,4,4] y) {{ [conv] a = Conv(x, w) {batchnorm_text('a', 'b')} "
        "[scale] c = Mul(b, k) [same] d = Identity(c) [two] t = Add(p, p) [add] e = Add(d, t) [dead] f = Relu(x) "
        "[last] y = Sigmoid(e) }",
        {"w": normal(8, 3, 1, 1), **batchnorm_weights(8), "k": np.float32(2.0), "p": normal(1, 1, 4, 4)},
    )
    before = outline(ir.from_proto(model).graph)
    found = fates(before, prepare_proto(model)[0].graph)
    assert found["bn"] == found["scale"] == "folded into node 'conv' (Conv)"
    assert found["two"] == "computed in advance: its result is a constant"
    assert found["dead"] == "removed: it changes nothing, or nothing needs its result"
    assert found["same"].startswith(("removed", "folded into node 'conv'"))
    assert set(found) == {"bn", "scale", "two", "dead", "same"}


PLAN = QuantizationPlan(nodes={"a": NodePlan("a", "Conv", Role.LINEAR)})


def latency(low: float, high: float, busy: float | None = 0.0) -> LatencyFigures:
    def interval(low: float, high: float) -> Interval:
        return Interval(low=low, high=high, confidence=0.99, method="order_statistics", samples=20)

    return LatencyFigures(
        **{"float_ms": 2.0, "quantized_ms": 2.0, "runs": 20, "batch_size": 1, "threads": 1},
        float_interval_ms=interval(1.9, 2.1),
        quantized_interval_ms=interval(1.9, 2.1),
        ratio=(low + high) / 2,
        ratio_interval=interval(low, high),
        verdict="faster" if high < 1 else "slower" if low > 1 else "undecided",
        load=MachineLoad(cpu_count=2, load_average=None, other_busy_percent=busy),
    )


def test_slower_and_load_are_told_only_where_they_are_so() -> None:
    assert cost_notes(PLAN, latency(0.4, 0.6), None) == ()
    assert "is 1.30x slower: small layers" in cost_notes(PLAN, latency(1.2, 1.4), None)[0]
    (undecided,) = cost_notes(PLAN, latency(0.8, 1.25), None)
    assert undecided == "latency difference not significant (99 % CI: 1.25x faster to 1.25x slower)"
    for busy in (None, 3.0):
        assert cost_notes(PLAN, latency(0.4, 0.6, busy), None) == ()
    for busy in (10.0, 48.6):
        (note,) = cost_notes(PLAN, latency(0.4, 0.6, busy), None)
        assert f"used {busy:.0f} %" in note


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"preset": "int8"}, None),
        ({"preset": "xint8"}, "Simulated with onnxruntime on this CPU; the target is an AMD NPU"),
        ({"preset": "int8", "target": "tensorrt"}, "Simulated with onnxruntime on this CPU; the target is TensorRT"),
        ({"preset": "int8", "activation": {"dtype": "uint16"}}, "Simulated: onnxruntime has no uint16 kernels"),
        ({"mode": "float16"}, "Simulated: onnxruntime has no float16 kernels"),
        ({"mode": "weights_only"}, None),
    ],
)
def test_latency_of_another_target_is_neither_slow_nor_fast(settings: dict[str, Any], words: str | None) -> None:
    why = not_representative(parse_config(settings))
    assert why == words or (words is not None and why is not None and why.startswith(words))
    slow = latency(1.2, 1.4).model_copy(update={"not_representative": why})
    (note,) = cost_notes(PLAN, slow, None)
    assert ("slower" in note) == (why is None)
    assert ("not representative of the target" in note) == (why is not None)


def test_a_gate_on_latency_is_undecided_on_another_machine_than_the_target(tmp_path: Path) -> None:
    evaluation = {"latency_runs": 1, "advice_seconds": 0, "gate": {"max_latency_ratio": 1e-6, "on_fail": "fallback"}}
    for target in ("tensorrt", "onnxruntime_cpu"):
        settings = config(target=target, evaluation={**evaluation, "fallback_seconds": 0})
        report = quantize_file(tmp_path, network(), data(), settings).report
        clause = next(clause for clause in report.gate if clause.clause == "max_latency_ratio")
        if target == "tensorrt":
            assert clause.holds is None and (clause.why or "").startswith("latency is not representative")
            assert (report.verdict, report.fallback) == ("undecided", None)
            assert "latency not representative of the target" in report.summary
        else:
            assert report.fallback is not None


def test_the_summary_speaks_of_what_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for low, high, words in (
        (0.4, 0.6, "2.00x faster"),
        (1.5, 2.5, "2.00x slower"),
        (0.8, 1.2, "no significant difference"),
    ):
        told = latency(low, high)
        monkeypatch.setattr(assemble, "measure_latency", lambda *args, told=told, **kwargs: told)
        report = quantize_file(tmp_path, network(), {"x": normal(8, 3, 10, 10)}, config()).report
        assert words in report.summary
        assert report.latency == told


@pytest.mark.parametrize(
    ("text", "arrays", "told"),
    [
        (
            "(float[N,4] x) => (float[N,4] y) { [fc] t = Gemm(x, w) [act] r = Relu(t) [fc2] y = Gemm(r, w) }",
            {"x": normal(8, 4)},
            "Q/DQ nodes, names and shapes add ",
        ),
        (
            "(float[N,64] x, float[N,64,64] k) => (float[N,64] y, float[N,64,64] z) { [fc] t = Gemm(x, w) "
            "[act] r = Relu(t) [fc2] y = Gemm(r, w) [power] z = Pow(k, w) }",
            {"x": normal(8, 64), "k": np.ones((8, 64, 64), np.float32)},
            "weights of 16384 bytes are stored twice",
        ),
    ],
    ids=["few weights", "a weight that floats read too"],
)
def test_the_cause_of_growth_is_told(text: str, arrays: dict[str, np.ndarray], told: str, tmp_path: Path) -> None:
    size = arrays["x"].shape[1]
    report = quantize_file(tmp_path, make_model(text, {"w": normal(size, size)}), arrays, config()).report
    assert report.quantized.size_bytes >= report.float_.size_bytes
    (note,) = [note for note in report.notes if "not smaller" in note]
    assert note.startswith(f"the quantized model is not smaller: {told}")


def test_a_summary_begins_with_critical_findings() -> None:
    severities: tuple[Severity, ...] = ("critical", "warning", "info")
    found = [Finding(code="few-samples", severity=severity, message="-") for severity in severities]
    assert alarm_words(found) == "1 critical finding; "
    assert alarm_words([*found, *found]) == "2 critical findings; "
    assert alarm_words(found[1:]) == ""
