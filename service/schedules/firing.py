"""Handles due schedules: submits a job or records why not; exactly once, with any number of reconcilers.

All that takes computing is done before the transaction. That begins by taking the due time from the schedule, which one
alone can do, and ends with the job, the run and what is told of it all there, or none of it.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from service.audit.service import note
from service.contracts.base import may_be_newer
from service.contracts.errors import InvalidRequestError, QuantmillError, problem_summary
from service.contracts.validation import field_problems
from service.db import one_by_one
from service.deps import AppState
from service.jobs import transitions
from service.jobs.schemas import JobCreate
from service.jobs.submission import Submission, checked_submission, store_submission
from service.names import repository as names
from service.principal import Principal
from service.quotas import repository as usage
from service.repository import now_seconds
from service.schedules import repository
from service.schedules.repository import Plan
from service.schedules.times import Occasion, fires_at, following, occasion
from service.schedules.views import event_data
from service.settings import Settings
from service.tables import Job, JobSchedule, ScheduleRun
from service.tables.batches import DETAIL_LENGTH
from service.webhooks.outbox import emit

log = logging.getLogger(__name__)


class NewerTemplateError(InvalidRequestError, code="newer-template", title="Template of a newer version"):
    """The template has fields or words that this version does not know, and a newer one may."""


@dataclass(frozen=True)
class Attempt:
    """What became of the template, before anything is stored."""

    submission: Submission | None = None  # it was checked and may be stored
    refusal: QuantmillError | None = None  # why not; None with a submission, and where it was not asked for
    misfired: bool = False  # it is too late for it

    @property
    def is_for_newer(self) -> bool:
        """Whether a process of a newer version can do it, and this one cannot."""
        return isinstance(self.refusal, NewerTemplateError)


def principal_of(schedule: JobSchedule) -> Principal:
    """Who submits a schedule's jobs and moves its alias: the schedule, for its tenant."""
    return Principal(schedule.tenant_id, schedule.id, "manage")


def prepared(session: Session, settings: Settings, schedule: JobSchedule) -> Submission:
    """Check the template as a request of this moment, with what its references stand for now.

    Raises:
        QuantmillError: no job can be submitted.
    """
    try:
        body = JobCreate.model_validate(schedule.template)
    except ValidationError as error:
        problems = field_problems(error, JobCreate)
        refusal = NewerTemplateError if may_be_newer(error) else InvalidRequestError
        raise refusal(
            f"The template is no longer valid: {problem_summary(problems)}",
            errors=problems,
            hint=f"Update it with PATCH /v1/schedules/{schedule.id}.",
        ) from None
    return checked_submission(session, settings, schedule.tenant_id, body)


def plan_after(schedule: JobSchedule, due_at: datetime | None) -> Plan | None:
    """The plan for a due time of the schedule; None: there is none."""
    if due_at is None:
        return None
    return Plan(due_at, fires_at(schedule.id, schedule.jitter_seconds, due_at))


def fire_due(app: AppState, limit: int) -> int:
    """Deal with schedules that are due; returns with how many this process did."""
    with app.database.read() as session:
        ids = repository.due(session, limit)
    random.shuffle(ids)  # of several who do this at a time each begins with another
    return one_by_one("schedule", ids, lambda schedule_id: _deal_with(app, schedule_id))


def submit_waiting(app: AppState, limit: int) -> int:
    """Submit the jobs of runs that waited for the end of the one before; returns how many this process dealt with."""
    with app.database.read() as session:
        ids = repository.waiting(session, limit)
    return one_by_one("schedule", ids, lambda schedule_id: _go_on(app, schedule_id))


def bring_forward(app: AppState, limit: int) -> int:
    """Plan schedules anew that were planned by a clock that has been put back since; returns how many.

    What was due before then is not due again: it has its run.
    """
    with app.database.read() as session:
        ids = repository.planned_ahead(session, limit)
    return one_by_one("schedule", ids, lambda schedule_id: _plan_anew(app, schedule_id))


