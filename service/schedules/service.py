"""Schedules: create, update, pause, run on request, delete; and their runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from service import repository as rows
from service.audit.changes import changes_between
from service.audit.service import note
from service.contracts.base import read_stored
from service.contracts.errors import InvalidRequestError
from service.contracts.regression import RegressionGate
from service.db import db_now
from service.deps import AppState
from service.http import Conditions, etag_of
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest, NoBody
from service.idempotency.service import submit_once
from service.ids import is_id, new_id
from service.jobs.schemas import JobCreate
from service.jobs.submission import Submission, checked_submission
from service.pagination import Position
from service.principal import Principal
from service.repository import now_seconds
from service.schedules import firing, repository
from service.schedules.prospects import gate_prospects
from service.schedules.repository import UNPLANNED, Plan
from service.schedules.schemas import (
    ScheduleBusyError,
    ScheduleChange,
    ScheduleChangedError,
    ScheduleCreate,
    TooManySchedulesError,
)
from service.schedules.times import fires_at, following
from service.schedules.views import location, run_out, schedule_out
from service.tables import Job, JobSchedule, ScheduleRun

# Of one tenant.
MOST_SCHEDULES = 1000
_TIMES = frozenset({"cron", "timezone", "jitter_seconds"})
# What may be none.
_NULLABLE = frozenset({"promote_to"})
# What its gate is looked at with.
_JUDGED = frozenset({"template", "gate", "promote_to"})


def create(app: AppState, by: Principal, body: ScheduleCreate, *, key: str | None) -> Answer:
    """Store a schedule whose job could be submitted now.

    Raises:
        TooManySchedulesError: the tenant has as many as it may.
        ScheduleNameTakenError: another of its schedules is called so.
        QuantmillError: the template could not be submitted; nothing was stored.
    """
    check = partial(_checked_new, app=app, by=by, body=body)
    return submit_once(app, by, KeyedRequest.of("POST /v1/schedules", key, body), check, partial(_store, by=by))


def get(app: AppState, tenant_id: str, schedule_id: str) -> JobSchedule:
    """The schedule.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
    """
    with app.database.read() as session:
        return repository.called(session, tenant_id, schedule_id)


def list_page(
    app: AppState, tenant_id: str, *, after: Position | None, limit: int
) -> tuple[list[JobSchedule], Position | None]:
    """One page of schedules, newest first, and the position to go on from."""
    with app.database.read() as session:
        return repository.list_page(session, tenant_id, after=after, limit=limit)


def last_runs(app: AppState, tenant_id: str, schedule_ids: Sequence[str]) -> dict[str, ScheduleRun]:
    """The newest run of each schedule that has any, by the id of the schedule."""
    with app.database.read() as session:
        return repository.last_runs(session, tenant_id, schedule_ids)


def change(
    app: AppState, by: Principal, schedule_id: str, body: ScheduleChange, conditions: Conditions
) -> tuple[JobSchedule, list[str]]:
    """Change what the body names, if nobody else has in the meantime; with other times it is planned anew.

    Returns:
        The schedule, and what is odd about its gate.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
        PreconditionRequiredError, PreconditionFailedError: the version that is to be changed is not told, or is older.
        ScheduleNameTakenError: another schedule is called so.
        QuantmillError: a new template could not be submitted, or the gate names what is not there.
    """
    asked, warnings = _values(body), []
    values = dict(asked)
    with app.database.read() as session:
        seen = repository.called(session, by.tenant_id, schedule_id)
        conditions.require("Send the ETag of your last GET as If-Match, or If-Match: * to match any version.")
        if _JUDGED & body.model_fields_set:
            warnings = _prospects(app, session, seen, body)
        if _TIMES & values.keys() and seen.paused_at is None:
            times = {name: values.get(name, getattr(seen, name)) for name in _TIMES}
            values |= repository.planned(_plan(session, seen.id, **times))
    if "gate" in values:
        values["last_pass_fingerprint"] = None  # what was accepted by another gate was not by this one
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, seen.id, locked=True)
        repository.hold_names(session, by.tenant_id, body.name, but=seen.id)
        conditions.check(etag_of(row), f"schedule {row.id}")
        if row.row_version != seen.row_version:
            raise ScheduleChangedError(seen.id)
        changes = changes_between({name: getattr(row, name) for name in asked}, asked)
        if values:
            row = rows.change(session, JobSchedule, seen.id, **values)
        note(session, by, "schedule.update", seen.id, changes=changes)
    return row, warnings


def delete(app: AppState, by: Principal, schedule_id: str, conditions: Conditions) -> None:
    """Delete a schedule with its history; its jobs stay.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
        PreconditionFailedError: it is another version than the caller has seen.
    """
    schedule_id = _identified(app, by.tenant_id, schedule_id)
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, schedule_id, locked=True)
        conditions.check(etag_of(row), f"schedule {row.id}")
        repository.remove(session, schedule_id)
        note(session, by, "schedule.delete", schedule_id)


def pause(app: AppState, by: Principal, schedule_id: str) -> JobSchedule:
    """Let the schedule not be due; what is under way goes on.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
    """
    schedule_id = _identified(app, by.tenant_id, schedule_id)
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, schedule_id, locked=True)
        if row.paused_at is None:
            row = rows.change(session, JobSchedule, schedule_id, paused_at=db_now(), **UNPLANNED)
            note(session, by, "schedule.pause", schedule_id)
    return row


def resume(app: AppState, by: Principal, schedule_id: str) -> JobSchedule:
    """Let a paused schedule be due again, from now on: what was due meanwhile is no misfire.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
        ScheduleChangedError: its times were changed meanwhile.
    """
    schedule_id = _identified(app, by.tenant_id, schedule_id)
    with app.database.read() as session:
        seen = repository.get(session, by.tenant_id, schedule_id)
        plan = _plan(session, schedule_id, seen.cron, seen.timezone, seen.jitter_seconds)
    with app.database.write() as session:
        row = repository.get(session, by.tenant_id, schedule_id, locked=True)
        if row.paused_at is None:
            return row
        if row.row_version != seen.row_version:
            raise ScheduleChangedError(schedule_id)
        row = rows.change(session, JobSchedule, schedule_id, paused_at=None, **repository.planned(plan))
        note(session, by, "schedule.resume", schedule_id)
    return row


def run(app: AppState, by: Principal, schedule_id: str, *, key: str | None) -> Answer:
    """Run a schedule now, also a paused one, and also where nothing has changed.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
        ScheduleBusyError: its last job has not ended, and nothing is to run beside it.
        ScheduleChangedError: somebody changed it in this moment.
        QuantmillError: its job cannot be submitted; there is no run of it.
    """
    schedule_id = _identified(app, by.tenant_id, schedule_id)

    request = KeyedRequest.of(f"POST /v1/schedules/{schedule_id}/run", key, NoBody())
    check = partial(_checked_run, app=app, by=by, schedule_id=schedule_id)
    return submit_once(app, by, request, check, partial(_store_run, app=app, by=by))


def _checked_run(session: Session, app: AppState, by: Principal, schedule_id: str) -> tuple[JobSchedule, Submission]:
    seen = repository.get(session, by.tenant_id, schedule_id)
    return seen, firing.prepared(session, app.settings, seen)


def _store_run(
    checked: tuple[JobSchedule, Submission], session: Session, app: AppState, by: Principal
) -> tuple[Answer, Job | None]:
    seen, given = checked
    row = repository.get(session, by.tenant_id, seen.id, locked=True)
    if row.row_version != seen.row_version:
        raise ScheduleChangedError(row.id)
    made, job = firing.run_now(app, session, by, row, given)
    if made.state == "skipped":
        raise ScheduleBusyError(row.id, row.overlap)
    headers = {"Location": f"/v1/schedules/{row.id}/runs/{made.id}"}
    return Answer(202, run_out(made).model_dump(mode="json"), headers), job


def list_runs(
    app: AppState, tenant_id: str, schedule_id: str, *, state: str | None, after: Position | None, limit: int
) -> tuple[list[ScheduleRun], Position | None]:
    """One page of the schedule's history, newest first.

    Raises:
        ScheduleNotFoundError: the tenant has no such schedule.
    """
    with app.database.read() as session:
        schedule_id = repository.called(session, tenant_id, schedule_id).id
        return repository.runs_page(session, tenant_id, schedule_id, state=state, after=after, limit=limit)


def get_run(app: AppState, tenant_id: str, schedule_id: str, run_id: str) -> ScheduleRun:
    """One run of a schedule.

    Raises:
        ScheduleNotFoundError, RunNotFoundError: the tenant has no such schedule, or that no such run.
    """
    with app.database.read() as session:
        schedule_id = repository.called(session, tenant_id, schedule_id).id
        return repository.run_of(session, tenant_id, schedule_id, run_id)


def _identified(app: AppState, tenant_id: str, text: str) -> str:
    """The id that an id or a name means; whether an id is anybody's is asked by who looks for it."""
    if is_id(text, "sch"):
        return text
    with app.database.read() as session:
        return repository.called(session, tenant_id, text).id


