"""Figures that the regression gate compares: a run's report, and the reports of its baselines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from service.artifacts import repository as artifacts
from service.comparison.evidence import Side, measured_on, samples_among
from service.contracts.regression import Baseline, LastPass, OfJob, RegressionGate
from service.contracts.report import LatencyFigures, MetricFigures
from service.jobs import repository as jobs
from service.names import repository as names
from service.names.kinds import MODELS
from service.reports.reading import ReportNotRenderableError, whole_report
from service.resources import ResourceNotFoundError
from service.schedules import repository
from service.tables import JobSchedule, Model, ScheduleRun

# Of a version, so many of its newest jobs are looked at for one that was measured on the same data.
_LOOKED_AT = 10


@dataclass(frozen=True)
class JobFigures:
    """Figures of one job."""

    job_id: str  # whose
    verdict: str  # of its report
    fallback: str | None  # which model it returns, if the planned one was too slow
    metrics: dict[str, MetricFigures]  # of both of its models, by name
    size_bytes: int  # of the quantized model
    latency: LatencyFigures | None  # None: it was not timed
    side: Side  # what its figures were measured on, and its results by sample


@dataclass(frozen=True)
class BaselineFigures:
    """What a clause compares with."""

    evidence: JobFigures | None  # None: there is none
    reason: str | None = None  # why, in words
    is_first: bool = False  # nothing was accepted before, so that nothing can be worse


@dataclass(frozen=True)
class GateFigures:
    """All that a run is judged by; ``compared`` has an entry for each clause of the gate."""

    own: JobFigures
    compared: tuple[BaselineFigures, ...]


def found_for(session: Session, schedule: JobSchedule, run: ScheduleRun, gate: RegressionGate) -> GateFigures | None:
    """Read what a run is judged by; None: its job has no report.

    Raises:
        ReportNotRenderableError: that report is not of a form that is known here.
    """
    own = _evidence(session, schedule.tenant_id, run.job_id or "")
    if own is None:
        return None
    known: dict[Baseline, BaselineFigures] = {}
    for clause in gate.clauses:
        baseline = clause.baseline or gate.baseline
        if baseline not in known:
            known[baseline] = _compared(session, schedule, run, baseline, own)
    return GateFigures(own, tuple(known[clause.baseline or gate.baseline] for clause in gate.clauses))


def _compared(
    session: Session, schedule: JobSchedule, run: ScheduleRun, baseline: Baseline, own: JobFigures
) -> BaselineFigures:
    if isinstance(baseline, OfJob):
        return _measured(session, schedule, [baseline.job_id], own)
    but = run.job_id or ""
    if isinstance(baseline, LastPass):
        if schedule.last_pass_job_id is None:
            return BaselineFigures(None, "This schedule has not accepted any job yet.", is_first=True)
        model_id = jobs.get(session, schedule.tenant_id, schedule.last_pass_job_id).model_id
        others = [] if model_id is None else _newest(session, run, model_id, but, schedule.last_pass_job_id)
        return _measured(session, schedule, [schedule.last_pass_job_id, *others], own)
    model = _model_of_alias(session, run, baseline.alias)
    if model is None:
        told = f"The model name has no alias {baseline.alias!r}"
        if baseline.alias == schedule.promote_to:
            return BaselineFigures(None, f"{told} yet; this schedule sets it when a run passes.", is_first=True)
        return BaselineFigures(
            None, f"{told}. Assign it to a version with PUT /v1/models/NAME@VERSION/aliases/{baseline.alias}."
        )
    accepted = repository.last_accepted(session, run.tenant_id, schedule.id, model.id)
    found = [*([] if accepted is None else [accepted]), *_newest(session, run, model.id, but, accepted)]
    if not found:
        named = f"{model.name}@{model.version} (alias {baseline.alias})"
        told = f"No accepted quantize job exists for {named}. Submit one that is evaluated on the same data."
        return BaselineFigures(None, told)
    return _measured(session, schedule, found, own)


def _newest(session: Session, run: ScheduleRun, model_id: str, but: str, accepted: str | None) -> list[str]:
    """Other quantizations of a version that may stand for it: by the recipe that was accepted, where one was."""
    found = repository.newest_succeeded(session, run.tenant_id, model_id, but=but, limit=_LOOKED_AT)
    if accepted is None:
        return found
    recipes = repository.configs(session, run.tenant_id, [accepted, *found])
    wanted = _recipe(recipes.get(accepted))
    return [job_id for job_id in found if _recipe(recipes.get(job_id)) == wanted]


def _recipe(config: dict[str, Any] | None) -> dict[str, Any]:
    """A resolved config as far as the quantized model follows from it, but for chance."""
    return {name: value for name, value in (config or {}).items() if name not in ("seed", "evaluation")}


def _measured(session: Session, schedule: JobSchedule, job_ids: Sequence[str], own: JobFigures) -> BaselineFigures:
    """The first of these jobs that was measured on the same data as the run's own; else the very first one."""
    first: BaselineFigures | None = None
    for job_id in job_ids:
        try:
            evidence = _evidence(session, schedule.tenant_id, job_id)
        except ReportNotRenderableError as error:
            first = first or BaselineFigures(None, error.detail)
            continue
        if evidence is not None and evidence.side.measured_on == own.side.measured_on:
            return BaselineFigures(evidence)
        first = first or BaselineFigures(
            evidence, None if evidence else f"The report of job {job_id} does not exist or was deleted."
        )
    return first or BaselineFigures(None, "There is no job to compare with.")


def _model_of_alias(session: Session, run: ScheduleRun, alias: str) -> Model | None:
    try:
        own = names.by_id(session, MODELS, run.tenant_id, run.model_id or "")
        return names.look_up(session, MODELS, run.tenant_id, f"{own.name}@{alias}")
    except ResourceNotFoundError:
        return None


def _evidence(session: Session, tenant_id: str, job_id: str) -> JobFigures | None:
    row = jobs.report(session, tenant_id, job_id)
    if row is None:
        return None
    report = whole_report(row)
    return JobFigures(
        job_id=job_id,
        verdict=row.verdict,
        fallback=row.fallback,
        metrics={metric.name: metric for metric in report.metrics},
        size_bytes=report.quantized.size_bytes,
        latency=report.latency,
        side=Side(measured_on(report), samples_among(artifacts.list_of_job(session, tenant_id, job_id))),
    )
