"""Jobs side by side: read first, then compared without holding the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from service.comparison.differences import differences, differing_layers
from service.comparison.evidence import Side, measured_on, pair, samples_of
from service.comparison.pairing import CONFIDENCE, Pairing
from service.comparison.samples import SamplesUnreadableError
from service.comparison.schemas import (
    MOST_LAYERS,
    ComparedJob,
    ComparedMetric,
    ComparedPair,
    Comparison,
    SampleFlip,
)
from service.contracts.errors import QuantmillError
from service.contracts.report import Flips, Interval, Report
from service.deps import Desk
from service.jobs import service as jobs
from service.jobs.views import JobView, job_listed
from service.reports.errors import ReportNotRenderableError
from service.storage import StoredFileCorruptError, StoredFileMissingError


@dataclass(frozen=True)
class _Compared:
    """One job with all that a comparison takes."""

    view: JobView
    report: Report
    side: Side


def compare(desk: Desk, tenant_id: str, job_ids: Sequence[str], *, most_flips: int) -> Comparison:
    """Compare jobs that have succeeded; the first is what the others are held against.

    Args:
        desk: of the process.
        tenant_id: whose jobs.
        job_ids: two or more, each once.
        most_flips: samples that are listed per pair.

    Raises:
        JobNotFoundError: the tenant has no such job.
        ReportNotReadyError, ReportNotFoundError: one has not ended, or ended without a report.
        ReportNotRenderableError: a report is of a form that is not known here.
    """
    found = [_compared(desk, tenant_id, job_id) for job_id in job_ids]
    layers = differing_layers([one.report for one in found])
    return Comparison(
        jobs=tuple(_job(one) for one in found),
        config_differences=tuple(differences([one.view.job.config for one in found])),
        pairs=tuple(_pair(desk, found[0], other, most_flips) for other in found[1:]),
        layers=tuple(layers[:MOST_LAYERS]),
        layers_more=max(0, len(layers) - MOST_LAYERS),
    )


def _compared(desk: Desk, tenant_id: str, job_id: str) -> _Compared:
    row = jobs.report(desk, tenant_id, job_id)
    view = jobs.get(desk, tenant_id, job_id)
    with desk.database.read() as session:
        file = samples_of(session, tenant_id, job_id)
    try:
        report = Report.model_validate(row.body)
    except ValidationError:
        raise ReportNotRenderableError(
            f"The report of {job_id} is not of a form that this service knows.",
            hint=f"Take the JSON: GET /v1/jobs/{job_id}/report",
        ) from None
    return _Compared(view, report, Side(measured_on(report), file))


def _job(one: _Compared) -> ComparedJob:
    listed, report = job_listed(one.view), one.report
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
    name, version = one.view.model or (None, None)
    return ComparedJob(
        id=listed.id,
        name=listed.name,
        labels=listed.labels,
        model_id=listed.model_id,
        model=None if name is None else f"{name}@{version}",
        preset=listed.preset,
        verdict=report.verdict,
        seconds=listed.seconds,
        engine_version=report.manifest.engine_version,
        metrics=metrics,
        sqnr_db=report.fidelity.sqnr_db,
        top1_agreement=report.fidelity.top1_agreement,
        float_size_bytes=report.float_.size_bytes,
        quantized_size_bytes=report.quantized.size_bytes,
        latency_ratio=None if report.latency is None else report.latency.ratio,
        latency_ratio_interval=None if report.latency is None else report.latency.ratio_interval,
    )


def _pair(desk: Desk, first: _Compared, second: _Compared, most_flips: int) -> ComparedPair:
    ids = {"first": first.view.job.id, "second": second.view.job.id}
    try:
        found = pair(desk, first.side, second.side)
    except (SamplesUnreadableError, StoredFileCorruptError, StoredFileMissingError) as error:
        return ComparedPair(**ids, measure=None, reason=_told(error))
    if found.pairing is None:
        return ComparedPair(**ids, measure=None, reason=found.reason)
    pairing = found.pairing
    low, high = pairing.interval_percent
    samples = pairing.counts.samples
    flipped = _flipped(pairing, most_flips)
    return ComparedPair(
        **ids,
        measure="accuracy" if pairing.labeled else "agreement",
        reason=None,
        drop_percent=pairing.drop_percent,
        interval=Interval(low=low, high=high, confidence=CONFIDENCE, method="mcnemar", samples=samples),
        p_value=pairing.p_value,
        significant=pairing.significant,
        flips=Flips(lost=pairing.counts.lost, won=pairing.counts.won),
        samples=samples,
        flipped=flipped,
        flipped_more=pairing.counts.lost + pairing.counts.won - len(flipped),
    )


def _flipped(pairing: Pairing, most: int) -> tuple[SampleFlip, ...]:
    return tuple(
        SampleFlip(
            index=int(k),
            expected=int(pairing.first.expected[k]),
            first=int(pairing.first.quantized[k]),
            second=int(pairing.second.quantized[k]),
        )
        for k in pairing.flipped[:most]
    )


def _told(error: QuantmillError) -> str:
    return str(error)
