"""What processes ask a database all the time, each as the service's own functions ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.contracts.quota import Quota
from service.contracts.runner import ProgressLine
from service.dispatch import repository as slots
from service.dispatch.release import release
from service.dispatch.slots import Crew, FreeSlots
from service.jobs import events, transitions
from service.jobs import repository as jobs
from service.jobs.repository import JobQuery
from service.pagination import Position
from service.queues import repository as queues
from service.quotas import repository as quotas
from service.quotas.service import running_limits
from service.tables import Job
from worker.upkeep.repository import OLD_ROWS

TENANT = "default"
# Rows of a page, and how far from the newest the deep page begins.
PAGE = 50
DEEP = 20_000
_LEASE_SECONDS = 60.0
_DAY_SECONDS = 86_400.0
# Half of all jobs are older.
_OLD_SECONDS = 45 * _DAY_SECONDS


@dataclass(frozen=True)
class Sample:
    """Rows to look at."""

    queued: str  # id of a job that waits
    running: str
    worker: str  # that runs it
    ended: str
    model_id: str  # that a job was given
    name: str  # of a job
    label: str  # of a single job
    deep: Position | None  # a place far from the newest job; the last where there are fewer

    @classmethod
    def of(cls, session: Session) -> Sample:
        """From a database as ``tests.support.many_rows`` fills it."""

        def one(state: str) -> Job:
            found = select(Job).where(Job.state == state, Job.tenant_id == TENANT, Job.kind == "quantize")
            return session.scalars(found.order_by(Job.id).limit(1)).one()

        queued, running, ended = (one(state) for state in ("queued", "running", "succeeded"))
        mine = select(Job).where(Job.tenant_id == TENANT, Job.kind == "quantize").order_by(Job.created_at.desc())
        last = session.scalars(mine.offset(DEEP).limit(1)).first() or ended
        return cls(
            queued.id, running.id, running.worker_id or "", ended.id, ended.model_id or "", ended.name or "",
            ended.labels["commit"], Position(last.created_at.timestamp(), last.id),
        )  # fmt: skip


Look = Callable[[Session, Sample], Any]


def _page(**filters: Any) -> Look:
    def look(session: Session, sample: Sample) -> Any:
        given = {name: value(sample) if callable(value) else value for name, value in filters.items()}
        return jobs.list_page(session, TENANT, JobQuery(**given), after=None, limit=PAGE)

    return look


def _deep(session: Session, sample: Sample) -> Any:
    return jobs.list_page(session, TENANT, JobQuery(), after=sample.deep, limit=PAGE)


def _figures(session: Session, sample: Sample) -> Any:
    """As ``service.queues.service.all_queues``."""
    full = running_limits(session, Quota()).full()
    return queues.waiting(session, full=full), queues.running(session), queues.worker_figures(session)


def _overview(session: Session, sample: Sample) -> Any:
    """The lists of the overview, with what is shown of their jobs."""
    for query, limit in ((JobQuery(), 8), (JobQuery(state="failed"), 5), (JobQuery(verdict="fail"), 5)):
        found, _ = jobs.list_page(session, TENANT, query, after=None, limit=limit)
        jobs.results(session, TENANT, [job.id for job in found])
        jobs.models_of(session, TENANT, found)
    return _figures(session, sample)


LISTS: dict[str, Look] = {
    "jobs, first page": _page(),
    "jobs, a page 20,000 from the newest": _deep,
    "jobs that failed": _page(state="failed"),
    "jobs that run": _page(state="running"),
    "jobs whose verdict is fail": _page(verdict="fail"),
    "jobs shown as critical, of which there are none": _page(outcome="critical"),
    "jobs of a name": _page(name=lambda sample: sample.name),
    "jobs of a model": _page(model_id=lambda sample: sample.model_id),
}
# These go through a tenant's jobs, newest first, until the page is full.
WALKS: dict[str, Look] = {
    "jobs with a label of a single one": _page(labels=lambda sample: {"commit": sample.label}),
    "jobs of a preset that none has": _page(preset="xint8"),
    "jobs whose names hold a text that none has": _page(search="nothing of the kind"),
}
READS: dict[str, Look] = {
    "one job": lambda session, sample: jobs.get(session, TENANT, sample.running),
    "a status": lambda session, sample: jobs.attempt_status(session, sample.running),
    "event stream, from the beginning": lambda session, sample: events.list_after(
        session, TENANT, sample.ended, 0, 200
    ),
    "event stream, the next event": lambda session, sample: events.list_after(session, TENANT, sample.ended, 19, 200),
    "last progress of each stage": lambda session, sample: events.last_of_stages(
        session, TENANT, sample.ended, upto=1000
    ),
    "same result as before": lambda session, sample: jobs.same_result(session, TENANT, "0" * 64),
    "jobs of a tenant in a day": lambda session, sample: quotas.submitted(session, TENANT),
}
FIGURES: dict[str, Look] = {
    "GET /v1/queues": _figures,
    "overview": _overview,
}


def _release(session: Session, sample: Sample) -> Any:
    return release(session, FreeSlots([Crew(frozenset({"cpu"}), free=1, slots=2)]), Quota())


def _claim(session: Session, sample: Sample) -> Any:
    job = transitions.claim(session, sample.queued, worker_id="worker-1", lease_seconds=_LEASE_SECONDS)
    assert job is not None
    return job


def _renew(session: Session, sample: Sample) -> Any:
    renewal = transitions.renew(session, sample.running, 1, lease_seconds=_LEASE_SECONDS)
    assert renewal.alive
    return renewal


def _progress(session: Session, sample: Sample) -> Any:
    assert transitions.record_progress(session, sample.running, 1, ProgressLine(stage="finetune", done=1))


def _submit(session: Session, sample: Sample) -> Any:
    new = transitions.NewJob(
        tenant_id=TENANT, kind="quantize", config={"preset": "int8"}, model_id=sample.model_id, name="one more"
    )
    return transitions.submit(session, new)


def _old(name: str) -> Look:
    rows = next(one for one in OLD_ROWS if one.name == name)
    return lambda session, sample: rows.delete(session, _OLD_SECONDS, rows.batch)


DISPATCH: dict[str, Look] = {
    "which job is next": lambda session, sample: slots.next_due(session, {"cpu": False, "inspect": False}),
    "free slots": lambda session, sample: slots.of_workers(session),
    "release the next job": _release,
    "submit": _submit,
    "claim": _claim,
    "renew a lease": _renew,
    "progress": _progress,
    "heartbeat": lambda session, sample: queues.announce(session, sample.worker, {"cpu": 2, "inspect": 2}),
    "messages that got lost": lambda session, sample: transitions.any_lost(session, lost_seconds=10.0),
}
RECONCILER: dict[str, Look] = {
    "leases that ended": lambda session, sample: transitions.expire_leases(session),
    "half of a lease without a word": lambda session, sample: transitions.try_to_write(
        session, lease_seconds=_LEASE_SECONDS
    ),
    "deadlines that passed": lambda session, sample: transitions.expire_deadlines(session),
    "jobs queued by a clock ahead": lambda session, sample: transitions.queued_ahead(session),
    "leases given by a clock ahead": lambda session, sample: transitions.leased_ahead(
        session, lease_seconds=_LEASE_SECONDS
    ),
}
RETENTION: dict[str, Look] = {
    "a batch of old progress": _old("progress"),
    "a batch of old jobs": _old("jobs"),
    "a batch of old audit entries": _old("audit"),
}
