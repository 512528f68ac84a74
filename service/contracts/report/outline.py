"""What lists tell of a report, which itself may have megabytes."""

from __future__ import annotations

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report.whole import Report

_MOST_METRICS = 8


class OutlinedMetric(Contract):
    """One metric of both models."""

    name: str
    unit: str
    float_: float | None = Field(alias="float", serialization_alias="float")
    quantized: float | None
    drop: float | None = Field(description="Change for the worse; negative: better than float.")


class ReportOutline(Contract):
    """The figures of a report by which jobs are told from each other."""

    metrics: tuple[OutlinedMetric, ...] = Field(description="The first of them, in the order declared.")
    sqnr_db: float | None
    top1_agreement: float | None
    float_size_bytes: int | None = Field(description="Null: of an evaluation without a reference model.")
    quantized_size_bytes: int
    latency_ratio: float | None = Field(description="Quantized over float; null: not timed.")

    @classmethod
    def of(cls, report: Report | EvaluationReport) -> ReportOutline:
        """The outline of a report; a reference model takes the place of the float one."""
        if isinstance(report, EvaluationReport):
            return cls._of_evaluation(report)
        return cls(
            metrics=tuple(
                OutlinedMetric.model_validate(
                    {"name": m.name, "unit": m.unit, "float": m.float_, "quantized": m.quantized, "drop": m.drop}
                )
                for m in report.metrics[:_MOST_METRICS]
            ),
            sqnr_db=report.fidelity.sqnr_db,
            top1_agreement=report.fidelity.top1_agreement,
            float_size_bytes=report.float_.size_bytes,
            quantized_size_bytes=report.quantized.size_bytes,
            latency_ratio=None if report.latency is None else report.latency.ratio,
        )

    @classmethod
    def _of_evaluation(cls, report: EvaluationReport) -> ReportOutline:
        return cls(
            metrics=tuple(
                OutlinedMetric.model_validate(
                    {"name": m.name, "unit": m.unit, "float": m.reference_value, "quantized": m.value, "drop": m.drop}
                )
                for m in report.metrics[:_MOST_METRICS]
            ),
            sqnr_db=None if report.fidelity is None else report.fidelity.sqnr_db,
            top1_agreement=None if report.fidelity is None else report.fidelity.top1_agreement,
            float_size_bytes=None if report.reference is None else report.reference.size_bytes,
            quantized_size_bytes=report.model.size_bytes,
            latency_ratio=None if report.latency is None else report.latency.ratio,
        )
