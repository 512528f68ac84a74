"""What a comparison takes of two jobs: their reports, what they were measured on, and their results by sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from service.comparison.pairing import CONFIDENCE, MeanDifference, Pairing, mean_differences, paired
from service.comparison.samples import Samples, read_samples
from service.comparison.schemas import ComparedMetric
from service.contracts.dataset import PreprocessingSpec
from service.contracts.evaluation_report import EvaluatedMetric, EvaluationReport
from service.contracts.report import Fidelity, Interval, LatencyFigures, LayerFigures, MetricFigures, Report, Verdict
from service.deps import AppState
from service.files.serving import open_file
from service.tables import Artifact

SAMPLES = "samples"
MOST_BYTES = 128 * 1024 * 1024


class StoredSamples(NamedTuple):
    """A ``samples.npz`` of the store."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Paired:
    """What came of pairing two jobs."""

    pairing: Pairing | None  # of their decisions, where there is one for each sample
    reason: str | None  # why there is no ``pairing``, in words
    # by name, those of the first quantized model less those of the second
    metrics: Mapping[str, MeanDifference] = field(default_factory=dict)


@dataclass(frozen=True)
class Side:
    """One of two jobs."""

    # digest and preprocessing of the data that its report's figures are of; see ``measured_on``
    measured_on: tuple[str, PreprocessingSpec | None] | None
    file: StoredSamples | None  # its ``samples.npz``; None: it has none


def measured_on(report: Report) -> tuple[str, PreprocessingSpec | None] | None:
    """Digest and preprocessing of the data that a report's figures are of; None where they are of random data."""
    manifest = report.manifest
    if report.fidelity.source == "evaluation" and manifest.evaluation_sha256 is not None:
        return manifest.evaluation_sha256, manifest.evaluation_preprocessing
    if report.fidelity.source == "calibration" and manifest.calibration_sha256 is not None:
        return manifest.calibration_sha256, manifest.calibration_preprocessing
    return None


def samples_among(artifacts: Iterable[Artifact]) -> StoredSamples | None:
    """Which of a job's artifacts is its ``samples.npz``; None: it has none."""
    return next((StoredSamples(one.sha256, one.size_bytes) for one in artifacts if one.kind == SAMPLES), None)


def samples_of(app: AppState, file: StoredSamples) -> Samples:
    """Read a stored ``samples.npz``.

    Raises:
        SamplesUnreadableError: it is not as the engine writes it.
        StoredFileMissingError, StoredFileCorruptError: the store lacks it.
    """
    with open_file(app.database, app.store, file.sha256, file.size_bytes).stream as stream:
        return read_samples(stream.read())


def pair(read: Callable[[StoredSamples], Samples], first: Side, second: Side) -> Paired:
    """Compare two jobs' quantized models sample by sample; computes.

    Args:
        read: as ``samples_of``; what it raises is raised.
        first: what the other is held against.
        second: the other.
    """
    if first.measured_on is None or first.measured_on != second.measured_on:
        return Paired(None, "The two were not measured on the same data.")
    if first.file is None or second.file is None:
        return Paired(None, "A job keeps no results by sample: its output gives no class per sample, or is too large.")
    if max(first.file.size_bytes, second.file.size_bytes) > MOST_BYTES:
        return Paired(None, f"The results by sample have more than {MOST_BYTES} bytes.")
    before, after = read(first.file), read(second.file)
    metrics = mean_differences(before.metrics, after.metrics, CONFIDENCE)
    if before.decisions is None or after.decisions is None:
        return Paired(None, "The output of a job's model gives no class per sample.", metrics)
    found = paired(before.decisions, after.decisions)
    return Paired(found, None if found is not None else "The two were not asked about the same samples.", metrics)


@dataclass(frozen=True)
class ComparedReport:
    """One report; in an evaluation the reference takes the place of the float model."""

    verdict: Verdict  # of the gate
    engine_version: str  # that made it
    metrics: tuple[ComparedMetric, ...]  # of both models
    fidelity: Fidelity | None  # None: there is no reference
    latency: LatencyFigures | None  # None: not timed beside another
    float_size_bytes: int | None  # None: there is no reference
    quantized_size_bytes: int  # of the model
    layers: Sequence[LayerFigures]  # none of an evaluation
    collapsed: bool  # whether the sanity clause of the gate says so
    critical_findings: int  # none of an evaluation
    measured_on: tuple[str, PreprocessingSpec | None] | None  # see ``measured_on``


def compared_report(report: Report | EvaluationReport) -> ComparedReport:
    """What a comparison takes of this report."""
    return _of_evaluation(report) if isinstance(report, EvaluationReport) else _of_quantization(report)


def figures_of(told: ComparedReport) -> dict[str, Any]:
    """The fields of a compared job that its report alone tells."""
    return {
        "verdict": told.verdict,
        "engine_version": told.engine_version,
        "metrics": told.metrics,
        "sqnr_db": None if told.fidelity is None else told.fidelity.sqnr_db,
        "top1_agreement": None if told.fidelity is None else told.fidelity.top1_agreement,
        "float_size_bytes": told.float_size_bytes,
        "quantized_size_bytes": told.quantized_size_bytes,
        "latency_ratio": None if told.latency is None else told.latency.ratio,
        "latency_ratio_interval": None if told.latency is None else told.latency.ratio_interval,
        "latency_not_representative": told.latency is not None and told.latency.not_representative is not None,
        "collapsed": told.collapsed,
        "critical_findings": told.critical_findings,
    }


def _metric(
    metric: MetricFigures | EvaluatedMetric, before: float | None, after: float | None, interval: Interval | None
) -> ComparedMetric:
    told = {"name": metric.name, "unit": metric.unit, "better": metric.better, "drop": metric.drop}
    figures = {"float": before, "quantized": after, "quantized_interval": interval}
    return ComparedMetric.model_validate({**told, **figures})


def _of_quantization(report: Report) -> ComparedReport:
    metrics = tuple(
        _metric(metric, metric.float_, metric.quantized, metric.quantized_interval) for metric in report.metrics
    )
    return ComparedReport(
        verdict=report.verdict,
        engine_version=report.manifest.engine_version,
        metrics=metrics,
        fidelity=report.fidelity,
        latency=report.latency,
        float_size_bytes=report.float_.size_bytes,
        quantized_size_bytes=report.quantized.size_bytes,
        layers=report.layers,
        collapsed=any(clause.is_collapse for clause in report.gate),
        critical_findings=len(report.critical_findings),
        measured_on=measured_on(report),
    )


def _of_evaluation(report: EvaluationReport) -> ComparedReport:
    metrics = tuple(_metric(metric, metric.reference_value, metric.value, metric.interval) for metric in report.metrics)
    manifest = report.manifest
    return ComparedReport(
        verdict=report.verdict,
        engine_version=manifest.engine_version,
        metrics=metrics,
        fidelity=report.fidelity,
        latency=report.latency,
        float_size_bytes=None if report.reference is None else report.reference.size_bytes,
        quantized_size_bytes=report.model.size_bytes,
        layers=(),
        collapsed=any(clause.is_collapse for clause in report.gate),
        critical_findings=0,
        measured_on=(manifest.evaluation_sha256, manifest.evaluation_preprocessing),
    )