class _New(NamedTuple):
    """A schedule that may be stored, with what is odd about it."""

    schedule_id: str
    plan: Plan | None
    values: dict[str, Any]
    warnings: list[str]


def _checked_new(session: Session, app: AppState, by: Principal, body: ScheduleCreate) -> _New:
    given = _submittable(app, session, by.tenant_id, body.template)
    warnings = gate_prospects(session, by.tenant_id, body.gate, body.promote_to, given)
    schedule_id = new_id("sch")
    plan = None
    if not body.paused:
        plan = _plan(session, schedule_id, body.cron, body.timezone, body.jitter_seconds)
    return _New(schedule_id, plan, _values(body), warnings)


def _store(new: _New, session: Session, by: Principal) -> tuple[Answer, None]:
    repository.hold_names(session, by.tenant_id, new.values["name"], but=new.schedule_id)
    if rows.count(session, JobSchedule, by.tenant_id) >= MOST_SCHEDULES:
        raise TooManySchedulesError(MOST_SCHEDULES)
    row = repository.create(session, by.tenant_id, new.schedule_id, new.plan, created_by=by.actor, **new.values)
    body = schedule_out(row, new.warnings).model_dump(mode="json")
    return Answer(201, body, {"Location": location(row), "ETag": etag_of(row)}), None


