"""What the autopilot of a job has tried: recipe by recipe, with the one that was taken."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from service.contracts.config import patch_between
from service.contracts.report import Report
from service.contracts.search import Search, TrialFigures
from service.dashboard import live_trials, planes
from service.dashboard.pages import PageRoute, page
from service.deps import AppDep, AppState, PrincipalDep
from service.jobs import service as jobs
from service.jobs.schemas import TERMINAL, JobOut
from service.jobs.views import job_out
from service.reports import charts
from service.reports.reading import whole_report

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_FULL_BAR_DB = 50.0


class Shown(NamedTuple):
    """A trial with its bar, and the query of the form that begins with it."""

    number: int
    figures: TrialFigures
    bar: Markup
    take: str


@router.get("/jobs/{job_id}/trials")
async def get_trials(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """The trials of a job; of one that has not succeeded those that it has told so far."""
    job, report = await app.reads.run(lambda: _read(app, principal.tenant_id, job_id))
    search = None if report is None else search_of(report)
    context: dict[str, Any] = {"job": job, "search": search, "trials": [], "plane": None, "measure": planes.SQNR}
    if report is None and live_trials.AUTOPILOT in (job.algorithms or ()):
        so_far = await app.reads.run(lambda: live_trials.told(app, principal.tenant_id, job))
        return page(request, "trials_live.html.jinja", job=job, ended=job.state in TERMINAL, **so_far._asdict())
    if report is not None and search is not None:
        measure, limit = live_trials.goal_of(search.goal)
        context |= {
            "trials": _shown(job_id, report, search),
            "plane": planes.plane(measure, _marks(search), limit),
            "measure": measure,
        }
    return page(request, "trials.html.jinja", **context)


def _read(app: AppState, tenant_id: str, job_id: str) -> tuple[JobOut, Report | None]:
    job = job_out(jobs.get(app, tenant_id, job_id))
    if job.kind != "quantize" or job.figures is None:
        return job, None
    return job, whole_report(jobs.report(app, tenant_id, job_id))


def search_of(report: Report) -> Search | None:
    """What the autopilot of a report has tried; None: it has none."""
    return next((one.search for one in report.algorithms if one.search is not None), None)


def _marks(search: Search) -> list[planes.Mark]:
    """The finalists, numbered as the others are: what was not measured stands in the table alone."""
    return [
        planes.Mark(one.name, None, one.value, one.size_bytes, one.latency_ratio, one.chosen, one.pareto)
        for one in search.trials
    ]


def _shown(job_id: str, report: Report, search: Search) -> list[Shown]:
    config = report.manifest.config.model_dump(mode="json")
    return [
        Shown(
            number,
            one,
            charts.bar((one.sqnr_db or 0.0) / _FULL_BAR_DB),
            urlencode({"from": job_id, "patch": json.dumps(patch_of(config, one), separators=(",", ":"))}),
        )
        for number, one in enumerate(search.trials, start=1)
    ]


def patch_of(config: dict[str, Any], trial: TrialFigures) -> dict[str, Any]:
    """The merge patch of a job's config that makes it the recipe of a trial, without the autopilot.

    Args:
        config: resolved, with the autopilot.
        trial: one of its recipes.
    """
    after = dict(config)
    for key, values in trial.settings.items():
        # a setting takes the place of one of the same name, with all that is in it
        after[key] = (
            {**after[key], **values} if isinstance(values, dict) and isinstance(after.get(key), dict) else values
        )
    chain = [dict(one) for one in trial.chain] or [{"method": method} for method in trial.algorithms]
    steps: list[dict[str, Any]] = []
    for step in config.get("algorithms", []):
        steps += chain if step.get("method") == live_trials.AUTOPILOT else [step]
    after["algorithms"] = steps
    return patch_between(config, after)
