"""What the autopilot of a job has tried, recipe by recipe, before and after it has ended; the curves of a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from service.contracts.changes import ratio_words
from service.contracts.config import patch_between
from service.contracts.report import Report
from service.contracts.search import Search, TrialFigures
from service.dashboard import tradeoffs
from service.dashboard.overview import Recent
from service.dashboard.pages import PageRoute, environment, page
from service.deps import AppDep, AppState, PrincipalDep
from service.jobs import records
from service.jobs import service as jobs
from service.jobs.events import latest_metrics
from service.jobs.naming import ALGORITHM_NAMES
from service.jobs.schemas import TERMINAL, JobOut
from service.jobs.views import event_out, job_out
from service.reports import charts
from service.reports.reading import whole_report

AUTOPILOT = "autopilot"
_TRIALS = 5000
_DISTANCES = {
    "sqnr": tradeoffs.SQNR,
    "psnr": tradeoffs.Measure("PSNR", "dB", higher=True),
    "cosine": tradeoffs.Measure("Cosine", "", higher=True),
    "l2": tradeoffs.Measure("Relative distance", "", higher=False),
    "kl": tradeoffs.Measure("Divergence", "nats", higher=False),
}


def told(app: AppState, tenant_id: str, job: JobOut) -> dict[str, Any]:
    """The trials so far of a job that has no report yet, what they are judged by, and the front of those measured.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    found = latest_metrics(
        event_out(event) for event in records.figures(app, tenant_id, job.id, most=_TRIALS, stage=AUTOPILOT)
    )
    names = records.recipes(app, tenant_id, job.id)
    goal = _goal(job.config or {})
    measure, limit = goal_of(goal)
    name = f"goal_{goal.get('metric')}" if goal.get("kind") == "distance" else "drop"
    trials: list[dict[str, Any]] = [
        {
            "number": number,
            "words": names.get(number, f"recipe {number}"),
            "value": figures.get(name),  # on all data; None: not measured yet, as are size and latency
            **{key: figures.get(key) for key in ("sqnr_db", "size_bytes", "latency_ratio")},
        }
        for number, figures in found.get(AUTOPILOT, {}).items()
    ]
    marks = [
        tradeoffs.Mark(one["words"], None, one["value"], one["size_bytes"], one["latency_ratio"]) for one in trials
    ]
    return {"trials": trials, "measure": measure, "tradeoff": tradeoffs.trade_off(measure, marks, limit)}


def goal_of(goal: Mapping[str, Any]) -> tuple[tradeoffs.Measure, float | None]:
    """What trials are judged by, and the worst value that the goal accepts."""
    if goal.get("kind") == "distance":
        return _DISTANCES.get(str(goal.get("metric")), tradeoffs.SQNR), goal.get("limit")
    return tradeoffs.drop_of(str(goal.get("metric", "top1")), ""), goal.get("max_drop")


def _goal(config: Mapping[str, Any]) -> Mapping[str, Any]:
    steps = config.get("algorithms", [])
    return next((step.get("goal", {}) for step in steps if step.get("method") == AUTOPILOT), {})


router = APIRouter(route_class=PageRoute, include_in_schema=False)
_FULL_BAR_DB = 50.0


