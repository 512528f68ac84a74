"""Declared metrics through a whole quantization: report, gate, acceptance of algorithms, refusals before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.metrics import FunctionMetric, GraphMetric, Metric, MetricFacts
from service.contracts.report import Report, Score
from tests.support.each import each
from tests.unit.quantizer.toolbox import make_model, normal, rng, run_onnx, write_npz
from worker.quantizer.evaluation.metrics.metric_set import METERS
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.refine.judge import is_worse
from worker.quantizer.run.interface import SilentRun

NETWORK = (
    "(float[N,6] x) => (float[N,5] y, float[N,3] z) { t = Gemm(x, w, b) r = Relu(t) y = Gemm(r, v, c) z = Gemm(r, u) }"
)
WEIGHTS = {
    "w": normal(6, 16, scale=0.5), "b": normal(16, seed=1), "v": normal(16, 5, seed=2), "c": normal(5, seed=3),
    "u": normal(16, 3, seed=4),
}  # fmt: skip
MODEL = make_model(NETWORK, WEIGHTS)
X = normal(60, 6, seed=5)
FLOAT = run_onnx(MODEL, {"x": X})
LABELS = np.where(rng(6).random(60) < 0.8, FLOAT["y"].argmax(axis=1), rng(7).integers(0, 5, 60))
TARGETS = FLOAT["z"] + normal(60, 3, seed=8, scale=0.3)
METRICS: list[dict[str, Any]] = [
    {"kind": "rmse", "output": "z", "labels": "targets"}, {"kind": "top1"}, {"kind": "cosine", "output": 1},
]  # fmt: skip


def run(
    folder: Path,
    evaluation: dict[str, Any],
    arrays: dict[str, np.ndarray] | None = None,
    calibration: dict[str, np.ndarray] | None = None,
    model: onnx.ModelProto = MODEL,
    **settings: Any,
) -> Result:
    """Quantize, and compare on ``arrays``; on the calibration data if None."""
    onnx.save(model, folder / "model.onnx")
    source = write_npz(folder / "calibration.npz", **({"x": X} if calibration is None else calibration))
    other = None if arrays is None else write_npz(folder / "evaluation.npz", **arrays)
    config = parse_config({"evaluation": {"latency_runs": 1, "layer_samples": 1, **evaluation}, **settings})
    return quantize(folder / "model.onnx", config, source, other, run=SilentRun(), threads=1)


def rmse(output: np.ndarray) -> float:
    return float(np.sqrt(np.mean((output.astype(np.float64) - TARGETS) ** 2)))


def test_every_metric_of_the_contract_has_a_meter() -> None:
    made_of_what_they_name = {GraphMetric, FunctionMetric}
    members = set(get_args(get_args(Metric)[0])) - made_of_what_they_name
    assert set(METERS) == {member.model_fields["kind"].default for member in members}


def test_the_report_tells_both_models_metrics_and_the_gate_judges_the_first(tmp_path: Path) -> None:
    evaluation = {"metrics": [*METRICS, {"kind": "per_class_accuracy"}], "gate": {"max_value": 1.0}}
    result = run(tmp_path, evaluation, {"x": X, "labels": LABELS, "targets": TARGETS})
    got, report = run_onnx(result.model, {"x": X}), result.report
    right, kept = (out["y"].argmax(axis=1) == LABELS for out in (FLOAT, got))
    a, b = FLOAT["z"].astype(np.float64), got["z"].astype(np.float64)
    cosine = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
    before, after = report.float_.metrics, report.quantized.metrics
    assert before["rmse"] == pytest.approx(rmse(FLOAT["z"]), rel=1e-4)
    assert before["top1"] == pytest.approx(100 * right.mean(), abs=1e-3)
    assert "cosine" not in before
    assert after["rmse"] == pytest.approx(rmse(got["z"]), rel=1e-4)
    assert after["top1"] == pytest.approx(100 * kept.mean(), abs=1e-3)
    assert after["cosine"] == pytest.approx(cosine, abs=1e-5)
    each = {f"class {k}": pytest.approx(100 * right[k == LABELS].mean(), abs=1e-3) for k in np.unique(LABELS)}
    assert report.float_.metric_details == {"per_class_accuracy": each}
    figures = {entry.name: entry for entry in report.metrics}
    assert [(entry.name, entry.unit) for entry in report.metrics[:3]] == [("rmse", ""), ("top1", "%"), ("cosine", "")]
    assert figures["rmse"].better == "lower"
    assert figures["rmse"].drop == pytest.approx(rmse(got["z"]) - rmse(FLOAT["z"]), rel=1e-2)
    assert figures["top1"].drop == pytest.approx(100 * (right.mean() - kept.mean()), abs=1e-3)
    assert figures["cosine"].drop == pytest.approx(1 - cosine, abs=1e-5)
    assert report.summary.startswith("rmse ")
    (clause,) = report.gate
    assert (clause.clause, clause.metric, clause.wanted, clause.got) == ("max_value", "rmse", 1.0, after["rmse"])
    assert report.verdict == "pass"
    assert Report.model_validate(report.to_json_dict()) == report


def test_without_declared_metrics_all_is_as_ever(tmp_path: Path) -> None:
    report = run(tmp_path, {}, {"x": X, "labels": LABELS}).report
    assert list(report.quantized.metrics) == [entry.name for entry in report.metrics] == ["top1"]
    assert report.summary.startswith("top-1 ") and (report.verdict, report.gate) == ("none", ())
    report = run(tmp_path, {}, {"x": X, "labels": TARGETS}).report  # which nothing takes
    assert report.quantized.metrics == {}
    assert any("'labels' (float32[60, 3]) does not contain one class number" in note for note in report.notes)


def test_a_metric_without_value_and_labels_that_do_not_fit_are_told(tmp_path: Path) -> None:
    evaluation = {"metrics": [{"kind": "pearson", "output": "z"}], "gate": {"min_value": -1}}
    report = run(tmp_path, evaluation, {"x": X, "labels": np.ones((60, 3), np.float32)}).report
    assert report.quantized.metrics == {}
    assert any("pearson of the quantized model has no value" in note for note in report.notes)
    assert report.verdict == "fail"
    # calibration labels are tried where steps are judged by them
    evaluation = {"metrics": [{"kind": "top1", "labels": "truth"}]}
    arrays = {"x": X, "truth": LABELS}
    with pytest.raises(InvalidConfigError, match="calibration dataset: top1: label 5 is not a class"):
        run(tmp_path, evaluation, arrays, {"x": X, "truth": LATE})
    run(tmp_path, evaluation, arrays, {"x": X, "truth": LATE}, algorithms=[])


LATE = LABELS.copy()
LATE[-1] = 5  # the very last label


@pytest.mark.parametrize(
    ("metric", "arrays", "place", "says"),
    [
        ({"kind": "top1", "output": "q"}, {"labels": LABELS}, "output", "no output 'q'"),
        ({"kind": "top1"}, {}, "labels", "needs labels"),
        ({"kind": "top1", "labels": "truht"}, {"truth": LABELS}, "labels", "did you mean 'truth'?"),
        ({"kind": "top1", "labels": "targets"}, {"targets": TARGETS}, "labels", "integers are needed"),
        ({"kind": "rmse", "labels": "targets"}, {"targets": TARGETS}, "labels", r"but the output is \[1, 5\]"),
        ({"kind": "top1", "labels": "late"}, {"late": LATE}, "labels", "label 5 is not a class"),
        ({"kind": "top1"}, {"labels": LATE}, "labels", r"labels are in \[0, 5\]; output 'y' has classes \[0, 4\]"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_work(tmp_path, metric, arrays, place, says) -> None:
    class NoWork(SilentRun):
        def progress(self, stage: str, *_: Any, **__: Any) -> None:
            assert stage == "load"

    onnx.save(MODEL, tmp_path / "model.onnx")
    source = write_npz(tmp_path / "c.npz", x=X)
    other = write_npz(tmp_path / "e.npz", x=X, **arrays)
    config = parse_config({"evaluation": {"metrics": [{"kind": "sqnr"}, metric]}})
    with pytest.raises(InvalidConfigError, match=says) as caught:
        quantize(tmp_path / "model.onnx", config, source, other, run=NoWork(), threads=1)
    assert caught.value.errors[0].pointer == f"/config/evaluation/metrics/1/{place}"
    assert caught.value.hint


# Acceptance of algorithms.


@pytest.mark.parametrize("labelled", [True, False])
def test_steps_are_judged_by_the_first_metric(tmp_path: Path, labelled: bool) -> None:
    evaluation = {"metrics": METRICS}
    everything = {"x": X, "labels": LABELS, "targets": TARGETS}
    settings = {"preset": "int8_per_tensor", "algorithms": [{"method": "bias_correction"}]}
    report = run(tmp_path, evaluation, everything, everything if labelled else {"x": X}, **settings).report
    (outcome,) = report.algorithms
    assert outcome.before.metric == outcome.after.metric == "rmse"
    assert (outcome.before.value is not None) == labelled
    if labelled:
        held_back = TARGETS[: outcome.samples], FLOAT["z"][: outcome.samples]
        floor = np.sqrt(np.mean((held_back[0] - held_back[1]) ** 2))
        assert outcome.after.value == pytest.approx(floor, rel=0.2)


HIGH, LOW = MetricFacts(), MetricFacts("", "lower")


@pytest.mark.parametrize(
    ("facts", "before", "after", "noise", "sqnr", "worse"),
    [
        (HIGH, 90.0, 80.0, 1.0, (20.0, 30.0), "top1 90.00 -> 80.00 %"),
        (HIGH, 90.0, 95.0, 1.0, (20.0, 10.0), None),
        (HIGH, 90.0, 89.0, 1.0, (20.0, 30.0), None),  # within chance: SQNR decides
        (HIGH, 90.0, 91.0, 1.0, (20.0, 10.0), "SQNR 20.00 -> 10.00 dB"),
        (LOW, 0.5, 0.75, 0.1, (20.0, 30.0), "top1 0.5 -> 0.75"),
        (LOW, 0.5, 0.25, 0.1, (20.0, 10.0), None),
        (LOW, 0.5, 0.6, 0.1, (20.0, 20.0), None),
        (HIGH, 90.0, None, 1.0, (20.0, 30.0), "no value any more"),
        (HIGH, None, None, float("inf"), (20.0, 10.0), "SQNR"),
        (HIGH, None, None, float("inf"), (20.0, None), "not finite"),
        (HIGH, None, None, float("inf"), (None, 10.0), None),
    ],
)
def test_what_is_worse(facts, before, after, noise, sqnr, worse) -> None:
    sure = before is not None and after is not None and abs(after - before) > 2 * noise
    found = is_worse(Score(sqnr_db=sqnr[1], value=after), Score(sqnr_db=sqnr[0], value=before), facts, sure=sure)
    assert (found is None) == (worse is None)
    if worse is not None:
        assert found is not None and worse.removeprefix("top1") in found.words


@each(("after", "sure", "worse"), [(20.5, False, "gain-too-small"), (21.0, False, None), (20.5, True, None)])
def test_what_costs_bytes_must_gain(after: float, sure: bool, worse: str | None) -> None:
    old, new = Score(sqnr_db=20.0, value=90.0), Score(sqnr_db=after, value=91.0)
    found = is_worse(new, old, HIGH, sure=sure, least_gain_db=1.0)
    assert (found and found.code) == worse
