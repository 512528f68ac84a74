"""The forms of a schedule: a new one of a job, and one that is changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ValidationError

from service.contracts.base import read_stored
from service.contracts.errors import InvalidRequestError, QuantmillError
from service.contracts.regression import MaxDrop, RegressionGate
from service.contracts.surfaces import for_page
from service.contracts.validation import field_problems
from service.dashboard.forms import FormFields, checked, outcome, sent
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, AppState, PrincipalDep
from service.http import Conditions, PreconditionFailedError, etag_of
from service.ids import is_id
from service.jobs import service as jobs
from service.jobs.repeats import changed_request
from service.jobs.repository import JobQuery
from service.jobs.schemas import JobCreate
from service.jobs.views import job_listed
from service.names.kinds import DATASETS, MODELS, ResourceKind
from service.names.repository import ResourceQuery
from service.names.service import get, list_page
from service.principal import Principal
from service.resources import ResourceNotFoundError
from service.schedules import service
from service.schedules.schemas import ScheduleChange, ScheduleCreate
from service.schedules.times import MOST_CRON_CHARS, MOST_ZONE_CHARS, check_cron, check_zone, described, following
from service.tables import JobSchedule

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_TEXTS = ("name", "cron", "timezone", "promote_to")
# What of the template the form shows.
_NOUNS = ("model_id", "calibration_dataset_id", "evaluation_dataset_id")
# Due times that are shown of an expression, and models or datasets to choose from.
_NEXT, _LISTED = 3, 100
_BOXES = ("newest", "skip_unchanged")


@router.get("/schedules/new")
async def new_schedule(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    job: Annotated[str, Query(alias="from", max_length=64)] = "",
) -> Response:
    """The form of a schedule that repeats a job, or which job that is to be."""
    if not job:
        query = JobQuery(state="succeeded", kind="quantize")
        views, _ = await app.reads.run(
            lambda: jobs.list_page(app, principal.tenant_id, query, after=None, limit=_LISTED)
        )
        listed = [job_listed(view) for view in views]
        options = [(one.id, f"{one.name or one.id}: {outcome(one).word}") for one in listed]
        return page(request, "schedule_choose.html.jinja", options=options, most=_LISTED)
    seen = job_listed(await app.reads.run(lambda: jobs.get(app, principal.tenant_id, job)))
    name = f"{seen.model_name or 'model'} nightly"
    typed = {"name": name, "cron": "0 3 * * *", "timezone": "UTC", "max_drop": "", "promote_to": ""}
    typed |= {"newest": "yes", "skip_unchanged": ""}
    return _form(request, typed, job=seen)


@router.get("/schedules/reading")
async def get_reading(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    cron: Annotated[str, Query(max_length=MOST_CRON_CHARS)] = "",
    timezone: Annotated[str, Query(max_length=MOST_ZONE_CHARS)] = "",
) -> Response:
    """What a cron expression means, read again while it is typed."""
    return page(
        request, "schedule_reading.html.jinja", reading=await app.checks.run(lambda: reading_of(cron, timezone))
    )


def reading_of(cron: str, zone: str) -> dict[str, Any] | None:
    """An expression in words, and when it is due next; None: it is not valid, or the zone is not."""
    try:
        cron, zone = check_cron(cron), check_zone(zone or "UTC")
    except ValueError:
        return None
    due: list[datetime] = []
    at = datetime.now(UTC)
    while len(due) < _NEXT and (found := following(cron, zone, at)) is not None:
        due.append(at := found)
    return {"words": described(cron), "zone": zone, "due": due}


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
    return await _edit(request, app, principal, row, _stored(row), tag=etag_of(row))


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
        return await _edit(request, app, principal, row, _typed(form), tag=etag_of(row), now=_stored(row))
    except (ValidationError, QuantmillError) as error:
        told = _errors(error, ScheduleChange)
        return await _edit(request, app, principal, row, _typed(form), tag=tag, errors=told)
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


async def _edit(
    request: Request, app: AppState, principal: Principal, row: JobSchedule, typed: dict[str, str], **told: Any
) -> Response:
    """The form of a schedule, with lists of what it can run on."""
    names = (typed, told.get("now") or {})
    options = await app.reads.run(lambda: _options(app, principal.tenant_id, *names))
    return _form(request, typed, schedule=row, options=options, **told)


def _options(app: AppState, tenant_id: str, *chosen: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Models and datasets by what the form sends, with their names; those that are chosen are always among them."""
    query = ResourceQuery(status="ready")
    models, _ = list_page(app, MODELS, tenant_id, query, after=None, limit=_LISTED)
    data, _ = list_page(app, DATASETS, tenant_id, query, after=None, limit=_LISTED)
    newest = dict.fromkeys(f"{row.name}@latest" for row in models)
    found = {name: {row.id: f"{row.name}@{row.version}" for row in data} for name in _NOUNS[1:]}
    found["model_id"] = dict(zip(newest, newest, strict=True)) | {row.id: f"{row.name}@{row.version}" for row in models}
    for texts in chosen:
        for name, options in found.items():
            text = texts.get(name)
            if text and text not in options:
                options[text] = _called(app, MODELS if name == "model_id" else DATASETS, tenant_id, text)
    return {name: list(options.items()) for name, options in found.items()}


def _called(app: AppState, kind: ResourceKind[Any], tenant_id: str, text: str) -> str:
    """Name and version of what an id means; other texts, and ids of what was deleted, as they are."""
    if not is_id(text, kind.prefix):
        return text
    try:
        row = get(app, kind, tenant_id, text)
    except ResourceNotFoundError:
        return f"{text} (deleted)"
    return f"{row.name}@{row.version}"


def _form(
    request: Request,
    typed: dict[str, str],
    *,
    job: Any = None,
    schedule: JobSchedule | None = None,
    tag: str = "",
    errors: dict[str, str] | None = None,
    now: dict[str, str] | None = None,
    options: dict[str, list[tuple[str, str]]] | None = None,
) -> Response:
    """The form; ``now`` is what somebody else has made of the schedule meanwhile."""
    if now is not None and options is not None:
        now |= {name: dict(options[name]).get(now[name], "") for name in _NOUNS}
    shown = {"job": job, "schedule": schedule, "etag": tag, "typed": typed, "errors": errors or {}, "now": now}
    shown |= {"reading": reading_of(typed["cron"], typed["timezone"]), "options": options}
    shown["simple"] = schedule is None or is_simple(schedule)
    return page(request, "schedule_form.html.jinja", status=412 if now else 422 if errors else 200, **shown)
