"""Schedules: what each runs and how it is judged, verdicts by day, accuracy over the runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from service.contracts.evaluation_report import ReportOutline
from service.contracts.regression import (
    Baseline,
    Clause,
    LastPass,
    LatencyRatio,
    MaxDrop,
    NotSignificantlyWorse,
    OfAlias,
    OfJob,
    RegressionGate,
    SizeRatio,
)
from service.dashboard.comparing import dataset_names
from service.dashboard.listing import one_page
from service.dashboard.pages import PageRoute, add_act, page
from service.deps import AppDep, AppState, PrincipalDep
from service.http import Conditions, CursorParameter
from service.jobs import service as jobs
from service.jobs.naming import recipe
from service.reports import charts
from service.reports.figures import metric_title
from service.schedules import service
from service.schedules.schemas import RunOut
from service.schedules.times import described
from service.schedules.views import run_out, schedule_listed, schedule_out

# Units of the metrics that are measured unless others are declared.
_SHARES = {"top1": "%", "top5": "%", "top1_agreement": "%"}
router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT, _RUNS, _WEEKS = 50, 200, 12
_SHOWN, _FAILURES = 30, 5
_DATASETS = ("calibration_dataset_id", "evaluation_dataset_id")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


@router.get("/schedules")
async def list_schedules(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    cursor: CursorParameter = None,
) -> Response:
    """Schedules, newest first."""
    rows, next_query = await one_page(
        request,
        app,
        f"schedules|{principal.tenant_id}",
        cursor,
        lambda after: service.list_page(app, principal.tenant_id, after=after, limit=_LIMIT),
    )
    shown = [schedule_listed(row) for row in rows]
    runs = await app.reads.run(lambda: service.last_runs(app, principal.tenant_id, [row.id for row in rows]))
    gates = {one.id: gate_words(one.gate, _SHARES) for one in shown}
    told: dict[str, Any] = {"described": described, "gates": gates, "runs": runs, "next_query": next_query}
    return page(request, "schedules.html.jinja", schedules=shown, **told)


@router.get("/schedules/{schedule_id}")
async def get_schedule(request: Request, schedule_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """One schedule with its recent jobs."""
    shown = await app.reads.run(lambda: _shown(app, principal.tenant_id, schedule_id))
    return page(request, "schedule.html.jinja", days=_DAYS, **shown)


def _shown(app: AppState, tenant_id: str, schedule_id: str) -> dict[str, Any]:
    schedule = schedule_out(service.get(app, tenant_id, schedule_id))
    rows, _ = service.list_runs(app, tenant_id, schedule_id, state=None, after=None, limit=_RUNS)
    runs = [run_out(row) for row in rows]
    outlines = jobs.outlines(app, tenant_id, [run.job_id for run in runs if run.job_id is not None])
    unit, nights = _nights(runs, outlines)
    points = [(float(k), value) for k, (_, value) in enumerate(nights, start=1)]
    units = _SHARES | {metric.name: metric.unit for outline in outlines.values() for metric in outline.metrics}
    config = schedule.template.get("config") or {}
    methods = [step["method"] for step in config.get("algorithms", ())]
    return {
        "schedule": schedule,
        "job": schedule.template,
        "datasets": dataset_names(app, tenant_id, map(schedule.template.get, _DATASETS)),
        "recipe": recipe(config.get("preset"), methods),
        "gate": gate_words(schedule.gate, units),
        "when_words": described(schedule.cron),
        "runs": runs[:_SHOWN],
        "runs_more": max(0, len(runs) - _SHOWN),
        "failures": [run for run in runs if run.state in ("failed", "refused")][:_FAILURES],
        "outlines": outlines,
        "weeks": _weeks(runs),
        "nights": nights,
        "unit": unit,
        "curve": charts.curve(points, "accuracy of the quantized model", "run") if points else None,
    }


def gate_words(gate: RegressionGate, units: Mapping[str, str]) -> list[str]:
    """The clauses of a gate, each as a sentence; none: the verdict of the job alone decides.

    Args:
        gate: of a schedule.
        units: of metrics, by name, as far as they are known.
    """
    return [_clause_words(clause, clause.baseline or gate.baseline, units) for clause in gate.clauses]


def _drop_words(value: float, unit: str) -> str:
    """A limit as it was given: differences of percentages are points."""
    named = ("point" if value == 1 else "points") if unit == "%" else unit
    return f"{value:g} {named}".rstrip()


def _clause_words(clause: Clause, baseline: Baseline, units: Mapping[str, str]) -> str:
    of = _baseline_words(baseline)
    match clause:
        case MaxDrop():
            limit = _drop_words(clause.max_drop, units.get(clause.metric, ""))
            return f"{metric_title(clause.metric)} drops by at most {limit} from {of}."
        case NotSignificantlyWorse():
            what = "Top-1 decisions are" if clause.metric is None else f"{metric_title(clause.metric)} is"
            return f"{what} not significantly worse than {of} (alpha {clause.alpha:g})."
        case SizeRatio():
            return f"Size is at most {clause.max_ratio:g}x that of {of}."
        case LatencyRatio():
            return f"Latency is at most {clause.max_ratio:g}x that of {of}."


def _baseline_words(baseline: Baseline) -> str:
    match baseline:
        case OfJob():
            return f"job {baseline.job_id}"
        case OfAlias():
            return f"the alias {baseline.alias}"
        case LastPass():
            return "the last accepted job"


def _nights(runs: list[RunOut], outlines: Mapping[str, ReportOutline]) -> tuple[str, list[tuple[RunOut, float]]]:
    """The first metric of the quantized model by run, the oldest first; and its unit."""
    found: list[tuple[RunOut, float]] = []
    unit = ""
    for run in reversed(runs[: 7 * _WEEKS]):
        outline = outlines.get(run.job_id or "")  # a job may have been deleted since; its run stays
        metric = outline.metrics[0] if outline is not None and outline.metrics else None
        if metric is not None and metric.quantized is not None:
            found.append((run, metric.quantized))
            unit = metric.unit
    return unit, found


def _weeks(runs: list[RunOut]) -> list[tuple[date, list[list[RunOut]]]]:
    """The runs of the last weeks that had any, as (Monday, the runs of each of its seven days), the newest first."""
    weeks: dict[date, list[list[RunOut]]] = {}
    for run in runs:
        day = run.due_at.date()
        monday = day - timedelta(days=day.weekday())
        weeks.setdefault(monday, [[] for _ in _DAYS])[day.weekday()].append(run)
    return sorted(weeks.items(), reverse=True)[:_WEEKS]


add_act(router, "/schedules/{schedule_id}/run", partial(service.run, key=None))
add_act(router, "/schedules/{schedule_id}/pause", service.pause)
add_act(router, "/schedules/{schedule_id}/resume", service.resume)
# Delete it with its history; its jobs stay.
add_act(router, "/schedules/{schedule_id}/delete", partial(service.delete, conditions=Conditions(None)), "/schedules")
