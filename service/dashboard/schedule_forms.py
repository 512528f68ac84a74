"""The forms of a schedule: a new one of a job, and one that is changed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ValidationError

from service.contracts.base import read_stored
from service.contracts.errors import InvalidRequestError, QuantmillError
from service.contracts.regression import MaxDrop, RegressionGate
from service.contracts.surfaces import for_page
from service.contracts.validation import field_problems
from service.dashboard.forms import FormFields, checked, sent
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, AppState, PrincipalDep
from service.http import Conditions, PreconditionFailedError, etag_of
from service.jobs import service as jobs
from service.jobs.repeats import changed_request
from service.jobs.schemas import JobCreate
from service.jobs.views import job_listed
from service.principal import Principal
from service.schedules import service
from service.schedules.schemas import ScheduleChange, ScheduleCreate
from service.tables import JobSchedule

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_TEXTS = ("name", "cron", "timezone", "promote_to")
# What of the template the form shows.
_NOUNS = ("model_id", "calibration_dataset_id", "evaluation_dataset_id")
_BOXES = ("newest", "skip_unchanged")


@router.get("/schedules/new")
async def new_schedule(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    job: Annotated[str, Query(alias="from", max_length=64)] = "",
) -> Response:
    """The form of a schedule that repeats a job."""
    if not job:
        return see(request, "/jobs")
    seen = job_listed(await app.reads.run(lambda: jobs.get(app, principal.tenant_id, job)))
    name = f"{seen.model_name or 'model'} nightly"
    typed = {"name": name, "cron": "0 3 * * *", "timezone": "UTC", "max_drop": "", "promote_to": ""}
    typed |= {"newest": "yes", "skip_unchanged": ""}
    return _form(request, typed, job=seen)


@router.post("/schedules/new")
async def create_schedule(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Create it; what is wrong is said at its field, with what was typed."""
    form = await sent(request)
    job_id = form.text("from") or ""
    view = await app.reads.run(lambda: jobs.get(app, principal.tenant_id, job_id))
    seen = job_listed(view)
    patch: dict[str, Any] = {"name": None}
    if form.ticked("newest") and seen.model_name is not None:
        patch["model_id"] = f"{seen.model_name}@latest"
    template = changed_request(view.job, patch, JobCreate)
    try:
        body = await checked(app, ScheduleCreate, {**_asked(form, _metric(seen.figures)), "template": template})
        answer = await app.writes.run(lambda: service.create(app, principal, body, key=None))
    except (ValidationError, QuantmillError) as error:
        return _form(request, _typed(form), job=seen, errors=_errors(error, ScheduleCreate))
    return see(request, f"/schedules/{answer.body['id']}")


