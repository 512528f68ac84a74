"""Judges the ended jobs of schedules once each; the alias is moved in the same transaction."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from service import repository as rows
from service.comparison.evidence import pair, samples_of
from service.contracts.base import may_be_newer, read_stored
from service.contracts.errors import Problem, QuantmillError
from service.contracts.regression import RegressionGate
from service.db import one_by_one
from service.deps import AppState
from service.jobs import events
from service.jobs import repository as jobs
from service.jobs.errors import JobNotFoundError
from service.names.aliases.service import hold_named, promote
from service.names.kinds import MODELS
from service.reports.reading import ReportNotRenderableError
from service.schedules import repository
from service.schedules.evidence import found_for
from service.schedules.firing import principal_of
from service.schedules.gate import Judgement, judged
from service.schedules.views import event_data
from service.tables import Job, JobSchedule, ScheduleRun
from service.tables.batches import DETAIL_LENGTH
from service.webhooks.outbox import emit

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _JudgedRun:
    """What a run was judged by: if something of it has changed since, it is judged again."""

    schedule: JobSchedule
    run: ScheduleRun
    judgement: Judgement


def settle_ended(app: AppState, limit: int) -> int:
    """Judge runs whose jobs have ended; returns how many this process did."""
    with app.database.read() as session:
        ids = repository.ended(session, limit)
    random.shuffle(ids)  # of several who do this at a time each begins with another
    return one_by_one("schedule", ids, lambda run_id: _settle(app, run_id))


def _settle(app: AppState, run_id: str) -> bool:
    seen = _judge(app, run_id)
    if seen is None:
        return False
    values = {
        "state": "passed" if seen.judgement.passed else "failed",
        "reason": seen.judgement.reason,
        "detail": None if seen.judgement.detail is None else seen.judgement.detail[:DETAIL_LENGTH],
        "verdict": seen.judgement.verdict,
        "fallback": seen.judgement.fallback,
        "clauses": [clause.model_dump(mode="json") for clause in seen.judgement.clauses],
    }
    try:
        run = _stored(app, seen, values)
    except QuantmillError as error:  # the alias could not be moved: nothing was stored
        refused = {"reason": "promotion", "detail": error.detail[:DETAIL_LENGTH]}
        problem = error.problem().model_dump(mode="json")
        run = _stored(app, seen, {**values, **refused, "state": "failed", "problem": problem})
    if run is None:
        return False
    told = log.info if run.state == "passed" else log.warning
    told("schedule.%s schedule_id=%s run_id=%s job_id=%s reason=%s", run.state, run.schedule_id, run.id, run.job_id,
         run.reason)  # fmt: skip
    return True


def _judge(app: AppState, run_id: str) -> _JudgedRun | None:
    with app.database.read() as session:
        run = repository.look_up_run(session, run_id)
        if run is None or run.state != "running":
            return None
        schedule = repository.look_up(session, run.schedule_id)
        job = repository.job_of(session, run)
        if schedule is None or (job is not None and job.finished_at is None):
            return None
        try:
            gate = RegressionGate.model_validate(schedule.gate)
        except ValidationError as error:
            if not may_be_newer(error):
                raise
            log.warning("schedule.left schedule_id=%s run_id=%s: its gate needs a newer version", schedule.id, run.id)
            return None
        try:
            found = found_for(session, schedule, run, gate) if job is not None else None
        except ReportNotRenderableError as error:  # of a newer service: it will not become readable by waiting
            return _JudgedRun(schedule, run, Judgement(False, "report", error.detail))
    if job is None or found is None:
        return _JudgedRun(schedule, run, _unsuccessful(job))
    return _JudgedRun(schedule, run, judged(gate, found, partial(pair, partial(samples_of, app))))


def _unsuccessful(job: Job | None) -> Judgement:
    """Of a run whose job has no report."""
    if job is None:
        return Judgement(False, "job-gone", "The job was deleted before it was judged.")
    if job.state == "canceled":
        return Judgement(False, "job-canceled", f"Job {job.id} was canceled.")
    problem = read_stored(Problem, job.error) if job.error is not None else None
    return Judgement(False, "job-failed", f"Job {job.id} failed: {'' if problem is None else problem.detail}")


def _stored(app: AppState, seen: _JudgedRun, values: dict[str, Any]) -> ScheduleRun | None:
    """Store the end of a run with all that follows from it; None: somebody else did, or it has to be judged anew."""
    with app.database.write() as session:
        schedule = repository.lock(session, seen.schedule.id)
        run = repository.look_up_run(session, seen.run.id)
        if schedule is None or run is None or run.state != "running":
            return None
        if (schedule.last_pass_job_id, schedule.gate) != (seen.schedule.last_pass_job_id, seen.schedule.gate):
            return None
        alias = schedule.promote_to if values["state"] == "passed" else None
        if alias is not None:
            hold_named(session, MODELS, run.tenant_id, run.model_id or "")
        run = repository.change_run(session, run, **values, promoted_to=alias)
        if run.state == "passed":
            accepted = {"last_pass_job_id": run.job_id, "last_pass_fingerprint": run.fingerprint}
            rows.change(session, JobSchedule, schedule.id, **accepted)
        _tell_job(session, schedule, run)
        emit(session, run.tenant_id, f"schedule.{run.state}", event_data(run, schedule.name))
        if alias is not None:
            promote(session, principal_of(schedule), MODELS, run.model_id or "", alias)
    return run


def _tell_job(session: Session, schedule: JobSchedule, run: ScheduleRun) -> None:
    """Let the log of the run's job say what became of it, and why."""
    try:
        job = jobs.hold(session, run.tenant_id, run.job_id or "")
    except JobNotFoundError:
        return
    passed = run.state == "passed"
    because = f" ({run.reason}: {run.detail})" if run.reason else ""
    promoted = f"; {run.promoted_to} now refers to its model" if run.promoted_to else ""
    message = f"schedule {schedule.name!r}: {'accepted' if passed else 'not accepted'}{because}{promoted}"
    events.append(session, job.id, job.attempt, "log", {"level": "info" if passed else "warning", "message": message})
