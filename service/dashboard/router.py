"""All pages."""

from __future__ import annotations

from fastapi import APIRouter

from service.dashboard.assets import router as assets
from service.dashboard.jobs import router as jobs
from service.dashboard.overview import router as overview
from service.dashboard.report import router as report
from service.dashboard.signing_in import router as signing_in

router = APIRouter(include_in_schema=False)
for part in (assets, signing_in, overview, jobs, report):
    router.include_router(part)
