"""The gate: every clause, for metrics of either direction."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.dataset import ArraySummary, DatasetSummary, LabelSummary
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec, Gate
from service.contracts.evaluation_checks import check_evaluation
from service.contracts.report import Fidelity, ModelFigures
from tests.support.each import each
from worker.quantizer.evaluation.gate import judge, metric_figures


class FakeComparison:
    """What the gate reads of a comparison."""

    def __init__(self, before: dict[str, float], after: dict[str, float]) -> None:
        self.float_metrics, self.quantized_metrics = before, after


BEFORE = {"top1": 90.0, "top5": 99.0, "rmse": 2.0, "ppl": 12.0, "corr": 0.9}
AFTER = {"top1": 89.4, "top5": 98.0, "rmse": 2.25, "ppl": 11.5, "corr": 0.875, "cos": 0.97, "sq": 30.0, "l2": 0.125}
METRICS = [
    {"kind": "top1"},
    {"kind": "rmse"},
    {"kind": "perplexity", "name": "ppl"},
    {"kind": "pearson", "name": "corr"},
    {"kind": "cosine", "name": "cos"},
    {"kind": "sqnr", "name": "sq"},
    {"kind": "l2"},
]


def verdict(spec: EvaluationSpec, **changes: float | None) -> tuple[str, dict[str, tuple[float | None, bool]]]:
    """Judge a model of 90 % that became one of 89.4 %."""
    got: dict[str, Any] = {**AFTER, "sqnr": 30.0, "agreement": 97.5, "size": 250, "latency": 3.0} | changes
    after = {name: got[name] for name in AFTER if got[name] is not None}
    float_ = ModelFigures(metrics=BEFORE, size_bytes=1000, latency_ms=4.0)
    quantized = ModelFigures(metrics=after, size_bytes=int(got["size"]), latency_ms=got["latency"])
    fidelity = Fidelity(
        sqnr_db=got["sqnr"], cosine=0.99, top1_agreement=got["agreement"], samples=8, source="evaluation", outputs=()
    )
    figures = metric_figures(spec, FakeComparison(BEFORE, after))  # type: ignore[arg-type]
    word, clauses = judge(spec.gate, float_, quantized, fidelity, figures)
    return word, {clause.clause: (clause.got, clause.holds) for clause in clauses}


def default(**gate: Any) -> EvaluationSpec:
    return EvaluationSpec(gate=Gate(**gate))


def declared(**gate: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate({"metrics": METRICS, "gate": gate})


CLAUSES = [
    (default(max_drop=0.6), "max_drop", 0.6, True),
    (default(max_drop=0.59), "max_drop", 0.6, False),
    (default(metric="top5", max_drop=1.0), "max_drop", 1.0, True),
    (default(metric="top5", max_drop=0.9), "max_drop", 1.0, False),
    (default(metric="top1_agreement", max_drop=2.5), "max_drop", 2.5, True),
    (default(metric="top1_agreement", max_drop=2.4), "max_drop", 2.5, False),
    (default(min_value=89.4), "min_value", 89.4, True),
    (default(min_value=89.5), "min_value", 89.4, False),
    (default(metric="top1_agreement", min_value=97.0), "min_value", 97.5, True),
    (default(metric="top1_agreement", min_value=98.0), "min_value", 97.5, False),
    (default(min_sqnr_db=30.0), "min_sqnr_db", 30.0, True),
    (default(min_sqnr_db=30.1), "min_sqnr_db", 30.0, False),
    (default(max_size_bytes=250), "max_size_bytes", 250, True),
    (default(max_size_bytes=249), "max_size_bytes", 250, False),
    (default(max_latency_ratio=0.75), "max_latency_ratio", 0.75, True),
    (default(max_latency_ratio=0.74), "max_latency_ratio", 0.75, False),
    # a drop is a change for the worse, whichever direction that is
    (declared(metric="rmse", max_drop=0.25), "max_drop", 0.25, True),
    (declared(metric="rmse", max_drop=0.24), "max_drop", 0.25, False),
    (declared(metric="rmse", max_value=2.25), "max_value", 2.25, True),
    (declared(metric="rmse", max_value=2.24), "max_value", 2.25, False),
    (declared(metric="ppl", max_drop=0.0), "max_drop", -0.5, True),
    (declared(metric="corr", max_drop=0.025), "max_drop", 0.025, True),
    (declared(metric="corr", min_value=0.88), "min_value", 0.875, False),
    # what compares with the float model drops from the value of identical outputs
    (declared(metric="cos", max_drop=0.03), "max_drop", 0.03, True),
    (declared(metric="cos", max_drop=0.02), "max_drop", 0.03, False),
    (declared(metric="l2", max_drop=0.1), "max_drop", 0.125, False),
    (declared(metric="l2", max_value=0.125), "max_value", 0.125, True),
    (declared(metric="sq", min_value=30.0), "min_value", 30.0, True),
    (declared(metric="top1_agreement", max_drop=2.5), "max_drop", 2.5, True),
    # the first declared metric is the gate's own choice
    (declared(max_drop=0.5), "max_drop", 0.6, False),
]


@each(("spec", "clause", "got", "holds"), CLAUSES)
def test_every_clause_passes_and_fails(spec: EvaluationSpec, clause: str, got: float, holds: bool) -> None:
    assert verdict(spec) == ("pass" if holds else "fail", {clause: (got, holds)})


def test_all_clauses_must_hold() -> None:
    assert verdict(default(max_drop=1, min_sqnr_db=20))[0] == "pass"
    word, clauses = verdict(default(max_drop=1, min_sqnr_db=40))
    assert word == "fail"
    assert {name: holds for name, (_, holds) in clauses.items()} == {"max_drop": True, "min_sqnr_db": False}


def test_a_gain_is_no_drop() -> None:
    assert verdict(default(max_drop=0), top1=91.0) == ("pass", {"max_drop": (-1.0, True)})
    assert verdict(declared(metric="rmse", max_drop=0), rmse=1.5) == ("pass", {"max_drop": (-0.5, True)})


def test_without_clauses_there_is_no_verdict() -> None:
    assert verdict(default()) == ("none", {})
    assert verdict(declared(metric="rmse")) == ("none", {})


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (default(max_drop=100), {"top1": None}),
        (default(min_value=0), {"top1": None}),
        (default(metric="top1_agreement", min_value=0), {"agreement": None}),
        (default(min_sqnr_db=-300), {"sqnr": None}),
        (default(max_latency_ratio=100), {"latency": None}),
        (declared(metric="rmse", max_value=1e9), {"rmse": None}),
        (declared(metric="cos", max_drop=100), {"cos": None}),
    ],
)
def test_what_was_not_measured_does_not_pass(spec: EvaluationSpec, changes: dict[str, None]) -> None:
    word, clauses = verdict(spec, **changes)
    assert word == "fail"
    assert list(clauses.values()) == [(None, False)]


def data(labels: LabelSummary | None) -> DatasetSummary:
    arrays = {"x": ArraySummary(dtype="float32", shape=(8, 3))}
    return DatasetSummary(format="npz", samples=8, arrays=arrays, labels=labels, size_bytes=1, sha256="0")


CLASSES = LabelSummary(array="labels", count=8, minimum=0, maximum=4)
TARGETS = LabelSummary(array="labels", count=8, dtype="float32", shape=(8,))


@pytest.mark.parametrize("metric", ["top1", "top5"])
@pytest.mark.parametrize("limits", [{"max_drop": 1.0}, {"min_value": 50.0}])
@pytest.mark.parametrize("labels", [None, TARGETS])
def test_a_gate_on_accuracy_needs_class_labels(
    metric: str, limits: dict[str, float], labels: LabelSummary | None
) -> None:
    spec = default(metric=metric, **limits)
    with pytest.raises(InvalidConfigError) as caught:
        check_evaluation(spec, outputs=None, data=data(labels))
    assert caught.value.errors[0].pointer == "/config/evaluation/gate/metric"
    assert caught.value.hint
    check_evaluation(spec, outputs=None, data=data(CLASSES))
    check_evaluation(spec, outputs=None, data=None)


@pytest.mark.parametrize(
    "spec",
    [default(), default(min_sqnr_db=20), default(metric="top1_agreement", max_drop=1), default(metric="top5")],
)
def test_other_gates_need_none(spec: EvaluationSpec) -> None:
    check_evaluation(spec, outputs=None, data=data(None))
