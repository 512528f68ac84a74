"""Findings in the report, and what guessing would reach beside every metric."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.report import MetricFigures
from service.contracts.runner import DatasetSource
from tests.support.tiny import make_tiny
from tests.unit.quantizer.sanity.conftest import Bench
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.sanity.figures import figure_findings, with_chance


def figures(name: str, kind: str, value: float) -> MetricFigures:
    return MetricFigures(name=name, kind=kind, unit="%", better="higher", float=value, quantized=value, drop=0.0)


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


def test_chance_of_each_kind(bench: Bench) -> None:
    metrics = [{"kind": "top1"}, {"kind": "accuracy_at_k", "k": 2}, {"kind": "per_class_accuracy"}, {"kind": "f1"}]
    labels = np.array([0, 0, 1, 2] * 10)
    case = bench.case(x=bench.x[:40], labels=labels, config={"evaluation": {"metrics": metrics}})
    declared = [figures(metric.name, metric.kind, 90.0) for metric in case.config.evaluation.metrics]
    assert [found.chance for found in with_chance(declared, case)] == [50.0, 75.0, pytest.approx(33.3333), None]
    (default,) = with_chance([figures("top1", "top1", 90.0)], bench.case(x=bench.x[:40], labels=labels))
    assert default.chance == 50.0


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [("r2", -0.1, True), ("r2", 0.2, False), ("pearson", 0.0, True), ("f1", 0.0, True), ("f1", 3.0, False),
     ("rmse", 0.0, False)],
)  # fmt: skip
def test_values_that_take_no_model(bench: Bench, kind: str, value: float, found: bool) -> None:
    said = list(figure_findings([figures("m", kind, value)], bench.case(), 40))
    assert [finding.code for finding in said] == ["float-metric-without-skill"] * found
    assert not list(figure_findings([figures("m", kind, value)], bench.case(), 8))


def test_a_metric_that_cannot_fail_is_named(bench: Bench) -> None:
    case = bench.case(config={"evaluation": {"metrics": [{"kind": "top1"}, {"kind": "top5"}]}})
    (found,) = figure_findings([], case, 40)
    assert (found.code, found.where) == ("metric-of-too-few-classes", {"metric": "top5"})