def run_now(
    app: AppState, session: Session, by: Principal, schedule: JobSchedule, given: Submission
) -> tuple[ScheduleRun, Job | None]:
    """Run a schedule, which the caller holds, by request.

    Returns:
        The run, and the job that is to be sent; None: it waits for the end of the last one, or one was there.
    """
    now = datetime.fromtimestamp(now_seconds(session), UTC)
    run, job = _submitted(app, session, by, schedule, given, {"due_at": now, "trigger": "request"})
    emit(session, schedule.tenant_id, _event(run), event_data(run, schedule.name))
    return run, job


def _deal_with(app: AppState, schedule_id: str) -> bool:
    with app.database.read() as session:
        seen, now = repository.look_up(session, schedule_id), _now(session)
        if seen is None or seen.fires_at is None or seen.next_due_at is None or seen.fires_at > now:
            return False
        what = occasion(seen.cron, seen.timezone, seen.id, seen.jitter_seconds, seen.next_due_at, now)
        late = what.late_seconds > seen.misfire_grace_seconds
        attempt = Attempt(misfired=True) if late and seen.misfire == "skip" else _attempt(session, app, seen)
    if attempt.is_for_newer and not late:
        return _left(seen)
    plan = plan_after(seen, what.next_due_at)
    try:
        run, job = _fired(app, seen, plan, what, attempt)
    except QuantmillError as error:  # such as a quota: nothing was stored
        run, job = _fired(app, seen, plan, what, Attempt(refusal=error))
    if run is None:
        return False
    _tell(app, run, job)
    return True


def _left(schedule: JobSchedule) -> bool:
    log.warning("schedule.left schedule_id=%s: its template needs a newer version", schedule.id)
    return False


def _attempt(session: Session, app: AppState, schedule: JobSchedule) -> Attempt:
    try:
        return Attempt(prepared(session, app.settings, schedule))
    except QuantmillError as error:
        return Attempt(refusal=error)


def _fired(
    app: AppState, seen: JobSchedule, plan: Plan | None, what: Occasion, attempt: Attempt
) -> tuple[ScheduleRun | None, Job | None]:
    with app.database.write() as session:
        schedule = repository.claim(session, seen, plan)
        if schedule is None or repository.is_dealt_with(session, schedule.id, what.due_at):
            return None, None
        about = {"due_at": what.due_at, "trigger": "time", "missed": what.missed}
        by = principal_of(schedule)
        job = None
        kept = _kept_from(schedule, attempt)
        if kept is not None:
            run = repository.add_run(session, schedule, **about, **kept)
        else:
            assert attempt.submission is not None  # noqa: S101 - nothing keeps it from being submitted
            run, job = _submitted(app, session, by, schedule, attempt.submission, about)
        emit(session, schedule.tenant_id, _event(run), event_data(run, schedule.name))
        if run.job_id is not None:
            note(session, by, "schedule.fire", run.job_id)
    return run, job


def _kept_from(schedule: JobSchedule, attempt: Attempt) -> dict[str, Any] | None:
    """What a run is that submits no job; None: nothing is in its way but the schedule's last one."""
    if attempt.misfired:
        return {
            "state": "skipped",
            "reason": "misfire",
            "detail": "No reconciler was running when the schedule was due.",
        }
    if attempt.refusal is not None:
        return _refused(attempt.refusal)
    given = attempt.submission
    if given is None or not schedule.skip_unchanged or given.job.fingerprint != schedule.last_pass_fingerprint:
        return None
    told = f"Nothing has changed since job {schedule.last_pass_job_id}, which was accepted."
    return {"state": "skipped", "reason": "unchanged", "detail": told, **_of(given)}


def _refused(error: QuantmillError) -> dict[str, Any]:
    problem = error.problem().model_dump(mode="json")
    detail = error.detail[:DETAIL_LENGTH]
    return {"state": "refused", "reason": error.code[:32], "detail": detail, "problem": problem}


def _of(given: Submission) -> dict[str, Any]:
    return {"model_id": given.job.model_id, "fingerprint": given.job.fingerprint}


