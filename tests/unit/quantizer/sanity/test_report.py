"""Findings in the report, and what guessing would reach beside every metric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.evaluation import EvaluationSpec
from service.contracts.report import MetricFigures
from service.contracts.runner import DatasetSource
from tests.support.tiny import make_tiny
from tests.unit.quantizer.sanity.conftest import Bench
from worker.quantizer.evaluation.chance import with_chance
from worker.quantizer.evaluation.metrics.distances import AgreementRate
from worker.quantizer.pages import findings_page
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.sanity.decisions import decision_findings, figure_findings, hits_of
from worker.quantizer.sanity.float_model import output_findings
from worker.quantizer.sanity.kind import declare, declared, worst_first
from worker.quantizer.sanity.samples import FEW_SAMPLES, ONE_SAMPLE, SOME_IN_CALIBRATION


def figures(name: str, kind: str, value: float) -> MetricFigures:
    return MetricFigures(name=name, kind=kind, unit="%", better="higher", float=value, quantized=value, drop=0.0)


@pytest.mark.parametrize("code", ["Not_Kebab", FEW_SAMPLES.code])
def test_no_two_kinds_of_findings_have_a_code_in_common(code: str) -> None:
    with pytest.raises(ValueError, match="no new code in kebab case"):
        declare(code, "info", "Something.", hint="Nothing.")


@pytest.mark.slow
def test_findings_stand_in_the_report_the_worst_first(tmp_path: Path) -> None:
    tiny = make_tiny(tmp_path)
    with np.load(tiny.calibration) as arrays:
        np.savez(tiny.calibration, x=arrays["x"][:1])
    report = quantize(
        tiny.model,
        parse_config({"preset": "int8", "evaluation": {"latency_runs": 1}}),
        DatasetSource(path=str(tiny.calibration)),
        DatasetSource(path=str(tiny.evaluation)),
        run=SilentRun(),
        threads=1,
    ).report
    assert "one-calibration-sample" in {finding.code for finding in report.findings}
    order = ["critical", "warning", "info"]
    ranks = [order.index(finding.severity) for finding in report.findings]
    assert ranks == sorted(ranks)
    (top1,) = report.metrics
    assert top1.chance is not None
    assert 20.0 <= top1.chance <= 100.0


def test_chance_of_each_kind_and_a_metric_that_cannot_fail(bench: Bench) -> None:
    metrics = [{"kind": "top1"}, {"kind": "accuracy_at_k", "k": 2}, {"kind": "per_class_accuracy"}, {"kind": "f1"}]
    labels = np.array([0, 0, 1, 2] * 10)
    case = bench.case(x=bench.x[:40], labels=labels, config={"evaluation": {"metrics": metrics}})
    declared = [figures(metric.name, metric.kind, 90.0) for metric in case.config.evaluation.metrics]
    spec, outputs, data = case.config.evaluation, case.summary.outputs, case.measured_on
    told = with_chance(declared, spec, outputs, data)
    assert [found.chance for found in told] == [50.0, 75.0, pytest.approx(33.3333), None]
    (default,) = with_chance([figures("top1", "top1", 90.0)], EvaluationSpec(), outputs, data)
    assert default.chance == 50.0
    # a metric that cannot fail is named
    case = bench.case(config={"evaluation": {"metrics": [{"kind": "top1"}, {"kind": "top5"}]}})
    (found,) = figure_findings([], case, 40)
    assert (found.code, found.where) == ("metric-of-too-few-classes", {"metric": "top5"})


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [("r2", -0.1, True), ("r2", 0.2, False), ("pearson", 0.0, True), ("f1", 0.0, True), ("f1", 3.0, False),
     ("rmse", 0.0, False)],
)  # fmt: skip
def test_values_that_take_no_model(bench: Bench, kind: str, value: float, found: bool) -> None:
    said = list(figure_findings([figures("m", kind, value)], bench.case(), 40))
    assert [finding.code for finding in said] == ["float-metric-without-skill"] * found
    assert not list(figure_findings([figures("m", kind, value)], bench.case(), 8))


VARIED = np.random.default_rng(0).normal(size=(16, 10)).astype(np.float32)
CONSTANT = np.full((16, 1), 100.0, np.float32)


def codes(*outputs: np.ndarray) -> list[str]:
    return [finding.code for finding in output_findings([f"y{k}" for k in range(len(outputs))], outputs)]


def test_outputs_that_never_change_are_told() -> None:
    assert codes(CONSTANT) == ["float-output-constant"]
    # an output that could not be looked at may differ
    assert codes(CONSTANT, VARIED) == codes(CONSTANT, np.zeros((0,), np.float32)) == []


def test_scores_that_are_not_finite() -> None:
    lost = VARIED.copy()
    lost[:4, 3] = np.nan
    (finding,) = output_findings(["y"], [lost])
    assert (finding.code, finding.where) == ("float-output-not-finite", {"output": "y"})
    assert finding.undermines_verdict and "25 % of 16" in finding.message
    # scores with nan agree with nothing
    lost[:4] = np.nan
    agreement = AgreementRate()
    assert agreement.update(lost, lost)
    assert agreement.percent == 75.0


@pytest.mark.parametrize("large", [10**6, 10**13])
def test_class_numbers_of_any_size_take_no_memory(large: int) -> None:
    labels = np.array([0, 0, 1, large] * 5, np.int64)
    decided = np.array([0, large, large + 1, -1] * 5, np.int64)
    hits = hits_of(decided[:, None], labels)
    assert hits.hits == 5
    assert hits.expected == pytest.approx((0.5 + 0.25 + 0 + 0) / 4)
    assert list(decision_findings(decided, labels)) == []


PAGE = Path(__file__).parents[4] / "docs" / "findings.md"


def test_kinds_of_findings_stand_on_the_page_and_the_worst_comes_first() -> None:
    made = findings_page()
    assert made == PAGE.read_text(), "run: python -m worker.quantizer.pages findings > docs/findings.md"
    for kind in declared():
        assert f"| `{kind.code}` | {kind.severity}" in made
        assert kind.hint
    # the worst comes first and once
    few = FEW_SAMPLES({"a": 1}, count=3, percent=50.0)
    info = SOME_IN_CALIBRATION(shared=1, count=2)
    assert worst_first([info, few, ONE_SAMPLE(), few]) == (ONE_SAMPLE(), few, info)
    assert "calibrated on 3 samples" in few.message and "50 %" in few.message
