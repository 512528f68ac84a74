"""Schedules as a test needs them: made over HTTP, and a clock that is moved against them."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select, update

from service.db import Database
from service.deps import AppState
from service.jobs.outcome import QuantizeOutcome
from service.repository import now_seconds
from service.schedules import firing, settling
from service.settings import Settings
from service.storage import FileStore
from service.tables import Job, JobSchedule, ScheduleRun
from tests.support.front import Front, fallen_back, make_report, taken

HOUR = 3600
MANY = 10_000
_NUMBERS = itertools.count()


def reconciling_app(settings: Settings) -> AppState:
    """With connections of its own, as patient as a reconciler's are."""
    database = Database(settings.database_url)
    return AppState.over(settings, database, FileStore(settings.storage_dir), None)


def hourly(hours: str = "*") -> str:
    """An expression that is due half an hour from now: no test meets it by accident."""
    return f"{(datetime.now(UTC).minute + 30) % 60} {hours} * * *"


def add_schedule(front: Front, template: dict[str, Any], **body: Any) -> dict[str, Any]:
    """A schedule of a name of its own that is due every hour, unless the body says otherwise."""
    name = f"nightly-{next(_NUMBERS)}"
    asked = {"name": name, "cron": hourly(), "template": template, **body}
    return taken(front.http.post("/v1/schedules", json=asked), 201)


def move_clock(database: Database, seconds: float) -> None:
    """Let it be later by so much for all schedules, as if the clock had jumped; earlier where it is negative."""
    with database.write() as session:
        moved = {name: getattr(JobSchedule, name) - seconds for name in ("next_due_at", "fires_at", "planned_at")}
        session.execute(update(JobSchedule).values(**moved).execution_options(synchronize_session=False))
        # one after the other: on its way a run must not meet another's due time
        for run in session.scalars(select(ScheduleRun).order_by(ScheduleRun.due_at * (1 if seconds > 0 else -1))):
            session.execute(
                update(ScheduleRun).where(ScheduleRun.id == run.id).values(due_at=ScheduleRun.due_at - seconds)
            )


def make_due(database: Database, schedule_id: str, ago: timedelta = timedelta(0)) -> datetime:
    """Let the schedule of an hour be due when it last was, or so much before that."""
    with database.write() as session:
        now = datetime.fromtimestamp(now_seconds(session), UTC)
        minute = int(session.get_one(JobSchedule, schedule_id).cron.split()[0])
        last = now.replace(minute=minute, second=0, microsecond=0)
        due = (last if last <= now else last - timedelta(hours=1)) - ago
        values = {"next_due_at": due, "fires_at": due, "planned_at": due - timedelta(hours=1)}
        session.execute(update(JobSchedule).where(JobSchedule.id == schedule_id).values(**values))
    return due


def fire(app: AppState) -> int:
    """One round of what is due."""
    return firing.fire_due(app, MANY)


def settle(app: AppState) -> int:
    """One round of what has ended."""
    return settling.settle_ended(app, MANY)


def runs(database: Database, schedule_id: str | None = None) -> list[ScheduleRun]:
    """All runs, or those of a schedule, the oldest first."""
    statement = select(ScheduleRun).order_by(ScheduleRun.id)
    if schedule_id is not None:
        statement = statement.where(ScheduleRun.schedule_id == schedule_id)
    with database.read() as session:
        return list(session.scalars(statement))


def schedule(database: Database, schedule_id: str) -> JobSchedule:
    """The row."""
    with database.read() as session:
        return session.get_one(JobSchedule, schedule_id)


def count_jobs(database: Database) -> int:
    """How many quantizations there are."""
    with database.read() as session:
        return session.scalars(select(func.count()).select_from(Job).where(Job.kind == "quantize")).one()


def run_by_request(front: Front, schedule_id: str) -> dict[str, Any]:
    """A run by request."""
    return taken(front.http.post(f"/v1/schedules/{schedule_id}/run"), 202)


def succeed(front: Front, job_id: str, *, verdict: str = "none", **figures: Any) -> None:
    """Have a job succeed with a report of this: top1, size_bytes, measured_on (a digest), fallback (a kind)."""
    report = make_report(verdict)
    if "fallback" in figures:
        report = fallen_back(report, figures["fallback"])
    metrics = [metric.model_copy(update={"quantized": figures.get("top1", 89.5)}) for metric in report.metrics]
    quantized = report.quantized.model_copy(update={"size_bytes": figures.get("size_bytes", 1000)})
    changes: dict[str, Any] = {"metrics": tuple(metrics), "quantized": quantized}
    if "measured_on" in figures:
        changes["manifest"] = report.manifest.model_copy(update={"calibration_sha256": figures["measured_on"]})
    if "latency" in figures:
        changes["latency"] = figures["latency"]
    front.finish(job_id, QuantizeOutcome(report.model_copy(update=changes), figures.get("artifacts", ())))