@router.get("/jobs/{job_id}/trials")
async def get_trials(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """The trials of a job; of one that has not succeeded those that it has told so far."""
    job, report = await app.reads.run(lambda: _read(app, principal.tenant_id, job_id))
    search = None if report is None else search_of(report)
    context: dict[str, Any] = {"job": job, "search": search, "trials": [], "tradeoff": None, "measure": tradeoffs.SQNR}
    if report is None and AUTOPILOT in (job.algorithms or ()):
        so_far = await app.reads.run(lambda: told(app, principal.tenant_id, job))
        return page(
            request, "trials_live.html.jinja", job=job, ended=job.state in TERMINAL, speed=ratio_words, **so_far
        )
    if report is not None and search is not None:
        measure, limit = goal_of(search.goal)
        # the finalists, numbered as the others are: what was not measured stands in the table alone
        marks = [
            tradeoffs.Mark(one.name, None, one.value, one.size_bytes, one.latency_ratio, one.chosen, one.pareto)
            for one in search.trials
        ]
        context |= {
            "trials": _shown(job_id, report, search),
            "tradeoff": tradeoffs.trade_off(measure, marks, limit),
            "measure": measure,
        }
    return page(request, "trials.html.jinja", speed=ratio_words, **context)


def _read(app: AppState, tenant_id: str, job_id: str) -> tuple[JobOut, Report | None]:
    job = job_out(jobs.get(app, tenant_id, job_id))
    if job.kind != "quantize" or job.figures is None:
        return job, None
    return job, whole_report(jobs.report(app, tenant_id, job_id))


def search_of(report: Report) -> Search | None:
    """What the autopilot of a report has tried; None: it has none."""
    return next((one.search for one in report.algorithms if one.search is not None), None)


def _shown(job_id: str, report: Report, search: Search) -> list[dict[str, Any]]:
    """Each trial with its bar, and the query of the form that begins with it."""
    config = report.manifest.config.model_dump(mode="json")
    return [
        {
            "number": number,
            "figures": one,
            "bar": charts.bar((one.sqnr_db or 0.0) / _FULL_BAR_DB),
            "take": urlencode({"from": job_id, "patch": json.dumps(patch_of(config, one), separators=(",", ":"))}),
        }
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
        steps += chain if step.get("method") == AUTOPILOT else [step]
    after["algorithms"] = steps
    return patch_between(config, after)


# Steps of a stage that are drawn, of more of them an even choice: a picture has no more points across.
_STEPS = 500
_KEPT = 64
# A figure that stages tell layer by layer, and no other.
_OF_LAYERS = "error_left_percent"


class Curves(NamedTuple):
    """All curves of a job, as the part of a page."""

    number: int  # of them
    part: Markup  # the HTML


_drawn: Recent[Curves] = Recent(_KEPT)


def curves_of(app: AppState, tenant_id: str, job_id: str) -> Curves:
    """Every figure that the job's stages told step by step.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    newest = records.newest_figure(app, tenant_id, job_id)
    return _drawn.get((tenant_id, job_id, newest), lambda: _draw(app, tenant_id, job_id))


def _together(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """By title of a chart its figures by their labels: what a layer has before and after stands in one."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        title, _, when = name.rpartition("_")
        if when not in ("before", "after"):
            title = when = name
        title, when = (words.replace("_percent", ", %").replace("_", " ") for words in (title, when))
        found.setdefault(title, {})[when] = name
    return found


def _draw(app: AppState, tenant_id: str, job_id: str) -> Curves:
    found = latest_metrics(event_out(event) for event in records.figures(app, tenant_id, job_id, most=_STEPS))
    drawn = []
    for stage, steps in found.items():
        names = list(dict.fromkeys(name for figures in steps.values() for name in figures))
        unit = "layer" if _OF_LAYERS in names else "step"
        for title, figures in _together(names).items():
            lines = [
                (label, [(step, value) for step, given in steps.items() if (value := given.get(name)) is not None])
                for label, name in figures.items()
            ]
            picture = charts.curves(lines, unit) if any(len(points) > 1 for _, points in lines) else None
            if picture is not None:
                values = ((step, [given.get(name) for name in figures.values()]) for step, given in steps.items())
                rows = [(step, some) for step, some in values if any(value is not None for value in some)]
                title = f"{ALGORITHM_NAMES.get(stage, stage)}: {title}"
                drawn.append((title, unit.capitalize(), list(figures), picture, rows))
    part = environment().get_template("curves_drawn.html.jinja").render(curves=drawn)
    return Curves(len(drawn), Markup(part))  # noqa: S704 - the template has escaped it