def _submitted(
    app: AppState, session: Session, by: Principal, schedule: JobSchedule, given: Submission, about: dict[str, Any]
) -> tuple[ScheduleRun, Job | None]:
    """Submit the job, unless the last one keeps it from that; the schedule is held."""
    open_runs = repository.open_runs(session, schedule.id)
    live = repository.live_jobs(session, schedule.tenant_id, open_runs)
    waits = any(run.state == "waiting" for run in open_runs)
    if schedule.overlap == "skip" and live:
        told = f"Job {live[0]} had not ended."
        return repository.add_run(session, schedule, **about, state="skipped", reason="overlap", detail=told), None
    if schedule.overlap == "queue" and waits:
        told = "Another run was already waiting."
        return repository.add_run(session, schedule, **about, state="skipped", reason="overlap", detail=told), None
    if schedule.overlap == "queue" and open_runs:
        return repository.add_run(session, schedule, **about, **_of(given), state="waiting", reason="overlap"), None
    if live:  # before the jobs, as whoever begins them
        names.hold(session, schedule.tenant_id, *given.named)
        usage.hold(session, schedule.tenant_id)
    for job_id in live:
        transitions.request_cancel(session, schedule.tenant_id, job_id)
    answer, job = store_submission(given, session, app, by)
    job_id = answer.body["id"]
    return repository.add_run(session, schedule, **about, **_of(given), state="running", job_id=job_id), job


def _go_on(app: AppState, schedule_id: str) -> bool:
    with app.database.read() as session:
        seen = repository.look_up(session, schedule_id)
        if seen is None:
            return False
        attempt = _attempt(session, app, seen)
    if attempt.is_for_newer:
        return _left(seen)
    try:
        run, job = _gone_on(app, seen, attempt)
    except QuantmillError as error:
        run, job = _gone_on(app, seen, Attempt(refusal=error))
    if run is None:
        return False
    _tell(app, run, job)
    return True


def _gone_on(app: AppState, seen: JobSchedule, attempt: Attempt) -> tuple[ScheduleRun | None, Job | None]:
    with app.database.write() as session:
        schedule = repository.lock(session, seen.id)
        open_runs = repository.open_runs(session, seen.id)
        changed = schedule is None or schedule.row_version != seen.row_version
        if schedule is None or changed or [run.state for run in open_runs] != ["waiting"]:
            return None, None
        (run,), by, job = open_runs, principal_of(schedule), None
        kept = _kept_from(schedule, attempt) if run.trigger == "time" or attempt.refusal is not None else None
        if kept is None:
            assert attempt.submission is not None  # noqa: S101 - nothing keeps it from being submitted
            answer, job = store_submission(attempt.submission, session, app, by)
            kept = {"state": "running", "reason": None, "job_id": answer.body["id"], **_of(attempt.submission)}
        run = repository.change_run(session, run, **kept)
        emit(session, schedule.tenant_id, _event(run), event_data(run, schedule.name))
        if run.job_id is not None:
            note(session, by, "schedule.fire", run.job_id)
    return run, job


def _plan_anew(app: AppState, schedule_id: str) -> bool:
    with app.database.read() as session:
        seen, now = repository.look_up(session, schedule_id), _now(session)
    if seen is None:
        return False
    plan = plan_after(seen, following(seen.cron, seen.timezone, now))
    with app.database.write() as session:
        return repository.claim(session, seen, plan) is not None


def _event(run: ScheduleRun) -> str:
    words = {"skipped": "skipped", "waiting": "fired", "running": "fired"}
    return f"schedule.{words.get(run.state, 'failed')}"


def _tell(app: AppState, run: ScheduleRun, job: Job | None) -> None:
    told = log.warning if run.state == "refused" else log.info
    told(
        "schedule.%s schedule_id=%s run_id=%s job_id=%s reason=%s",
        run.state, run.schedule_id, run.id, run.job_id, run.reason,
    )  # fmt: skip
    if job is not None:
        app.dispatch()


def _now(session: Session) -> datetime:
    return datetime.fromtimestamp(now_seconds(session), UTC)
