"""Which outputs hold class scores, which samples changed sides, and the file that tells it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.config import parse_config
from service.contracts.dataset import LabelSummary
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import TensorInfo
from tests.unit.quantizer.evaluation.test_compare import WEIGHT, classifier, coarse, compared
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, rng, run_onnx
from worker.quantizer.evaluation.decisions import OutputDecisions, class_outputs
from worker.quantizer.evaluation.gate import metric_figures
from worker.quantizer.evaluation.metrics import Metrics

SHARP = 6 * WEIGHT
LABELS = rng(1).integers(0, 8, 200)
X = normal(200, 6)
OUTPUTS = (TensorInfo(name="y", dtype="float32", shape=(None, 8)),)


def test_flips_are_counted_sample_by_sample() -> None:
    before, after = (run_onnx(classifier(weight), {"x": X})["y"] for weight in (SHARP, coarse(SHARP) * 1.3))
    labels = np.where(rng(2).random(200) < 0.7, before.argmax(axis=1), LABELS)
    found = compared(classifier(SHARP), classifier(coarse(SHARP) * 1.3), {"x": X}, labels)
    right, kept = before.argmax(axis=1) == labels, after.argmax(axis=1) == labels
    figures = metric_figures(EvaluationSpec(), found)[0]
    assert figures.flips is not None and figures.drop_interval is not None and figures.float_interval is not None
    lost = right & ~kept
    assert (figures.flips.lost, figures.flips.won) == (lost.sum(), (kept & ~right).sum())
    assert figures.flips.lost > 0
    assert figures.flips.confident == (lost & (before.max(axis=1) >= 0.9)).sum()
    assert figures.drop_interval.low <= figures.drop <= figures.drop_interval.high  # type: ignore[operator]
    assert (figures.samples, figures.drop_interval.samples, figures.chance) == (200, 200, None)
    fidelity = found.fidelity
    assert fidelity.sqnr_interval_db is not None and fidelity.top1_agreement_interval is not None
    assert fidelity.sqnr_interval_db.low < fidelity.sqnr_db < fidelity.sqnr_interval_db.high  # type: ignore[operator]


@pytest.mark.parametrize("is_share", [True, False])
def test_the_probability_of_a_decision_and_the_loss_of_a_label(is_share: bool) -> None:
    scores, labels = rng(5).standard_normal((2, 30, 7)).astype(np.float32) * 4, rng(6).integers(0, 7, 30)
    share = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    given = share if is_share else scores
    found, without = OutputDecisions(), OutputDecisions()
    for part in (slice(0, 11), slice(11, 30)):
        found.update(given[0][part], given[1][part], labels[part])
        without.update(given[0][part], given[1][part], None)
    for name, of in zip(("float", "quantized"), share, strict=True):
        expected = -np.log(of[np.arange(30), labels])
        assert found.arrays[f"{name}_loss"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    arrays = without.arrays
    assert not {"label", "float_correct"} & set(arrays)
    assert arrays["float_loss"] == pytest.approx(-np.log(share[0].max(axis=1)), rel=1e-4, abs=1e-5)
    assert arrays["float_confidence"] == pytest.approx(share[0].max(axis=1), rel=1e-5)
    assert np.array_equal(arrays["quantized_class"], scores[1].argmax(axis=1))
    certain = OutputDecisions()
    certain.update(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[::-1], np.arange(3))
    assert np.isfinite(certain.arrays["quantized_loss"]).all(), "a probability of 0 is no endless loss"
    certain.update(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32), np.array([0, 3, 1]))
    assert "float_loss" not in certain.arrays, "there is no such class"


def test_class_numbers_of_any_size_have_no_probability_and_maps_no_class_per_sample() -> None:
    numbers, found = np.arange(6), OutputDecisions()
    found.update(numbers, numbers[::-1], numbers)
    assert not {"float_confidence", "float_loss"} & set(found.arrays)
    assert found.arrays["quantized_correct"].sum() == 0
    assert found.confident is None
    maps = OutputDecisions()
    maps.update(*np.zeros((2, 3, 5, 4, 4), np.float32), None)
    assert maps.arrays == {}
    # large numbers are not wrapped
    found, large = OutputDecisions(), np.array([2**31 - 1, 2**31, 2**40])
    found.update(large[:1], large[:1], large[:1])
    assert found.arrays["label"].dtype == np.int32
    found.update(large[1:], large[1:], large[1:])
    for name in ("label", "float_class", "quantized_class"):
        assert found.arrays[name].dtype == np.int64 and np.array_equal(found.arrays[name], large)
    found.update(large[:1], large[:1], np.array([2**63], np.uint64))
    assert "label" not in found.arrays


def test_of_what_the_samples_cannot_tell_nothing_is_told() -> None:
    spec = EvaluationSpec.model_validate({"metrics": [{"kind": "top1", "ignore_index": 3}]})
    found = compared(
        classifier(SHARP), classifier(coarse(SHARP) * 1.3), {"x": X}, LABELS, metrics=Metrics(spec, OUTPUTS)
    )
    flips = metric_figures(spec, found)[0].flips
    assert flips is not None and flips.confident is None
    # equal models are equal as far as the samples can tell
    spec = EvaluationSpec.model_validate({"metrics": [{"kind": "f1"}]})
    found = compared(classifier(WEIGHT), classifier(WEIGHT), {"x": X}, LABELS, metrics=Metrics(spec, OUTPUTS))
    (figures,) = metric_figures(spec, found)
    assert (figures.drop, figures.p_value, figures.unit) == (0.0, 1.0, "%")
    span = figures.drop_interval
    assert span is not None and (span.method, span.samples) == ("rule_of_three", 200)
    assert span.high == -span.low == pytest.approx(100 * (1 - 0.05 ** (1 / 200)), abs=1e-3)


def test_the_file_is_one_of_the_run(tmp_path: Path) -> None:
    result = quantize_file(tmp_path, classifier(WEIGHT), {"x": X, "labels": LABELS}, parse_config({"preset": "int8"}))
    (file,) = result.files
    assert (file.kind, file.filename) == ("samples", "samples.npz")
    assert isinstance(file.content, bytes)
    with np.load(io.BytesIO(file.content)) as stored:
        assert np.array_equal(stored["index"], np.arange(200))
        assert 100 * stored["quantized_correct"].mean() == pytest.approx(
            result.report.quantized.metrics["top1"], abs=1e-3
        )
    regression = make_model("(float[N,6] x) => (float[N,1] y) { y = MatMul(x, w) }", {"w": normal(6, 1)})
    assert quantize_file(tmp_path, regression, {"x": X}, parse_config({"preset": "int8"})).files == ()


W = {"w": normal(8, 8)}
K = {"k": normal(8, 3, 3, 3)}
CLASSES = LabelSummary(array="labels", count=4, minimum=0, maximum=3)
PADDED = LabelSummary(array="labels", count=4, dtype="int64", shape=(4, 2))
VALUES = LabelSummary(array="labels", count=4, dtype="float32", shape=(4, 2))


def found(text: str, weights: dict[str, np.ndarray], labels: LabelSummary | None = None, **spec: Any) -> set[str]:
    model = ir.from_proto(make_model(text, weights))
    return set(class_outputs(model, EvaluationSpec.model_validate(spec), labels))


CLASSIFIER = "(float[N,3,8,8] x) => (float[N,8] y) { c = Conv(x, k) p = GlobalAveragePool(c) y = Flatten(p) }"
LOGITS = "(float[N,4,2] x) => (float[N,8] y) { f = Flatten(x) y = MatMul(f, w) }"


# Text of a network, its weights, and whether its output holds class scores.
SCORED: list[tuple[str, dict[str, np.ndarray], bool]] = [
    *(
        (text, weights, True)
        for text, weights in [
            (CLASSIFIER, K),
            (LOGITS, W),
            ("(float[N,4,2] x) => (float[N,8] y) { f = Flatten(x) t = MatMul(f, w) y = Sigmoid(t) }", W),
            ("(float[N,8] x) => (float[N,8] y) { t = MatMul(x, w) y = Softmax(t) }", W),
            (
                "(float[N,5,8] x) => (float[N,8,5] y) { t = MatMul(x, w) s = Softmax(t) "
                "y = Transpose<perm=[0,2,1]>(s) }",
                W,
            ),
            ("(float[N,3,8,8] x) => (float[N,8,6,6] y) { t = Conv(x, k) y = Softmax<axis=1>(t) }", K),
            ("(float[N,3,8,8] x) => (float[N,8,1,1] y) { c = Conv(x, k) y = GlobalAveragePool(c) }", K),
        ]
    ),
    *(
        (text, weights, False)
        for text, weights in [
            ("(float[N,8] x) => (float[N,8] y) { y = MatMul(x, w) }", W),  # restores its input
            ("(float[N,4,2] x) => (float[N,8] y_boxes) { f = Flatten(x) y_boxes = MatMul(f, w) }", W),
            ("(float[N,4,2] x) => (float[N,8] y) { f = Flatten(x) t = MatMul(f, w) y = LpNormalization(t) }", W),
            (
                "(float[N,4,2] x) => (float[N,8] y) { f = Flatten(x) t = MatMul(f, w) n = ReduceL2<keepdims=1>(t, a) "
                "y = Div(t, n) }",
                {**W, "a": np.array([1])},
            ),
            ("(float[N,4,2] x) => (float[N,8] y) { f = Flatten(x) t = MatMul(f, w) y = Tanh(t) }", W),
            ("(float[N,3,8,8] x) => (float[N,8,6,6] y) { y = Conv(x, k) }", K),  # a picture
            ("(float[N,5,8] x) => (float[N,5,8] y) { y = MatMul(x, w) }", W),  # a vector per step
            ("(float[N,4,2] x) => (float[N,1] y) { f = Flatten(x) y = MatMul(f, one) }", {"one": normal(8, 1)}),
        ]
    ),
]


@pytest.mark.parametrize(("text", "weights", "scores"), SCORED)
def test_scores_are_known_by_shape_or_softmax(text: str, weights: dict[str, np.ndarray], scores: bool) -> None:
    assert found(text, weights) == ({"y"} if scores else set())


def test_the_config_has_the_first_word() -> None:
    picture = "(float[N,3,8,8] x) => (float[N,8,6,6] y) { y = Conv(x, k) }"
    assert found(picture, K, metrics=[{"kind": "mean_iou"}]) == {"y"}
    assert found(picture, K, metrics=[{"kind": "agreement", "name": "same"}]) == {"y"}
    assert found(picture, K, gate={"metric": "top1_agreement", "min_value": 90}) == {"y"}
    assert found(picture, K, gate={"min_sqnr_db": 10}) == set()
    assert found(LOGITS, W, metrics=[{"kind": "rmse"}]) == set()
    assert found(LOGITS, W, metrics=[{"kind": "psnr"}]) == {"y"}
    # labels that are no classes speak against it
    assert found(LOGITS, W, labels=VALUES) == set()
    assert found(LOGITS, W, labels=PADDED) == {"y"}, "of places, filled up with -1, say"
    assert found(LOGITS, W, labels=CLASSES) == {"y"}


def report(folder: Path, text: str, weights: dict[str, np.ndarray], x: np.ndarray, **settings: object) -> Any:
    return quantize_file(folder, make_model(text, weights), {"x": x}, config(**settings)).report


def test_a_report_speaks_of_decisions_where_there_are_any(tmp_path: Path) -> None:
    told = report(tmp_path, LOGITS, W, normal(12, 4, 2))
    assert "top-1 agreement" in told.summary and told.summary.startswith("on calibration data: ")
    assert told.fidelity.top1_agreement is not None
    one = report(tmp_path, LOGITS, {"w": np.abs(W["w"]) * np.eye(8, dtype=np.float32)[0] * 9}, np.abs(normal(12, 4, 2)))
    assert "top-1 agreement" not in one.summary, "all of one class: nothing decides"
    text = "(float[N,8] x) => (float[N,8] y) { t = Gemm(x, w) r = Relu(t) y = Gemm(r, w) }"  # an autoencoder
    told = report(tmp_path, text, W, normal(12, 8))
    assert told.fidelity.top1_agreement is None
    assert [output.top1_agreement for output in told.fidelity.outputs] == [None]
    assert "top-1 agreement" not in told.summary
    gate = {"metric": "top1_agreement", "min_value": 0}
    asked = report(tmp_path, text, W, normal(12, 8), evaluation={"gate": gate})
    assert asked.fidelity.top1_agreement is not None
    assert asked.verdict == "pass"