@router.get("/schedules/{schedule_id}/edit")
async def edit_schedule(request: Request, schedule_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """The form of one, filled in."""
    row = await app.reads.run(lambda: service.get(app, principal.tenant_id, schedule_id))
    return _form(request, _stored(row), schedule=row, tag=etag_of(row))


@router.post("/schedules/{schedule_id}/edit")
async def change_schedule(request: Request, schedule_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Change what is typed otherwise; who changed it meanwhile is not overwritten unseen."""
    form = await sent(request)
    tag = form.text("etag") or ""
    row = await app.reads.run(lambda: service.get(app, principal.tenant_id, schedule_id))
    try:
        await _change(app, principal, row, form, Conditions(tag))
    except PreconditionFailedError:
        row = await app.reads.run(lambda: service.get(app, principal.tenant_id, schedule_id))
        return _form(request, _typed(form), schedule=row, tag=etag_of(row), now=_stored(row))
    except (ValidationError, QuantmillError) as error:
        return _form(request, _typed(form), schedule=row, tag=tag, errors=_errors(error, ScheduleChange))
    return see(request, f"/schedules/{row.id}")


async def _change(
    app: AppState, principal: Principal, row: JobSchedule, form: FormFields, conditions: Conditions
) -> None:
    asked = _asked(form, _metric_of(row))
    if not is_simple(row) or (form.text("max_drop") or "") == _stored(row)["max_drop"]:
        asked.pop("gate", None)  # another one would forget what was accepted by this one
    elif "gate" not in asked:
        asked["gate"] = {}
    asked.setdefault("promote_to", None)
    nouns = {name: form.text(name) for name in _NOUNS}
    if any(value != row.template.get(name) for name, value in nouns.items()):
        asked["template"] = {**row.template, **nouns}
    body = await checked(app, ScheduleChange, asked)
    await app.writes.run(lambda: service.change(app, principal, row.id, body, conditions))


def is_simple(row: JobSchedule) -> bool:
    """Whether the gate of a schedule is one that the form can show: no clause, or one largest drop."""
    gate = read_stored(RegressionGate, row.gate)
    return not gate.clauses or (len(gate.clauses) == 1 and isinstance(gate.clauses[0], MaxDrop))


def _asked(form: FormFields, metric: str) -> dict[str, Any]:
    """The fields of a schedule."""
    asked: dict[str, Any] = {name: value for name in _TEXTS if (value := form.text(name)) is not None}
    asked["skip_unchanged"] = form.ticked("skip_unchanged")
    limit = form.text("max_drop")
    if limit is not None:
        asked["gate"] = {"clauses": [{"kind": "max_drop", "metric": metric, "max_drop": limit}]}
    return asked


def _metric(figures: Any) -> str:
    """What a drop is of: the first metric of the job's report."""
    return str(figures.metrics[0].name) if figures is not None and figures.metrics else "top1"


def _metric_of(row: JobSchedule) -> str:
    """What a drop is of, of a schedule: what its gate names, or the first metric that its config declares."""
    clauses = read_stored(RegressionGate, row.gate).clauses
    if clauses and isinstance(clauses[0], MaxDrop):
        return clauses[0].metric
    evaluation = (row.template.get("config") or {}).get("evaluation") or {}
    return next((str(one["name"]) for one in evaluation.get("metrics", ())), "top1")


def _stored(row: JobSchedule) -> dict[str, str]:
    clauses = read_stored(RegressionGate, row.gate).clauses
    drop = f"{clauses[0].max_drop:g}" if is_simple(row) and clauses and isinstance(clauses[0], MaxDrop) else ""
    kept = {name: getattr(row, name) or "" for name in _TEXTS}
    nouns = {name: row.template.get(name) or "" for name in _NOUNS}
    return {**kept, **nouns, "max_drop": drop, "skip_unchanged": "yes" if row.skip_unchanged else ""}


def _typed(form: FormFields) -> dict[str, str]:
    return {name: form.text(name) or "" for name in (*_TEXTS, *_NOUNS, *_BOXES, "max_drop")}


def _errors(error: ValidationError | QuantmillError, model: type[BaseModel]) -> dict[str, str]:
    """What is said at which field.

    Raises:
        QuantmillError: the same, where it is about no field.
    """
    if isinstance(error, ValidationError):
        found = [(one.pointer, one.message) for one in field_problems(error, model)]
    else:
        found = [(one.pointer, for_page(one.message)) for one in error.errors if one.pointer]
        if not found and not isinstance(error, InvalidRequestError):
            raise error
    return {_field(pointer): message for pointer, message in found} or {"form": str(error)}


def _field(pointer: str) -> str:
    """Which field of the form a problem is of."""
    if pointer.startswith("/gate"):
        return "max_drop"
    return next((name for name in _NOUNS if name in pointer), pointer.split("/")[1])


def _form(
    request: Request,
    typed: dict[str, str],
    *,
    job: Any = None,
    schedule: JobSchedule | None = None,
    tag: str = "",
    errors: dict[str, str] | None = None,
    now: dict[str, str] | None = None,
) -> Response:
    """The form; ``now`` is what somebody else has made of the schedule meanwhile."""
    shown = {"job": job, "schedule": schedule, "etag": tag, "typed": typed, "errors": errors or {}, "now": now}
    shown["simple"] = schedule is None or is_simple(schedule)
    return page(request, "schedule_form.html.jinja", status=412 if now else 422 if errors else 200, **shown)
