"""What the regression gate judges by: figures of a run's report, and of those that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.comparison.evidence import Side, measured_on, samples_of
from service.contracts.regression import Baseline, LastPass, OfJob, RegressionGate
from service.contracts.report import LatencyFigures, MetricFigures, Report
from service.jobs import repository as jobs
from service.names import repository as names
from service.names.kinds import MODELS
from service.nouns import NounNotFoundError
from service.schedules import repository
from service.tables import Model, Schedule, ScheduleRun


@dataclass(frozen=True)
class Evidence:
    """Figures of one job.

    Attributes:
        job_id: whose.
        verdict: of its report.
        metrics: of both of its models, by name.
        size_bytes: of the quantized model.
        latency: None: it was not timed.
        side: what its figures were measured on, and its results by sample.
    """

    job_id: str
    verdict: str
    metrics: dict[str, MetricFigures]
    size_bytes: int
    latency: LatencyFigures | None
    side: Side


@dataclass(frozen=True)
class Compared:
    """What a clause compares with.

    Attributes:
        evidence: None: there is none.
        reason: why, in words.
        is_first: nothing was accepted before, so that nothing can be worse.
    """

    evidence: Evidence | None
    reason: str | None = None
    is_first: bool = False


@dataclass(frozen=True)
class Found:
    """All that a run is judged by; ``compared`` has an entry for each clause of the gate."""

    own: Evidence
    compared: tuple[Compared, ...]


def found_for(session: Session, schedule: Schedule, run: ScheduleRun, gate: RegressionGate) -> Found | None:
    """Read what a run is judged by; None: its job has no report."""
    own = _evidence(session, schedule.tenant_id, run.job_id or "")
    if own is None:
        return None
    known: dict[Baseline, Compared] = {}
    for clause in gate.clauses:
        baseline = clause.baseline or gate.baseline
        if baseline not in known:
            known[baseline] = _compared(session, schedule, run, baseline)
    return Found(own, tuple(known[clause.baseline or gate.baseline] for clause in gate.clauses))


def _compared(session: Session, schedule: Schedule, run: ScheduleRun, baseline: Baseline) -> Compared:
    if isinstance(baseline, LastPass):
        if schedule.last_pass_job_id is None:
            return Compared(None, "No job of this schedule was accepted before.", is_first=True)
        job_id = schedule.last_pass_job_id
    elif isinstance(baseline, OfJob):
        job_id = baseline.job_id
    else:
        model = _model_of_alias(session, run, baseline.alias)
        if model is None:
            return Compared(None, f"The model's name has no alias {baseline.alias!r}.")
        last = repository.last_accepted(session, run.tenant_id, schedule.id, model.id)
        newest = last or repository.newest_succeeded(session, run.tenant_id, model.id, but=run.job_id or "")
        if newest is None:
            return Compared(None, f"No job has quantized {model.name}@{model.version}, which is {baseline.alias}.")
        job_id = newest
    evidence = _evidence(session, schedule.tenant_id, job_id)
    return Compared(evidence, None if evidence else f"There is no report of the job {job_id} (any more).")


def _model_of_alias(session: Session, run: ScheduleRun, alias: str) -> Model | None:
    try:
        own = names.by_id(session, MODELS, run.tenant_id, run.model_id or "")
        return names.look_up(session, MODELS, run.tenant_id, f"{own.name}@{alias}")
    except NounNotFoundError:
        return None


def _evidence(session: Session, tenant_id: str, job_id: str) -> Evidence | None:
    row = jobs.report(session, tenant_id, job_id)
    if row is None:
        return None
    report = Report.model_validate(row.body)
    return Evidence(
        job_id=job_id,
        verdict=row.verdict,
        metrics={metric.name: metric for metric in report.metrics},
        size_bytes=report.quantized.size_bytes,
        latency=report.latency,
        side=Side(measured_on(report), samples_of(session, tenant_id, job_id)),
    )
