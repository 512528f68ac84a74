"""The first page: how the installation stands, what ran last; queues and workers; all components on one page."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Generic, TypeVar

from fastapi import APIRouter, Request, Response

from service.contracts.errors import Problem
from service.dashboard.forms import span
from service.dashboard.pages import PageRoute, add_act, page
from service.deps import AppDep, AppState, PrincipalDep
from service.errors import RouteNotFoundError
from service.jobs import service as jobs
from service.jobs.repository import JobQuery
from service.jobs.views import job_listed
from service.quarantine import service as quarantine
from service.queues import service as queues
from service.reports import charts
from service.reports.figures import count
from service.schedules import service as schedules
from service.schedules.views import run_out, schedule_listed

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LAST, _FAILED, _SCHEDULES = 8, 5, 8
_GIB = 1024**3
_CHECKS = ("database", "storage", "broker")


def _standing(app: AppState, tenant_id: str) -> dict[str, Any]:
    """What the page shows of the tenant."""
    last, _ = jobs.list_page(app, tenant_id, JobQuery(), after=None, limit=_LAST)
    failed, _ = jobs.list_page(app, tenant_id, JobQuery(state="failed"), after=None, limit=_FAILED)
    judged, _ = jobs.list_page(app, tenant_id, JobQuery(verdict="fail"), after=None, limit=_FAILED)
    ended = sorted((*failed, *judged), key=lambda view: view.job.created_at, reverse=True)
    rows, _ = schedules.list_page(app, tenant_id, after=None, limit=_SCHEDULES)
    nightly = []
    for row in rows:
        runs, _ = schedules.list_runs(app, tenant_id, row.id, state=None, after=None, limit=1)
        nightly.append((schedule_listed(row), run_out(runs[0]) if runs else None))
    served = _served(app)
    found = served["queues"]
    ages = [one.oldest_due_age_seconds for one in found if one.oldest_due_age_seconds is not None]
    free_bytes = app.store.free_bytes()
    return {
        "first_run": not last,
        "jobs": [job_listed(one) for one in last],
        "failures": [job_listed(one) for one in ended[:_FAILED]],
        "nightly": nightly,
        "running": sum(one.running for one in found),
        "queued": sum(one.queued.due + one.queued.delayed for one in found),
        "oldest": span(max(ages)) if ages else "",
        "workers": len(served["workers"]),
        "slots": served["slots"],
        # more exactly, it would tell whether others have a file, too
        "free_space": "bucket" if free_bytes is None else f"{free_bytes // _GIB} GiB",
    }


def _served(app: AppState) -> dict[str, Any]:
    """Queues and live workers, over all tenants, with how busy these are in all."""
    found, alive = queues.all_queues(app), queues.all_alive(app)
    slots = queues.in_all(alive, found)
    return {"queues": found, "workers": alive, "slots": f"{slots.busy} of {count(slots.total, 'slot')} busy"}


@router.get("/")
async def get_overview(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """The first page."""
    seen, checks = await asyncio.gather(
        app.reads.run(lambda: _standing(app, principal.tenant_id)), app.readiness.check_all()
    )
    told = [one for one in checks if one.name in _CHECKS or (one.name == "disk" and one.outcome != "ok")]
    return page(request, "home.html.jinja", checks=told, choosing=False, **seen)


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
        jobs=[job_listed(one) for one in running],
        checks=await app.readiness.check_all(),
        held=await app.reads.run(lambda: quarantine.list_all(app, tenant_id)),
        choosing=False,
        **await app.reads.run(lambda: _served(app)),
    )


# Each token with what is read on it, if it is a ground, or what it is read on.
_GROUNDS = ("page", "card", "code", "good-back", "bad-back", "unsure-back", "plain-back", "band")
_INKS = ("text", "quiet", "link", "good", "bad", "unsure", "plain", "first", "second")
_AT = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
_PROBLEM = Problem(
    type="/v1/problems#non-finite-data",
    title="Data contains NaN",
    status=422,
    detail="Array 'x' contains NaN.",
    hint="Remove the sample.",
    code="non-finite-data",
)


@router.get("/style")
async def get_style(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Every component, in every state it has; on a service that is open, as one in development is.

    Raises:
        RouteNotFoundError: the service is not open.
    """
    if not app.settings.open:
        raise RouteNotFoundError("Page not found.", hint="Set QUANTMILL_OPEN=true to serve it.")
    return page(request, "style_page.html.jinja", **_shown())


def _shown() -> dict[str, Any]:
    points = [(step, 1 / (1 + step)) for step in range(20)]
    return {
        "grounds": _GROUNDS,
        "inks": _INKS,
        "at": _AT,
        "one": _PROBLEM,
        "picture": charts.curve(points, "finetune: loss"),
        "points": points[:3],
        "options": [("int8", "int8"), ("a8w8", "a8w8")],
    }


T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key; of those that were not asked for longest, the first goes when there are too many.

    Args:
        most: values that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``key``, made where it is not there; two threads may make the same one at a time."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            self._values[key] = made
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return made


# Have jobs tried again with a model.
add_act(router, "/workers/quarantine/{digest}/release", quarantine.release, "/workers")
