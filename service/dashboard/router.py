"""All pages."""

from __future__ import annotations

from fastapi import APIRouter

from service.dashboard.audit import router as audit
from service.dashboard.batches import router as batches
from service.dashboard.comparing import router as comparing
from service.dashboard.datasets import router as datasets
from service.dashboard.graph import router as graph
from service.dashboard.jobs import router as jobs
from service.dashboard.keys import router as keys
from service.dashboard.models import router as models
from service.dashboard.new_job import router as new_job
from service.dashboard.overview import router as overview
from service.dashboard.pages import router as assets
from service.dashboard.report import router as report
from service.dashboard.schedule_forms import router as schedule_forms
from service.dashboard.schedules import router as schedules
from service.dashboard.sign_in import router as sign_in
from service.dashboard.tenants import router as tenants
from service.dashboard.trials import router as trials
from service.dashboard.webhooks import router as webhooks

router = APIRouter(include_in_schema=False)
_PAGES = (
    assets,
    overview,
    jobs,
    sign_in,
    audit,
    batches,
    comparing,
    datasets,
    graph,
    keys,
    models,
    new_job,
    report,
    schedule_forms,
    schedules,
    tenants,
    trials,
    webhooks,
)
for part in _PAGES:
    router.include_router(part)
