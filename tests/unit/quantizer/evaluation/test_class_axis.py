"""Which outputs hold class scores: "the same decision" is spoken of there alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.dataset import LabelSummary
from service.contracts.evaluation import EvaluationSpec
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file
from worker.quantizer.evaluation.class_axis import class_outputs

W = {"w": normal(8, 8)}
K = {"k": normal(8, 3, 3, 3)}
CLASSES = LabelSummary(array="labels", count=4, minimum=0, maximum=3)
VALUES = LabelSummary(array="labels", count=4, dtype="float32", shape=(4, 2))


def found(text: str, weights: dict[str, np.ndarray], labels: LabelSummary | None = None, **spec: Any) -> set[str]:
    model = ir.from_proto(make_model(text, weights))
    return set(class_outputs(model, EvaluationSpec.model_validate(spec), labels))


CLASSIFIER = "(float[N,3,8,8] x) => (float[N,8] y) { c = Conv(x, k) p = GlobalAveragePool(c) y = Flatten(p) }"
LOGITS = "(float[N,4,2] x) => (float[N,8] y) { f = Flatten(x) y = MatMul(f, w) }"


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        (CLASSIFIER, K),
        (LOGITS, W),
        ("(float[N,4,2] x) => (float[N,8] y) { f = Flatten(x) t = MatMul(f, w) y = Sigmoid(t) }", W),
        ("(float[N,8] x) => (float[N,8] y) { t = MatMul(x, w) y = Softmax(t) }", W),
        ("(float[N,5,8] x) => (float[N,8,5] y) { t = MatMul(x, w) s = Softmax(t) y = Transpose<perm=[0,2,1]>(s) }", W),
        ("(float[N,3,8,8] x) => (float[N,8,6,6] y) { t = Conv(x, k) y = Softmax<axis=1>(t) }", K),
        ("(float[N,3,8,8] x) => (float[N,8,1,1] y) { c = Conv(x, k) y = GlobalAveragePool(c) }", K),
    ],
)
def test_scores_by_shape_or_softmax(text: str, weights: dict[str, np.ndarray]) -> None:
    assert found(text, weights) == {"y"}


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("(float[N,8] x) => (float[N,8] y) { y = MatMul(x, w) }", W),  # restores its input
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
    ],
)
def test_embeddings_pictures_and_what_is_restored_are_none(text: str, weights: dict[str, np.ndarray]) -> None:
    assert found(text, weights) == set()


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
    assert found(LOGITS, W, labels=CLASSES) == {"y"}


def report(folder: Path, text: str, weights: dict[str, np.ndarray], x: np.ndarray, **settings: object) -> Any:
    return quantize_file(folder, make_model(text, weights), {"x": x}, config(**settings)).report


def test_a_report_speaks_of_decisions_where_there_are_any(tmp_path: Path) -> None:
    told = report(tmp_path, LOGITS, W, normal(12, 4, 2))
    assert "same decision on" in told.summary and told.summary.startswith("on calibration data: ")
    assert told.fidelity.top1_agreement is not None
    text = "(float[N,8] x) => (float[N,8] y) { t = Gemm(x, w) r = Relu(t) y = Gemm(r, w) }"  # an autoencoder
    told = report(tmp_path, text, W, normal(12, 8))
    assert told.fidelity.top1_agreement is None
    assert [output.top1_agreement for output in told.fidelity.outputs] == [None]
    assert "same decision" not in told.summary
    gate = {"metric": "top1_agreement", "min_value": 0}
    asked = report(tmp_path, text, W, normal(12, 8), evaluation={"gate": gate})
    assert asked.fidelity.top1_agreement is not None
    assert asked.verdict == "pass"
