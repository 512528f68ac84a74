"""Jobs: the list with its filters, and what can be done with one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from service.contracts.presets import PRESETS
from service.dashboard import job_page
from service.dashboard.curves import curves_of
from service.dashboard.listing import Paging, one_of, pairs
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, PrincipalDep
from service.http import PLAIN_TEXT, CursorParameter
from service.jobs import records, service
from service.jobs.repository import JobQuery
from service.jobs.views import job_listed

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT = 50
_STATES = ("queued", "running", "canceling", "succeeded", "failed", "canceled")
_VERDICTS = ("pass", "fail", "undecided", "none")
_Words = Annotated[str, Field(max_length=200, pattern=PLAIN_TEXT)]


class _Filters(BaseModel):
    """What the list is filtered by; "" is nothing."""

    search: _Words = ""
    state: _Words = ""
    verdict: _Words = ""
    preset: _Words = ""
    label: _Words = ""
    model_id: _Words = ""


@router.get("/jobs")
async def list_jobs(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    asked: Annotated[_Filters, Query()],
    cursor: CursorParameter = None,
) -> Response:
    """Jobs, newest first; every filter stands in the address."""
    query = JobQuery(
        search=asked.search or None,
        state=one_of(asked.state, _STATES, "state"),
        verdict=one_of(asked.verdict, _VERDICTS, "verdict"),
        preset=asked.preset or None,
        model_id=asked.model_id or None,
        labels=pairs(asked.label, "label"),
    )
    paging = Paging(request, app, f"jobs|{principal.tenant_id}|{query}", cursor)
    views, last = await app.reads.run(
        lambda: service.list_page(app, principal.tenant_id, query, after=paging.after, limit=_LIMIT)
    )
    return page(
        request,
        "jobs.html.jinja",
        jobs=[job_listed(view) for view in views],
        filters=asked.model_dump(exclude={"model_id"}),
        states=[(one, one) for one in _STATES],
        verdicts=[(one, one) for one in _VERDICTS],
        presets=[(one, one) for one in sorted(PRESETS)],
        next_query=paging.next_query(last),
        choosing=True,
    )


@router.get("/jobs/{job_id}")
async def get_job(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """One job: how far it is, what it was asked for, what it says."""
    shown = await app.reads.run(lambda: job_page.shown(app, principal.tenant_id, job_id, str(request.base_url)))
    return page(request, "job.html.jinja", **shown)


@router.get("/jobs/{job_id}/curves")
async def get_curves(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """The curves of a job that runs, as the part of its page that holds them."""
    drawn = await app.reads.run(lambda: curves_of(app, principal.tenant_id, job_id))
    return page(request, "curves.html.jinja", curves=drawn)


@router.post("/jobs/{job_id}/cancel")
async def cancel_job(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Ask a job to stop."""
    await app.writes.run(lambda: service.cancel(app, principal, job_id))
    return see(request, f"/jobs/{job_id}")


@router.post("/jobs/{job_id}/retry")
async def retry_job(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Submit the same again."""
    answer = await app.writes.run(lambda: service.retry(app, principal, job_id, key=None))
    return see(request, f"/jobs/{answer.body['id']}")


@router.post("/jobs/{job_id}/delete")
async def delete_job(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Forget a job that has ended."""
    await app.writes.run(lambda: records.remove(app, principal, job_id))
    return see(request, "/jobs")
