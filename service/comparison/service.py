"""Jobs side by side: read first, then compared without holding the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from service.comparison.differences import differences, differing_layers
from service.comparison.evidence import (
    ComparedReport,
    Paired,
    Side,
    StoredSamples,
    compared_report,
    figures_of,
    pair,
    samples_among,
    samples_of,
)
from service.comparison.pairing import CONFIDENCE, Pairing
from service.comparison.samples import Samples, SamplesUnreadableError
from service.comparison.schemas import (
    MOST_LAYERS,
    ComparedJob,
    ComparedMetric,
    ComparedPair,
    Comparison,
    PairedMetric,
    SampleFlip,
)
from service.contracts.report import Flips, Interval
from service.deps import AppState
from service.jobs import service as jobs
from service.jobs.views import JobView, job_listed
from service.reports.reading import any_report
from service.storage import StoredFileCorruptError, StoredFileMissingError

# The metric that is the share of decisions as labeled.
_DECIDED = "top1"


@dataclass(frozen=True)
class _Compared:
    """One job with all that a comparison takes."""

    view: JobView
    told: ComparedReport
    side: Side


def compare(app: AppState, tenant_id: str, job_ids: Sequence[str], *, most_flips: int) -> Comparison:
    """Compare jobs that have succeeded; the first is what the others are held against.

    Args:
        app: of the process.
        tenant_id: whose jobs.
        job_ids: two or more, each once.
        most_flips: samples that are listed per pair.

    Raises:
        JobNotFoundError: the tenant has no such job.
        ReportNotReadyError, ReportNotFoundError: one has not ended, or ended without a report.
        ReportNotRenderableError: a report is of a form that is not known here.
    """
    found = [_compared(app, tenant_id, job_id) for job_id in job_ids]
    layers = differing_layers([one.told.layers for one in found])
    # the first job's samples are read once, however many it is compared with
    read = lru_cache(maxsize=2)(partial(samples_of, app))
    return Comparison(
        jobs=tuple(_job(one) for one in found),
        config_differences=tuple(differences([one.view.job.config for one in found])),
        pairs=tuple(_pair(read, found[0], other, most_flips) for other in found[1:]),
        layers=tuple(layers[:MOST_LAYERS]),
        layers_more=max(0, len(layers) - MOST_LAYERS),
    )


def _compared(app: AppState, tenant_id: str, job_id: str) -> _Compared:
    told = compared_report(any_report(jobs.report(app, tenant_id, job_id)))
    view = jobs.get(app, tenant_id, job_id)
    return _Compared(view, told, Side(told.measured_on, samples_among(view.artifacts)))


def _job(one: _Compared) -> ComparedJob:
    listed, told = job_listed(one.view), one.told
    name, version = one.view.model or (None, None)
    return ComparedJob(
        id=listed.id,
        name=listed.name,
        labels=listed.labels,
        model_id=listed.model_id,
        model=None if name is None else f"{name}@{version}",
        preset=listed.preset,
        algorithms=tuple(listed.algorithms or ()),
        calibration_dataset_id=listed.calibration_dataset_id,
        evaluation_dataset_id=listed.evaluation_dataset_id,
        seconds=listed.seconds,
        **figures_of(told),
    )


def _pair(
    read: Callable[[StoredSamples], Samples], first: _Compared, second: _Compared, most_flips: int
) -> ComparedPair:
    ids = {"first": first.view.job.id, "second": second.view.job.id}
    try:
        found = pair(read, first.side, second.side)
    except (SamplesUnreadableError, StoredFileCorruptError, StoredFileMissingError) as error:
        return ComparedPair(**ids, measure=None, reason=str(error))
    metrics = tuple(_paired_metrics(found, first.told, second.told))
    if found.pairing is None:
        return ComparedPair(**ids, measure=None, reason=found.reason, metrics=metrics)
    pairing = found.pairing
    flipped = tuple(
        SampleFlip(
            index=int(k),
            expected=int(pairing.first.expected[k]),
            first=int(pairing.first.quantized[k]),
            second=int(pairing.second.quantized[k]),
        )
        for k in pairing.flipped[:most_flips]
    )
    return ComparedPair(
        **ids,
        measure="accuracy" if pairing.labeled else "agreement",
        reason=None,
        drop_percent=pairing.drop_percent,
        interval=_interval(pairing),
        p_value=pairing.p_value,
        significant=pairing.significant,
        flips=Flips(lost=pairing.counts.lost, won=pairing.counts.won),
        samples=pairing.counts.samples,
        flipped=flipped,
        flipped_more=pairing.counts.lost + pairing.counts.won - len(flipped),
        metrics=metrics,
    )


def _paired_metrics(found: Paired, first: ComparedReport, second: ComparedReport) -> Iterator[PairedMetric]:
    """Metrics that both reports tell of in one meaning, in the first one's order."""
    others = {metric.name: metric for metric in second.metrics}
    for metric in first.metrics:
        other, told = others.get(metric.name), found.metrics.get(metric.name)
        if other is None or told is None or (metric.unit, metric.better) != (other.unit, other.better):
            continue
        if metric.name == _DECIDED and metric.unit == "%" and found.pairing is not None and found.pairing.labeled:
            yield _of_decisions(metric, found.pairing)
            continue
        drop = told.drop(metric.better)
        yield PairedMetric(
            name=metric.name,
            unit=metric.unit,
            better=metric.better,
            drop=drop.difference,
            interval=drop.told_interval(CONFIDENCE),
            p_value=drop.p_value,
            significant=drop.p_value <= 1.0 - CONFIDENCE,
        )


def _of_decisions(metric: ComparedMetric, pairing: Pairing) -> PairedMetric:
    """The metric that is the share of right decisions, by the test of decisions: one question has one p-value."""
    return PairedMetric(
        name=metric.name,
        unit=metric.unit,
        better=metric.better,
        drop=pairing.drop_percent,
        interval=_interval(pairing),
        p_value=pairing.p_value,
        significant=pairing.significant,
    )


def _interval(pairing: Pairing) -> Interval:
    low, high = pairing.interval_percent
    samples = pairing.counts.samples
    return Interval(low=low, high=high, confidence=CONFIDENCE, method="mcnemar", samples=samples)