def _values(body: ScheduleCreate | ScheduleChange) -> dict[str, Any]:
    """Columns that the body names; only what may be none may be null."""
    exclude_unset = isinstance(body, ScheduleChange)
    values = body.model_dump(mode="json", exclude_unset=exclude_unset, exclude={"paused", "template"})
    values = {name: value for name, value in values.items() if value is not None or name in _NULLABLE}
    if body.template is not None:
        values["template"] = body.template.model_dump(mode="json")
    if isinstance(body, ScheduleCreate):
        values["paused_at"] = db_now() if body.paused else None
    return values


def _submittable(app: AppState, session: Session, tenant_id: str, template: JobCreate) -> Submission:
    """The submission that a template makes.

    Raises:
        QuantmillError: it could not be submitted, or hands something over.
    """
    if template.hand_over:
        raise InvalidRequestError(
            "A schedule cannot hand over results: presigned URLs expire, and everyone who can read the "
            "schedule sees its template.",
            pointer="/template/hand_over",
            hint="Hand over the results of each job with POST /v1/jobs/{id}/hand-over, triggered by a webhook.",
        )
    return checked_submission(session, app.settings, tenant_id, template)


def _prospects(app: AppState, session: Session, seen: JobSchedule, body: ScheduleChange) -> list[str]:
    """What is odd about the gate as it would be, by the template as it would be."""
    template, gate = body.template, body.gate
    promote_to = body.promote_to if "promote_to" in body.model_fields_set else seen.promote_to
    if template is None:
        if not (gate or read_stored(RegressionGate, seen.gate)).names_something:
            return []  # whether the template can be submitted still is not asked for nothing
        given = firing.prepared(session, app.settings, seen)
    else:
        given = _submittable(app, session, seen.tenant_id, template)
    elsewhere = None if gate is not None else f"/{'promote_to' if template is None else 'template'}"
    whole = gate or read_stored(RegressionGate, seen.gate)
    return gate_prospects(session, seen.tenant_id, whole, promote_to, given, elsewhere=elsewhere)


def _plan(session: Session, schedule_id: str, cron: str, timezone: str, jitter_seconds: int) -> Plan | None:
    now = datetime.fromtimestamp(now_seconds(session), UTC)
    due = following(cron, timezone, now)
    return None if due is None else Plan(due, fires_at(schedule_id, jitter_seconds, due))
