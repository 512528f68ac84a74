"""The report of an evaluation, and the outline of any report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.brief import Brief, Row
from service.contracts.changes import Change, metric_change, outlined_change
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.evaluation import AGREEMENT, EvaluationSpec
from service.contracts.evaluation_checks import EVALUATION_POINTER
from service.contracts.provenance import Provenance
from service.contracts.report import (
    Fidelity,
    Flips,
    GateClause,
    Interval,
    LatencyFigures,
    MetricFigures,
    ModelFigures,
    StageFigures,
    Verdict,
)
from service.contracts.report.whole import Report

# Of the report and of its metrics: told only where there is a reference.
_COMPARING = ("reference", "latency", "fidelity")
_COMPARING_METRICS = ("reference_value", "reference_interval", "drop", "drop_interval", "p_value", "flips")
_COMPARING_CLAUSES = ("max_drop", "min_sqnr_db", "max_latency_ratio")


class EvaluatedModel(ModelFigures):
    """Figures of the measured model."""

    provenance: Provenance | None = Field(
        default=None, description="Provenance from the model's file, as the file says it; null: it has none."
    )


class EvaluatedMetric(Contract):
    """One metric of the model; comparison fields are present only with a reference."""

    name: str
    kind: str
    unit: str = Field(description="Unit, such as '%', 'dB' or 'nats'; empty if the metric has none.")
    better: Literal["higher", "lower"]
    value: float | None = Field(description="Value of the model; null if undefined.")
    interval: Interval | None = Field(default=None, description="Confidence interval of the value.")
    samples: int | None = None
    reference_value: float | None = None
    reference_interval: Interval | None = None
    drop: float | None = Field(
        default=None, description="Drop compared with the reference; negative if the model is better."
    )
    drop_interval: Interval | None = None
    p_value: float | None = None
    flips: Flips | None = None

    @classmethod
    def of(cls, found: MetricFigures, *, compared: bool) -> EvaluatedMetric:
        """The metric of a model that took the place of the quantized one."""
        told: dict[str, Any] = {
            "name": found.name,
            "kind": found.kind,
            "unit": found.unit,
            "better": found.better,
            "value": found.quantized,
            "interval": found.quantized_interval,
            "samples": found.samples,
        }
        if compared:
            told |= {"reference_value": found.float_, "reference_interval": found.float_interval}
            told |= {name: getattr(found, name) for name in ("drop", "drop_interval", "p_value", "flips")}
        return cls(**told)


class EvaluationManifest(Contract):
    """What was measured, and how."""

    engine_version: str
    model_sha256: str
    reference_sha256: str | None = None
    evaluation_sha256: str
    evaluation_preprocessing: PreprocessingSpec
    evaluation: EvaluationSpec
    versions: dict[str, str]
    threads: int


class EvaluationReport(Brief, Contract):
    """Result of an evaluation."""

    schema_version: Literal[1] = 1
    kind: Literal["evaluation"] = "evaluation"
    verdict: Verdict
    gate: tuple[GateClause, ...] = ()
    samples: int
    model: EvaluatedModel
    reference: ModelFigures | None = None
    metrics: tuple[EvaluatedMetric, ...] = Field(default=(), description="Metrics in the order of the config.")
    fidelity: Fidelity | None = Field(default=None, description="Fidelity to the reference.")
    latency: LatencyFigures | None = Field(
        default=None, description="Latency of the model (quantized) and the reference (float)."
    )
    stages: tuple[StageFigures, ...] = ()
    manifest: EvaluationManifest

    def _brief(self) -> Iterator[Row]:
        yield "verdict", self.verdict
        yield "samples", str(self.samples)
        for metric in self.metrics:
            yield metric.name, "-" if metric.value is None else f"{metric.value:.5g} {metric.unit}".rstrip()

    def to_json_dict(self) -> dict[str, Any]:
        """JSON-ready; without a reference, nothing that compares is there."""
        told = self.model_dump(mode="json", by_alias=True)
        if self.reference is None:
            for name in _COMPARING:
                del told[name]
            for metric in told["metrics"]:
                for name in _COMPARING_METRICS:
                    del metric[name]
        return told


def check_gate(spec: EvaluationSpec, *, pointer: str = EVALUATION_POINTER) -> None:
    """An evaluation makes no model that it could return in the place of another.

    Raises:
        InvalidConfigError: the gate asks for a fallback.
    """
    if spec.gate.on_fail == "fallback":
        raise InvalidConfigError(
            "on_fail fallback is for quantizations: an evaluation returns no model",
            pointer=f"{pointer}/gate/on_fail",
            hint="Leave on_fail out.",
        )


def check_reference(spec: EvaluationSpec, *, has_reference: bool, pointer: str = EVALUATION_POINTER) -> None:
    """What compares with a reference model needs one.

    Args:
        spec: what is to be measured and judged.
        has_reference: there is one.
        pointer: of ``spec`` in the request.

    Raises:
        InvalidConfigError: one problem per metric and condition that has nothing to compare with.
    """
    if has_reference:
        return
    found = [(f"metrics/{k}/kind", metric.name) for k, metric in enumerate(spec.metrics) if metric.reads_reference]
    gate = spec.gate
    found += [(f"gate/{name}", name) for name in _COMPARING_CLAUSES if getattr(gate, name) is not None]
    if gate.metric == AGREEMENT and gate.judges_metric and gate.max_drop is None:
        found.append(("gate/metric", AGREEMENT))
    problems = tuple(
        FieldProblem(
            pointer=f"{pointer}/{place}",
            code="reference-missing",
            message=f"{name} compares with a reference model, and there is none",
        )
        for place, name in found
    )
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems),
            errors=problems,
            hint="Give a reference model: --reference FLOAT.onnx, or reference_model_id.",
        )


_MOST_METRICS = 8


class OutlinedMetric(Contract):
    """One metric of both models."""

    name: str
    unit: str
    float_: float | None = Field(alias="float", serialization_alias="float")
    quantized: float | None
    drop: float | None = Field(
        description="Drop compared with the float model; negative if the quantized model is better."
    )
    drop_interval: Interval | None = Field(default=None, description="Confidence interval of the drop.")
    significant: bool | None = Field(
        default=None, description="Whether the change is more than chance; null: not tested."
    )
    samples: int | None = Field(default=None, description="Number of samples; null: those of the report.")

    @property
    def change(self) -> Change:
        """From the float model to the quantized one."""
        found = outlined_change(self.float_, self.quantized, self.drop, self.unit, self.drop_interval)
        return replace(found, significant=self.significant)

    @classmethod
    def of(cls, found: MetricFigures | EvaluatedMetric, before: float | None, after: float | None) -> OutlinedMetric:
        """The outline of a metric with these values of the float and the quantized model."""
        tested = metric_change(found.drop, found.unit, better=found.better, drop_interval=found.drop_interval)
        return cls.model_validate(
            {
                "name": found.name,
                "unit": found.unit,
                "float": before,
                "quantized": after,
                "drop": found.drop,
                "drop_interval": found.drop_interval,
                "significant": tested.significant,
                "samples": found.samples,
            }
        )


class ReportOutline(Contract):
    """Main figures of a report, for lists and comparisons."""

    metrics: tuple[OutlinedMetric, ...] = Field(description="The first metrics, in the order declared.")
    samples: int | None = Field(default=None, description="Number of samples that the figures were measured on.")
    source: Literal["evaluation", "calibration", "random"] | None = Field(
        default=None, description="Data that the figures were measured on; random data shows nothing about accuracy."
    )
    sqnr_db: float | None
    top1_agreement: float | None
    float_size_bytes: int | None = Field(
        description="Size of the float model; null for an evaluation without a reference model."
    )
    quantized_size_bytes: int
    latency_ratio: float | None = Field(
        description="Quantized latency divided by float latency; null if latency was not measured."
    )
    float_latency_ms: float | None = Field(default=None, description="Latency of the float model; null: not timed.")
    quantized_latency_ms: float | None = Field(
        default=None, description="Latency of the quantized model; null: not timed, or not known."
    )
    latency_significant: bool | None = Field(
        default=None, description="Whether one model is known to be faster; null: not timed, or not known."
    )
    latency_not_representative: bool = Field(
        default=False, description="The target was simulated on this CPU: the ratio is not representative of it."
    )
    collapsed: bool = Field(
        default=False, description="The sanity check has failed: most of what the float model can do is lost."
    )
    critical_findings: int = Field(
        default=0, ge=0, description="Findings of severity critical: with one, the figures cannot be trusted."
    )

    @classmethod
    def of(cls, report: Report | EvaluationReport) -> ReportOutline:
        """The outline of a report; a reference model takes the place of the float one."""
        if isinstance(report, EvaluationReport):
            return cls._of_evaluation(report)
        return cls(
            metrics=tuple(OutlinedMetric.of(m, m.float_, m.quantized) for m in report.metrics[:_MOST_METRICS]),
            samples=report.fidelity.samples,
            source=report.fidelity.source,
            sqnr_db=report.fidelity.sqnr_db,
            top1_agreement=report.fidelity.top1_agreement,
            float_size_bytes=report.float_.size_bytes,
            quantized_size_bytes=report.quantized.size_bytes,
            **_latency(report.latency),
            collapsed=any(clause.is_collapse for clause in report.gate),
            critical_findings=sum(finding.severity == "critical" for finding in report.findings),
        )

    @classmethod
    def _of_evaluation(cls, report: EvaluationReport) -> ReportOutline:
        return cls(
            metrics=tuple(OutlinedMetric.of(m, m.reference_value, m.value) for m in report.metrics[:_MOST_METRICS]),
            samples=report.samples,
            source="evaluation",
            sqnr_db=None if report.fidelity is None else report.fidelity.sqnr_db,
            top1_agreement=None if report.fidelity is None else report.fidelity.top1_agreement,
            float_size_bytes=None if report.reference is None else report.reference.size_bytes,
            quantized_size_bytes=report.model.size_bytes,
            **_latency(report.latency),
            collapsed=any(clause.is_collapse for clause in report.gate),
        )


def _latency(latency: LatencyFigures | None) -> dict[str, Any]:
    if latency is None:
        return {"latency_ratio": None}
    return {
        "latency_ratio": latency.ratio,
        "float_latency_ms": latency.float_ms,
        "quantized_latency_ms": latency.quantized_ms,
        "latency_significant": latency.verdict != "undecided",
        "latency_not_representative": latency.not_representative is not None,
    }
