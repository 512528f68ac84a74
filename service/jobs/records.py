"""Job records: name and labels, log as text, deletion."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from service.audit.service import note
from service.deps import AppState
from service.jobs import events, repository, transitions
from service.jobs.errors import JobInUseError, JobNotEndedError
from service.jobs.repeats import merged
from service.jobs.schemas import TERMINAL, JobPatch
from service.jobs.views import JobView, views
from service.principal import Principal
from service.reports.figures import shown
from service.tables import JobEvent

# Of a search, with the lines that its log has of them.
_RECIPES = 2000
_RECIPE = re.compile(r"autopilot, recipe (\d+): (.*), (?:SQNR \S+ dB|an undefined SQNR)")


def rename(app: AppState, by: Principal, job_id: str, patch: JobPatch) -> JobView:
    """Give a job another name or other labels, whatever its state; what is left out stays, null takes away.

    Raises:
        JobNotFoundError: the tenant has no such job.
        InvalidRequestError: with these, it has too many labels.
    """
    with app.database.write() as session:
        job = repository.hold(session, by.tenant_id, job_id)
        given = patch.model_dump(exclude_unset=True)
        name = given.get("name", job.name)
        labels = merged(job.labels, given["labels"] or {}) if "labels" in given else job.labels
        patch.check_labels(labels)
        job = transitions.rename(session, job, name=name, labels=labels)
        note(session, by, "job.rename", job.id)
        return views(app, session, by.tenant_id, [job])[0]


def remove(app: AppState, by: Principal, job_id: str) -> None:
    """Forget a job that has ended, with events, report and artifacts; their files go once nothing else names them.

    Raises:
        JobNotFoundError: the tenant has no such job.
        JobNotEndedError: it is queued or running.
        JobInUseError: something else refers to it.
    """
    with app.database.write() as session:
        job = repository.hold(session, by.tenant_id, job_id)
        if job.state not in TERMINAL:
            raise JobNotEndedError(job.id, job.state, hint=f"Cancel it first with POST /v1/jobs/{job.id}/cancel.")
        baseline_of = repository.baseline_of(session, by.tenant_id, job.id)
        if baseline_of is not None:
            raise JobInUseError(
                f"Job {job.id} is the baseline of schedule {baseline_of}: the job it accepted last, or the "
                "job in its gate.",
                hint="Delete the schedule, change its gate, or wait until it has accepted another job.",
            )
        if repository.is_referred_to(session, job.id):
            raise JobInUseError(
                f"Job {job.id} belongs to an object that still exists.",
                hint="Jobs of inspections and validations are deleted with the object they belong to.",
            )
        repository.remove(session, [job.id])
        note(session, by, "job.delete", job.id)


def log_page(app: AppState, tenant_id: str, job_id: str, *, after: int, limit: int) -> tuple[list[JobEvent], bool]:
    """Entries of the job's log with numbers above ``after``, oldest first, and whether there are more.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        repository.get(session, tenant_id, job_id)
        found = events.list_after(session, tenant_id, job_id, after, limit + 1, only="log")
    return found[:limit], len(found) > limit


def log_text(entries: Iterable[JobEvent]) -> str:
    """One line per entry: time in UTC, attempt, level, message; control characters of messages are written out."""
    lines = []
    for entry in entries:
        moment = entry.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        message = shown(str(entry.data.get("message", "")))
        lines.append(f"{moment} {entry.attempt} {str(entry.data.get('level', 'info')).upper()} {message}\n")
    return "".join(lines)


class LogExcerpt(NamedTuple):
    """What a job has told so far."""

    states: list[JobEvent]  # the last ones that it came into, oldest first
    stages: list[JobEvent]  # the last progress of each stage of the last attempt, in the order in which they began
    log: list[JobEvent]  # its end


def told(app: AppState, tenant_id: str, job_id: str, *, upto: int, states: int, lines: int) -> LogExcerpt:
    """What the job told up to the event of number ``upto``: its last states, its stages, the end of its log.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        repository.get(session, tenant_id, job_id)
        return LogExcerpt(
            events.newest(session, tenant_id, job_id, "state", upto=upto, limit=states),
            events.last_of_stages(session, tenant_id, job_id, upto=upto),
            events.newest(session, tenant_id, job_id, "log", upto=upto, limit=lines),
        )


def newest_figure(app: AppState, tenant_id: str, job_id: str) -> int:
    """The number of the job's last event of figures; 0: it has told none.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        repository.get(session, tenant_id, job_id)
        return events.newest_seq(session, tenant_id, job_id, "metric")


def recipes(app: AppState, tenant_id: str, job_id: str) -> dict[int, str]:
    """What the recipes of a search are called, by number from 1, as its log tells.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        repository.get(session, tenant_id, job_id)
        told = events.log_like(session, tenant_id, job_id, "autopilot, recipe %", limit=_RECIPES)
    found = [_RECIPE.fullmatch(str(event.data.get("message"))) for event in told]
    return {int(one[1]): one[2] for one in found if one is not None}


def figures(app: AppState, tenant_id: str, job_id: str, *, most: int, stage: str | None = None) -> list[JobEvent]:
    """The last event of figures of each step, of all stages or of one; of long stages an even choice of ``most`` steps.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        repository.get(session, tenant_id, job_id)
        return events.latest_figures(session, tenant_id, job_id, most=most, stage=stage)
