"""Queues and workers, what runs, whether all that is needed is there, and the quarantine."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, PrincipalDep
from service.jobs import service as jobs
from service.jobs.repository import JobQuery
from service.jobs.views import job_listed
from service.quarantine import service as quarantine
from service.queues import service as queues

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_RUNNING = 50


@router.get("/workers")
async def get_workers(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Who takes the jobs, and what keeps them from it."""
    tenant_id = principal.tenant_id
    running, _ = await app.reads.run(
        lambda: jobs.list_page(app, tenant_id, JobQuery(state="running"), after=None, limit=_RUNNING)
    )
    return page(
        request,
        "workers.html.jinja",
        queues=await app.reads.run(lambda: queues.all_queues(app)),
        workers=await app.reads.run(lambda: queues.all_alive(app)),
        jobs=[job_listed(one) for one in running],
        checks=await app.readiness.check_all(),
        held=await app.reads.run(lambda: quarantine.list_all(app, tenant_id)),
        choosing=False,
    )


@router.post("/workers/quarantine/{digest}/release")
async def release_model(request: Request, digest: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Have jobs tried again with a model."""
    await app.writes.run(lambda: quarantine.release(app, principal, digest))
    return see(request, "/workers")
