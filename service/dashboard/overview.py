"""The first page: how the installation stands, what ran last, what to do first."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from service.dashboard.pages import PageRoute, page
from service.dashboard.words import span
from service.deps import AppDep, AppState, PrincipalDep
from service.jobs import service as jobs
from service.jobs.repository import JobQuery
from service.jobs.schemas import JobListed
from service.jobs.views import job_listed
from service.queues import service as queues
from service.queues.schemas import QueueOut
from service.schedules import service as schedules
from service.schedules.schemas import RunOut, ScheduleListed
from service.schedules.views import run_out, schedule_listed

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LAST, _FAILED, _SCHEDULES = 8, 3, 8
_GIB = 1024**3
_CHECKS = ("database", "storage", "broker")


class Standing(NamedTuple):
    """What the page shows of the tenant."""

    last: list[JobListed]
    failed: list[JobListed]
    nightly: list[tuple[ScheduleListed, RunOut | None]]
    queues: list[QueueOut]
    free_bytes: int


def _standing(app: AppState, tenant_id: str) -> Standing:
    last, _ = jobs.list_page(app, tenant_id, JobQuery(), after=None, limit=_LAST)
    failed, _ = jobs.list_page(app, tenant_id, JobQuery(state="failed"), after=None, limit=_FAILED)
    rows, _ = schedules.list_page(app, tenant_id, after=None, limit=_SCHEDULES)
    nightly = []
    for row in rows:
        runs, _ = schedules.list_runs(app, tenant_id, row.id, state=None, after=None, limit=1)
        nightly.append((schedule_listed(row), run_out(runs[0]) if runs else None))
    return Standing(
        [job_listed(one) for one in last],
        [job_listed(one) for one in failed],
        nightly,
        queues.all_queues(app),
        app.store.free_bytes() // _GIB * _GIB,  # more exactly, it would tell whether others have a file, too
    )


@router.get("/")
async def get_overview(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """The first page."""
    seen, checks = await asyncio.gather(
        app.reads.run(lambda: _standing(app, principal.tenant_id)), app.readiness.check_all()
    )
    ages = [one.oldest_due_age_seconds for one in seen.queues if one.oldest_due_age_seconds is not None]
    slots = max(seen.queues, key=lambda one: one.slots.total).slots
    return page(
        request,
        "home.html.jinja",
        first_run=not seen.last,
        running=sum(one.running for one in seen.queues),
        queued=sum(one.queued.due + one.queued.delayed for one in seen.queues),
        oldest=span(max(ages)) if ages else "",
        workers=max(one.workers for one in seen.queues),
        slots=f"{slots.busy} of {slots.total} slots busy",
        checks=[one for one in checks if one.name in _CHECKS or (one.name == "disk" and one.outcome != "ok")],
        free_bytes=seen.free_bytes,
        jobs=seen.last,
        failures=seen.failed,
        nightly=seen.nightly,
        choosing=False,
    )
