"""What a comparison takes of a report, whether of a quantization or of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.comparison.evidence import measured_on
from service.comparison.schemas import ComparedMetric
from service.contracts.dataset import PreprocessingSpec
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Fidelity, LatencyFigures, LayerFigures, Report, Verdict


@dataclass(frozen=True)
class Told:
    """One report; in an evaluation the reference takes the place of the float model.

    Attributes:
        verdict: of the gate.
        engine_version: that made it.
        metrics: of both models.
        fidelity: None: there is no reference.
        latency: None: not timed beside another.
        float_size_bytes: None: there is no reference.
        quantized_size_bytes: of the model.
        layers: none of an evaluation.
        measured_on: see ``measured_on``.
    """

    verdict: Verdict
    engine_version: str
    metrics: tuple[ComparedMetric, ...]
    fidelity: Fidelity | None
    latency: LatencyFigures | None
    float_size_bytes: int | None
    quantized_size_bytes: int
    layers: Sequence[LayerFigures]
    measured_on: tuple[str, PreprocessingSpec | None] | None


def told_of(report: Report | EvaluationReport) -> Told:
    """What a comparison takes of this report."""
    return _of_evaluation(report) if isinstance(report, EvaluationReport) else _of_quantization(report)


def _of_quantization(report: Report) -> Told:
    metrics = tuple(
        ComparedMetric.model_validate(
            {
                "name": metric.name,
                "unit": metric.unit,
                "better": metric.better,
                "float": metric.float_,
                "quantized": metric.quantized,
                "quantized_interval": metric.quantized_interval,
                "drop": metric.drop,
            }
        )
        for metric in report.metrics
    )
    return Told(
        verdict=report.verdict,
        engine_version=report.manifest.engine_version,
        metrics=metrics,
        fidelity=report.fidelity,
        latency=report.latency,
        float_size_bytes=report.float_.size_bytes,
        quantized_size_bytes=report.quantized.size_bytes,
        layers=report.layers,
        measured_on=measured_on(report),
    )


def _of_evaluation(report: EvaluationReport) -> Told:
    metrics = tuple(
        ComparedMetric.model_validate(
            {
                "name": metric.name,
                "unit": metric.unit,
                "better": metric.better,
                "float": metric.reference_value,
                "quantized": metric.value,
                "quantized_interval": metric.interval,
                "drop": metric.drop,
            }
        )
        for metric in report.metrics
    )
    manifest = report.manifest
    return Told(
        verdict=report.verdict,
        engine_version=manifest.engine_version,
        metrics=metrics,
        fidelity=report.fidelity,
        latency=report.latency,
        float_size_bytes=None if report.reference is None else report.reference.size_bytes,
        quantized_size_bytes=report.model.size_bytes,
        layers=(),
        measured_on=(manifest.evaluation_sha256, manifest.evaluation_preprocessing),
    )
