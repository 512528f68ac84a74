"""Schedules: the calendar of their verdicts, accuracy over the nights, and what can be done with them."""

from __future__ import annotations

from datetime import date, timedelta
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from service.contracts.errors import InvalidRequestError
from service.contracts.surfaces import for_page
from service.contracts.validation import field_problems
from service.dashboard.forms import FormFields, checked, sent
from service.dashboard.listing import one_page
from service.dashboard.pages import PageRoute, add_act, page, see
from service.deps import AppDep, AppState, PrincipalDep
from service.http import Conditions, CursorParameter
from service.jobs import service as jobs
from service.jobs.repeats import changed_request
from service.jobs.schemas import JobCreate
from service.jobs.views import job_listed
from service.reports import charts
from service.schedules import service
from service.schedules.schemas import RunOut, ScheduleCreate
from service.schedules.views import run_out, schedule_listed, schedule_out

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT, _RUNS, _WEEKS = 50, 200, 12
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
    return page(
        request, "schedules.html.jinja", schedules=[schedule_listed(row) for row in rows], next_query=next_query
    )


@router.get("/schedules/new")
async def new_schedule(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    job: Annotated[str, Query(alias="from", max_length=64)] = "",
) -> Response:
    """The form of a schedule that does again what a job was asked for."""
    if not job:
        return see(request, "/jobs")
    seen = job_listed(await app.reads.run(lambda: jobs.get(app, principal.tenant_id, job)))
    name = f"{seen.model_name or 'model'} nightly"
    typed = {"name": name, "cron": "0 3 * * *", "timezone": "UTC", "max_drop": "", "promote_to": ""}
    typed |= {"newest": "yes", "skip_unchanged": ""}
    return page(request, "schedule_new.html.jinja", job=seen, typed=typed, errors={})


@router.post("/schedules/new")
async def create_schedule(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Make it; what is not right stands at its field, with what was typed."""
    form = await sent(request)
    job_id = form.text("from") or ""
    view = await app.reads.run(lambda: jobs.get(app, principal.tenant_id, job_id))
    seen = job_listed(view)
    patch: dict[str, Any] = {"name": None}
    if form.ticked("newest") and seen.model_name is not None:
        patch["model_id"] = f"{seen.model_name}@latest"
    template = changed_request(view.job, patch, JobCreate)
    try:
        body = await checked(app, ScheduleCreate, {**_asked(form, seen.figures), "template": template})
        answer = await app.writes.run(lambda: service.create(app, principal, body, key=None))
    except (ValidationError, InvalidRequestError) as error:
        return _again(request, form, seen, error)
    return see(request, f"/schedules/{answer.body['id']}")


def _asked(form: FormFields, figures: Any) -> dict[str, Any]:
    """The fields of a schedule; a drop is that of the first metric of the job's report."""
    asked: dict[str, Any] = {
        name: value for name in ("name", "cron", "timezone", "promote_to") if (value := form.text(name)) is not None
    }
    asked["skip_unchanged"] = form.ticked("skip_unchanged")
    limit = form.text("max_drop")
    if limit is not None:
        metric = figures.metrics[0].name if figures is not None and figures.metrics else "top1"
        asked["gate"] = {"clauses": [{"kind": "max_drop", "metric": metric, "max_drop": limit}]}
    return asked


def _again(request: Request, form: FormFields, job: Any, error: ValidationError | InvalidRequestError) -> Response:
    if isinstance(error, ValidationError):
        found = [(one.pointer, one.message) for one in field_problems(error, ScheduleCreate)]
    else:
        found = [(one.pointer, for_page(one.message)) for one in error.errors] or [("/form", error.detail)]
    errors = {("max_drop" if pointer.startswith("/gate") else pointer.split("/")[1]): said for pointer, said in found}
    names = ("name", "cron", "timezone", "max_drop", "promote_to", "newest", "skip_unchanged")
    typed = {name: form.text(name) or "" for name in names}
    return page(request, "schedule_new.html.jinja", status=422, job=job, typed=typed, errors=errors)


@router.get("/schedules/{schedule_id}")
async def get_schedule(request: Request, schedule_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """One schedule with what became of it."""
    shown = await app.reads.run(lambda: _shown(app, principal.tenant_id, schedule_id))
    return page(request, "schedule.html.jinja", days=_DAYS, **shown)


def _shown(app: AppState, tenant_id: str, schedule_id: str) -> dict[str, Any]:
    schedule = schedule_out(service.get(app, tenant_id, schedule_id))
    rows, _ = service.list_runs(app, tenant_id, schedule_id, state=None, after=None, limit=_RUNS)
    runs = [run_out(row) for row in rows]
    unit, nights = _nights(app, tenant_id, runs)
    points = [(float(k), value) for k, (_, value) in enumerate(nights, start=1)]
    return {
        "schedule": schedule,
        "runs": runs,
        "weeks": _weeks(runs),
        "nights": nights,
        "unit": unit,
        "curve": charts.curve(points, "accuracy of the quantized model", "run") if points else None,
    }


def _nights(app: AppState, tenant_id: str, runs: list[RunOut]) -> tuple[str, list[tuple[RunOut, float]]]:
    """The first metric of the quantized model by run, the oldest first; and its unit."""
    shown = runs[: 7 * _WEEKS]
    outlines = jobs.outlines(app, tenant_id, [run.job_id for run in shown if run.job_id is not None])
    found: list[tuple[RunOut, float]] = []
    unit = ""
    for run in reversed(shown):
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
